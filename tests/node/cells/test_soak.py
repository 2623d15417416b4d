"""The short version of `make soak ARGS=cells`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.soak import cells as soak

pytestmark = pytest.mark.root


async def test_many_cells_one_after_the_other_and_at_once_leave_nothing(tmp_path: Path) -> None:
    async with soak.opened(f"skt-soak-{os.getpid()}", tmp_path / "cells") as field:
        assert await soak.soak(field, 100, 30) == []
        assert len(field.namespaces) > 0


async def test_what_is_left_is_found(tmp_path: Path) -> None:
    async with soak.opened(f"skt-soakl-{os.getpid()}", tmp_path / "cells") as field:
        await soak.cycle(field, 1)
        assert field.left() == []
        cell = soak.CellName("left")
        await field.cells.allocate(soak.Cell(cell))
        state = await field.cells.start(soak.Executable(soak.ExecutableName("x"), cell, "exec sleep 1000"))
        field.note(state.pid)
        words = " ".join(field.left())
        for kind in (f"process {state.pid}", "group /sys", "file ", "is in ", "descriptors more"):
            assert kind in words
