"""How long it takes on default settings until the others have taken over, on three machines.

    python -m bench.soak times [--repeat 3]

A machine with instances is switched off until they run elsewhere; a server is killed and started until its
nodes are back; of two servers on one etcd the one that leads is killed until the other leads. The machines
are namespaces of this one: no time for a kernel to boot or a network to recover is in these figures.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support import imagery
from tests.support.machines import Machine, machines
from tests.support.waiting import eventually_sync

REPEAT = 3
_WITHIN_S = 120.0
_SERVER = "skerry server --http 0.0.0.0:1323 --tls"
_COUNT = 4  # instances
_ETCD = (
    "etcd --data-dir /var/lib/etcd --log-level error "
    "--listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://{name}:2379"
)


class Cloud:
    """A server on the first machine, nodes on the others, and instances."""

    def __init__(self, there: Mapping[str, Machine], image: str) -> None:
        self._server_machine, *self._node_machines = there.values()
        self._image = image
        self._start_server()
        for machine in self._node_machines:
            self._join(machine)
        self._ids = [self._create(number) for number in range(_COUNT)]
        self._until(lambda: self._running() == len(self._ids), "all instances run")

    def lose_node(self) -> float:
        """Switch a machine off that has instances; seconds until all of them run on the other."""
        lost = next(machine for machine in self._node_machines if self._running_on(machine))
        (other,) = (machine for machine in self._node_machines if machine is not lost)
        began = time.monotonic()
        lost.power_off()
        self._until(lambda: self._running_on(other) == len(self._ids), "all instances run elsewhere")
        seconds = time.monotonic() - began
        lost.boot()
        lost.start("skerry node")
        self._until(lambda: self._are_live(), "the lost node is back")
        return seconds

    def restart_server(self) -> float:
        """Kill the server and start it; seconds until all instances are reached through their nodes."""
        began = time.monotonic()
        self._server.kill()
        self._start_server()
        self._until(lambda: all(self._is_reached(id) for id in self._ids), "all nodes are back")
        return time.monotonic() - began

    def _start_server(self) -> None:
        machine = self._server_machine
        (machine.disk / "skerry" / "ready.json").unlink(missing_ok=True)
        self._server = machine.start(_SERVER)
        self._until(lambda: (machine.disk / "skerry" / "ready.json").exists(), "the server is ready")

    def _join(self, machine: Machine) -> None:
        invitation = self._server_machine.run("skerry token create --role node").stdout.strip()
        machine.start(f"skerry node --join {invitation}")
        self._until(lambda: machine.name in self._nodes(), f"{machine.name} joins")

    def _create(self, number: int) -> str:
        spec = {"name": f"sleeper-{number}", "uri": self._image, "resources": {"cpu": 20, "memory": 16}}
        status, answer = self._server_machine.call("PUT", "/instance/", spec)
        assert status < 400, answer
        return str(answer["id"])

    def _instances(self) -> list[dict[str, Any]]:
        return list(self._server_machine.call("GET", "/instance/")[1]["instances"])

    def _running(self) -> int:
        return sum(each["status"] == "RUNNING" for each in self._instances())

    def _running_on(self, machine: Machine) -> int:
        id = self._nodes()[machine.name]["id"]
        return sum((each["status"], each["node_id"]) == ("RUNNING", id) for each in self._instances())

    def _nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self._server_machine.call("GET", "/node/")[1]["nodes"]}

    def _are_live(self) -> bool:
        return {(node["status"], node["liveness"]) for node in self._nodes().values()} == {("ready", "live")}

    def _is_reached(self, id: str) -> bool:
        return self._server_machine.call("GET", f"/instance/{id}/logs")[0] == 200

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        eventually_sync(lambda: _answers(condition), within=_WITHIN_S, what=what)


class Servers:
    """Two servers on the etcd of a third machine."""

    def __init__(self, there: Mapping[str, Machine]) -> None:
        *self._machines, store = there.values()
        store.start(_ETCD.format(name=store.name))
        self._store = f"etcd://{store.name}:2379"
        first, second = self._machines
        self._services = {first: self._start(first)}
        self._until(lambda: self._leaders() == [first.name], "the first server leads")
        (second.disk / "skerry" / "pki").mkdir(mode=0o700, parents=True)
        for part in ("ca.crt", "ca.key"):
            shutil.copy2(first.disk / "skerry" / "pki" / part, second.disk / "skerry" / "pki" / part)
        self._services[second] = self._start(second)

    def lose_leader(self) -> float:
        """Kill the server that leads; seconds until the other one does."""
        before = self._leaders()
        (lost,) = (machine for machine in self._machines if machine.name == before[-1])
        (other,) = (machine for machine in self._machines if machine is not lost)
        self._until(lambda: other.call("GET", "/readyz")[0] == 200, "the other server is ready")
        began = time.monotonic()
        self._services[lost].kill()
        self._until(lambda: self._leaders(other)[-1] == other.name, "the other server leads")
        seconds = time.monotonic() - began
        self._services[lost] = self._start(lost)
        return seconds

    def _start(self, machine: Machine) -> Any:
        return machine.start(f"{_SERVER} --store {self._store}")

    def _leaders(self, asked: Machine | None = None) -> list[str]:
        """The names of those that have led, one after the other."""
        for machine in (asked,) if asked else self._machines:
            said = machine.run("skerry events --kind server.leads --output json").stdout.splitlines()
            if said:
                return [self._owner(json.loads(line)["subject"]) for line in said]
        return []

    def _owner(self, url: str) -> str:
        """The machine of a server that goes by this."""
        return next(each.name for each in self._machines if each.name in url or each.address in url)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        eventually_sync(lambda: _answers(condition), within=_WITHIN_S, what=what)


def _answers(condition: Callable[[], bool]) -> bool:
    """False also if nobody answers."""
    try:
        return condition()
    except (OSError, LookupError, ValueError, StopIteration):
        return False


def measure(folder: Path, repeat: int) -> Iterator[tuple[str, list[float]]]:
    """What is measured, and its seconds."""
    image = imagery.write_oci_archive(imagery.busybox(command=("sleep", "100000")), folder / "image.tar")
    (folder / "cloud").mkdir()
    with machines(folder / "cloud", "alpha", "beta", "gamma") as there:
        cloud = Cloud(there, f"oci-archive:{image}")
        yield (
            "server killed and started, until its nodes are back",
            [cloud.restart_server() for _ in range(repeat)],
        )
        yield (
            "node switched off, until its instances run elsewhere",
            [cloud.lose_node() for _ in range(repeat)],
        )
    (folder / "servers").mkdir()
    with machines(folder / "servers", "alpha", "beta", "gamma") as there:
        servers = Servers(there)
        yield "leading server killed, until the next leads", [servers.lose_leader() for _ in range(repeat)]


def run(repeat: int = REPEAT) -> list[str]:
    """Print the table; it violates nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for what, seconds in measure(Path(folder), repeat):
            middle = statistics.median(seconds)
            print(f"  {what:<54}{middle:>6.1f} s   at most {max(seconds):.1f} s, of {repeat}", flush=True)
    return []
