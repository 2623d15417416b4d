"""The programs that the network needs, and what is said without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.network import commands
from tests.node.network.machines import Ground


def put(folder: Path, name: str, script: str = "exit 0") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("there", "output"),
    [
        ([], r"ip and nft not found; install iproute2 and nftables"),
        (["ip"], r"nft not found; install nftables"),
        (["nft"], r"ip not found; install iproute2"),
    ],
)
def test_what_is_missing_is_named_with_what_to_install(tmp_path: Path, there: list[str], output: str) -> None:
    for name in there:
        put(tmp_path, name)
    with pytest.raises(errors.Unavailable, match=output):
        commands.find(str(tmp_path))


def test_only_root_may_have_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "ip")
    put(tmp_path, "nft")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(errors.Unavailable, match="as root"):
        commands.find(str(tmp_path))


def test_a_failure_says_what_the_program_said(tmp_path: Path) -> None:
    put(tmp_path, "nft", "echo 'line 1: no such chain' >&2; exit 1")
    tools = commands.NetworkCommands("ip", str(tmp_path / "nft"))
    with pytest.raises(errors.Unavailable, match="nft: line 1: no such chain") as caught:
        tools.nft("add rule x y z")
    assert "add rule x y z" in caught.value.detail


def test_a_program_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="ip cannot be run"):
        commands.NetworkCommands(str(tmp_path / "ip"), "nft").ip(["link"])


@pytest.mark.root
async def test_an_opening_that_fails_half_way_leaves_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = commands.find(), ground.tmp / "bin"
    broken.mkdir()
    put(broken, "nft", "echo 'Operation not supported' >&2; exit 1")
    monkeypatch.setattr(
        commands, "find", lambda **_: commands.NetworkCommands(real.ip_path, str(broken / "nft"))
    )
    with pytest.raises(errors.Unavailable, match="nft: Operation not supported"):
        await ground.open()
    assert ground.links() == []
