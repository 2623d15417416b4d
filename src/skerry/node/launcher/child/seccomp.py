"""The seccomp filter of executables: an assembler for BPF, and the program.

It allows the calls in the list (`skerry.node.kernel.syscall_numbers`) and denies all others with EPERM. Calls
newer than the list return ENOSYS, as in an older kernel, and so does clone3. A process that uses the call
numbers of another architecture is killed, since the list does not apply to those.

The program finds a number by binary search: some eight comparisons for any call instead of hundreds, and no
jump is longer than the limit of 255 instructions.
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

# Offsets in struct seccomp_data: number, architecture, instruction pointer, six arguments.
NUMBER_AT: Final = 0
MACHINE_AT: Final = 4
FIRST_ARGUMENT_AT: Final = 16  # its lower half, which is enough for the calls that are checked

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_ALLOWED, _DENIED, _ABSENT = "allowed", "refused", "absent"
_Step = tuple[int, int, str, str] | str  # operation, value, label if true, label if not; or a label


class _Range(NamedTuple):
    """Numbers of calls, up to `last`, with the same verdict."""

    last: int
    verdict: str  # one of the above, or the name of a call that is checked by its argument


def default_filter(machine: str = kernel_syscalls.MACHINE) -> bytes:
    """The program for `machine`. Raises LookupError for an unsupported architecture."""
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
    """The audit number of `machine`. Raises LookupError for an unsupported one."""
    if machine not in _AUDIT:
        raise LookupError(f"no system call filter for {machine}: there is one for {', '.join(_AUDIT)}")
    return _AUDIT[machine]


def _ranges(machine: str) -> list[_Range]:
    verdicts = dict.fromkeys(syscall_numbers.allowed(machine).values(), _ALLOWED)
    verdicts |= {number: name for name, number in syscall_numbers.checked(machine).items()}
    verdicts[syscall_numbers.CLONE3] = _ABSENT
    every = [verdicts.get(number, _DENIED) for number in range(syscall_numbers.LAST_LISTED + 1)] + [_ABSENT]
    ends = [last for last in range(len(every)) if last + 1 == len(every) or every[last + 1] != every[last]]
    return [_Range(last, every[last]) for last in ends]


def _search(ranges: list[_Range]) -> Iterator[_Step]:
    """Find the range of a number by binary search, and return its verdict."""
    if len(ranges) == 1:
        yield from _verdict(ranges[0].verdict)
        return
    middle = len(ranges) // 2
    label = f"above {ranges[middle - 1].last}"
    yield (JUMP_GREATER, ranges[middle - 1].last, label, "")
    yield from _search(ranges[:middle])
    yield label
    yield from _search(ranges[middle:])


def _verdict(name: str) -> Iterator[_Step]:
    if name in _RETURN_VALUES:
        yield (RETURN, _RETURN_VALUES[name], "", "")
        return
    allowed, denied = f"{name} is allowed", f"{name} is refused"
    yield (LOAD, FIRST_ARGUMENT_AT, "", "")
    if name == "clone":
        yield (JUMP_SET, syscall_numbers.NAMESPACES, denied, "")
    elif name == "socket":
        yield (JUMP_GREATER, syscall_numbers.FIRST_DENIED_FAMILY - 1, denied, "")
    else:
        yield (JUMP_EQUAL, syscall_numbers.QUERY_PERSONALITY, allowed, "")
        yield (JUMP_SET, kernel_syscalls.ALL & ~syscall_numbers.PERSONALITIES, denied, "")
    yield allowed
    yield (RETURN, ALLOW, "", "")
    yield denied
    yield (RETURN, _RETURN_VALUES[_DENIED], "", "")


_RETURN_VALUES: Final = {
    _ALLOWED: ALLOW,
    _DENIED: ERRNO | errno.EPERM,
    _ABSENT: ERRNO | errno.ENOSYS,
}


def assemble(steps: list[_Step]) -> bytes:
    """Turn instructions with labels into BPF; a jump without a label goes to the next instruction."""
    positions: dict[str, int] = {}
    instructions: list[tuple[int, int, str, str]] = []
    for step in steps:
        if isinstance(step, str):
            positions[step] = len(instructions)
        else:
            instructions.append(step)
    packed = bytearray()
    for position, (operation, value, if_true, if_not) in enumerate(instructions):
        jumps = [positions[label] - position - 1 if label else 0 for label in (if_true, if_not)]
        if not all(0 <= jump <= 255 for jump in jumps):
            raise ValueError("a filter jumps forward, by at most 255 instructions")
        packed += struct.pack("=HBBI", operation, *jumps, value)
    return bytes(packed)
