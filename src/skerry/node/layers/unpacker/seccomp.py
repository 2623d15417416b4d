"""The seccomp filter of the unpacker: an allow-list.

Much shorter than that of cells, since the program is known: what Python needs to run with one thread, and
what `skerry.node.layers.unpacker.layer_writer` does to files, always below an open descriptor: no sockets, no
exec, no other processes.
"""

from __future__ import annotations

import errno
from typing import Final

from skerry.node.kernel import syscall_numbers
from skerry.node.kernel import syscalls as kernel_syscalls
from skerry.node.launcher.child import seccomp

_CLONE_THREAD: Final = 0x10000

# Named as in the list of cells, which has their numbers.
ALLOWED: Final = (
    # descriptors
    *("read", "write", "close", "fcntl", "lseek"),
    # files
    *("openat", "mkdirat", "mknodat", "symlinkat", "linkat", "unlinkat", "renameat", "renameat2", "fstat"),
    *("newfstatat", "getdents64", "fchown", "fchownat", "fchmod", "fchmodat", "utimensat", "fsetxattr"),
    # memory
    *("mmap", "mprotect", "munmap", "brk", "mremap", "madvise"),
    # threads, time and the end
    *("futex", "set_robust_list", "rseq", "gettid", "getpid", "sched_yield", "clock_gettime"),
    *("clock_nanosleep", "getrandom", "restart_syscall", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn"),
    *("exit", "exit_group"),
)


def unpacking_filter(machine: str = kernel_syscalls.MACHINE) -> bytes:
    """The program for `machine`. Raises LookupError for an unsupported architecture."""
    audit = seccomp.audit_of(machine)
    numbers = syscall_numbers.allowed(machine)
    return seccomp.assemble(
        [
            (seccomp.LOAD, seccomp.MACHINE_AT, "", ""),
            (seccomp.JUMP_EQUAL, audit, "ours", ""),
            (seccomp.RETURN, seccomp.KILL_PROCESS, "", ""),
            "ours",
            (seccomp.LOAD, seccomp.NUMBER_AT, "", ""),
            *((seccomp.JUMP_EQUAL, numbers[name], "allowed", "") for name in ALLOWED),
            (seccomp.JUMP_EQUAL, syscall_numbers.checked(machine)["clone"], "clone", ""),
            (seccomp.JUMP_EQUAL, syscall_numbers.CLONE3, "absent", "refused"),
            "clone",
            (seccomp.LOAD, seccomp.FIRST_ARGUMENT_AT, "", ""),
            (seccomp.JUMP_SET, _CLONE_THREAD, "allowed", "refused"),
            "allowed",
            (seccomp.RETURN, seccomp.ALLOW, "", ""),
            "absent",  # the C library then creates threads by clone, whose flags a filter can check
            (seccomp.RETURN, seccomp.ERRNO | errno.ENOSYS, "", ""),
            "refused",
            (seccomp.RETURN, seccomp.ERRNO | errno.EPERM, "", ""),
        ]
    )
