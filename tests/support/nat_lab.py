"""A cloud on an internet of its own: public machines, and machines behind routers that translate addresses.

    with nat_lab(folder) as lab:
        lab.cut("home")

Every machine and router is a network namespace. The server and `east`, `west` are public; `home` and
`office` are behind a router each. Both routers use the same private network, as homes do, and refuse
connections from outside. They keep ports, until `use_any_port` has one give each destination another port, so
that only public machines have a link to what is behind it. `east` serves routes to the internet, at port 80.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dnslib

from skerry.daemon.node_runtime import group_root
from skerry.node.network.subnets import KernelNames
from tests.node.network.machines import Machine, inside
from tests.support import imagery
from tests.support.clusters import Cluster, sweep
from tests.support.lans import Resident
from tests.support.waiting import PATIENCE_S, eventually_sync

EDGE = "east"  # the node that serves routes
LARGE = 300_000  # bytes of a page: many packets
_SERVER = "198.51.100.1"
_HTTP = 1323
_FLEET = {
    "fleet.report_s": "0.5",
    "fleet.suspect_after_s": "2.5",
    "fleet.lost_after_s": "60",
    "fleet.subnets": "10.128.0.0/9",
}
# Translates the addresses of those behind it, and lets nobody in.
ROUTER_RULES = """
table ip router {
    chain outward {
        type nat hook postrouting priority srcnat;
        oifname "wan" masquerade
    }
    chain inward {
        type filter hook forward priority filter;
        iifname "wan" ct state new drop
    }
    chain itself {
        type filter hook input priority filter;
        iifname "wan" ct state new drop
    }
}
"""


class Place(NamedTuple):
    """Where a machine is: behind which router, or on the internet."""

    router: str
    address: str


PLACES = {
    "east": Place("", "198.51.100.21"),
    "west": Place("", "198.51.100.22"),
    "home": Place("cable", "192.168.1.10"),
    "office": Place("fibre", "192.168.1.10"),
}
ROUTERS = {"cable": "198.51.100.31", "fibre": "198.51.100.32"}


class NatLab(Cluster):
    """The cloud and its internet."""

    def __init__(
        self, folder: Path, names: Iterable[str], undo: contextlib.ExitStack, settings: dict[str, str]
    ) -> None:
        self._folder = folder
        self._undo = undo
        self._settings = settings
        self._residents: dict[str, Resident] = {}
        self.internet = self._machine("internet")
        self.internet.run("ip", "link", "add", "exchange", "type", "bridge")
        self.internet.run("ip", "address", "add", f"{_SERVER}/24", "dev", "exchange")
        self.internet.run("ip", "link", "set", "exchange", "up")
        self.addresses = {name: place.address for name, place in PLACES.items()} | ROUTERS
        self.routers = {name: self._router(name, address) for name, address in ROUTERS.items()}
        self.machines = {name: self._plug_in(name, PLACES[name]) for name in names}
        super().__init__(self._start_server(), self._residents)
        for name in self.machines:
            self._residents[name] = self._start_node(name)
        for node in self._residents.values():
            node.wait_ready()
        self.until_ready(*self.machines)
        self.containers: dict[str, str] = {}  # addresses by node
        self.containers6: dict[str, str] = {}  # of IPv6

    # Machines

    def _machine(self, name: str) -> Machine:
        machine = Machine(self._folder, f"{name}.net")
        self._undo.callback(machine.end)
        return machine

    def _cable(self, machine: Machine, link: str, name: str, address: str, to: Machine, switch: str) -> None:
        machine.run("ip", "link", "add", link, "type", "veth", "peer", f"to-{name}", "netns", str(to.place))
        machine.run("ip", "address", "add", f"{address}/24", "dev", link)
        machine.run("ip", "link", "set", link, "up")
        to.run("ip", "link", "set", f"to-{name}", "master", switch, "up")

    def _router(self, name: str, address: str) -> Machine:
        router = self._machine(name)
        self._cable(router, "wan", name, address, self.internet, "exchange")
        router.run("ip", "link", "add", "lan", "type", "bridge")
        router.run("ip", "address", "add", "192.168.1.1/24", "dev", "lan")
        router.run("ip", "link", "set", "lan", "up")
        router.run("nft", "-f", "-", text=ROUTER_RULES)
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        return router

    def _plug_in(self, name: str, place: Place) -> Machine:
        machine = self._machine(name)
        if not place.router:
            self._cable(machine, "eth0", name, place.address, self.internet, "exchange")
            return machine
        self._cable(machine, "eth0", name, place.address, self.routers[place.router], "lan")
        machine.run("ip", "route", "add", "default", "via", "192.168.1.1")
        return machine

    def add_machine(self, name: str) -> Machine:
        """The machine of one of `PLACES`, for a node that is not the lab's."""
        return self._plug_in(name, PLACES[name])

    def _switch_of(self, name: str) -> Machine:
        router = PLACES[name].router
        return self.routers[router] if router else self.internet

    def cut(self, name: str) -> None:
        """Take the cable of a machine away."""
        self._switch_of(name).run("ip", "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        self._switch_of(name).run("ip", "link", "set", f"to-{name}", "up")

    def move(self, name: str, old: str, new: str) -> None:
        """Give a public machine or a router another address on the internet."""
        machine, link = (self.routers[name], "wan") if name in self.routers else (self.machines[name], "eth0")
        machine.run("ip", "address", "del", f"{old}/24", "dev", link)
        machine.run("ip", "address", "add", f"{new}/24", "dev", link)
        self.addresses[name] = new

    def use_any_port(self, router: str) -> None:
        """Have a router give each destination another port, and forget those that it gave."""
        machine, address = self.routers[router], self.addresses[router]
        rule = ("add", "rule", "ip", "router", "outward", "oifname", "wan", "masquerade", "fully-random")
        machine.run("nft", "flush", "chain", "ip", "router", "outward")
        machine.run("nft", *rule)
        machine.run("ip", "address", "del", f"{address}/24", "dev", "wan")
        machine.run("ip", "address", "add", f"{address}/24", "dev", "wan")

    def capture(self) -> subprocess.Popen[bytes]:
        """Everything that passes the internet, as tcpdump writes it."""
        return inside(
            self.internet.place,
            lambda: subprocess.Popen(
                ["tcpdump", "-i", "any", "-U", "-w", "-", "--immediate-mode", "udp"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ),
        )

    # Skerry

    def _start_server(self) -> Resident:
        flags = ["--http", f"0.0.0.0:{_HTTP}", "--grpc", "", "--tls"]
        for key, value in (_FLEET | self._settings).items():
            flags += ["--set", f"{key}={value}"]
        server = self._start("server", self.internet, *flags)
        server.wait_ready()
        return server

    def join_flags(self, name: str) -> tuple[str, ...]:
        """By which a node of this name joins the cloud."""
        done = self.server.cli("token", "create", "--role", "node")
        assert done.returncode == 0, done.stderr
        return ("--join", done.stdout.strip(), "--name", name, "--set", f"node.labels=site={name}")

    def _start_node(self, name: str, *more: str) -> Resident:
        return self._start(
            name,
            self.machines[name],
            *self.join_flags(name),
            "--set",
            "node.stop_grace_s=0.5",
            "--set",
            "network.pool=1",
            *(("--set", "node.edge=true", "--set", "routes.http=0.0.0.0:80") if name == EDGE else ()),
            *more,
        )

    def _start(self, name: str, machine: Machine, *flags: str) -> Resident:
        role = "server" if machine is self.internet else "node"
        resident = Resident(self._folder / name, machine, *flags, role=role)
        self._undo.callback(sweep, resident)
        self._undo.callback(self._kill_tunnel, resident)
        return resident

    @contextlib.contextmanager
    def without_server(self) -> Iterator[None]:
        """The server is stopped, and started again at the end."""
        assert self.server.stop() == 0, self.server.said()
        try:
            yield
        finally:
            self.server = self._start_server()
        self.until_ready(*self.machines)

    def kill_agent(self, name: str) -> None:
        """Kill the agent of a node; what it made stays."""
        self._residents[name].kill()

    def restart_agent(self, name: str, *more: str) -> None:
        self._residents[name] = self._start_node(name, *more)
        self._residents[name].wait_ready()

    def interface(self, name: str) -> str:
        """The name of the mesh interface of a node."""
        return _names(self._residents[name]).mesh

    def tunnel(self, name: str) -> int | None:
        """The pid of wireguard-go on a node."""
        return _pid_of(["wireguard-go", self.interface(name)])

    def _kill_tunnel(self, resident: Resident) -> None:
        if (pid := _pid_of(["wireguard-go", _names(resident).mesh])) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # Containers

    def run_containers(self, image: str) -> None:
        """One container on every node, which serves a page with its name at port 80."""
        self.ids = {name: self.create(**_spec(image, name), name=name) for name in self.machines}
        for name, id in self.ids.items():
            found = self.until(id, "RUNNING")
            self.containers[name], self.containers6[name] = found["ip"], found["ip6"]

    def create_container(self, image: str, name: str, site: str, namespace: str) -> str:
        """One more on the node `site`; its id."""
        path = f"/namespace/{namespace}/instance/"
        return str(self.call("PUT", path, {**_spec(image, site), "name": name})["id"])

    def place_of(self, name: str, address: str = "") -> Path:
        """The network namespace of the container on a node; of the one with `address` there, if it is
        given."""
        return (
            self._residents[name].data
            / "containers"
            / "boot"
            / "network"
            / "ns"
            / (address or self.containers[name])
        )

    def resolve(self, source: str, name: str, kind: str = "A") -> list[str]:
        """The addresses of a name, as the name server of its node tells the container on `source`."""
        nameserver = self.containers[source].rpartition(".")[0] + ".1"
        question = dnslib.DNSRecord.question(name, kind)
        try:
            answer = inside(self.place_of(source), lambda: question.send(nameserver, 53, timeout=PATIENCE_S))
        except OSError:
            return []
        return [str(record.rdata) for record in dnslib.DNSRecord.parse(answer).rr]

    def unnamed(self) -> list[tuple[str, str]]:
        """Pairs of containers of which the first does not reach the other by its name now, by IPv4 and by
        IPv6."""
        return [
            (one, other)
            for one, other in itertools.permutations(self.machines, 2)
            if self.resolve(one, f"{other}.default.skerry") != [self.containers[other]]
            or self.resolve(one, f"{other}.default.skerry", "AAAA") != [self.containers6[other]]
            or self.page(one, other) != f"{other}\n"
            or page(self.place_of(one), self.containers6[other]) != f"{other}\n"
        ]

    def page(self, source: str, target: str, *, within_s: float = 1.0) -> str:
        """What the container on `source` gets from the one on `target`, by its address; empty: nothing."""
        return page(self.place_of(source), self.containers[target], within_s=within_s)

    def unreached(self, *names: str) -> list[tuple[str, str]]:
        """Pairs of containers that do not reach each other now."""
        pairs = itertools.permutations(names or self.machines, 2)
        return [(one, other) for one, other in pairs if self.page(one, other) != f"{other}\n"]

    def until_connected(self, *names: str, within: float = PATIENCE_S) -> None:
        """Wait until every container reaches every other."""
        missing: list[tuple[str, str]] = []

        def is_connected() -> bool:
            missing[:] = [
                (one, other)
                for one, other in (missing or itertools.permutations(names or self.machines, 2))
                if self.page(one, other) != f"{other}\n"
            ]
            return not missing

        try:
            eventually_sync(is_connected, within=within, what="all are connected")
        except AssertionError as error:
            raise AssertionError(f"{error}; missing {missing}; {self.mesh()}") from None

    def mesh(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Pairs of nodes by name, as the server shows them."""
        return {(pair["from"], pair["to"]): pair for pair in self.call("GET", "/mesh/")["pairs"]}

    def until_path(self, one: str, other: str, path: str, relays: list[str] | None = None) -> None:
        pair = (min(one, other), max(one, other))

        def is_so() -> bool:
            found = self.mesh().get(pair, {})
            return found.get("path") == path and (relays is None or found["relays"] == relays)

        eventually_sync(is_so, what=f"{pair} is {path} {relays}")

    def stop(self) -> None:
        """In good order, after which nothing is left."""
        self.destroy(*self.instances())
        for skerry in (*self._residents.values(), self.server):
            assert skerry.stop() == 0, skerry.said()
            assert isinstance(skerry, Resident)
            left = skerry.left()
            assert left == [], left
            names = _names(skerry)
            assert names.mesh not in skerry.machine.run("ip", "-brief", "link")
            assert names.mesh_table not in skerry.machine.run("nft", "list", "tables")
            eventually_sync(lambda names=names: _pid_of(["wireguard-go", names.mesh]) is None)  # type: ignore[misc]
            assert not Path(f"/var/run/wireguard/{names.mesh}.sock").exists()


def web_image(folder: Path) -> str:
    """An image in `folder` that serves the name of its container at port 80, and a `/large` page."""
    script = (
        "read -r name < /proc/sys/kernel/hostname; echo $name > /www/index.html; "
        f"head -c {LARGE} /dev/zero > /www/large; exec httpd -f -p 80 -h /www"
    )
    made = imagery.busybox(command=("sh", "-c", script))
    return f"oci-archive:{imagery.write_oci_archive(made, folder / 'web.tar')}"


def _spec(image: str, site: str) -> dict[str, Any]:
    return {"uri": image, "constraints": [f"site={site}"], "resources": {"cpu": 200, "memory": 32}}


def page(
    place: Path | str,
    address: str,
    port: int = 80,
    *,
    path: str = "/",
    host: str = "",
    within_s: float = 1.0,
) -> str:
    """What a web server answers to a client in a namespace, who calls it `host`; empty: nothing."""

    def get() -> str:
        connection = http.client.HTTPConnection(address, port, timeout=within_s)
        try:
            connection.request("GET", path, headers={"Host": host} if host else {})
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == http.HTTPStatus.OK else ""
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    return inside(place, get)


def _names(skerry: Resident) -> KernelNames:
    return KernelNames(group_root("skerry", skerry.data).rpartition("-")[2])


def _pid_of(command: list[str]) -> int | None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")[:-1]
            if words and [os.path.basename(words[0]), *words[1:]] == command:
                return int(path.parent.name)
    return None


@contextlib.contextmanager
def nat_lab(folder: Path, *names: str, **settings: str) -> Iterator[NatLab]:
    """The cloud with nodes of these names, all ready; without names, with all of `PLACES`."""
    with contextlib.ExitStack() as undo:
        made = NatLab(
            folder, names or PLACES, undo, {key.replace("__", "."): value for key, value in settings.items()}
        )
        yield made
        made.stop()
