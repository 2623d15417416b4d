"""Machines for tests of the network, each a network namespace of its own.

A test runs on a `Machine` of its own: nothing that it makes is seen by the real one, and what it changes of
the machine's settings changes for nobody else. Other machines are joined to it by links. Sockets of every
machine and container are made in this process, in threads that went there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

import pytest

from skerry.kit.clock import SystemClock
from skerry.kit.networks import plain_address
from skerry.model import ports
from skerry.model.ipv6_addresses import ipv6_of
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping
from skerry.model.settings import NetworkSettings
from skerry.node.kernel import namespaces
from skerry.node.network.namespace_pool import NamespacePool
from skerry.node.network.namespace_pools import NamespaceKind
from skerry.node.network.network import Network
from tests.support.folders import paths_below
from tests.support.waiting import PATIENCE_S

needs_root = pytest.mark.root(tries=1)

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(1)

T = TypeVar("T")
WITHIN_S = PATIENCE_S


def run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def enter(place: Path | str) -> None:
    """Move the calling thread to the namespace at `place`."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


def inside(place: Path | str, work: Callable[[], T]) -> T:
    """Do `work` in the namespace at `place`."""

    def go() -> T:
        enter(place)
        return work()

    return namespaces.in_own_thread(go)


class Machine:
    """A network namespace; the one that was entered is the node, others are hosts around it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.place = folder / name
        self.place.touch()

        def make() -> None:
            namespaces.enter_new_namespace()
            namespaces.bind_namespace(self.place)
            run("ip", "link", "set", "lo", "up")

        namespaces.in_own_thread(make)

    def run(self, *command: str, text: str = "") -> str:
        return inside(self.place, lambda: run(*command, text=text))

    def end(self) -> None:
        namespaces.remove_mount_file(self.place)


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Be on a fresh machine, until it ends."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    here = Machine(folder, "node")
    try:
        enter(here.place)
        try:
            yield here
        finally:
            assert _libc.setns(before, _CLONE_NEWNET) == 0
    finally:
        os.close(before)
        here.end()


def join(
    node: Machine,
    other: Machine,
    *,
    node_address: str,
    other_address: str,
    subnet: int = 24,
    node_address6: str = "",
    other_address6: str = "",
) -> None:
    """A cable between them."""
    number = next(_numbers)
    other6 = f"address add {other_address6}/64 dev eth0 nodad\n" if other_address6 else ""
    node6 = f"address add {node_address6}/64 dev cable{number} nodad\n" if node_address6 else ""
    other.run(
        "ip",
        "-batch",
        "-",
        text=f"link add eth0 type veth peer name cable{number} netns {node.place}\n"
        f"address add {other_address}/{subnet} dev eth0\n{other6}link set eth0 up\n",
    )
    node.run(
        "ip",
        "-batch",
        "-",
        text=f"address add {node_address}/{subnet} dev cable{number}\n{node6}link set cable{number} up\n",
    )


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# Addresses outside the cloud, as machines have them beside their IPv4 ones.
_TWINS = {
    "192.0.2.1": "2001:db8::1",
    "192.0.2.9": "2001:db8::9",
    "172.20.1.1": "fd01:20::1",  # private
    "172.21.1.1": "fd01:21::1",
    "169.254.169.254": "fd00:ec2::254",  # metadata
    "169.254.170.2": "fd20:ce::254",
    "100.100.100.200": "64:ff9b::6464:64c8",
    "168.63.129.16": "64:ff9b::a83f:8110",
    "192.0.0.192": "fd00:c1::a9fe:a9fe",
}
_CLOUD = tuple(map(IPv4Network, ("10.0.0.0/8", "198.51.100.0/24")))


def twin(address: str) -> str:
    """The IPv6 address of whoever has an IPv4 one in tests; empty if it has none."""
    parsed = IPv4Address(address)
    return str(ipv6_of(parsed)) if any(parsed in each for each in _CLOUD) else _TWINS.get(address, "")


def add_addresses(machine: Machine, *addresses: str) -> None:
    """To its loopback, with those of IPv6."""
    lines = [f"address add {each}/32 dev lo" for each in addresses]
    lines += [f"address add {there}/128 dev lo nodad" for each in addresses if (there := twin(each))]
    machine.run("ip", "-batch", "-", text="\n".join([*lines, ""]))


def add_routes(machine: Machine, *networks: str, via: str) -> None:
    """To addresses or networks, with those of IPv6."""
    lines = []
    for network in map(IPv4Network, networks):
        lines.append(f"route add {network} via {via}")
        if there := twin(str(network.network_address)):
            lines.append(f"route add {there}/{96 + network.prefixlen} via {twin(via)}")
    machine.run("ip", "-batch", "-", text="\n".join([*lines, ""]))


def listen(place: Path | str, address: str, port: int) -> socket.socket:
    """`0.0.0.0` is every address, of IPv6 too."""
    address = "::" if address == "0.0.0.0" else address

    def make() -> socket.socket:
        listener = socket.socket(_family(address))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        listener.settimeout(WITHIN_S)
        return listener

    return inside(place, make)


def datagrams(place: Path | str, address: str = "0.0.0.0", port: int = 0) -> socket.socket:
    def make() -> socket.socket:
        created = socket.socket(_family(address), socket.SOCK_DGRAM)
        try:
            created.bind((address, port))
        except OSError:
            created.close()
            raise
        created.settimeout(WITHIN_S)
        return created

    return inside(place, make)


def dial(place: Path | str, address: str, port: int, *, within_s: float = WITHIN_S) -> socket.socket:
    def make() -> socket.socket:
        return socket.create_connection((address, port), timeout=within_s)

    return inside(place, make)


def connecting(place: Path | str, address: str, port: int) -> socket.socket:
    """A socket that has sent its first packet from `place`, and does not wait for the answer."""

    def make() -> socket.socket:
        caller = socket.socket()
        caller.setblocking(False)
        caller.connect_ex((address, port))
        return caller

    return inside(place, make)


def speak(listener: socket.socket, place: Path | str, address: str, port: int) -> str:
    """Connect from `place`, and exchange a word both ways; the address the listener saw."""
    with dial(place, address, port) as caller:
        accepted, seen = listener.accept()
        with accepted:
            accepted.settimeout(WITHIN_S)
            caller.sendall(b"question")
            assert accepted.recv(100) == b"question"
            accepted.sendall(b"answer")
            assert caller.recv(100) == b"answer"
    return plain_address(seen[0])


def exchange(server: socket.socket, caller: socket.socket, address: str, port: int) -> str:
    """A datagram there and one back, from the address that was called; the address the server saw."""
    caller.sendto(b"question", (address, port))
    question, seen = server.recvfrom(100)
    assert question == b"question"
    server.sendto(b"answer", seen)
    answer, sender = caller.recvfrom(100)
    assert answer == b"answer"
    assert sender[:2] == (address, port)
    return str(seen[0])


def cannot_dial(place: Path | str, address: str, port: int, *, within_s: float = 0.3) -> bool:
    """True if nobody answers within a moment, or the answer is no."""
    try:
        dial(place, address, port, within_s=within_s).close()
    except OSError:
        return True
    return False


Call = tuple[str, str, str, int]  # what it is, from which namespace, to which address and port


async def reachable(calls: Sequence[Call], *, within_s: float = 0.3, has_ipv6: bool = True) -> list[str]:
    """Which of `calls` somebody answers, all made at once. With `has_ipv6` each is made by IPv6 too, with the
    same outcome: the rules are the same."""
    twins = [
        (name, place, there, port)
        for name, place, address, port in calls
        if has_ipv6 and (there := twin(address))
    ]
    made = [*calls, *twins]
    refused = await asyncio.gather(
        *(
            asyncio.to_thread(cannot_dial, place, address, port, within_s=within_s)
            for _, place, address, port in made
        )
    )
    answered = {call for call, is_refused in zip(made, refused, strict=True) if not is_refused}
    known = {there: address for _, _, address, _ in calls if (there := twin(address))}
    differing = [
        call for call in twins if (call in answered) != ((*call[:2], known[call[2]], call[3]) in answered)
    ]
    assert differing == [], f"by IPv6 it is otherwise; answered: {answered}"
    return [call[0] for call in calls if call in answered]


async def unreached(calls: Sequence[Call], *, has_ipv6: bool = True) -> list[str]:
    """Which of `calls` nobody answers, however long one waits."""
    answered = await reachable(calls, within_s=WITHIN_S, has_ipv6=has_ipv6)
    return [name for name, *_ in calls if name not in answered]


def frames(place: Path | str, link: str) -> socket.socket:
    """All that passes by a link, and what is sent there as it is."""

    def make() -> socket.socket:
        created = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        created.bind((link, 0))
        created.settimeout(WITHIN_S)
        return created

    return inside(place, make)


def mappings(*texts: str) -> tuple[PortMapping, ...]:
    return tuple(ports.parse(text) for text in texts)


def pool_of(network: Network, policy: NetworkPolicy = OPEN_POLICY) -> NamespacePool:
    """Its namespaces that wait for containers of `policy`."""
    assert network._pools is not None
    return network._pools._pools[NamespaceKind(policy, with_users=True)]


class Ground:
    """A machine and the folder of its agent, which may be opened again and again."""

    def __init__(self, folder: Path, here: Machine) -> None:
        self.tmp = folder
        self.folder = folder / "network"
        self.machine = here
        self.key = "5ce1a7e0"
        self.settings = NetworkSettings(subnet="10.99.0.0/24", pool=2)

    @contextlib.asynccontextmanager
    async def agent(self, **more: object) -> AsyncIterator[Network]:
        network = await self.open(**more)
        try:
            yield network
        finally:
            await network.close()

    async def open(self, **more: object) -> Network:
        arguments = {"key": self.key, **more}
        settings = arguments.pop("settings", self.settings)
        folder = arguments.pop("folder", self.folder)
        choice = {name: arguments.pop(name) for name in ("assigned", "waits", "cloud") if name in arguments}
        network = Network(folder, settings, SystemClock(), **arguments)  # type: ignore[arg-type]
        return await network.open(**choice)  # type: ignore[arg-type]

    def links(self) -> list[str]:
        """Links of the machine but its loopback and its cables."""
        found = [entry["ifname"] for entry in json.loads(run("ip", "-j", "link"))]
        return sorted(name for name in found if name != "lo" and not name.startswith("cable"))

    def mounts(self) -> list[str]:
        """Everything that is mounted in the test's folder, but machines."""
        mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
        return sorted(str(path) for path in mounted if self.tmp in path.parents and path.parent != self.tmp)

    def tables(self) -> list[str]:
        return run("nft", "list", "tables").splitlines()

    def files(self) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in paths_below(self.folder)]

    def leftovers(self) -> list[str]:
        """Everything that there is of any Skerry."""
        return [*self.links(), *self.mounts(), *self.tables(), *self.files()]

    def clear(self) -> None:
        """Whatever a failed test left goes; the machine takes links and rules with it."""
        for path in self.mounts():
            namespaces.remove_mount_file(Path(path))
