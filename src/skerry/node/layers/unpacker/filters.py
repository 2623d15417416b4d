"""The filter on the system calls of the process that unpacks: a list of what is allowed, and nothing else.

The opposite of the filter of cells, since here it is known what will run. What Python needs to think and to
have a thread, and what `skerry.node.layers.unpacker.trees` does to files, always below a descriptor that is
open already: no call that takes a descriptor's place from outside, no socket, no program, no other process.
"""

from __future__ import annotations

import errno
from typing import Final

from skerry.node.launcher import kernel, seccomp

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL_PROCESS: Final = 0x80000000
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL: Final = 0x15
_JUMP_SET: Final = 0x45
_RETURN: Final = 0x06
_NUMBER_AT: Final = 0
_MACHINE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
_CLONE_THREAD: Final = 0x10000
_CLONE3: Final = 435

# Name: number on x86_64, number on aarch64.
ALLOWED: Final[dict[str, tuple[int, int]]] = {
    # descriptors
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fcntl": (72, 25),
    "lseek": (8, 62),
    # files
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "symlinkat": (266, 36),
    "linkat": (265, 37),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "getdents64": (217, 61),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "utimensat": (280, 88),
    "fsetxattr": (190, 7),
    # memory
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    # threads, time and the end
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "gettid": (186, 178),
    "getpid": (39, 172),
    "sched_yield": (24, 124),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "getrandom": (318, 278),
    "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "exit": (60, 93),
    "exit_group": (231, 94),
}


def unpacking_filter(machine: str = kernel.MACHINE) -> bytes:
    """The program for `machine`. Raises LookupError for a processor whose numbers are not known here."""
    known = seccomp.MACHINES.get(machine)
    if known is None:
        raise LookupError(f"no system call filter for {machine}: known are {', '.join(seccomp.MACHINES)}")
    return seccomp.assemble(
        [
            (_LOAD, _MACHINE_AT, "", ""),
            (_JUMP_EQUAL, known.audit, "ours", ""),
            (_RETURN, _KILL_PROCESS, "", ""),
            "ours",
            (_LOAD, _NUMBER_AT, "", ""),
            *((_JUMP_EQUAL, row[known.column], "allowed", "") for row in ALLOWED.values()),
            (_JUMP_EQUAL, known.clone, "clone", ""),
            (_JUMP_EQUAL, _CLONE3, "absent", "refused"),
            "clone",
            (_LOAD, _FIRST_ARGUMENT_AT, "", ""),
            (_JUMP_SET, _CLONE_THREAD, "allowed", "refused"),
            "allowed",
            (_RETURN, _ALLOW, "", ""),
            "absent",  # the C library makes threads by clone then, whose flags can be seen
            (_RETURN, _ERRNO | errno.ENOSYS, "", ""),
            "refused",
            (_RETURN, _ERRNO | errno.EPERM, "", ""),
        ]
    )
