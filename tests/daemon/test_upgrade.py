"""A running cluster is upgraded under load: from 0.1.0, built from the history of this repository, to this
version, and from this one to the next patch; then nobody goes back. Servers on one etcd follow each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skerry import __version__
from tests.support import earlier_versions, functions, imagery
from tests.support.clusters import Cluster, sweep
from tests.support.earlier_versions import V0_1_0
from tests.support.etcd import EtcdServer
from tests.support.shares import free_port
from tests.support.skerry import Skerry, environment
from tests.support.steady_load import SteadyLoad
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        bool(earlier_versions.missing_history(V0_1_0)), reason=earlier_versions.missing_history(V0_1_0)
    ),
]

NEXT_PATCH = f"{__version__.rpartition('.')[0]}.99"
SERVES = "echo here > /www/index.html; exec httpd -f -p 80 -h /www"
CODE = "def handler(params, context):\n    return 'hello ' + params['name']\n"
CALL = json.dumps({"Params": {"name": "load"}}).encode()
FRUGAL = ("--set", "functions.memory_mb=256", "--set", "node.stop_grace_s=0.5")


def check_end(former: Skerry) -> None:
    """A process that was taken over has ended, in good order. 0.1.0 gives itself 12 s for that, which a busy
    machine may need longer for."""
    code = former.process.wait(PATIENCE_S)
    assert code == 0 or former.ready["version"] == V0_1_0.version, former.said()


@dataclass
class Machines:
    """A server and a node on this machine, each at the same addresses whatever version it has."""

    folder: Path
    undo: ExitStack
    sites: dict[str, Path]  # by version; the present one has none
    store: tuple[str, ...] = ()  # options of the server
    http: int = field(default_factory=free_port)
    grpc: int = field(default_factory=free_port)
    node_http: int = field(default_factory=free_port)
    web: int = field(default_factory=free_port)
    server: Skerry = field(init=False)
    node: Skerry = field(init=False)

    def start_server(self, version: str = __version__, *flags: str) -> Skerry:
        listen = ("--http", f"127.0.0.1:{self.http}", "--grpc", f"127.0.0.1:{self.grpc}")
        self.server = self._start("server", version, *listen, *self.store, *flags)
        return self.server

    def start_server_beside(self) -> Skerry:
        """Another server of this version, for the same cloud."""
        keys = self.folder / "beside" / "data" / "pki"
        keys.mkdir(parents=True)
        for name in ("ca.crt", "ca.key"):
            shutil.copy2(self.server.data / "pki" / name, keys)
        return self._start("server", __version__, *self.store, name="beside")

    def start_node(self, version: str = __version__, *flags: str) -> Skerry:
        listen = ("--http", f"127.0.0.1:{self.node_http}", "--name", "edge", *FRUGAL)
        self.node = self._start("node", version, *listen, *flags)
        return self.node

    def take_over_server(self, version: str) -> None:
        node_version = self.node.ready["version"]
        former = self.server
        self.start_server(version, "--takeover")
        check_end(former)
        self.until_node_has(node_version)

    def take_over_node(self, version: str) -> None:
        former = self.node
        self.start_node(version, "--takeover")
        check_end(former)
        self.until_node_has(version)

    def join(self, version: str) -> None:
        """Start a node that joins the server."""
        made = self.server.call("POST", "/token/", {"role": "node"}, {"Content-Type": "application/json"})[1]
        self.start_node(version, "--join", self.server.ready["http"], "--token", made["token"])

    def _start(self, role: str, version: str, *flags: str, name: str = "") -> Skerry:
        home = self.folder / (name or role)
        home.mkdir(exist_ok=True)
        options = {}
        if version in self.sites:
            options = {"env": environment(PYTHONPATH=str(self.sites[version])), "cwd": str(home)}
        made = Skerry(home, *flags, role=role, **options)
        self.undo.callback(sweep, made)
        made.wait_ready()
        assert made.ready["version"] == version
        return made

    def cluster(self) -> Cluster:
        return Cluster(self.server, {"edge": self.node})

    def service_url(self) -> str:
        return f"http://127.0.0.1:{self.web}/"

    def function_url(self) -> str:
        return f"http://127.0.0.1:{self.node_http}/invoke/greet"

    def until_node_has(self, version: str, at: Skerry | None = None) -> None:
        """Until the server, or the one that is named, says that the node is ready with that version."""

        def has() -> bool:
            _, node = (at or self.server).call("GET", "/node/edge")
            return (node.get("status"), node.get("facts", {}).get("version")) == ("ready", version)

        eventually_sync(has, what=f"the node is back with {version}")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("versions")
    return {
        V0_1_0.version: earlier_versions.installed(V0_1_0, folder / "earlier"),
        NEXT_PATCH: earlier_versions.renamed(NEXT_PATCH, folder / "later"),
    }


@pytest.fixture
def machines(tmp_path: Path, sites: dict[str, Path]) -> Iterator[Machines]:
    with ExitStack() as undo:
        yield Machines(tmp_path, undo, sites)


def test_a_cluster_is_upgraded_under_load_and_no_request_fails(machines: Machines) -> None:
    server = machines.start_server(V0_1_0.version)
    machines.join(V0_1_0.version)
    made = imagery.busybox(command=("sh", "-c", SERVES))
    image = imagery.write_oci_archive(made, machines.folder / "web.tar")
    web = machines.cluster().create(
        name="web",
        uri=f"oci-archive:{image}",
        ports=[f"{machines.web}:80"],
        resources={"cpu": 50, "memory": 32},
    )
    machines.cluster().until(web, "RUNNING")
    functions.create(server, "greet", CODE)
    processes = machines.cluster().processes()
    assert processes

    with SteadyLoad(machines.service_url()) as service:
        with (
            SteadyLoad(f"{machines.server.ready['http']}/about") as api,
            SteadyLoad(machines.function_url(), CALL) as calls,
        ):
            # 0.1.0 cannot hand over: its listeners are replaced, and it is stopped. This version can.
            for version in (__version__, NEXT_PATCH):
                for take_over in (machines.take_over_server, machines.take_over_node):
                    api.until_answered()
                    calls.until_answered()
                    take_over(version)
            api.until_answered()
            calls.until_answered()
            service.until_answered()
        assert (api.failures, calls.failures) == ([], [])
    assert service.failures == []
    assert machines.cluster().processes() == processes, "the container is the same process as before"
    assert machines.cluster().instance(web)["status"] == "RUNNING"

    # Nobody goes back: 0.1.0 refuses what this version has written to.
    assert machines.server.stop() == 0
    with pytest.raises(AssertionError, match=r"written by a newer version; start that one, or restore"):
        machines.start_server(V0_1_0.version)
    machines.start_server()
    machines.until_node_has(NEXT_PATCH)
    machines.cluster().destroy(web)
    assert machines.node.stop() == 0
    assert machines.server.stop() == 0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    (tmp_path / "etcd").mkdir()
    server = EtcdServer(tmp_path / "etcd")
    server.start()
    yield server
    server.stop()


def test_servers_on_one_etcd_are_upgraded_one_after_the_other_under_load(
    machines: Machines, etcd: EtcdServer
) -> None:
    machines.store = ("--store", f"etcd://{etcd.address}")
    earlier = machines.start_server(V0_1_0.version)
    machines.join(V0_1_0.version)
    beside = machines.start_server_beside()
    machines.until_node_has(V0_1_0.version, at=beside)
    # Both versions serve one cloud: what one has written, the other uses.
    functions.create(beside, "greet", CODE)
    # A server that has just learned of a node sends it calls once it has answered a probe.
    eventually_sync(lambda: functions.invoke(earlier, "greet", {"name": "you"})[0] == 200)
    with (
        SteadyLoad(f"{earlier.ready['http']}/invoke/greet", CALL) as calls,
        SteadyLoad(f"{beside.ready['http']}/about") as api,
    ):
        calls.until_answered()
        api.until_answered()
        machines.take_over_server(__version__)
        machines.until_node_has(V0_1_0.version, at=beside)
        calls.until_answered()
        api.until_answered()
    assert (calls.failures, api.failures) == ([], [])
    assert machines.node.stop() == 0
    assert machines.server.stop() == 0
    assert beside.stop() == 0
