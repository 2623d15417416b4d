"""The memory of a process as the kernel lists it, and how it is stored in a template and mapped again.

Pure: text in, lists of system calls out. `template_code` makes the calls, `python_template` says when. A
template is one file in memory: a head, the calls that map it, then pages. Private memory is stored; text of
programs and libraries, which nothing has written to, is mapped from its files again, and so shared with
everybody who uses them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

PAGE: Final = 4096
# Where the calls are while they are made: far from where the kernel maps anything by itself.
BASE: Final = 0x2000_0000_0000
SIZE: Final = 0x20_0000
_LOWEST: Final = 0x1_0000
# Untouched memory of at least this size is reserved again, and not stored.
_LARGE: Final = 32 * 1024 * 1024

READ: Final = 1
WRITE: Final = 2
EXEC: Final = 4
_SHARED: Final = 0x01
_PRIVATE: Final = 0x02
_FIXED: Final = 0x10
_ANONYMOUS: Final = 0x20
_NO_RESERVE: Final = 0x4000
_AT_FDCWD: Final = -100
_CLOEXEC: Final = 0o2000000
_MASK_BYTES: Final = 8
# Flags of regions that a copy cannot have: locked, not copied by a fork, wiped by it, huge pages, devices,
# page frames of drivers, and those that a userfaultfd handles.
_ODD_FLAGS: Final = frozenset({"lo", "dc", "wf", "ht", "io", "pf", "um", "uw"})

# Numbers of system calls on x86_64.
CLOSE: Final = 3
MMAP: Final = 9
MPROTECT: Final = 10
MUNMAP: Final = 11
BRK: Final = 12
SIGACTION: Final = 13
PREAD: Final = 17
PWRITE: Final = 18
OPENAT: Final = 257


class NoTemplate(Exception):
    """A process cannot be a template, or cannot be made from one; the text says why."""


class Region(NamedTuple):
    """A mapping, as in /proc/self/smaps."""

    start: int
    end: int
    protection: int
    is_shared: bool
    offset: int
    name: str  # a path, or a name in brackets, or empty
    touched: int  # bytes of it that are in memory, or swapped
    own: int  # of these, what is private to the process
    flags: frozenset[str] = frozenset()

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def is_file(self) -> bool:
        return self.name.startswith("/")


class Call(NamedTuple):
    """A system call. A text is passed by its address."""

    number: int
    arguments: tuple[int | bytes, ...]


class MemoryPlan(NamedTuple):
    """How to store a process, and how to map it again."""

    store: list[Call]
    restore: list[Call]
    files: list[str]  # that must be the same then
    size: int  # of the template


def parse(smaps: str) -> list[Region]:
    """Regions in the order of their addresses. Raises NoTemplate."""
    regions: list[Region] = []
    for line in smaps.splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            regions.append(_head(first, rest))
            continue
        if not regions:
            raise NoTemplate("the list of its memory cannot be read")
        last = regions[-1]
        if first in ("Rss:", "Swap:"):
            regions[-1] = last._replace(touched=last.touched + _bytes(rest))
        if first in ("Anonymous:", "Swap:"):
            regions[-1] = regions[-1]._replace(own=regions[-1].own + _bytes(rest))
        elif first == "VmFlags:":
            regions[-1] = last._replace(flags=frozenset(rest.split()))
    return regions


def _head(addresses: str, rest: str) -> Region:
    try:
        start, end = (int(each, 16) for each in addresses.split("-"))
        letters, offset, _device, _inode, *name = rest.split(maxsplit=4)
    except ValueError:
        raise NoTemplate("the list of its memory cannot be read") from None
    protection = sum(
        value for letter, value in zip("rwx", (READ, WRITE, EXEC), strict=True) if letter in letters
    )
    text = name[0].strip() if name else ""
    return Region(start, end, protection, letters.endswith("s"), int(offset, 16), text, 0, 0)


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def is_kernels(region: Region) -> bool:
    """True for what the kernel maps into every process, at the same address in every fork."""
    return region.name.startswith("[v")


def plan(
    regions: list[Region], *, image: int, data_at: int, heap_end: int, actions: dict[int, bytes]
) -> MemoryPlan:
    """Store `regions` from `data_at` on in the file that is open as `image`, the last descriptor of the
    process of a template and of a copy alike. `actions` are those of signals. Raises NoTemplate."""
    first_free = image + 1
    own = [each for each in regions if not is_kernels(each) and not BASE <= each.start < BASE + SIZE]
    store: list[Call] = []
    restore = [Call(BRK, (heap_end,))]
    by_file: dict[str, list[Call]] = {}
    late: list[Call] = []
    at = data_at
    for region in own:
        _check(region)
        target = (region.start, region.length, region.protection)
        if region.is_file and (region.is_shared or not (region.protection & WRITE or region.own)):
            kind = _SHARED if region.is_shared else _PRIVATE
            mapping = Call(MMAP, (*target, kind | _FIXED, first_free, region.offset))
            by_file.setdefault(region.name, []).append(mapping)
            continue
        if not region.protection & READ or (not region.touched and region.length >= _LARGE):
            flags = _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE
            restore.append(Call(MMAP, (*target, flags, -1, 0)))
            continue
        store.append(Call(PWRITE, (image, region.start, region.length, at)))
        if region.name == "[stack]":  # its mapping stays, since it can grow
            late.append(Call(PREAD, (image, region.start, region.length, at)))
        elif region.protection & EXEC:
            restore += _restore_code(region, image, at)
        else:
            restore.append(Call(MMAP, (*target, _PRIVATE | _FIXED, image, at)))
        at += region.length
    for name, mappings in by_file.items():
        restore.append(Call(OPENAT, (_AT_FDCWD, name.encode(), _CLOEXEC)))
        restore += [*mappings, Call(CLOSE, (first_free,))]
    # Last: every page that the kernel writes to by itself is mapped at any moment.
    restore += [Call(MUNMAP, (start, end - start)) for start, end in _gaps(regions)]
    restore += [Call(SIGACTION, (number, action, 0, _MASK_BYTES)) for number, action in actions.items()]
    return MemoryPlan(store, [*restore, *late, Call(CLOSE, (image,))], list(by_file), at)


def _check(region: Region) -> None:
    if region.flags & _ODD_FLAGS:
        raise NoTemplate("it uses memory that cannot be copied")
    if region.is_shared and (region.protection & WRITE or not region.is_file):
        raise NoTemplate("it shares memory with other processes")
    if region.is_file and (
        region.name.endswith(" (deleted)") or region.name.startswith(("/memfd:", "/dev/"))
    ):
        raise NoTemplate(f"it maps {region.name}")
    if "\\" in region.name or "\n" in region.name:
        raise NoTemplate("it maps a file with an unusual name")
    if (
        not region.is_file
        and region.name not in ("", "[heap]", "[stack]")
        and not region.name.startswith("[anon")
    ):
        raise NoTemplate(f"it maps {region.name}")
    if region.own and not region.protection & READ:
        raise NoTemplate("it has memory that it cannot read")


def _restore_code(region: Region, image: int, at: int) -> Iterator[Call]:
    """Code that was written to memory, which may not be executed from a file."""
    writable = _PRIVATE | _FIXED | _ANONYMOUS
    yield Call(MMAP, (region.start, region.length, READ | WRITE, writable, -1, 0))
    yield Call(PREAD, (image, region.start, region.length, at))
    yield Call(MPROTECT, (region.start, region.length, region.protection))


def _gaps(regions: list[Region]) -> Iterator[tuple[int, int]]:
    """Addresses below the stack at which there is nothing, and where a copy may have something."""
    stack = next((each.start for each in regions if each.name == "[stack]"), 0)
    taken = [(each.start, each.end) for each in regions if each.start < stack]
    taken = sorted({*taken, (BASE, BASE + SIZE)})
    for before, after in itertools.pairwise([(0, _LOWEST), *taken]):
        if before[1] < after[0]:
            yield before[1], after[0]
