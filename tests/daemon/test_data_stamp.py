"""A data folder of a later version is refused before anything in it is written, by servers and by nodes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import socket
from pathlib import Path

import pytest

from skerry import __version__
from skerry.kit.clock import ManualClock
from skerry.model import versions
from skerry.store import data_stamp, stamp
from skerry.store.protocol import Put
from skerry.store.sqlite.store import SqliteStore
from tests.support.forking import fork_server
from tests.support.skerry import environment, running

LATER = '{"version":"0.99.0","format":2}\n'
LATER_FORMAT = json.dumps({"version": __version__, "format": versions.CURRENT.format + 1})


def contents(folder: Path) -> dict[str, str]:
    """Every file with a hash of its bytes and its time."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        + str(path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def refusal(folder: Path, role: str, *flags: str) -> str:
    listen = () if role == "node" else ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    done = fork_server.run(
        [role, "--data", str(folder), "--socket", str(folder.parent / "s.sock"), *listen, *flags],
        environment(),
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a server that has stopped."""
    with running(tmp_path_factory.mktemp("stamp"), role="server") as server:
        written = json.loads((server.data / "version.json").read_text())
        assert written == {"version": __version__, "format": versions.CURRENT.format}
    return server.data


@pytest.fixture
def used(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test alone."""
    return Path(shutil.copytree(stopped, tmp_path / "data"))


@pytest.mark.parametrize("forged", [LATER, LATER_FORMAT], ids=["version", "format"])
@pytest.mark.parametrize("role", ["up", "server", "node"])
def test_a_stamp_of_later_is_refused_and_no_byte_of_the_folder_changes(
    used: Path, role: str, forged: str
) -> None:
    (used / "version.json").write_text(forged)
    before = contents(used)
    for flags in ((), ("--takeover",)):
        said = refusal(used, role, *flags)
        assert f"the data folder {used} was written by Skerry" in said
        assert "Nothing was changed. Install Skerry" in said
        assert "restore a backup" in said
    assert contents(used) == before


def test_a_wrong_setting_of_a_later_version_leaves_the_stamps_to_the_former_one(used: Path) -> None:
    (used / "version.json").write_text('{"version":"0.1.0","format":1}\n')
    before = contents(used)
    for role in ("up", "server"):
        said = refusal(used, role, "--set", "backup.schedule=0 3 * * *")
        assert "backup.target is not: say where" in said
    assert contents(used) == before


def test_a_store_of_later_is_refused_though_its_folder_does_not_say_so(used: Path) -> None:
    async def forge() -> None:
        store = await SqliteStore.open(used / "store.db", ManualClock())
        assert await store.get(stamp.KEY) is not None
        await store.commit([Put(stamp.KEY, LATER.encode())])
        await store.close()

    asyncio.run(forge())
    (used / "version.json").unlink()  # as if the store came from elsewhere
    before = contents(used)
    with socket.socket() as other:  # so the refused one listens elsewhere
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program has that port, which will do
            other.bind(("127.0.0.1", int((used / "functions/listen.port").read_text())))
            other.listen()
        assert "the store was written by Skerry 0.99.0" in refusal(used, "server")
    after = contents(used)
    assert {path: after[path][:64] for path in after} == {path: before[path][:64] for path in before}


def test_a_folder_of_a_former_version_is_not_stamped_as_a_new_one_is(tmp_path: Path) -> None:
    data_stamp.write_if_new(tmp_path)
    assert data_stamp.read(tmp_path) == versions.stamp_of()
    (tmp_path / "version.json").write_text('{"version":"0.1.0","format":1}')
    data_stamp.write_if_new(tmp_path)
    assert data_stamp.read(tmp_path) == versions.UNSTAMPED
    (tmp_path / "version.json").unlink()
    (tmp_path / "node").mkdir()
    data_stamp.write_if_new(tmp_path)
    assert not (tmp_path / "version.json").exists(), "a folder of 0.1 waits for a server, too"


def test_a_folder_without_a_stamp_that_was_used_is_one_of_0_1(tmp_path: Path) -> None:
    assert data_stamp.read(tmp_path) is None
    (tmp_path / "pki").mkdir()
    assert data_stamp.read(tmp_path) is None, "copied from another server, before the first start"
    (tmp_path / "node").mkdir()
    assert data_stamp.read(tmp_path) == versions.UNSTAMPED
    (tmp_path / "version.json").write_text("{")
    assert "cannot be read" in refusal(tmp_path, "server")
