"""Edges and a cloud, far apart: a server and nodes that run functions, each on a machine of its own.

    with continent(folder, edge=("e1", "e2"), cloud=("c1",)) as made:
        made.create("f", CODE, Policy="edgecloud")
        made.invoke("e1", "f")

All hang on the switch where the server is, by cables that take time. Cables can be cut and mended; every
member can be killed and started again. Whatever runs a function can tell it to a listener on the switch, so
that runs are counted by who ran and not by what was answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.node.network.machines import Machine, inside
from tests.support import functions
from tests.support.cables import Cable, long_cables, plain
from tests.support.clusters import sweep
from tests.support.lans import Resident
from tests.support.waiting import eventually_sync

SERVER = "192.0.2.1"
WITNESS_PORT = 7000
REMOTE = "cloud"  # the area that all others may send calls to
_HTTP, _GRPC, _NEIGHBOURS = 1323, 50052, 7400
_FLEET = {"report_s": "0.5", "suspect_after_s": "2.5", "lost_after_s": "8"}
_FUNCTIONS = {
    "memory_mb": "128",
    "cpus": "2",
    "spare_workers": "0",
    "ping_s": "0.5",
    "neighbour_timeout_s": "2",
    "queue_wait_s": "30",
}


class Witness:
    """Counts runs: each run of a function says its name here, once."""

    def __init__(self, place: Path) -> None:
        self.runs: Counter[str] = Counter()
        self._listener = inside(place, lambda: socket.create_server((SERVER, WITNESS_PORT)))
        self._thread = threading.Thread(target=self._listen, name="witness")
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(5)
                with contextlib.suppress(OSError):
                    self.runs[caller.recv(200).decode()] += 1
                    caller.sendall(b"seen")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Continent:
    """The machines, the cables, and who lives there."""

    def __init__(
        self,
        folder: Path,
        areas: Mapping[str, tuple[str, ...]],
        delays: Mapping[str, float],
        undo: contextlib.ExitStack,
    ) -> None:
        self._folder = folder
        self._undo = undo
        self._areas = {name: area for area, names in areas.items() for name in names}
        self._switch = self._machine("server")
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "address", "add", f"{SERVER}/24", "dev", "switch")
        self._switch.run("ip", "link", "set", "switch", "up")
        inside(self._switch.place, lambda: plain("switch"))
        self._addresses = {name: f"192.0.2.{number}" for number, name in enumerate(self._areas, 11)}
        self._machines = {name: self._plugged_in(name) for name in self._areas}
        cables = [Cable(f"near-{name}", f"far-{name}", delays[area]) for name, area in self._areas.items()]
        undo.enter_context(long_cables(self._switch.place, cables))
        self.witness = Witness(self._switch.place)
        undo.callback(self.witness.close)
        self.server = self._start_server()
        self.nodes: dict[str, Resident] = {}
        for name in self._areas:
            self.nodes[name] = self._start_node(name, self._join_token())
        for name in self._areas:
            self.nodes[name].wait_ready()
        self.until_all_know_each_other()

    # What people do

    def create(self, name: str, code: str, **fields: Any) -> None:
        """At the server; returns when every node that is there knows it."""
        functions.create(self.server, name, code, **fields)
        for node in self.nodes.values():
            eventually_sync(lambda node=node: name in node.call("GET", "/function")[1])

    def invoke(self, name: str, function: str, params: Any = None, **fields: Any) -> tuple[int, Any]:
        """At a node."""
        return functions.invoke(self.nodes[name], function, params, **fields)

    def neighbours_of(self, name: str) -> dict[str, Any]:
        """Whom a node knows, by name."""
        status, told = self.nodes[name].call("GET", "/neighbours")
        assert status == 200, told
        return {each["Node"]: each for each in told}

    def until_all_know_each_other(self) -> None:
        """Those of an area each other, and all the cloud: more is not asked of anybody."""
        for name, area in self._areas.items():
            others = {other for other in self._areas if self._areas[other] in (area, REMOTE)} - {name}
            eventually_sync(lambda name=name, others=others: others <= self._up(name))

    def _up(self, name: str) -> set[str]:
        return {other for other, each in self.neighbours_of(name).items() if each["Up"]}

    # What befalls them

    def cut(self, *names: str) -> None:
        for name in names:
            self._switch.run("ip", "link", "set", f"to-{name}", "down")

    def mend(self, *names: str) -> None:
        for name in names:
            self._switch.run("ip", "link", "set", f"to-{name}", "up")

    def start_again(self, name: str) -> None:
        self.nodes[name] = self._start_node(name, "")
        self.nodes[name].wait_ready()

    def start_server_again(self) -> None:
        self.server = self._start_server()

    def stop(self) -> None:
        """In good order, after which nothing is left."""
        for skerry in (*self.nodes.values(), self.server):
            assert skerry.stop() == 0, skerry.said()
            assert skerry.left() == []

    def _join_token(self) -> str:
        done = self.server.cli("token", "create", "--role", "node")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _start_server(self) -> Resident:
        flags = ["--http", f"0.0.0.0:{_HTTP}", "--grpc", f"0.0.0.0:{_GRPC}", "--tls"]
        settings = {"http.names": SERVER, **{f"fleet.{key}": value for key, value in _FLEET.items()}}
        server = self._start("server", self._switch, "server", flags, settings)
        server.wait_ready()
        return server

    def _start_node(self, name: str, token: str) -> Resident:
        flags = ["--join", f"https://{SERVER}:{_HTTP}", "--name", name, "--http", f"127.0.0.1:{_HTTP}"]
        if token:
            flags += ["--token", token]
        settings = {
            **{f"functions.{key}": value for key, value in _FUNCTIONS.items()},
            "functions.area": self._areas[name],
            "functions.remote_area": REMOTE,
            "functions.neighbours": f"{self._addresses[name]}:{_NEIGHBOURS}",
            "node.stop_grace_s": "0.5",
        }
        return self._start(name, self._machines[name], "node", flags, settings)

    def _start(
        self, name: str, machine: Machine, role: str, flags: list[str], settings: Mapping[str, str]
    ) -> Resident:
        for key, value in settings.items():
            flags += ["--set", f"{key}={value}"]
        resident = Resident(self._folder / name, machine, *flags, role=role)
        self._undo.callback(sweep, resident)
        return resident

    def _plugged_in(self, name: str) -> Machine:
        machine = self._machine(name)
        near, far, port = f"near-{name}", f"far-{name}", f"to-{name}"
        machine.run(
            "ip", "link", "add", "eth0", "type", "veth", "peer", near, "netns", str(self._switch.place)
        )
        machine.run("ip", "address", "add", f"{self._addresses[name]}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        self._switch.run("ip", "link", "add", far, "type", "veth", "peer", port)
        for link in (near, far, port):
            self._switch.run("ip", "link", "set", link, "up")
        self._switch.run("ip", "link", "set", port, "master", "switch")
        inside(machine.place, lambda: plain("eth0"))
        inside(self._switch.place, lambda: [plain(link) for link in (near, far, port)])
        return machine

    def _machine(self, name: str) -> Machine:
        machine = Machine(self._folder, f"{name}.net")
        self._undo.callback(machine.end)
        return machine


def result_of(report: Mapping[str, Any]) -> Any:
    return json.loads(report["Result"])


@contextlib.contextmanager
def continent(folder: Path, delays: Mapping[str, float], **areas: tuple[str, ...]) -> Iterator[Continent]:
    """A server, and nodes in areas, all ready; `delays` is how long a frame takes to the switch."""
    with contextlib.ExitStack() as undo:
        made = Continent(folder, areas, delays, undo)
        yield made
        made.stop()
