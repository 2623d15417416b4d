"""A cluster on this machine: a server and nodes, each process in a network namespace of its own.

    with cluster(folder, "north", "south") as cloud:
        id = cloud.create(name="web", uri=..., ports=["8080:80"])
        cloud.until(id, "RUNNING")

The machines hang on one switch, which is where the server is. Nodes refuse whatever dials them, as they would
behind NAT; ports that instances publish are let through. A cable can be cut and joined again. At the end all
instances must go, and nothing may be left; if a test has failed, whatever is left is taken away by force.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skerry.daemon.runtime import group_root
from tests.node.network.machines import Machine, inside
from tests.support.remains import left_of
from tests.support.skerry import Skerry, ask
from tests.support.waiting import eventually_sync

Document = dict[str, Any]

_HUB = "192.0.2.1"
_GROUPS = Path("/sys/fs/cgroup")
# Silence is noticed soon, yet not so soon that a busy machine is taken for a lost one.
_FLEET = {
    "report_s": "0.5",
    "suspect_after_s": "2.5",
    "lost_after_s": "5",
    "placement": "spread",
    "restart_base_s": "0.3",
    "subnets": "10.128.0.0/9",
}
_BEHIND_NAT = """
table inet behind_nat {
    chain input {
        type filter hook input priority 0;
        iifname "eth0" ct state new drop
    }
}
"""


class Resident(Skerry):
    """A Skerry that lives on a machine of its own."""

    def __init__(self, folder: Path, machine: Machine, *flags: str, role: str) -> None:
        self.machine = machine
        folder.mkdir(exist_ok=True)
        inside(machine.place, lambda: super(Resident, self).__init__(folder, *flags, role=role))

    def connect(self) -> http.client.HTTPConnection:
        return inside(self.machine.place, super().connect)

    def cli(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return inside(self.machine.place, lambda: super(Resident, self).cli(*arguments, **more))


class Cluster:
    """A server and its nodes, by name."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder = folder
        self._undo = contextlib.ExitStack()
        self.hub = self._machine("hub")
        self.hub.run("ip", "-batch", "-", text=f"link add br0 type bridge\naddress add {_HUB}/24 dev br0\n")
        self.hub.run("ip", "link", "set", "br0", "up")
        self.machines = {name: self._machine(name) for name in names}
        self.addresses = {name: f"192.0.2.{number}" for number, name in enumerate(names, 11)}
        for name, machine in self.machines.items():
            self._plug_in(name, machine)
        self.nodes: dict[str, Resident] = {}
        self._start_server()

    def join_all(self) -> None:
        """Make every machine a node."""
        for name, machine in self.machines.items():
            done = self.server.cli("token", "create", "--role", "node")
            assert done.returncode == 0, done.stderr
            flags = ("--join", f"https://{_HUB}:1323", "--token", done.stdout.strip(), "--name", name)
            grace = ("--set", "node.stop_grace_s=0.5")
            self.nodes[name] = Resident(self._folder / name, machine, *flags, *grace, role="node")
        for node in self.nodes.values():
            node.wait_ready()
        self.until_ready(*self.nodes)

    def until_ready(self, *names: str, within: float = 30.0) -> None:
        with self._line() as call:

            def are_ready() -> bool:
                found = {node["name"]: node for node in call("GET", "/node/")["nodes"]}
                return all(
                    found.get(name, {}).get("status") == "ready" and found[name]["liveness"] == "live"
                    for name in names
                )

            eventually_sync(are_ready, within=within, what=f"{', '.join(names)} ready")

    # What people do.

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        """The answer to a request, which must go well."""
        with self._line() as call:
            return call(verb, path, body)

    def create(self, **spec: Any) -> str:
        return str(self.call("PUT", "/instance/", spec)["id"])

    def instance(self, id: str) -> Document:
        return dict(self.call("GET", f"/instance/{id}"))

    def until(self, id: str, status: str, *, within: float = 30.0, **fields: Any) -> Document:
        """The instance, when it has that status and these fields."""
        seen: Document = {}
        with self._line() as call:

            def is_so() -> bool:
                seen.update(call("GET", f"/instance/{id}"))
                return seen["status"] == status and all(seen[key] == value for key, value in fields.items())

            try:
                eventually_sync(is_so, within=within, what=f"{status} {fields or ''}")
            except AssertionError as error:
                raise AssertionError(f"{error}; it is {seen}") from None
        return seen

    def history(self, id: str) -> list[str]:
        """Which statuses an instance had, one after the other."""
        told = self.call("GET", f"/instance/{id}/events")["events"]
        return [event["kind"].removeprefix("instance.").upper() for event in told]

    def delete(self, *ids: str, within: float = 30.0) -> None:
        """Destroy instances and wait until they are gone."""
        for id in ids:
            self.call("DELETE", f"/instance/{id}")
        with contextlib.closing(self.server.connect()) as connection:
            for id in ids:
                eventually_sync(
                    lambda id=id: ask(connection, "GET", f"/instance/{id}")[0] == 404,
                    within=within,
                    what=f"{id} gone",
                )

    def node_of(self, instance: Document) -> str:
        """The name of the node that an instance is on."""
        return next(name for name, node in self.nodes.items() if node.ready["node"] == instance["node_id"])

    def page(self, source: str, target: str, port: int) -> str:
        """What machine `source` is shown at a port of machine `target`, as soon as anything is."""

        def get() -> str:
            connection = http.client.HTTPConnection(self.addresses[target], port, timeout=5)
            try:
                connection.request("GET", "/")
                return connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException):
                return ""
            finally:
                connection.close()

        return str(eventually_sync(lambda: inside(self.machines[source].place, get), within=20))

    # What is really there.

    def copies(self) -> Counter[tuple[str, str]]:
        """How many live containers there are of which instance on which node, by the processes there are."""
        found: set[tuple[str, str, str]] = set()
        for name, node in self.nodes.items():
            group = re.compile(rf"/{group_root('skerry', node.data)}/.*?\bi-([0-9a-z]+)")
            for path in Path("/proc").glob("[0-9]*/cgroup"):
                with contextlib.suppress(OSError):
                    if match := group.search(path.read_text()):
                        found.add((name, match[1], match[0]))
        return Counter((name, id) for name, id, _ in found)

    # What goes wrong.

    def cut(self, name: str) -> None:
        self.hub.run("ip", "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        self.hub.run("ip", "link", "set", f"to-{name}", "up")

    def kill_server(self) -> None:
        self.server.kill()

    def start_server_again(self) -> None:
        self._start_server()

    # The machines.

    def close(self) -> None:
        """Stop everything in good order; nothing may be left."""
        left = [instance["id"] for instance in self.call("GET", "/instance/")["instances"]]
        self.delete(*left)
        for skerry in (*self.nodes.values(), self.server):
            assert skerry.stop() == 0, skerry.said()
            remains = inside(skerry.machine.place, lambda skerry=skerry: left_of(skerry))
            assert remains == []

    def clear(self) -> None:
        """Take everything away, whatever state it is in."""
        for skerry in (self.server, *self.nodes.values()):
            if skerry.process.poll() is None:
                skerry.kill()
            _sweep(skerry)
        self._undo.close()

    def _machine(self, name: str) -> Machine:
        machine = Machine(self._folder, f"{name}.net")
        self._undo.callback(machine.end)
        return machine

    def _plug_in(self, name: str, machine: Machine) -> None:
        machine.run(
            "ip", "link", "add", "eth0", "type", "veth", "peer", f"to-{name}", "netns", str(self.hub.place)
        )
        machine.run("ip", "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        machine.run("nft", "-f", "-", text=_BEHIND_NAT)
        self.hub.run("ip", "link", "set", f"to-{name}", "master", "br0", "up")

    def _start_server(self) -> None:
        listen = ("--http", "0.0.0.0:1323", "--grpc", "0.0.0.0:50052", "--tls", "--set", f"http.names={_HUB}")
        fleet = [word for key, value in _FLEET.items() for word in ("--set", f"fleet.{key}={value}")]
        self.server = Resident(self._folder / "server", self.hub, *listen, *fleet, role="server")
        self.server.wait_ready()

    @contextlib.contextmanager
    def _line(self) -> Iterator[Any]:
        """For several requests in a row, each of which must go well."""
        with contextlib.closing(self.server.connect()) as connection:

            def call(verb: str, path: str, body: Any = None) -> Any:
                headers = {} if body is None else {"Content-Type": "application/json"}
                status, answer = ask(connection, verb, path, body, headers)
                assert status < 400, f"{verb} {path}: {status} {answer}"
                return answer

            yield call


@contextlib.contextmanager
def cluster(folder: Path, *names: str) -> Iterator[Cluster]:
    """A server and nodes of these names, all ready."""
    made = Cluster(folder, names)
    try:
        made.join_all()
        yield made
        made.close()
    finally:
        made.clear()


def _sweep(skerry: Skerry) -> None:
    """End the containers of a Skerry that was killed, and take away what they had."""
    groups = list(_GROUPS.glob(f"*/{group_root('skerry', skerry.data)}"))

    def is_empty() -> bool:
        members = {
            int(pid)
            for top in groups
            for path in top.rglob("cgroup.procs")
            for pid in path.read_text().split()
        }
        for pid in members - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not members

    eventually_sync(is_empty, what="the containers of a failed test end")
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in sorted((path for path in mounted if path.startswith(str(skerry.data))), reverse=True):
        subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
    for top in groups:
        for folder in sorted((path.parent for path in top.rglob("cgroup.procs")), reverse=True):
            folder.rmdir()
