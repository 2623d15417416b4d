"""Translates limits to the kernel's files and back, for cgroup v2 and v1. Pure and total.

| limit      | v2                                  | v1                                                    |
|------------|-------------------------------------|-------------------------------------------------------|
| cpu_weight | `cpu.weight` 1..10000, usually 100  | `cpu.shares`: weight * 1024 / 100, usually 1024       |
| cpu_shares | `cpu.weight`: shares * 100 / 1024   | `cpu.shares` 2..262144, exactly                       |
| cpu_quota  | `cpu.max`, micro-seconds per period | `cpu.cfs_period_us`, `cpu.cfs_quota_us`               |
| cpus, mems | `cpuset.cpus`, `cpuset.mems`        | the same, and never empty: without limit the parent's |
| memory     | `memory.max`, and no swap           | `memory.limit_in_bytes`, and the same with swap       |
| pids       | `pids.max`                          | `pids.max`                                            |

Both formulas of weight and shares are the kernel's own, so weights survive the conversion to shares and back,
and shares are rounded only where there are only weights. A period is 100 ms; quotas under 10 milli-cores, too
small for that, have one of a second. Values that others wrote are clamped to the range of `CellLimits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from skerry.model.cells import CellLimits
from skerry.model.resources import MAX_AMOUNT, Megabytes, Millicores

MEGABYTE = 1024 * 1024
USUAL_WEIGHT = 100
USUAL_SHARES = 1024
_PERIOD_US = 100_000
_LONG_PERIOD_US = 1_000_000
_LEAST_QUOTA_US = 1_000  # the kernel's minimum
_UNLIMITED_V1 = 2**62  # memory.limit_in_bytes is the largest multiple of a page when there is no limit
_LARGEST_PAGE = 64 * 1024

ReadFile = Callable[[str], str]  # the text of one file of the group; empty if it does not exist


class LimitSetting(NamedTuple):
    """One file to write, for the field `limit` of `CellLimits`."""

    file: str
    value: str
    limit: str
    optional: bool = False  # the file may be missing: some kernels lack swap accounting


NO_QUOTA_V2 = LimitSetting("cpu.max", f"max {_PERIOD_US}", "cpu_quota")
NO_QUOTA_V1 = LimitSetting("cpu.cfs_quota_us", "-1", "cpu_quota")


def weight_from_shares(shares: int) -> int:
    return min(max((shares * USUAL_WEIGHT + USUAL_SHARES // 2) // USUAL_SHARES, 1), 10_000)


def shares_from_weight(weight: int) -> int:
    return max((weight * USUAL_SHARES + USUAL_WEIGHT // 2) // USUAL_WEIGHT, 2)


def shares_of(limits: CellLimits) -> int | None:
    """The cell's cpu shares, whichever unit they were given in."""
    if limits.cpu_weight is not None:
        return shares_from_weight(limits.cpu_weight)
    return limits.cpu_shares


def to_v2(limits: CellLimits) -> list[LimitSetting]:
    settings = []
    if limits.cpu_weight is not None:
        settings.append(LimitSetting("cpu.weight", str(limits.cpu_weight), "cpu_weight"))
    if limits.cpu_shares is not None:
        settings.append(LimitSetting("cpu.weight", str(weight_from_shares(limits.cpu_shares)), "cpu_shares"))
    if limits.cpu_quota is not None:
        quota, period = _quota(limits.cpu_quota)
        settings.append(LimitSetting("cpu.max", f"{quota} {period}", "cpu_quota"))
    settings += _lists(limits)
    if limits.memory is not None:
        settings.append(LimitSetting("memory.max", str(limits.memory * MEGABYTE), "memory"))
        settings.append(LimitSetting("memory.swap.max", "0", "memory", optional=True))
    if limits.pids is not None:
        settings.append(LimitSetting("pids.max", str(limits.pids), "pids"))
    return settings


def from_v2(read: ReadFile) -> CellLimits:
    weight = _number(read("cpu.weight"))
    quota, _, period = read("cpu.max").partition(" ")
    return CellLimits(
        cpu_weight=None if weight in (None, USUAL_WEIGHT) else _within(weight, 1, 10_000),
        cpu_quota=_millicores(_number(quota), _number(period)),
        cpus=_list(read("cpuset.cpus")),
        mems=_list(read("cpuset.mems")),
        memory=_megabytes(_number(read("memory.max"))),
        pids=_count(read("pids.max")),
    )


def to_v1(limits: CellLimits, current_memory: str = "") -> list[LimitSetting]:
    """In the order that the kernel requires: a period before its quota, memory before memory with swap.

    `current_memory` is the current limit. To raise it, the one with swap is raised first.
    """
    settings = []
    shares = shares_of(limits)
    if shares is not None:
        name = "cpu_weight" if limits.cpu_weight is not None else "cpu_shares"
        settings.append(LimitSetting("cpu.shares", str(shares), name))
    if limits.cpu_quota is not None:
        quota, period = _quota(limits.cpu_quota)
        settings.append(LimitSetting("cpu.cfs_period_us", str(period), "cpu_quota"))
        settings.append(LimitSetting("cpu.cfs_quota_us", str(quota), "cpu_quota"))
    settings += _lists(limits)
    if limits.memory is not None:
        size = str(limits.memory * MEGABYTE)
        both = [
            LimitSetting("memory.limit_in_bytes", size, "memory"),
            LimitSetting("memory.memsw.limit_in_bytes", size, "memory", optional=True),
        ]
        current = _number(current_memory)
        settings += reversed(both) if current is not None and current < int(size) else both
    if limits.pids is not None:
        settings.append(LimitSetting("pids.max", str(limits.pids), "pids"))
    return settings


def from_v1(read: ReadFile, read_parent: ReadFile) -> CellLimits:
    """cpus and mems that equal the parent's are no limit of the cell's own."""
    shares = _within(_number(read("cpu.shares")) or USUAL_SHARES, 2, 262_144)
    weight = weight_from_shares(shares)
    is_weight = shares_from_weight(weight) == shares
    memory = _number(read("memory.limit_in_bytes"))
    cpus, mems = _list(read("cpuset.cpus")), _list(read("cpuset.mems"))
    return CellLimits(
        cpu_weight=weight if is_weight and shares != USUAL_SHARES else None,
        cpu_shares=None if is_weight else shares,
        cpu_quota=v1_quota(read),
        cpus="" if numbers(cpus) == numbers(_list(read_parent("cpuset.cpus"))) else cpus,
        mems="" if numbers(mems) == numbers(_list(read_parent("cpuset.mems"))) else mems,
        memory=_megabytes(memory) if memory is not None and memory < _UNLIMITED_V1 else None,
        pids=_count(read("pids.max")),
    )


def v1_quota(read: ReadFile) -> Millicores | None:
    return _millicores(_number(read("cpu.cfs_quota_us")), _number(read("cpu.cfs_period_us")))


def tightest(chain: Iterable[CellLimits]) -> CellLimits:
    """The effective limits, from those of a cell and its ancestors, the cell's own first."""
    own, *above = chain
    everyone = [own, *above]
    return CellLimits(
        cpu_weight=own.cpu_weight,
        cpu_shares=own.cpu_shares,
        cpu_quota=min((each.cpu_quota for each in everyone if each.cpu_quota is not None), default=None),
        cpus=next((each.cpus for each in everyone if each.cpus), ""),
        mems=next((each.mems for each in everyone if each.mems), ""),
        memory=min((each.memory for each in everyone if each.memory is not None), default=None),
        pids=min((each.pids for each in everyone if each.pids is not None), default=None),
    )


def is_set(setting: LimitSetting, text: str) -> bool:
    """True if `text`, read back, equals the written value, up to the kernel's rounding to pages."""
    actual, expected = text.strip(), setting.value
    if setting.limit in ("cpus", "mems"):
        return numbers(actual) == numbers(expected)
    if setting.limit == "memory" and actual.isdecimal():
        return 0 <= int(expected) - int(actual) < _LARGEST_PAGE
    return actual == expected


def numbers(text: str) -> frozenset[int]:
    """The members of a list such as `0-3,6`."""
    found: set[int] = set()
    for part in _list(text).split(","):
        first, dash, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def _lists(limits: CellLimits) -> list[LimitSetting]:
    lists = (("cpus", limits.cpus), ("mems", limits.mems))
    return [LimitSetting(f"cpuset.{name}", text, name) for name, text in lists if text]


def _quota(millicores: int) -> tuple[int, int]:
    quota = millicores * _PERIOD_US // 1000
    if quota >= _LEAST_QUOTA_US:
        return quota, _PERIOD_US
    return millicores * _LONG_PERIOD_US // 1000, _LONG_PERIOD_US


def period_s(millicores: int) -> float:
    """The kernel's accounting period for that quota."""
    return _quota(millicores)[1] / 1e6


def _millicores(quota: int | None, period: int | None) -> Millicores | None:
    if quota is None or quota < 0 or not period:
        return None
    return Millicores(_within(quota * 1000 // period, 1, MAX_AMOUNT))


def _megabytes(size: int | None) -> Megabytes | None:
    return None if size is None else Megabytes(_within(size // MEGABYTE, 1, MAX_AMOUNT))


def _count(text: str) -> int | None:
    number = _number(text)
    return None if number is None else _within(number, 1, MAX_AMOUNT)


def _number(text: str) -> int | None:
    """A number from the kernel; None for `max` and a missing file."""
    try:
        return int(text)
    except ValueError:
        return None


def _list(text: str) -> str:
    return text.strip()


def _within(number: int | None, least: int, most: int) -> int:
    return least if number is None else min(max(number, least), most)
