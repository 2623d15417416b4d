"""Two clouds that know each other: each a Skerry on a machine of its own, with a registry for both.

    with neighbours(folder) as (north, south):
        south.done("market", "sell", ...)
        north.done("market", "buy", ...)

North buys, and south sells. Each is reached by the other over TLS, as the other's CA says; the machines hang
on one switch, where the registry is. A cable can be cut and mended.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.node.network.machines import Machine, inside
from tests.support.clusters import Cluster, sweep
from tests.support.lans import Resident
from tests.support.registry import Registry

_HTTP, _GRPC = 1323, 50052  # free on a machine of its own, and the same after a restart
_SWITCH = "192.0.2.1"
_ADDRESSES = {"north": "192.0.2.11", "south": "192.0.2.12"}
# A cloud that starts again is back before its silence counts, also on a busy machine.
_SETTINGS = {
    "fleet.report_s": "0.5",
    "fleet.suspect_after_s": "2.5",
    "fleet.lost_after_s": "30",
    "fleet.restart_base_s": "0.3",
    "fleet.reserve_percent": "0",
    "node.stop_grace_s": "0.5",
}


class Neighbour(Cluster):
    """One of the clouds: a server and its own node, in one process."""

    def __init__(
        self, name: str, folder: Path, machine: Machine, registry: str, more: Mapping[str, str]
    ) -> None:
        self.name = name
        self.address = f"https://{_ADDRESSES[name]}:{_HTTP}"
        self._folder = folder / name
        self._machine = machine
        self._settings = {
            **_SETTINGS,
            "http.names": _ADDRESSES[name],
            "images.insecure": registry,
            "market.guest_registries": registry,
            **more,
        }
        super().__init__(self._start(), {})
        self.nodes = {name: self.server}

    @property
    def cloud(self) -> str:
        """Its id on the market."""
        return str(self.call("GET", "/market")["cloud"])

    @property
    def authority(self) -> str:
        return str(self.server.ready["ca"])

    def done(self, *verb: str) -> Any:
        """What a verb of the command line says in JSON; it must go well."""
        done = self.server.cli(*verb, "-o", "json")
        assert done.returncode == 0, f"{' '.join(verb)}: {done.stderr}\n{self.server.said()[-4000:]}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    def start_again(self) -> None:
        self.server = self._start()
        self.nodes = {self.name: self.server}

    def _start(self) -> Resident:
        flags = ["--http", f"0.0.0.0:{_HTTP}", "--grpc", f"127.0.0.1:{_GRPC}", "--tls"]
        for key, value in self._settings.items():
            flags += ["--set", f"{key}={value}"]
        resident = Resident(self._folder, self._machine, *flags, role="up")
        resident.wait_ready()
        return resident


class Street:
    """Both, and what is between them."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack, more: Mapping[str, str]) -> None:
        self._undo = undo
        self._folder = folder
        self._switch = self._machine("switch")
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "address", "add", f"{_SWITCH}/24", "dev", "switch")
        self._switch.run("ip", "link", "set", "switch", "up")
        self.registry = Registry(folder / "registry", host=_SWITCH)
        inside(self._switch.place, self.registry.start)
        undo.callback(self.registry.stop)
        self.north, self.south = (self._neighbour(name, more) for name in _ADDRESSES)

    def push(self, made: Any, name: str) -> str:
        """The reference of an image that both can pull."""
        inside(self._switch.place, lambda: self.registry.push(made, name))
        return f"{self.registry.address}/{name}"

    def cut(self) -> None:
        """Neither reaches the other, nor the registry."""
        self._switch.run("ip", "link", "set", "to-south", "down")

    def mend(self) -> None:
        self._switch.run("ip", "link", "set", "to-south", "up")

    def stop(self) -> None:
        """In good order, after which nothing is left."""
        for one in (self.north, self.south):
            assert one.server.stop() == 0, one.server.said()
            assert isinstance(one.server, Resident)
            assert one.server.left() == []

    def _neighbour(self, name: str, more: Mapping[str, str]) -> Neighbour:
        machine, cable = self._machine(name), f"to-{name}"
        ends = ("eth0", "type", "veth", "peer", cable, "netns", str(self._switch.place))
        machine.run("ip", "link", "add", *ends)
        machine.run("ip", "address", "add", f"{_ADDRESSES[name]}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        self._switch.run("ip", "link", "set", cable, "master", "switch", "up")
        one = Neighbour(name, self._folder, machine, self.registry.address, more)
        self._undo.callback(lambda: sweep(one.server))
        return one

    def _machine(self, name: str) -> Machine:
        machine = Machine(self._folder, f"{name}.net")
        self._undo.callback(machine.end)
        return machine


@contextlib.contextmanager
def neighbours(folder: Path, **more: str) -> Iterator[Street]:
    """Both clouds, ready; with `more` settings, whose dots are written as two underscores."""
    with contextlib.ExitStack() as undo:
        settings = {key.replace("__", "."): value for key, value in more.items()}
        street = Street(folder, undo, settings)
        yield street
        street.stop()
