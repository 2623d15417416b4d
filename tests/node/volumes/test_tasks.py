"""Snapshots, restores and moves of real volumes, by agents that are killed at every step."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.snapshots import SnapshotLocation
from skerry.model.volume_tasks import VolumeAction
from skerry.node.volumes import freezing
from skerry.node.volumes.manifests import CHUNK_BYTES
from tests.node.containers.real import stuck_loops
from tests.node.volumes.agents import GIGABYTE, MB, OPERATION, SNAPSHOT, VOLUME, Agents
from tests.support.drivers import Drivers
from tests.support.waiting import eventually, eventually_sync

pytestmark = pytest.mark.root


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    eventually_sync(lambda: stuck_loops(tmp_path) == [])


@pytest.fixture
async def agents(folder: Path) -> AsyncIterator[Agents]:
    made = Agents(folder)
    made.create_volume()
    yield made
    await made.close()


def write(agents: Agents, text: str, node: str = "a") -> None:
    """Into the volume: a small file, and one of several chunks."""
    with agents.stores[node].mounted(VOLUME) as mount:
        place = Path(f"/proc/self/fd/{mount}")
        (place / "text").write_text(text)
        (place / "large").write_bytes(text.encode() * (9 * MB // len(text)))
        os.chown(place / "text", 1234, 5678)
        os.setxattr(place / "text", "user.note", b"kept")
        with open(place / "sparse", "wb") as file:
            file.truncate(100 * MB)
        if not (place / "hard").exists():
            os.link(place / "text", place / "hard")
            os.symlink("text", place / "link")


def read(agents: Agents, node: str = "a", volume: str = VOLUME) -> str:
    """What `write` wrote, with all that a file has."""
    with agents.stores[node].mounted(volume) as mount:  # type: ignore[arg-type]
        place = Path(f"/proc/self/fd/{mount}")
        text = (place / "text").read_text()
        assert (place / "large").read_bytes() == text.encode() * (9 * MB // len(text))
        found = os.stat(place / "text")
        assert (found.st_uid, found.st_gid, found.st_nlink) == (1234, 5678, 2)
        assert os.getxattr(place / "text", "user.note") == b"kept"
        assert os.readlink(place / "link") == "text"
        assert os.stat(place / "sparse").st_blocks == 0
        return text


def leftovers(folder: Path) -> set[str]:
    """What is in the folders of both agents beside the images of volumes and their records."""
    found = set()
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and parts[1] != "volumes":
            found.add("/".join(parts))
        if path.name.startswith(".") or path.name.endswith(".part"):
            found.add("/".join(parts))
    return found


def held(folder: Path) -> dict[str, list[str]]:
    return {
        node: sorted(path.name for path in (folder / node / "volumes").iterdir() if path.name[0] != ".")
        for node in "ab"
    }


SNAPSHOT_FILES = {f"a/snapshots/{SNAPSHOT}/image", f"a/snapshots/{SNAPSHOT}/manifest"}


@pytest.mark.parametrize("location", [SnapshotLocation.NODE, SnapshotLocation.FOLDER])
async def test_a_snapshot_is_restored_into_its_volume_and_into_another(
    agents: Agents, folder: Path, location: SnapshotLocation
) -> None:
    write(agents, "before")
    taken = await agents.run("a", VolumeAction.SNAPSHOT, location=location)
    assert taken.image_bytes == GIGABYTE
    assert 9 * MB < taken.data_bytes <= GIGABYTE
    again = await agents.run("a", VolumeAction.SNAPSHOT, location=location)
    assert again == taken
    write(agents, "after!")
    fetched = await agents.run("a", VolumeAction.FETCH, location=location, digest=taken.digest)
    assert fetched.digest == taken.digest
    assert read(agents) == "after!"
    await agents.run("a", VolumeAction.INSTALL)
    assert read(agents) == "before"
    assert agents.stores["a"].record(VOLUME).generation == 2
    image = agents.stores["a"].image(VOLUME)
    assert os.stat(image).st_blocks * 512 >= GIGABYTE  # still reserved
    if location is SnapshotLocation.FOLDER:
        await agents.run("b", VolumeAction.FETCH, location=location, digest=taken.digest, volume="other")
        await agents.run("b", VolumeAction.INSTALL, volume="other")
        assert read(agents, "b", "other") == "before"
    await agents.run("a", VolumeAction.DELETE_SNAPSHOT, location=location)
    assert leftovers(folder) == set()


async def test_a_snapshot_on_one_node_is_sent_to_another(agents: Agents) -> None:
    write(agents, "before")
    await agents.run("a", VolumeAction.SNAPSHOT)
    write(agents, "after!")
    await agents.transfer(VolumeAction.SEND_SNAPSHOT)
    await agents.run("b", VolumeAction.INSTALL)
    assert read(agents, "b") == "before"


async def test_a_used_volume_is_not_sent_or_replaced_until_its_user_has_gone(agents: Agents) -> None:
    write(agents, "before")
    await agents.run("a", VolumeAction.SNAPSHOT)
    await agents.run("a", VolumeAction.FETCH)
    with agents.stores["a"].mounted(VOLUME):
        with pytest.raises(errors.Unavailable, match="in use"):
            await agents.transfer()
        with pytest.raises(errors.Unavailable, match="still used"):
            await agents.run("a", VolumeAction.INSTALL)
    await eventually(lambda: not agents.stores["a"].is_used(VOLUME))
    await agents.run("a", VolumeAction.INSTALL)
    assert read(agents) == "before"


async def test_a_snapshot_that_was_changed_on_disk_is_not_restored(agents: Agents, folder: Path) -> None:
    write(agents, "before")
    taken = await agents.run("a", VolumeAction.SNAPSHOT)
    image = folder / "a" / "snapshots" / SNAPSHOT / "image"
    with open(image, "r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"damage")
    with pytest.raises(errors.Unavailable, match="digest"):
        await agents.run("a", VolumeAction.FETCH, digest=taken.digest)
    manifest = image.with_name("manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b'"image_bytes":', b'"image_bytes":1'))
    with pytest.raises(errors.Invalid):
        await agents.run("a", VolumeAction.FETCH, digest=taken.digest)
    assert read(agents) == "before"


async def test_an_older_generation_neither_replaces_nor_removes(agents: Agents) -> None:
    write(agents, "before")
    await agents.run("a", VolumeAction.SNAPSHOT)
    await agents.run("a", VolumeAction.FETCH)
    await agents.run("a", VolumeAction.INSTALL, generation=5)
    await agents.run("a", VolumeAction.REMOVE, generation=4)
    assert read(agents) == "before"
    with pytest.raises(errors.FailedPrecondition, match="or changed by a later one"):
        await agents.run("a", VolumeAction.FETCH)
    await agents.run("a", VolumeAction.FETCH, generation=6)
    with pytest.raises(errors.FailedPrecondition, match="ordered before"):
        await agents.run("a", VolumeAction.INSTALL, generation=4)
    await agents.run("a", VolumeAction.REMOVE, generation=5)
    assert not agents.stores["a"].has(VOLUME)


async def test_an_operation_that_was_done_is_not_repeated_over_what_was_written_since(
    agents: Agents,
) -> None:
    """The store was restored from a backup that was taken while a restore copied."""
    write(agents, "before")
    taken = await agents.run("a", VolumeAction.SNAPSHOT)
    await agents.run("a", VolumeAction.FETCH, digest=taken.digest)
    await agents.run("a", VolumeAction.INSTALL)
    write(agents, "since then")
    with pytest.raises(errors.FailedPrecondition, match="by this operation"):
        await agents.run("a", VolumeAction.FETCH, digest=taken.digest)
    await agents.run("a", VolumeAction.INSTALL)
    assert read(agents) == "since then"


async def test_a_move_that_is_cancelled_while_it_is_installed_leaves_nothing(folder: Path) -> None:
    is_renamed, go_on = threading.Event(), threading.Event()

    def failpoint(step: str) -> None:
        if step == "install.renamed":
            is_renamed.set()
            assert go_on.wait(10)

    agents = Agents(folder, failpoint)
    agents.create_volume()
    await agents.transfer()
    installing = asyncio.create_task(agents.run("b", VolumeAction.INSTALL))
    await asyncio.to_thread(is_renamed.wait, 10)
    await cancel_and_wait([installing])
    removing = asyncio.create_task(agents.run("b", VolumeAction.REMOVE))
    # It would be over by now if it did not wait for the install.
    await asyncio.wait([removing], timeout=0.5)
    go_on.set()
    await removing
    await agents.run("a", VolumeAction.DISCARD)
    await agents.close()
    assert not agents.stores["b"].has(VOLUME)
    assert leftovers(folder) == set()


async def test_the_newer_task_of_an_operation_ends_the_older(agents: Agents) -> None:
    write(agents, "before")
    await agents.run("a", VolumeAction.SNAPSHOT)
    # A server that no longer leads began to receive, and waits for a sender.
    async with agents.open_tunnel("b", "x", _receive_task()) as stale:  # type: ignore[arg-type]
        await agents.transfer(VolumeAction.SEND_SNAPSHOT)
        with pytest.raises(errors.Unavailable, match="newer one"):
            await stale.receive()
    await agents.run("b", VolumeAction.INSTALL)
    assert read(agents, "b") == "before"


def _receive_task() -> object:
    from tests.node.volumes.agents import task

    return task(VolumeAction.RECEIVE)


async def test_a_node_without_a_folder_says_so_and_cleans_up(agents: Agents, folder: Path) -> None:
    from skerry.model.snapshot_settings import SnapshotSettings

    agents.handlers["a"]._settings = SnapshotSettings()
    for action in (VolumeAction.SNAPSHOT, VolumeAction.DELETE_SNAPSHOT):
        with pytest.raises(errors.FailedPrecondition, match=r"snapshots\.folder"):
            await agents.run("a", action, location=SnapshotLocation.FOLDER)
    await agents.run("a", VolumeAction.DISCARD_SNAPSHOT, location=SnapshotLocation.FOLDER)
    assert leftovers(folder) == set()


MOVE = ("a transfer", "b install", "a remove")
RESTORE = ("a snapshot", "a fetch", "a install")
KILLS = [
    *((("a snapshot",), step, 1) for step in ("snapshot.frozen", "snapshot.copied")),
    *((("a snapshot",), step, 1) for step in ("snapshot.scanned", "snapshot.stored")),
    *((MOVE, step, 1) for step in ("send.scanned", "copy.chunk", "copy.written")),
    (MOVE, "copy.chunk", 3),
    *((MOVE, step, 1) for step in ("install.renamed", "install.installed", "delete.unused")),
    *((MOVE, step, 1) for step in ("delete.removed", "remove.removed")),
    *((RESTORE, step, 1) for step in ("copy.chunk", "copy.written", "install.renamed", "install.installed")),
]


@pytest.mark.parametrize(("script", "step", "times"), KILLS)
def test_agents_that_are_killed_go_on_and_leave_nothing(
    folder: Path, drivers: Drivers, script: tuple[str, ...], step: str, times: int
) -> None:
    agents = Agents(folder)
    agents.create_volume()
    write(agents, "precious")
    killed = drivers.run("tests.node.volumes.driver", str(folder), step, str(times), text="\n".join(script))
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    position = len(killed.stdout.splitlines())
    for _ in range(3):
        # As the server does: from the step that is not known to be done, or from the copy if that is gone.
        done = drivers.run("tests.node.volumes.driver", str(folder), text="\n".join(script[position:]))
        assert done.returncode == 0
        said = done.stdout.splitlines()
        if "lost" not in said:
            break
        position += len(said) - 2
    else:
        raise AssertionError(said)
    after = Agents(folder)
    where = "b" if script is MOVE else "a"
    assert read(after, where) == "precious"
    assert held(folder) == {"a": [VOLUME] if where == "a" else [], "b": [VOLUME] if where == "b" else []}
    assert leftovers(folder) == (set() if script is MOVE else SNAPSHOT_FILES)
    with after.stores[where].mounted(VOLUME) as mount:
        assert not freezing.thaw(mount)


def test_a_cancelled_operation_leaves_nothing(folder: Path, drivers: Drivers) -> None:
    agents = Agents(folder)
    agents.create_volume()
    write(agents, "precious")
    for script, step in (("a snapshot", "snapshot.scanned"), ("a transfer", "copy.chunk")):
        killed = drivers.run("tests.node.volumes.driver", str(folder), step, "1", text=script)
        assert killed.returncode == -signal.SIGKILL
        assert any(OPERATION in path for path in leftovers(folder))
        undo = "a discard-snapshot\nb remove\na discard"
        assert drivers.run("tests.node.volumes.driver", str(folder), text=undo).returncode == 0
        assert leftovers(folder) == set()
    assert read(Agents(folder)) == "precious"
