"""Confines the unpacker process: one folder, few capabilities, few system calls, bounded memory.

A layer is untrusted and read by decompressors in C. Whoever takes over this process through one of them is
confined to the folder of the layer, and cannot open, run, trace, mount or connect to anything else.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from skerry.node.kernel import syscalls
from skerry.node.layers.unpacker import seccomp

# By number: chown, dac_override, fowner, fsetid, sys_admin, mknod, setfcap. The kernel requires the fifth for
# trusted.* attributes; the filter denies all its other uses.
_CAPABILITIES: Final = sum(1 << number for number in (0, 1, 3, 4, 21, 27, 31))
_MEMORY_BYTES: Final = 2 << 30  # of address space: windows of decompressors, names of folders and links
_OPEN_FILES: Final = 128
ROOT: Final = 3  # the descriptor of the layer's folder after `enter`


def enter(root: int) -> None:
    """Make the folder that is open as `root` the root; it is open as `ROOT` from now on.

    Call it before there is a second thread: each has its own capabilities and filters. Raises OSError.
    """
    os.fchdir(root)
    os.chroot(".")
    if root != ROOT:
        os.dup2(root, ROOT, inheritable=False)
    syscalls.close_from(ROOT + 1)
    os.umask(0)
    for kind, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    syscalls.set_capabilities(_CAPABILITIES)
    syscalls.set_no_new_privileges()
    syscalls.SeccompFilter(seccomp.unpacking_filter()).install()
