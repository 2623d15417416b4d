"""Snapshots, restores and moves of a volume under a writer, with agents and the server killed on the way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.lans import Lan, lan
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# The second file is never ahead of the first, nor more than one behind; `large` makes copies take a while.
WRITER = """
cd /data
[ -e large ] || { dd if=/dev/urandom of=large.new bs=1M count=24 2> /dev/null; mv large.new large; }
n=0; [ -e first ] && n=$(cat first)
echo begins at $n after $(md5sum < large)
while true; do
  n=$((n + 1)); echo $n > new; mv new first; echo $n > new; mv new second; sleep 0.02
done
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Lan]:
    """Its own, because its programs are killed and started again."""
    with lan(tmp_path, "north", "south") as made:
        yield made


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", WRITER))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'writer.tar')}"


class Volumes:
    """The volumes of a cluster, as people use them."""

    def __init__(self, cloud: Lan) -> None:
        self.cloud = cloud

    def begin(self, path: str, **body: Any) -> str:
        return str(self.cloud.call("POST", f"/volume/{path}", body)["id"])

    def operation(self, id: str) -> dict[str, Any]:
        return dict(self.cloud.call("GET", f"/volume-operation/{id}"))

    def until_copying(self, id: str) -> None:
        """Until data are under way."""

        def is_copying() -> bool:
            seen = self.operation(id)
            assert seen["ended_at"] is None, seen
            return bool(seen["step"] == "COPYING" and seen["done_bytes"])

        eventually_sync(is_copying)

    def succeed(self, id: str) -> None:
        def is_over() -> bool:
            return self.operation(id)["ended_at"] is not None

        try:
            eventually_sync(is_over, within=120)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.operation(id)}") from None
        assert self.operation(id)["status"] == "SUCCEEDED", self.operation(id)

    def files(self) -> dict[str, set[str]]:
        """What each node has on disk of volumes, snapshots and operations: folders by id."""
        found = {}
        for name, node in self.cloud.nodes.items():
            kinds = ("volumes", "snapshots", "volume-operations")
            paths = (path for kind in kinds for path in (node.data / kind).glob("*"))
            found[name] = {f"{path.parent.name}/{path.name}" for path in paths}
        return found


def begun(cloud: Lan, id: str, count: int) -> tuple[int, str]:
    """The number with which the writer began for the `count`th time, and the digest of its large file."""

    def lines() -> list[str]:
        status, text = cloud.server.call("GET", f"/instance/{id}/logs")
        return str(text).splitlines() if status == 200 else []

    text = eventually_sync(lambda: (found := lines()) and len(found) >= count and found[-1])
    words = text.split()
    return int(words[2]), words[4]


def in_snapshot(cloud: Lan, node: str, snapshot: str) -> tuple[int, int]:
    """The numbers in a snapshot on a node, whose file system must be without a fault."""
    image = cloud.nodes[node].data / "snapshots" / snapshot / "image"
    checked = subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout

    def read(name: str) -> int:
        command = ["debugfs", "-R", f"cat {name}", str(image)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return read("first"), read("second")


def test_nothing_is_lost_and_nothing_is_left(cloud: Lan, image: str) -> None:
    volumes = Volumes(cloud)
    cloud.call("PUT", "/volume/", {"name": "db", "size": 1, "node": "north"})
    writer = cloud.create(name="writer", uri=image, volumes=["db:/data"], resources={"cpu": 50, "memory": 64})
    cloud.until(writer, "RUNNING")
    volume = cloud.call("GET", "/volume/db")["id"]
    _, digest = begun(cloud, writer, 1)

    # A snapshot, while the agent is killed and comes back.
    taking = volumes.begin("db/snapshot", name="one")
    cloud.restart_node("north")
    volumes.succeed(taking)
    snapshot = cloud.call("GET", "/snapshot/one")["id"]
    first, second = in_snapshot(cloud, "north", snapshot)
    assert first - second in (0, 1)
    assert volumes.files()["north"] == {f"volumes/{volume}", f"snapshots/{snapshot}"}

    # A move, while the agent that receives, the server and the agent that sends are killed in turn.
    moving = volumes.begin("db/move", node="south")
    volumes.until_copying(moving)
    cloud.restart_node("south")
    volumes.until_copying(moving)
    cloud.server.kill()
    cloud.restart_server()
    volumes.until_copying(moving)
    cloud.restart_node("north")
    volumes.succeed(moving)
    moved = cloud.until(writer, "RUNNING")
    assert cloud.node_of(moved) == "south"
    number, same = begun(cloud, writer, 1)
    assert same == digest
    assert number >= first
    assert volumes.files() == {"north": {f"snapshots/{snapshot}"}, "south": {f"volumes/{volume}"}}

    # A restore of what is on another node.
    restoring = volumes.begin("db/restore", snapshot="one", stop=True)
    volumes.until_copying(restoring)
    cloud.restart_node("south")
    volumes.succeed(restoring)
    cloud.until(writer, "RUNNING")
    assert begun(cloud, writer, 1) == (first, digest)

    # A move that is cancelled on the way changes nothing.
    cancelled = volumes.begin("db/move", node="north")
    volumes.until_copying(cancelled)
    cloud.call("POST", f"/volume-operation/{cancelled}/cancel")
    eventually_sync(lambda: volumes.operation(cancelled)["status"] == "CANCELLED")
    eventually_sync(lambda: volumes.operation(cancelled)["ended_at"])
    assert cloud.node_of(cloud.until(writer, "RUNNING")) == "south"
    assert volumes.files()["north"] == {f"snapshots/{snapshot}"}

    done = cloud.server.cli("volume", "delete-snapshot", "one")
    assert done.returncode == 0, done.stderr
    cloud.destroy(writer)
    cloud.call("DELETE", "/volume/db")
    eventually_sync(lambda: volumes.files() == {"north": set(), "south": set()})
    loops = subprocess.run(["losetup", "-ln"], check=True, capture_output=True, text=True).stdout
    assert not any(str(node.data) in loops for node in cloud.nodes.values()), loops
