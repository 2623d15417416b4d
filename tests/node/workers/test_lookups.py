"""For which registration an image was looked up is known after a restart, and compared by no clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.resources import Megabytes
from skerry.node.workers import lookups
from skerry.node.workers.lookups import ImageLookups

SUMS = Function(
    FunctionName("sums"), "custom", Megabytes(32), 5.0, image="example.org/sums:1", updated_at=7.0
)


async def test_a_registration_is_known_once_it_was_noted_also_to_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "lookups.json"
    known = ImageLookups(path)
    assert not known.is_resolved(SUMS)
    await known.mark_resolved(SUMS)
    for each in (known, ImageLookups(path)):
        assert each.is_resolved(SUMS)
        # An update, one that was made with another clock, and another function of the same name.
        assert not each.is_resolved(replace(SUMS, version=2))
        assert not each.is_resolved(replace(SUMS, updated_at=6.0))
        assert not each.is_resolved(replace(SUMS, created_at=4.0))


async def test_what_was_noted_can_be_taken_back(tmp_path: Path) -> None:
    known = ImageLookups(tmp_path / "lookups.json")
    await known.mark_resolved(SUMS)
    before = known.get(SUMS.name)
    await known.mark_resolved(replace(SUMS, version=2))
    await known.put(SUMS.name, before)
    assert known.is_resolved(SUMS)
    await known.put(SUMS.name, None)
    assert not ImageLookups(tmp_path / "lookups.json").is_resolved(SUMS)


async def test_a_damaged_file_and_one_too_many_cost_another_lookup_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lookups.json"
    path.write_bytes(b"{")
    monkeypatch.setattr(lookups, "_MOST", 2)
    known = ImageLookups(path)
    named = [replace(SUMS, name=FunctionName(f"f{number}")) for number in range(3)]
    for function in named:
        await known.mark_resolved(function)
    assert [ImageLookups(path).is_resolved(function) for function in named] == [False, True, True]
