"""Named sets of capabilities, and how a process is held to one."""

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

# `default` lets root be root over the files and processes of its own cell. What reaches past a cell is not in
# it: nothing of administration, devices, raw network, tracing or time.
SETS: Final[dict[str, frozenset[str]]] = {
    "none": frozenset(),
    "default": frozenset(_NUMBERS),
}


_MASKS: Final = {name: sum(1 << _NUMBERS[one] for one in members) for name, members in SETS.items()}

# What programs that this process runs can still have. Inherited by a fork, as the kernel's own set is.
_in_reach: list[int] = []


def mask_of(name: str) -> int:
    """The set called `name`, as the kernel's bit mask."""
    return _MASKS[name]


def begin() -> None:
    """In the launcher: learn which there are, and let no program have any by inheritance."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        _in_reach[:] = range(int(file.read()) + 1)
    syscalls.clear_inheritable_capabilities()


def bound_to_sets() -> None:
    """Take out of reach, for good, what is in no set; for an init, and so for all that it forks.

    Only programs that are run later are held by this: the init keeps what it has.
    """
    bound_to(sum(1 << number for number in _NUMBERS.values()))


def bound_to(mask: int) -> None:
    """No program that this process runs from now on can have more than `mask`."""
    for number in out_of(mask):
        syscalls.drop_from_bounding_set(number)
    _in_reach[:] = [number for number in _in_reach if mask >> number & 1]


def out_of(mask: int) -> list[int]:
    """What programs that this process runs can have beyond `mask`."""
    return [number for number in _in_reach if not mask >> number & 1]
