"""System calls that no program in a cell or container may make, whatever a list of allowed ones says."""

from __future__ import annotations

from typing import Final

# Name: number on x86_64, number on aarch64; None where the machine has no such call.
DANGEROUS: Final[dict[str, tuple[int | None, int | None]]] = {
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


def dangerous(machine: str) -> dict[str, int]:
    """Those that `machine` has, with their numbers there."""
    column = ("x86_64", "aarch64").index(machine)
    return {name: row[column] for name, row in DANGEROUS.items() if row[column] is not None}  # type: ignore[misc]
