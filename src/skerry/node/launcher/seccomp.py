"""The filter on the system calls of executables: an assembler for its few instructions, and the list.

A list of what is refused, not of what is allowed: cells run programs that nobody has seen before. Refused is
what changes mounts, modules, time, keys or other processes, what hands a program a new namespace, and what
few programs need and many exploits begin with. Calls that did not exist when this was written are answered
as an older kernel would, with ENOSYS, and so is clone3, whose flags a filter cannot see: the C library
falls back to clone. A process that calls by another machine's numbers is killed, since for those the list
would be wrong.
"""

from __future__ import annotations

import errno
import struct
from typing import Final, NamedTuple

from skerry.node.launcher import kernel

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL_PROCESS: Final = 0x80000000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL: Final = 0x15
_JUMP_GREATER: Final = 0x25
_JUMP_SET: Final = 0x45
_RETURN: Final = 0x06

# Offsets in what the kernel shows to a filter: number, machine, instruction pointer, six arguments.
_NUMBER_AT: Final = 0
_MACHINE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16

_NAMESPACES: Final = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)
# Families of sockets that reach past every namespace: the kernel's ciphers, and a virtual machine's host.
_FAMILIES: Final = (38, 40)

_CLONE3: Final = 435
_LAST_KNOWN: Final = 466  # removexattrat, of Linux 6.13

# Name: number on x86_64, number on aarch64; None where the machine has no such call.
REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    # mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # namespaces and host names
    "unshare": (272, 97),
    "setns": (308, 268),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # the kernel itself
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "create_module": (174, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "finit_module": (313, 273),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "syslog": (103, 116),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    # time
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # ways around permissions, and favourites of exploits
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}


class Machine(NamedTuple):
    """What the filter must know of a processor's system calls."""

    column: int  # in REFUSED
    audit: int  # how the kernel names the machine to filters
    clone: int
    socket: int


MACHINES: Final = {
    "x86_64": Machine(0, 0xC000003E, 56, 41),
    "aarch64": Machine(1, 0xC00000B7, 220, 198),
}

_Step = tuple[int, int, str, str] | str  # operation, value, label if true, label if not; or a label


def default_filter(machine: str = kernel.MACHINE) -> bytes:
    """The program for `machine`. Raises LookupError for a processor whose numbers are not known here."""
    known = MACHINES.get(machine)
    if known is None:
        raise LookupError(f"no system call filter for {machine}: cells need one of {', '.join(MACHINES)}")
    numbers = [row[known.column] for row in REFUSED.values()]
    steps: list[_Step] = [
        (_LOAD, _MACHINE_AT, "", ""),
        (_JUMP_EQUAL, known.audit, "ours", ""),
        (_RETURN, _KILL_PROCESS, "", ""),
        "ours",
        (_LOAD, _NUMBER_AT, "", ""),
        (_JUMP_GREATER, _LAST_KNOWN, "absent", ""),
        (_JUMP_EQUAL, _CLONE3, "absent", ""),
        (_JUMP_EQUAL, known.clone, "clone", ""),
        (_JUMP_EQUAL, known.socket, "socket", ""),
        *((_JUMP_EQUAL, number, "refused", "") for number in numbers if number is not None),
        (_RETURN, _ALLOW, "", ""),
        "clone",
        (_LOAD, _FIRST_ARGUMENT_AT, "", ""),
        (_JUMP_SET, _NAMESPACES, "refused", "allow after arguments"),
        "socket",
        (_LOAD, _FIRST_ARGUMENT_AT, "", ""),
        *((_JUMP_EQUAL, family, "refused", "") for family in _FAMILIES),
        "allow after arguments",
        (_RETURN, _ALLOW, "", ""),
        "refused",
        (_RETURN, _ERRNO | errno.EPERM, "", ""),
        "absent",
        (_RETURN, _ERRNO | errno.ENOSYS, "", ""),
    ]
    return assemble(steps)


def assemble(steps: list[_Step]) -> bytes:
    """Instructions with labels turned into BPF; a jump without a label goes to the next instruction."""
    places: dict[str, int] = {}
    instructions: list[tuple[int, int, str, str]] = []
    for step in steps:
        if isinstance(step, str):
            places[step] = len(instructions)
        else:
            instructions.append(step)
    packed = bytearray()
    for place, (operation, value, if_true, if_not) in enumerate(instructions):
        jumps = [places[label] - place - 1 if label else 0 for label in (if_true, if_not)]
        if not all(0 <= jump <= 255 for jump in jumps):
            raise ValueError("a filter jumps forward, by at most 255 instructions")
        packed += struct.pack("=HBBI", operation, *jumps, value)
    return bytes(packed)
