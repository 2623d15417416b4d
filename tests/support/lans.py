"""A cluster on a network of its own: a server and nodes, each process in a network namespace of its own.

    with lan(folder, "north", "south") as cluster:
        cluster.cut("north")

The machines hang on one switch, which is where the server is. Nodes refuse whatever dials them, as they would
behind NAT; only ports that instances publish are let through. A cable can be cut and mended. At the end there
must be nothing left; if a test has failed, whatever there is is taken away by force.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.node.network.machines import Machine, inside
from tests.support.clusters import Cluster, sweep
from tests.support.remains import left_of
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

_SERVER = "192.0.2.1"
_HTTP = 1323  # free on a machine of its own, and the same after a restart
# Silence is noticed soon, yet not so soon that a busy machine is taken for a lost one.
_FLEET = {
    "report_s": "0.5",
    "suspect_after_s": "2.5",
    "lost_after_s": "8",
    "placement": "spread",
    "restart_base_s": "0.3",
    "subnets": "10.128.0.0/9",
}
_NO_MESH = ("--set", "mesh.encryption=none")  # `tests.support.nat_lab` has one
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

    def left(self) -> list[str]:
        """What it has left behind."""
        return inside(self.machine.place, lambda: left_of(self))


class Lan(Cluster):
    """The cluster and its network."""

    def __init__(self, folder: Path, names: tuple[str, ...], undo: contextlib.ExitStack) -> None:
        self._folder = folder
        self._undo = undo  # whatever happens
        self._residents: dict[str, Resident] = {}
        self._switch = self._machine("server")
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "address", "add", f"{_SERVER}/24", "dev", "switch")
        self._switch.run("ip", "link", "set", "switch", "up")
        self._addresses = {name: f"192.0.2.{number}" for number, name in enumerate(names, 11)}
        self._machines = {name: self._plugged_in(name) for name in names}
        super().__init__(self._start_server(), self._residents)
        for name in names:
            self._residents[name] = self._start_node(name)
        for node in self._residents.values():
            node.wait_ready()
        self.until_ready(*names)

    def call_server_as(self, name: str, host: str) -> int:
        """The status that the server answers a node's machine with that calls it by the name `host`."""

        def get() -> int:
            context = ssl.create_default_context(cafile=self.server.ready["ca"])
            plain = socket.create_connection((_SERVER, _HTTP), timeout=5)
            with plain, context.wrap_socket(plain, server_hostname=host) as connection:
                connection.sendall(f"GET /readyz HTTP/1.1\r\nHost: {host}:{_HTTP}\r\n\r\n".encode())
                return int(connection.recv(12).split()[1])

        return inside(self._machines[name].place, get)

    def page(self, source: str, target: str, port: int) -> str:
        """What node `source` is shown at a port of node `target`, as soon as anything is."""

        def get() -> str:
            connection = http.client.HTTPConnection(self._addresses[target], port, timeout=5)
            try:
                connection.request("GET", "/")
                return connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException):
                return ""
            finally:
                connection.close()

        return str(eventually_sync(lambda: inside(self._machines[source].place, get)))

    def address(self, name: str) -> str:
        """Of a node's machine."""
        return self._addresses[name]

    @property
    def server_place(self) -> Path:
        """The network namespace of the server, from which every machine is reached."""
        return self._switch.place

    def cut(self, name: str) -> None:
        """Take a node's cable away."""
        self._switch.run("ip", "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        self._switch.run("ip", "link", "set", f"to-{name}", "up")

    def let_in(self, name: str) -> None:
        """Others can dial a node from now on, as the server does for calls of functions."""
        self._machines[name].run("nft", "delete", "table", "inet", "behind_nat")

    def join(self, name: str, start: Callable[..., Resident] | None = None) -> Resident:
        """One more node, which is ready when this returns; `start` makes it of its folder, its machine and
        its flags."""
        self._addresses[name] = f"192.0.2.{11 + len(self._addresses)}"
        self._machines[name] = self._plugged_in(name)
        self._residents[name] = self._start_node(name, start)
        self._residents[name].wait_ready()
        self.until_ready(name)
        return self._residents[name]

    def kill_and_restart(self, name: str) -> None:
        """The agent of a node is killed, and another takes over."""
        self._residents[name].kill()
        self._residents[name] = self._start_node(name)
        self._residents[name].wait_ready()
        self.until_ready(name)

    def restart_server(self) -> None:
        self.server = self._start_server()

    def restart_node(self, name: str) -> None:
        """Kill the agent of a node, and start it again; ready when it is connected."""
        self._residents[name].kill()
        self._residents[name] = self._start_node(name)
        self._residents[name].wait_ready()

    def leave(self, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Have a node leave for good, by its own command; if it does, the cluster has it no more."""
        done = self._residents[name].cli("node", "leave", "--yes", *flags)
        if done.returncode == 0:
            del self._residents[name]
        return done

    def tidy_up(self) -> None:
        """Back to nodes that take everything and have nothing."""
        for name in self.nodes:
            self.mend(name)
            self.call("POST", f"/node/{name}/uncordon")
        self.until_ready(*self.nodes)
        for service in self.call("GET", "/service/")["services"]:
            self.call("DELETE", f"/service/{service['name']}")
            self._until(f"/service/{service['name']}", {"code": "not-found"})
        self.destroy(*self.instances())
        assert self.copies() == [], "there are copies that the server does not know of"

    def stop(self) -> None:
        """In good order, after which nothing is left."""
        for skerry in (*self._residents.values(), self.server):
            assert skerry.stop() == 0, skerry.said()
            assert isinstance(skerry, Resident)
            assert skerry.left() == []

    def _machine(self, name: str) -> Machine:
        machine = Machine(self._folder, f"{name}.net")
        self._undo.callback(machine.end)
        return machine

    def _plugged_in(self, name: str) -> Machine:
        machine, cable = self._machine(name), f"to-{name}"
        ends = ("eth0", "type", "veth", "peer", cable, "netns", str(self._switch.place))
        machine.run("ip", "link", "add", *ends)
        machine.run("ip", "address", "add", f"{self._addresses[name]}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        machine.run("nft", "-f", "-", text=_BEHIND_NAT)
        self._switch.run("ip", "link", "set", cable, "master", "switch", "up")
        return machine

    def _start_server(self) -> Resident:
        # Empty is the default: gRPC listens where HTTP does.
        flags = ["--http", f"0.0.0.0:{_HTTP}", "--grpc", "", "--tls", *_NO_MESH]
        for key, value in _FLEET.items():
            flags += ["--set", f"fleet.{key}={value}"]
        server = self._start("server", self._switch, *flags)
        server.wait_ready()
        return server

    def _start_node(self, name: str, start: Callable[..., Resident] | None = None) -> Resident:
        done = self.server.cli("token", "create", "--role", "node")
        assert done.returncode == 0, done.stderr
        flags = ("--join", done.stdout.strip(), "--name", name)
        more = ("--set", "node.stop_grace_s=0.5")
        return self._start(name, self._machines[name], *flags, *more, start=start)

    def _start(
        self, name: str, machine: Machine, *flags: str, start: Callable[..., Resident] | None = None
    ) -> Resident:
        role = "server" if machine is self._switch else "node"
        resident = (start or Resident)(self._folder / name, machine, *flags, role=role)
        self._undo.callback(sweep, resident)
        return resident


@contextlib.contextmanager
def lan(folder: Path, *names: str) -> Iterator[Lan]:
    """A server and nodes of these names, all ready."""
    with contextlib.ExitStack() as undo:
        made = Lan(folder, names, undo)
        yield made
        made.tidy_up()
        made.stop()
