"""Limits as files: what is written reads back as the same limits, for v2 and v1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.cells import CellLimits
from skerry.model.resources import MAX_AMOUNT
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.limits import LimitSetting, ReadFile

FRESH_V1 = {
    "cpu.shares": "1024\n",
    "cpu.cfs_quota_us": "-1\n",
    "cpu.cfs_period_us": "100000\n",
    "cpuset.cpus": "0-3\n",
    "cpuset.mems": "0\n",
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.memsw.limit_in_bytes": "9223372036854771712\n",
    "pids.max": "max\n",
}
FRESH_V2 = {
    "cpu.weight": "100\n",
    "cpu.max": "max 100000\n",
    "cpuset.cpus": "\n",
    "cpuset.mems": "\n",
    "memory.max": "max\n",
    "pids.max": "max\n",
}


def optional(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | numbers


def limits_by(**unit: st.SearchStrategy[int | None]) -> st.SearchStrategy[CellLimits]:
    return st.builds(
        CellLimits,
        **unit,
        cpu_quota=optional(st.integers(1, MAX_AMOUNT)),
        cpus=st.sampled_from(["", "0", "1,3", "0-2"]),
        mems=st.sampled_from(["", "1"]),
        memory=optional(st.integers(1, MAX_AMOUNT)),
        pids=optional(st.integers(1, MAX_AMOUNT)),
    )


weighted = limits_by(cpu_weight=optional(st.integers(1, 10_000).filter(lambda w: w != 100)))
shared = limits_by(cpu_shares=optional(st.integers(2, 262_144)))


def group(fresh: dict[str, str], settings: list[LimitSetting]) -> ReadFile:
    """A group's files after the settings were written."""
    files = fresh | {setting.file: setting.value + "\n" for setting in settings}
    return lambda file: files.get(file, "")


@given(weighted)
def test_limits_written_to_v2_read_back_the_same(limits: CellLimits) -> None:
    assert translation.from_v2(group(FRESH_V2, translation.to_v2(limits))) == limits


@given(weighted)
def test_limits_written_to_v1_read_back_the_same(limits: CellLimits) -> None:
    files = group(FRESH_V1, translation.to_v1(limits))
    assert translation.from_v1(files, group(FRESH_V1, [])) == limits


@given(shared)
def test_shares_stand_in_v1_exactly_as_they_were_given(limits: CellLimits) -> None:
    files = group(FRESH_V1, translation.to_v1(limits))
    assert int(files("cpu.shares")) == (limits.cpu_shares or 1024)
    back = translation.from_v1(files, group(FRESH_V1, []))
    assert (translation.shares_of(back) or 1024) == (limits.cpu_shares or 1024)
    assert back.cpu_quota == limits.cpu_quota
    assert back.memory == limits.memory


@given(st.integers(1, 10_000))
def test_a_weight_survives_the_way_to_shares_and_back(weight: int) -> None:
    assert translation.weight_from_shares(translation.shares_from_weight(weight)) == weight


@given(st.integers(2, 262_144), st.integers(2, 262_144))
def test_more_shares_are_never_less_weight(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 1 <= translation.weight_from_shares(low) <= translation.weight_from_shares(high) <= 10_000


def test_the_usual_weight_is_the_usual_shares() -> None:
    assert translation.shares_from_weight(100) == 1024
    assert translation.weight_from_shares(1024) == 100
    assert translation.weight_from_shares(2) == 1
    assert translation.weight_from_shares(262_144) == 10_000


def test_a_fresh_group_has_no_limits_of_its_own() -> None:
    assert translation.from_v2(group(FRESH_V2, [])) == CellLimits()
    assert translation.from_v1(group(FRESH_V1, []), group(FRESH_V1, [])) == CellLimits()
    assert translation.to_v2(CellLimits()) == translation.to_v1(CellLimits()) == []


@given(st.integers(1, MAX_AMOUNT))
def test_every_quota_is_one_that_the_kernel_takes(millicores: int) -> None:
    [setting] = translation.to_v2(CellLimits(cpu_quota=millicores))  # type: ignore[arg-type]
    quota, period = map(int, setting.value.split())
    assert 1_000 <= quota < 2**44
    assert 1_000 <= period <= 1_000_000
    assert quota * 1000 == millicores * period


def test_a_quota_is_of_100_ms_unless_it_is_too_small_for_that() -> None:
    assert translation.to_v2(CellLimits(cpu_quota=300))[0].value == "30000 100000"  # type: ignore[arg-type]
    assert translation.to_v2(CellLimits(cpu_quota=10))[0].value == "1000 100000"  # type: ignore[arg-type]
    assert translation.to_v2(CellLimits(cpu_quota=9))[0].value == "9000 1000000"  # type: ignore[arg-type]


def test_memory_is_without_swap_and_swap_may_be_unknown_to_the_kernel() -> None:
    v2 = translation.to_v2(CellLimits(memory=32))  # type: ignore[arg-type]
    assert v2 == [
        LimitSetting("memory.max", "33554432", "memory"),
        LimitSetting("memory.swap.max", "0", "memory", optional=True),
    ]
    v1 = translation.to_v1(CellLimits(memory=32))  # type: ignore[arg-type]
    assert [(s.file, s.value, s.optional) for s in v1] == [
        ("memory.limit_in_bytes", "33554432", False),
        ("memory.memsw.limit_in_bytes", "33554432", True),
    ]


def test_memory_that_is_raised_needs_room_below_the_limit_with_swap_first() -> None:
    limits = CellLimits(memory=64)  # type: ignore[arg-type]
    lowered = [each.file for each in translation.to_v1(limits, current_memory=str(96 << 20))]
    raised = [each.file for each in translation.to_v1(limits, current_memory=str(32 << 20))]
    assert lowered == ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    assert raised == lowered[::-1]


@given(st.dictionaries(st.sampled_from(sorted(FRESH_V1 | FRESH_V2)), st.integers().map(str), max_size=6))
def test_whatever_numbers_others_wrote_are_read_as_limits(files: dict[str, str]) -> None:
    lists = {"cpuset.cpus": "0-3", "cpuset.mems": "0"}

    def read(file: str) -> str:
        return (files | lists).get(file, "")

    assert isinstance(translation.from_v2(read), CellLimits)
    assert isinstance(translation.from_v1(read, read), CellLimits)


@pytest.mark.parametrize(
    ("setting", "text", "held"),
    [
        (LimitSetting("pids.max", "20", "pids"), "20\n", True),
        (LimitSetting("pids.max", "20", "pids"), "max\n", False),
        (LimitSetting("memory.max", "33554432", "memory"), "33554432\n", True),
        (LimitSetting("memory.max", "33555000", "memory"), "33554432\n", True),  # rounded to a page
        (LimitSetting("memory.max", "33554432", "memory"), "max\n", False),
        (LimitSetting("memory.max", "33554432", "memory"), "67108864\n", False),
        (LimitSetting("cpuset.cpus", "0,1,2", "cpus"), "0-2\n", True),
        (LimitSetting("cpuset.cpus", "0,1,2", "cpus"), "0-1\n", False),
        (LimitSetting("cpu.max", "1000 100000", "cpu_quota"), "max 100000\n", False),
    ],
)
def test_what_the_kernel_rounded_is_held_and_what_it_ignored_is_not(
    setting: LimitSetting, text: str, held: bool
) -> None:
    assert translation.is_set(setting, text) is held


def test_the_tightest_limit_of_a_cell_and_its_ancestors_bites() -> None:
    own = CellLimits(cpu_weight=7, cpu_quota=900, memory=64)  # type: ignore[arg-type]
    parent = CellLimits(cpu_weight=9, cpu_quota=500, pids=10, cpus="0-1")  # type: ignore[arg-type]
    top = CellLimits(memory=32, pids=99, cpus="0-3", mems="0")  # type: ignore[arg-type]
    assert translation.tightest([own, parent, top]) == CellLimits(
        cpu_weight=7,
        cpu_quota=500,  # type: ignore[arg-type]
        memory=32,  # type: ignore[arg-type]
        pids=10,
        cpus="0-1",
        mems="0",
    )


def test_lists_are_sets_of_numbers() -> None:
    assert translation.numbers("0-3,6\n") == {0, 1, 2, 3, 6}
    assert translation.numbers("\n") == frozenset()
