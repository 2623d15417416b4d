"""Which ids of the machine the user namespace of a node has: the user's own as 0, then those of /etc/subuid.

Pure. `skerry.node.rootless.holder` applies the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

# Of what is assigned, no more is mapped: images have ids below it, and cells need one each.
MAX_IDS: Final = 1 << 20


class IdRange(NamedTuple):
    """Ids that a user was assigned, of a line of /etc/subuid or /etc/subgid."""

    first: int
    length: int


class IdMap(NamedTuple):
    """Rows of a map: the first id inside, the first id outside, and how many."""

    rows: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """How many ids it has."""
        return sum(length for _, _, length in self.rows)

    @property
    def arguments(self) -> tuple[str, ...]:
        """For newuidmap and newgidmap."""
        return tuple(str(number) for row in self.rows for number in row)

    @property
    def text(self) -> str:
        """For /proc/PID/uid_map and gid_map."""
        return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in self.rows)


def parse_ranges(text: str, user: str, uid: int) -> tuple[IdRange, ...]:
    """The ranges of a user in /etc/subuid or /etc/subgid, which name users by name or number. Other lines,
    also invalid ones, are skipped."""
    ranges = []
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if owner not in (user, str(uid)) or not (first.isdecimal() and count.isdecimal()):
            continue
        if int(count):
            ranges.append(IdRange(int(first), int(count)))
    return tuple(ranges)


def single(own: int) -> IdMap:
    """The own id alone, which needs no help."""
    return IdMap(((0, own, 1),))


def with_ranges(own: int, ranges: Iterable[IdRange]) -> IdMap:
    """The own id as 0, and the ranges one after the other from 1 on."""
    rows = [(0, own, 1)]
    inside = 1
    for first, count in ranges:
        taken = min(count, MAX_IDS - inside)
        if taken > 0:
            rows.append((inside, first, taken))
            inside += taken
    return IdMap(tuple(rows))
