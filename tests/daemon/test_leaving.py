"""A second machine that joins by an invitation and nothing else, and machines that leave for good.

Each machine is a network namespace: the server listens on all addresses with TLS, and no setting names it.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from skerry.kit import disk_monitor
from tests.support import imagery
from tests.support.lans import Lan, Resident, lan
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

SMALL = {"cpu": 50, "memory": 32}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sleep", "100000"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'sleep.tar')}"


def node_names(cloud: Lan) -> list[str]:
    return [node["name"] for node in cloud.call("GET", "/node/")["nodes"]]


def resident(cloud: Lan, name: str) -> Resident:
    found = cloud.nodes[name]
    assert isinstance(found, Resident)
    return found


def test_machines_join_by_an_invitation_alone_and_one_that_leaves_is_gone_without_a_trace(
    tmp_path: Path, image: str
) -> None:
    with lan(tmp_path, "north", "south") as cloud:
        for host in (socket.gethostname().lower(), "192.0.2.1"):
            assert cloud.call_server_as("north", host) == 200
        ids = [cloud.create(name=f"i{number}", uri=image, resources=SMALL) for number in range(2)]
        for id in ids:
            cloud.until(id, "RUNNING")
        assert {node for _, node in cloud.places(*ids)} == {"north", "south"}
        south = resident(cloud, "south")
        done = cloud.leave("south")
        assert done.returncode == 0, done.stderr
        assert south.process.wait(PATIENCE_S) == 0
        assert "drained" in done.stderr
        assert "is unregistered, and its certificate revoked" in done.stderr
        assert south.left() == []
        assert not south.data.exists(), list(south.data.iterdir())
        assert node_names(cloud) == ["north"]
        for id in ids:
            cloud.until(id, "RUNNING", node_id=cloud.nodes["north"].ready["node"])
        certificates = cloud.call("GET", "/certificate/")["certificates"]
        [revoked] = [each for each in certificates if each["node"] == south.ready["node"]]
        assert revoked["revoked_at"] is not None


def test_a_machine_leaves_without_its_server_and_after_a_crash_if_it_is_forced_to(
    tmp_path: Path, image: str
) -> None:
    with lan(tmp_path, "north") as cloud:
        id = cloud.create(name="i", uri=image, ports=["8080:80"], resources=SMALL)
        cloud.until(id, "RUNNING")
        north = resident(cloud, "north")
        north.kill()
        (north.data / "routes" / "certificates").mkdir(parents=True, exist_ok=True)  # of an edge node
        (north.data / disk_monitor.PROBE).touch()  # as if it had been killed while it looked at its disk
        assert cloud.server.stop() == 0
        refused = cloud.leave("north")
        assert refused.returncode == 1
        assert "--force" in refused.stderr
        assert "? Nothing was removed" in refused.stderr
        assert cloud.copies(id) == [(id, "north")]
        done = cloud.leave("north", "--force")
        assert done.returncode == 0, done.stderr
        assert f"skerry node remove {north.ready['node']} --force" in done.stderr
        assert north.left() == []
        assert not north.data.exists()
        again = north.cli("node", "leave", "--yes")
        assert again.returncode == 1
        assert "is not the data folder of a node" in again.stderr
        cloud.restart_server()
        assert cloud.server.cli("node", "delete", north.ready["node"], "--force").returncode == 0
        eventually_sync(lambda: node_names(cloud) == [])


def test_a_server_is_no_node_that_could_leave(tmp_path: Path) -> None:
    with lan(tmp_path) as cloud:
        refused = cloud.server.cli("node", "leave", "--yes")
        assert refused.returncode == 1
        assert "the data folder of a server" in refused.stderr
        assert cloud.server.process.poll() is None
