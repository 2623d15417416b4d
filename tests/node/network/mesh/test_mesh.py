"""The mesh of two nodes on machines of their own, without servers: interfaces, routes and rules as made."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshEncryption, MeshLinks, MeshNode, MeshPeer, format_endpoint
from skerry.model.mesh_settings import MeshSettings
from skerry.model.network_objects import NetworkObject
from skerry.node.network.bridge_namespace import BridgeNamespace
from skerry.node.network.mesh.mesh import MeshDeps, NodeMesh, choose_port, missing_programs
from skerry.node.network.mesh.programs import MeshPrograms
from skerry.node.network.subnets import KernelNames
from tests.node.network.machines import (
    Machine,
    add_addresses,
    cannot_dial,
    enter,
    inside,
    listen,
    needs_root,
    speak,
    twin,
)
from tests.support.waiting import eventually, eventually_sync

NOBODY = MeshPeer(NodeId("other"), "other", "A" * 43 + "=", ("10.99.7.0/24",), ("192.0.2.7:51825",))


@dataclass
class Ground:
    """The network of a node's containers, as the mesh sees it."""

    names: KernelNames
    networks: tuple[IPv4Network, ...]
    gateway: IPv4Address
    has_ipv6: bool = True


class Node:
    """A node, number 1 or 2: its machine, its one container, and its mesh, which runs in a thread there."""

    def __init__(self, folder: Path, number: int, undo: contextlib.ExitStack) -> None:
        self.id = NodeId(f"node{number}")
        self.number = number
        self.address = f"10.99.{number}.2"  # of the container
        self.gateway = f"10.99.{number}.1"
        self.address6, self.gateway6 = twin(self.address), twin(self.gateway)
        self.names = KernelNames(f"5ce1a7e{number}")
        self.folder = folder / self.id
        self.folder.mkdir()
        self.machine, self.container = Machine(folder, f"machine{number}"), Machine(folder, f"box{number}")
        undo.callback(self.machine.end)
        undo.callback(self.container.end)
        place = str(self.machine.place)
        self.container.run("ip", "link", "add", "eth0", "type", "veth", "peer", "box", "netns", place)
        self.container.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.container.run("ip", "address", "add", f"{self.address6}/120", "dev", "eth0", "nodad")
        self.container.run("ip", "link", "set", "eth0", "up")
        for gateway in (self.gateway, self.gateway6):
            self.container.run("ip", "route", "add", "default", "via", gateway)
        bridge = self.names.bridge
        self.machine.run("ip", "link", "add", bridge, "type", "bridge")
        self.machine.run("ip", "address", "add", f"{self.gateway}/24", "dev", bridge)
        self.machine.run("ip", "address", "add", f"{self.gateway6}/120", "dev", bridge, "nodad")
        self.machine.run("ip", "link", "set", bridge, "up")
        self.machine.run("ip", "link", "set", "box", "master", bridge, "up")
        self.machine.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.machine.run("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
        self.node: MeshNode | None = None
        self.links: MeshLinks | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        eventually_sync(lambda: self.node)

    def _run(self) -> None:
        enter(self.machine.place)
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        ground = Ground(self.names, (IPv4Network(f"10.99.{self.number}.0/24"),), IPv4Address(self.gateway))
        deps = MeshDeps(
            self.id,
            ground,
            SystemClock(),
            self._report,
            lambda: (f"192.0.2.{self.number}",),
            lambda unreachable: None,
        )
        self.mesh = await NodeMesh(self.folder, MeshSettings(), deps).open()
        running = asyncio.create_task(self.mesh.run())
        await self._over.wait()
        running.cancel()
        await self.mesh.close()
        await asyncio.to_thread(self.mesh.remove)

    def _report(self, value: NetworkObject) -> None:
        if isinstance(value, MeshNode):
            self.node = value
        if isinstance(value, MeshLinks):
            self.links = value

    def connect(self, *others: Node, encryption: MeshEncryption, over: str = "192.0.2.") -> None:
        """`over`: the beginning of the addresses that they are reached at."""
        assert self._loop is not None
        peers = {other.id: other.as_peer(encryption, over) for other in others}
        self._loop.call_soon_threadsafe(self.mesh.set_peers, peers)

    def as_peer(self, encryption: MeshEncryption, over: str) -> MeshPeer:
        assert self.node is not None
        endpoints = (format_endpoint(f"{over}{self.number}", self.node.port),)
        subnets = (f"10.99.{self.number}.0/24",)
        return MeshPeer(self.id, self.id, self.node.public_key, subnets, endpoints, encryption=encryption)

    def is_up(self) -> bool:
        return self.links is not None and any(link.is_up for link in self.links.links)

    def remains(self) -> list[str]:
        links = [each["ifname"] for each in json.loads(self.machine.run("ip", "-json", "link"))]
        tables = self.machine.run("nft", "list", "tables").split()
        return [name for name in (*links, *tables) if name in (self.names.mesh, self.names.mesh_table)]

    def stop(self) -> None:
        if self._thread.is_alive() and self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with contextlib.ExitStack() as undo:
        one, two = Node(tmp_path, 1, undo), Node(tmp_path, 2, undo)
        ends = ("eth0", "type", "veth", "peer", "eth0", "netns", str(two.machine.place))
        one.machine.run("ip", "link", "add", *ends)
        for node in (one, two):
            node.machine.run("ip", "address", "add", f"192.0.2.{node.number}/24", "dev", "eth0")
            node.machine.run("ip", "address", "add", f"2001:db8::{node.number}/64", "dev", "eth0", "nodad")
            node.machine.run("ip", "link", "set", "eth0", "up")
            undo.callback(node.stop)
            node.start()
        yield one, two


@needs_root
@pytest.mark.parametrize(
    ("encryption", "over"),
    [
        (MeshEncryption.WIREGUARD, "192.0.2."),
        (MeshEncryption.WIREGUARD, "2001:db8::"),
        (MeshEncryption.VXLAN, "192.0.2."),
    ],
)
def test_containers_reach_each_other_and_nothing_else(
    nodes: tuple[Node, Node], encryption: MeshEncryption, over: str
) -> None:
    one, two = nodes
    assert one.remains() == []  # without peers there is nothing
    one.connect(two, encryption=encryption, over=over)
    two.connect(one, encryption=encryption, over=over)
    eventually_sync(lambda: one.is_up() and two.is_up())
    assert one.links is not None
    assert over in one.links.links[0].endpoint
    with listen(two.container.place, "0.0.0.0", 4000) as listener:
        assert speak(listener, one.container.place, two.address, 4000) == one.address
        assert speak(listener, one.machine.place, two.address, 4000) == one.gateway
        assert speak(listener, one.container.place, two.address6, 4000) == one.address6
        assert speak(listener, one.machine.place, two.address6, 4000) == one.gateway6
    with listen(two.machine.place, "0.0.0.0", 4000):
        for gateway in (two.gateway, two.gateway6):
            assert not cannot_dial(two.container.place, gateway, 4000, within_s=5)
            assert cannot_dial(one.container.place, gateway, 4000)
    # An address that is of no peer is not let in, whoever sends it.
    add_addresses(one.machine, "10.98.0.1")
    with listen(two.container.place, "0.0.0.0", 4001) as listener:
        knock(one, "10.98.0.1", two.address, 4001)
        knock(one, twin("10.98.0.1"), two.address6, 4001)
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()
    for node in nodes:
        node.connect(encryption=encryption)
        eventually_sync(lambda node=node: node.remains() == [])  # type: ignore[misc]


def knock(node: Node, source: str, address: str, port: int) -> None:
    """Try to connect from an address of its own choice."""

    def send() -> None:
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with socket.socket(family) as caller, contextlib.suppress(OSError):
            caller.settimeout(0.2)
            caller.bind((source, 0))
            caller.connect((address, port))

    inside(node.machine.place, send)


@needs_root
def test_rules_and_routes_that_somebody_removed_come_back_with_the_next_change(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    for node, other in ((one, two), (two, one)):
        node.connect(other, encryption=MeshEncryption.WIREGUARD)
    eventually_sync(lambda: one.is_up() and two.is_up())
    one.machine.run("ip", "link", "delete", one.names.mesh)
    one.machine.run("nft", "flush", "ruleset")
    eventually_sync(lambda: len(one.remains()) == 2)
    with listen(two.container.place, "0.0.0.0", 4002) as listener:
        for address in (two.address, two.address6):
            eventually_sync(
                lambda address=address: not cannot_dial(one.container.place, address, 4002, within_s=1)  # type: ignore[misc]
            )
            assert listener.accept()[0].close() is None


def test_a_port_that_is_taken_is_left_to_its_owner() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as owner:
        owner.bind(("", 0))
        taken = owner.getsockname()[1]
        assert choose_port(taken) != taken
    assert choose_port(0) > 0


def test_a_missing_program_is_named_with_its_package() -> None:
    assert "wireguard-tools" in missing_programs(MeshPrograms("ip"))
    assert missing_programs(MeshPrograms("ip", "wg")) == ""


@needs_root
async def test_links_without_encryption_are_refused_in_the_network_of_an_ordinary_user(
    tmp_path: Path,
) -> None:
    """They would not pass the program that connects it, and the reason says what to do."""
    ground = Ground(KernelNames("5ce1a7e3"), (IPv4Network("10.99.3.0/24"),), IPv4Address("10.99.3.1"))
    machine = Machine(tmp_path, "private")
    place = os.open(machine.place, os.O_RDONLY | os.O_CLOEXEC)
    deps = MeshDeps(
        NodeId("node3"),
        ground,
        SystemClock(),
        lambda value: None,
        tuple,
        lambda unreachable: None,
        namespace=BridgeNamespace(place),
    )
    try:
        mesh = await NodeMesh(tmp_path, MeshSettings(), deps).open()
        mesh.set_peers({NOBODY.node: replace(NOBODY, encryption=MeshEncryption.VXLAN)})
        running = asyncio.create_task(mesh.run())
        await eventually(lambda: mesh.warnings and "start the node as root" in mesh.warnings[0])
        await cancel_and_wait([running])
        await mesh.close()
    finally:
        os.close(place)
        machine.end()
