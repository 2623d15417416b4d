"""The walls around the process that unpacks: one folder, few capabilities, few system calls, bounded memory.

A layer is written by a stranger and read by decompressors in C. Whoever takes this process over through one
of them sits in the folder of the layer, which he may fill as he likes anyway, and has no way to open, run,
trace, mount or connect to anything else.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from skerry.node.kernel import syscalls
from skerry.node.layers.unpacker import seccomp

# By number: chown, dac_override, fowner, fsetid, sys_admin, mknod, setfcap. The fifth is what the kernel asks
# for trusted.* attributes; whatever else it is good for, the filter does not let through.
_CAPABILITIES: Final = sum(1 << number for number in (0, 1, 3, 4, 21, 27, 31))
_MEMORY_BYTES: Final = 2 << 30  # of addresses: windows of decompressors, and the names of folders and links
_OPEN_FILES: Final = 128
ROOT: Final = 3  # the descriptor of the layer's folder, from then on


def enter(root: int) -> None:
    """Go into the folder that is open as `root` and stay there; it is open as `ROOT` from now on.

    Called before there is a second thread: each has capabilities and filters of its own. Raises OSError.
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
