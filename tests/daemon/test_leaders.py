"""Two servers on one etcd, with a real node at each: whoever leads is stopped, and the other takes over."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import imagery
from tests.support.clusters import Cluster, sweep
from tests.support.etcd import EtcdServer
from tests.support.remains import left_of
from tests.support.shares import free_port
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

LEASE_S = 5


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def image(tmp_path: Path) -> str:
    made = imagery.busybox(command=("sleep", "100000"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path / 'sleeper.tar')}"


class Site:
    """A server and the node that has joined at it."""

    def __init__(self, folder: Path, etcd: EtcdServer, undo: contextlib.ExitStack) -> None:
        self._undo = undo
        self.folder = folder
        self.name = folder.name
        settings = {
            "fleet.leader_lease_s": str(LEASE_S),
            "fleet.placement": "spread",
            "fleet.report_s": "0.5",
            "fleet.suspect_after_s": "2",
            "fleet.lost_after_s": "600",
        }
        self._flags = [
            *("--http", f"127.0.0.1:{free_port()}", "--grpc", f"127.0.0.1:{free_port()}"),
            *("--store", f"etcd://{etcd.address}"),
            *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        ]
        for part in ("server/data/pki", "node"):
            (folder / part).mkdir(parents=True, mode=0o700)

    def start_server(self, authority_of: Site | None = None) -> None:
        """With the CA of another site, if this is not the first one."""
        if authority_of is not None:
            for part in ("ca.crt", "ca.key"):
                shutil.copy2(authority_of.server.data / "pki" / part, self.folder / "server/data/pki" / part)
        self.server = self._start("server", *self._flags)

    def start_node(self) -> None:
        token = self.server.cli("token", "create", "--role", "node").stdout.strip()
        self._join("--join", self.server.ready["http"], "--token", token)

    def restart_node(self) -> None:
        """After it was killed; it has joined, and needs no server for that any more."""
        self._join()

    def _join(self, *flags: str) -> None:
        self.node = self._start("node", *flags, "--name", self.name, "--set", "node.stop_grace_s=0.5")

    def _start(self, role: str, *flags: str) -> Skerry:
        started = Skerry(self.folder / role, *flags, role=role)
        self._undo.callback(sweep, started)
        started.wait_ready()
        return started


@pytest.fixture
def sites(tmp_path: Path, etcd: EtcdServer) -> Iterator[tuple[Site, Site]]:
    """Two of them, of which the first one leads."""
    with contextlib.ExitStack() as undo:
        first, second = (Site(tmp_path / name, etcd, undo) for name in ("first", "second"))
        first.start_server()
        second.start_server(authority_of=first)
        for site in (first, second):
            site.start_node()
        yield first, second
        for skerry in (first.node, second.node, first.server, second.server):
            assert skerry.stop() == 0, skerry.said()
            assert left_of(skerry) == []


def create(cluster: Cluster, image: str) -> list[str]:
    spec = {"uri": image, "resources": {"cpu": 20, "memory": 16}}
    return [cluster.create(name=f"sleeper-{number}", **spec) for number in range(4)]


def wait_until_placed(cluster: Cluster, ids: list[str]) -> None:
    for id in ids:
        eventually_sync(lambda id=id: cluster.instance(id)["node_id"], what=f"{id} placed")


def check_all_run_once(cluster: Cluster, ids: list[str]) -> None:
    for id in ids:
        assert cluster.until(id, "RUNNING")["generation"] == 1
        statuses = [happened.status for happened in cluster.history(id)]
        assert statuses == ["SCHEDULING", "SCHEDULED", "STARTING", "RUNNING"]
    assert cluster.copies() == cluster.places(*ids)


def leaders(cluster: Cluster) -> list[str]:
    """Where the servers are that have led, one after the other."""
    lines = cluster.server.cli("events", "--kind", "server.leads", "--output", "json").stdout.splitlines()
    told = [json.loads(line)["subject"].removeprefix("server/") for line in lines]
    return [name for name, _ in itertools.groupby(told)]


def test_when_the_leader_is_killed_or_freezes_the_other_takes_over_and_nothing_is_placed_twice(
    sites: tuple[Site, Site], image: str
) -> None:
    first, second = sites
    nodes = {site.name: site.node for site in sites}
    # Everything is asked of the one that does not lead.
    cluster = Cluster(second.server, nodes)
    cluster.until_ready(*nodes)
    ids = create(cluster, image)
    wait_until_placed(cluster, ids[:1])
    first.server.kill()
    ids += create(cluster, image)
    wait_until_placed(cluster, ids)
    assert leaders(cluster) == [first.server.ready["http"], second.server.ready["http"]]
    first.start_server()
    cluster.until_ready(*nodes)
    check_all_run_once(cluster, ids)

    # Frozen in the middle of its work, it does not know that it leads no more.
    cluster = Cluster(first.server, nodes)
    ids += create(cluster, image)
    second.server.process.send_signal(signal.SIGSTOP)
    try:
        ids += create(cluster, image)
        wait_until_placed(cluster, ids)
    finally:
        second.server.process.send_signal(signal.SIGCONT)
    eventually_sync(lambda: "leader.lost" in second.server.said())
    cluster.until_ready(*nodes)
    check_all_run_once(cluster, ids)
    assert leaders(cluster) == [
        first.server.ready["http"],
        second.server.ready["http"],
        first.server.ready["http"],
    ]
    cluster.destroy(*ids)
    assert cluster.copies() == []


def test_when_the_server_that_a_node_joined_is_killed_the_node_goes_to_the_other_one(
    sites: tuple[Site, Site], image: str
) -> None:
    first, second = sites
    nodes = {site.name: site.node for site in sites}
    cluster = Cluster(second.server, nodes)
    cluster.until_ready(*nodes)
    ids = create(cluster, image)
    check_all_run_once(cluster, ids)
    for id in ids:  # also those on the node of the other server
        assert cluster.server.cli("exec", id, "hostname").stdout, id
    before = cluster.processes()
    assert {name for _, name in before} == set(nodes), "both nodes have something to keep"

    first.server.kill()
    eventually_sync(lambda: is_at(first.node, second.server))
    cluster.until_ready(*nodes)
    ids += create(cluster, image)
    check_all_run_once(cluster, ids)
    after = cluster.processes()
    assert {copy: after[copy] for copy in before} == before, "what ran went on"
    assert {name for _, name in after.keys() - before.keys()} == set(nodes)

    # It remembers where it was, though the server that it joined is still gone when it starts.
    first.node.kill()
    first.restart_node()
    cluster = Cluster(second.server, {site.name: site.node for site in sites})
    eventually_sync(lambda: is_at(first.node, second.server))
    check_all_run_once(cluster, ids)
    first.start_server()
    cluster.destroy(*ids)
    assert cluster.copies() == []


def is_at(node: Skerry, server: Skerry) -> bool:
    """True if the node has a session with that server, since it was started last."""
    said = [json.loads(line) for line in node.said().splitlines()]
    told = [line for line in said if line["event"] in ("node.joined", "node.joined-before", "session.began")]
    return told[-1].get("server") == server.ready["grpc"]
