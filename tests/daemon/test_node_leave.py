"""What is refused before a machine leaves its cloud."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.daemon import node_leave
from skerry.kit.clock import SystemClock
from skerry.model import errors


def test_only_its_owner_and_root_take_a_machine_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pki").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(
        errors.FailedPrecondition, match="belongs to another user; do this as that user, or as root"
    ):
        node_leave.find(tmp_path, SystemClock())
