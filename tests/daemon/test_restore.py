"""A store that is restored from a backup: its nodes come back by themselves, and what runs goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from skerry.control.identity import certificates
from skerry.control.identity.authority_rotation import AUTHORITY_KEY
from skerry.control.recovery import store_history
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.node_messages import NodeHello
from skerry.node.agent.node_identity import NodeIdentity
from skerry.store import stamp
from skerry.store.sqlite.store import SqliteStore
from skerry.transport.links.nodes.client import GrpcControlDialer
from tests.daemon.test_node import join_token
from tests.support import imagery
from tests.support.lans import Lan, lan
from tests.support.skerry import Skerry
from tests.support.waiting import eventually, eventually_sync

pytestmark = pytest.mark.root

SMALL = {"cpu": 50, "memory": 32}
SLEEPS = ["sleep", "100000"]


@pytest.fixture
def image(tmp_path: Path) -> str:
    return f"oci-archive:{imagery.write_oci_archive(imagery.busybox(), tmp_path / 'image.tar')}"


def back_up(cloud: Lan, folder: Path) -> None:
    """As docs/store.md says: stop the server, copy the file and its log."""
    assert cloud.server.stop() == 0
    folder.mkdir()
    for path in cloud.server.data.glob("store.db*"):
        shutil.copy(path, folder)
    cloud.restart_server()


def restore(cloud: Lan, folder: Path) -> None:
    """Likewise: stop the server, remove the file and its log, copy back what was saved, start."""
    cloud.server.kill()
    for path in cloud.server.data.glob("store.db*"):
        path.unlink()
    for path in folder.iterdir():
        shutil.copy(path, cloud.server.data)
    cloud.restart_server()


def kinds_of(cloud: Lan, id: str) -> list[str]:
    return [happened.status for happened in cloud.history(id)]


def test_after_a_restore_nodes_come_back_by_themselves_and_everything_that_ran_runs_on_once(
    tmp_path: Path, image: str
) -> None:
    with lan(tmp_path, "north", "south") as cloud:

        def run(name: str, node: str = "", arguments: list[str] = SLEEPS, **more: Any) -> str:
            constraints = [f"at={node}"] if node else []
            spec = {"name": name, "uri": image, "arguments": arguments, "resources": SMALL, **more}
            return cloud.create(**spec, constraints=constraints)

        def label(*names: str) -> None:
            for name in names:
                cloud.call("PATCH", f"/node/{name}", {"labels": {"at": name}})

        label("north", "south")
        kept, deleted = run("kept", "north"), run("deleted", "south")
        moved = run("moved")
        job = run("job", "north", ["sh", "-c", "until [ -e /go ]; do sleep 0.1; done"], restart="never")
        waiting = run("waiting", "west")
        for id in (kept, deleted, moved, job):
            cloud.until(id, "RUNNING")
        home = cloud.node_of(cloud.instance(moved))
        back_up(cloud, tmp_path / "backup")
        cloud.until_ready("north", "south")

        cloud.join("west")
        label("west")
        cloud.until(waiting, "RUNNING")
        web = cloud.call(
            "PUT",
            "/workload/",
            {
                "name": "web",
                "uri": image,
                "arguments": SLEEPS,
                "resources": SMALL,
                "constraints": ["at=west"],
            },
        )["id"]
        late = cloud.create(workload_id=web)
        cloud.until(late, "RUNNING")
        cloud.call("POST", f"/node/{home}/drain")
        eventually_sync(lambda: cloud.node_of(cloud.until(moved, "RUNNING")) != home)
        cloud.call("POST", f"/node/{home}/uncordon")
        cloud.destroy(deleted)
        cloud.server.cli("exec", job, "touch", "/go")
        cloud.until(job, "TERMINATED")
        for id in (kept, moved, late, waiting):
            cloud.until(id, "RUNNING")
        ran = cloud.processes()
        assert len(ran) == 4

        restore(cloud, tmp_path / "backup")
        cloud.until_ready("north", "south", "west")
        for id in (kept, moved, late, waiting):
            cloud.until(id, "RUNNING")
        cloud.until(job, "TERMINATED")
        eventually_sync(lambda: cloud.copies(deleted), what="what the backup knows of is back")
        cloud.until(deleted, "RUNNING")
        runs = cloud.processes()
        assert {copy: pids for copy, pids in runs.items() if copy[0] != deleted} == ran
        assert sorted(cloud.instances()) == sorted([kept, moved, late, waiting, deleted, job])
        assert cloud.copies() == cloud.places(kept, moved, late, waiting, deleted)
        assert cloud.call("GET", "/workload/web")["id"] == web
        assert cloud.instance(late)["workload_id"] == web
        for id in (late, moved, waiting):
            assert "ADOPTED" in kinds_of(cloud, id)
        assert "ADOPTED" not in kinds_of(cloud, kept)


async def greet(server: Skerry, membership: NodeIdentity) -> str:
    """What the server calls a node that says hello with its certificate."""
    async with GrpcControlDialer(server.ready["grpc"], membership.context).dial() as connection:
        return (await connection.hello(NodeHello("edge"))).node


async def test_who_was_revoked_after_the_backup_is_refused_and_who_joined_after_it_is_known_by_its_id(
    tmp_path: Path,
) -> None:
    server = Skerry(tmp_path, role="server")
    try:
        server.wait_ready()
        assert server.stop() == 0
        backup = tmp_path / "backup"
        backup.mkdir()
        for path in server.data.glob("store.db*"):
            shutil.copy(path, backup)
        server = Skerry(tmp_path, role="server")
        server.wait_ready()
        nodes = {name: NodeIdentity(tmp_path / name, SystemClock()) for name in ("honest", "thief")}
        ids = {
            name: (await membership.join(server.ready["http"], join_token(server), "edge")).node
            for name, membership in nodes.items()
        }
        for name, membership in nodes.items():
            assert await greet(server, membership) == ids[name]
        stolen = pki.read_certificate(nodes["thief"].certificate_file.read_bytes()).serial
        assert server.cli("certificate", "revoke", stolen).returncode == 0
        kept = server.data / "pki" / "revoked.json"
        await eventually(lambda: kept.exists() and stolen in kept.read_text())
        server.kill()
        for path in server.data.glob("store.db*"):
            path.unlink()
        for path in backup.iterdir():
            shutil.copy(path, server.data)
        server = Skerry(tmp_path, role="server")
        server.wait_ready()
        assert await greet(server, nodes["honest"]) == ids["honest"]
        with pytest.raises(errors.Unauthenticated, match="revoked"):
            await greet(server, nodes["thief"])
        assert [node["name"] for node in server.call("GET", "/node/")[1]["nodes"]] == ["edge"]
    finally:
        server.kill()


async def test_a_run_is_on_record_before_anything_else_that_a_server_writes(tmp_path: Path) -> None:
    """So that nothing of a store that was restored counts as said by the run before."""
    server = Skerry(tmp_path, role="server")
    try:
        server.wait_ready()
        assert server.stop() == 0
    finally:
        server.kill()
    store = await SqliteStore.open(server.data / "store.db", SystemClock())
    try:
        (run,) = (await store.range(store_history.PREFIX)).entries
        written = (await store.range("")).entries
    finally:
        await store.close()
    assert [entry.key for entry in written if entry.revision < run.revision] == [
        AUTHORITY_KEY,
        stamp.KEY,
    ]
    assert [entry.key for entry in written if entry.key.startswith(certificates.PREFIX)]
