"""To which executable a process belongs, when to look at a cell again, what to kill in it, and how nice its
processes are. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from skerry.model.cells import CellLimits
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.protocol import INIT_LEAF

# What a cell may allocate meanwhile, at the most, if it does so as fast as a program does.
_BYTES_PER_S: Final = 1 << 30
_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 0.25
_ASLEEP_S: Final = 0.5
_ASLEEP_AFTER_S: Final = 2.0
_STEP: Final = 1.25  # of the kernel, in cpu, from one niceness to the next
_MOST: Final = 19


def pause_s(used: int, limit: int) -> float:
    """How long a cell that uses `used` bytes of `limit` need not be looked at."""
    return min(max((limit - used) / _BYTES_PER_S, _SHORTEST_S), _LONGEST_S)


def idle_pause_s(idle_s: float) -> float:
    """How long one need not be looked at in which nothing has run for `idle_s`."""
    return _LONGEST_S if idle_s < _ASLEEP_AFTER_S else _ASLEEP_S


def leaves_of(processes: Iterable[tuple[int, int, int]], leaves: Mapping[int, str]) -> dict[int, str]:
    """The leaf of each process, by its pid. `processes` are the pid, parent and tag of each, parents first,
    and `leaves` are by their tags.

    Who lowered its tag, as a Skerry in a cell does for its own, is where its parent is. An orphan is where
    it can have been: a tag is never raised. It has none if there are several such leaves."""
    found: dict[int, str] = {}
    for pid, parent, tag in processes:
        leaf = leaves.get(tag) or found.get(parent)
        if leaf is None:
            possible = [each for higher, each in leaves.items() if higher > tag and each != INIT_LEAF]
            leaf = possible[0] if len(possible) == 1 else None
        if leaf is not None:
            found[pid] = leaf
    return found


def victim(used: Mapping[int, int], limit: int) -> int | None:
    """The process to kill in a cell of these processes, with the memory of each: the largest, as the kernel
    does. None if they fit."""
    if sum(used.values()) <= limit or not used:
        return None
    return max(used, key=lambda pid: (used[pid], pid))


def niceness(limits: CellLimits) -> int:
    """For the share of a cell with these limits. A share above the usual one cannot be had."""
    weight = limits.cpu_weight
    if weight is None and limits.cpu_shares is not None:
        weight = translation.weight_from_shares(limits.cpu_shares)
    if weight is None or weight >= translation.USUAL_WEIGHT:
        return 0
    return min(round(math.log(translation.USUAL_WEIGHT / weight, _STEP)), _MOST)
