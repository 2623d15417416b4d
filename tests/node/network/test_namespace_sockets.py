"""Sockets in other network namespaces: made there, and closed before the namespace goes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skerry.node.kernel import namespaces
from skerry.node.network.namespace_sockets import NamespaceSockets
from tests.support.waiting import eventually

pytestmark = pytest.mark.root


@pytest.fixture
async def sockets() -> AsyncIterator[NamespaceSockets]:
    created = NamespaceSockets()
    yield created
    created.close()
    await asyncio.sleep(0)  # what the thread has handed over last


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A file that a network namespace is mounted on."""
    place = tmp_path / "ns"
    place.touch()

    def make() -> None:
        namespaces.enter_new_namespace()
        namespaces.bind_namespace(place)

    namespaces.in_own_thread(make)
    yield place
    namespaces.remove_mount_file(place)


def opened() -> int:
    """How many sockets this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


async def test_a_socket_is_in_the_namespace_and_this_process_is_not(
    sockets: NamespaceSockets, place: Path
) -> None:
    home = os.readlink("/proc/self/ns/net")
    with await sockets.open(str(place)) as created, socket.create_server(("127.0.0.1", 0)) as server:
        # Nothing is up there, not even the loopback link; here somebody listens.
        with pytest.raises(OSError, match="unreachable"):
            created.connect(server.getsockname())
        assert not created.getblocking()
    assert os.readlink("/proc/self/ns/net") == home
    threads = [os.readlink(path) for path in Path("/proc/self/task").glob("*/ns/net")]
    assert set(threads) == {home}


async def test_those_that_wait_are_used_next_and_closed_when_they_are_forgotten(
    sockets: NamespaceSockets, place: Path
) -> None:
    before = opened()
    for _ in range(9):
        (await sockets.open(str(place))).close()
    assert before < opened() <= before + 16
    sockets.forget(str(place))
    assert opened() == before


async def test_many_that_are_asked_for_at_once_are_all_made_and_few_others(
    sockets: NamespaceSockets, place: Path
) -> None:
    before = opened()
    created = await asyncio.gather(*(sockets.open(str(place)) for _ in range(20)))
    assert before + 20 <= opened() <= before + 24
    for each in created:
        each.close()


async def test_what_is_being_made_when_it_is_forgotten_is_no_ones_later(
    sockets: NamespaceSockets, place: Path
) -> None:
    before = opened()
    coming = sockets.open(str(place))
    sockets.forget(str(place))
    (await coming).close()
    await eventually(lambda: opened() == before)


async def test_who_gives_up_leaves_nothing_behind(sockets: NamespaceSockets, place: Path) -> None:
    before = opened()
    sockets.open(str(place)).cancel()
    (await sockets.open(str(place))).close()
    sockets.forget(str(place))
    await eventually(lambda: opened() == before)


async def test_a_namespace_that_is_not_there_is_an_error_and_the_next_one_works(
    sockets: NamespaceSockets, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        await sockets.open(str(tmp_path / "missing"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="network namespace"):
        await sockets.open(str(tmp_path / "file"))
    (await sockets.open(str(place))).close()
