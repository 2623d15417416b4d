"""Named sets of capabilities, and how a process is limited to one."""

from __future__ import annotations

from typing import Final

from skerry.node.kernel import syscalls

_NUMBERS: Final = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "net_bind_service": 10,
}

# `default` gives root its privileges over files and processes of its own cell. It contains nothing that
# reaches
# past a cell: no administration, devices, raw network, tracing or time.
SETS: Final[dict[str, frozenset[str]]] = {
    "none": frozenset(),
    "default": frozenset(_NUMBERS),
}


_MASKS: Final = {name: sum(1 << _NUMBERS[one] for one in members) for name, members in SETS.items()}

# The bounding set of programs that this process runs. Inherited by a fork, as the kernel's own set is.
_in_reach: list[int] = []


def mask_of(name: str) -> int:
    """The set called `name`, as a bit mask."""
    return _MASKS[name]


def begin() -> None:
    """In the launcher: read the kernel's capabilities, and clear the inheritable set."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        _in_reach[:] = range(int(file.read()) + 1)
    syscalls.clear_inheritable_capabilities()


def bound_to_sets() -> None:
    """Drop everything outside the named sets from the bounding set; for an init and its forks.

    This affects only programs that are executed later: the init keeps its own capabilities.
    """
    bound_to(sum(1 << number for number in _NUMBERS.values()))


def bound_to(mask: int) -> None:
    """Limit the programs that this process executes to `mask`."""
    for number in out_of(mask):
        syscalls.drop_from_bounding_set(number)
    _in_reach[:] = [number for number in _in_reach if mask >> number & 1]


def out_of(mask: int) -> list[int]:
    """Capabilities in the bounding set beyond `mask`."""
    return [number for number in _in_reach if not mask >> number & 1]
