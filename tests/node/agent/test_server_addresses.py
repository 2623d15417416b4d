"""Where a node looks for its control plane, over restarts and whatever became of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from skerry.node.agent.server_addresses import ServerAddressCache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "servers.json"


def test_a_node_that_was_told_nothing_knows_the_server_that_it_joined(path: Path) -> None:
    assert ServerAddressCache("joined:1", path).addresses == ("joined:1",)


async def test_what_it_was_told_is_known_after_a_restart_behind_the_one_that_it_joined(path: Path) -> None:
    await ServerAddressCache("joined:1", path).learn(["a:1", "joined:1", "b:1", "a:1"])
    assert ServerAddressCache("joined:1", path).addresses == ("joined:1", "a:1", "b:1")
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_last_word_counts(path: Path) -> None:
    servers = ServerAddressCache("joined:1", path)
    await servers.learn(["a:1", "b:1"])
    await servers.learn(["c:1"])
    assert servers.addresses == ServerAddressCache("joined:1", path).addresses == ("joined:1", "c:1")


async def test_no_news_is_not_written(path: Path) -> None:
    servers = ServerAddressCache("joined:1", path)
    await servers.learn(["a:1"])
    path.unlink()
    await servers.learn(["a:1"])
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"servers": 7}', b"\xff\xfe"])
def test_a_damaged_file_leaves_the_one_that_it_joined(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    with structlog.testing.capture_logs() as logs:
        assert ServerAddressCache("joined:1", path).addresses == ("joined:1",)
    assert [entry["event"] for entry in logs] == ["servers.unreadable"]


@pytest.mark.parametrize("lost", ["joined:1", "10.0.0.1:1"])
async def test_a_server_that_was_lost_comes_last_by_each_of_its_addresses(path: Path, lost: str) -> None:
    servers = ServerAddressCache("joined:1", path, also=["10.0.0.1:1"])
    await servers.learn(["10.0.0.1:1", "10.0.0.2:1"])
    assert servers.by_preference("") == servers.addresses
    assert servers.by_preference(lost) == ("10.0.0.2:1", "joined:1", "10.0.0.1:1")
    assert servers.by_preference("10.0.0.2:1") == ("joined:1", "10.0.0.1:1", "10.0.0.2:1")
