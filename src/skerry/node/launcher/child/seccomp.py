"""The filter on the system calls of executables: an assembler for its few instructions, and the program.

It allows what is in the list (`skerry.node.kernel.syscall_numbers`) and refuses everything else with EPERM.
Calls that did not exist when the list was written are answered as an older kernel would, with ENOSYS, and so
is clone3. A process that calls by another machine's numbers is killed, since for those the list would be
wrong.

The program looks for a number as one would in a sorted list: some eight comparisons for any call, where one
after the other would be hundreds, and no jump is longer than the 255 instructions that one can be.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from skerry.node.kernel import syscall_numbers
from skerry.node.kernel import syscalls as kernel_syscalls

ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000
KILL_PROCESS: Final = 0x80000000

LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
JUMP_EQUAL: Final = 0x15
JUMP_GREATER: Final = 0x25
JUMP_SET: Final = 0x45
RETURN: Final = 0x06

# Offsets in what the kernel shows to a filter: number, machine, instruction pointer, six arguments.
NUMBER_AT: Final = 0
MACHINE_AT: Final = 4
FIRST_ARGUMENT_AT: Final = 16  # its lower half, which is all that those that are looked at have

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_ALLOWED, _REFUSED, _ABSENT = "allowed", "refused", "absent"
_Step = tuple[int, int, str, str] | str  # operation, value, label if true, label if not; or a label


class _Range(NamedTuple):
    """Numbers of calls, up to `last`, for which the answer is the same."""

    last: int
    answer: str  # one of the above, or the name of a call that is looked at by its argument


def default_filter(machine: str = kernel_syscalls.MACHINE) -> bytes:
    """The program for `machine`. Raises LookupError for a processor whose numbers are not known here."""
    audit = audit_of(machine)
    return assemble(
        [
            (LOAD, MACHINE_AT, "", ""),
            (JUMP_EQUAL, audit, "ours", ""),
            (RETURN, KILL_PROCESS, "", ""),
            "ours",
            (LOAD, NUMBER_AT, "", ""),
            *_search(_ranges(machine)),
        ]
    )


def audit_of(machine: str) -> int:
    """How the kernel names `machine` to filters. Raises LookupError for one that is not known here."""
    if machine not in _AUDIT:
        raise LookupError(f"no system call filter for {machine}: there is one for {', '.join(_AUDIT)}")
    return _AUDIT[machine]


def _ranges(machine: str) -> list[_Range]:
    answers = dict.fromkeys(syscall_numbers.allowed(machine).values(), _ALLOWED)
    answers |= {number: name for name, number in syscall_numbers.checked(machine).items()}
    answers[syscall_numbers.CLONE3] = _ABSENT
    every = [answers.get(number, _REFUSED) for number in range(syscall_numbers.LAST_KNOWN + 1)] + [_ABSENT]
    ends = [last for last in range(len(every)) if last + 1 == len(every) or every[last + 1] != every[last]]
    return [_Range(last, every[last]) for last in ends]


def _search(ranges: list[_Range]) -> Iterator[_Step]:
    """Find the range of a number that is in one of them, and answer."""
    if len(ranges) == 1:
        yield from _answer(ranges[0].answer)
        return
    middle = len(ranges) // 2
    label = f"above {ranges[middle - 1].last}"
    yield (JUMP_GREATER, ranges[middle - 1].last, label, "")
    yield from _search(ranges[:middle])
    yield label
    yield from _search(ranges[middle:])


def _answer(name: str) -> Iterator[_Step]:
    if name in _ANSWERS:
        yield (RETURN, _ANSWERS[name], "", "")
        return
    allowed, refused = f"{name} is allowed", f"{name} is refused"
    yield (LOAD, FIRST_ARGUMENT_AT, "", "")
    if name == "clone":
        yield (JUMP_SET, syscall_numbers.NAMESPACES, refused, "")
    elif name == "socket":
        yield (JUMP_GREATER, syscall_numbers.FIRST_REFUSED_FAMILY - 1, refused, "")
    else:
        yield (JUMP_EQUAL, syscall_numbers.TELL_PERSONALITY, allowed, "")
        yield (JUMP_SET, kernel_syscalls.ALL & ~syscall_numbers.PERSONALITIES, refused, "")
    yield allowed
    yield (RETURN, ALLOW, "", "")
    yield refused
    yield (RETURN, _ANSWERS[_REFUSED], "", "")


_ANSWERS: Final = {
    _ALLOWED: ALLOW,
    _REFUSED: ERRNO | errno.EPERM,
    _ABSENT: ERRNO | errno.ENOSYS,
}


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
