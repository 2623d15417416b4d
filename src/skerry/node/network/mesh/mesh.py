"""The mesh of this node: keeps its interface as the servers say, watches its links, and reports them.

The entry point of this package. Peers come from `skerry.node.agent.network_state`, by `set_peers`, at the
start those of the last session, so that the mesh goes on while no server can be reached. The interface
outlives the agent, as containers do; `remove` is called when the network of containers is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.mesh import (
    MAX_ENDPOINTS,
    MeshEncryption,
    MeshLinks,
    MeshNode,
    MeshPeer,
    format_endpoint,
    parse_endpoint,
)
from skerry.model.mesh_settings import MeshSettings
from skerry.model.network_objects import NetworkObject
from skerry.node.network import commands, host_routes
from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace
from skerry.node.network.mesh import interface as interfaces
from skerry.node.network.mesh import links as mesh_links
from skerry.node.network.mesh import plans, programs, rules
from skerry.node.network.mesh.interface import LinkSetup, MeshInterface, WireGuardInterface
from skerry.node.network.mesh.keys import MeshKeys
from skerry.node.network.mesh.links import LinkState
from skerry.node.network.mesh.plans import PeerConfig, PeerStatus
from skerry.node.network.mesh.probes import LinkProbes
from skerry.node.network.mesh.vxlan import VxlanInterface
from skerry.node.network.nft_tables import NftTables
from skerry.node.network.subnets import KernelNames

log = structlog.get_logger(__name__)

KEY_FILE: Final = "mesh-key.json"
_PROBES_PER_S: Final = 32  # at most; with more peers, each is probed less often
_READ_S: Final = 5.0  # the interface is asked this often while all links are up
_REPORT_S: Final = 10.0  # measurements are reported this often, changes at once
_CHECK_RULES_S: Final = 30.0
_IDLE_S: Final = 60.0  # between looks at this machine's addresses while there are no peers
_PORTS: Final = 16  # from the configured one on
_OVERHEAD: Final = {MeshEncryption.WIREGUARD: 80, MeshEncryption.VXLAN: 70}  # over IPv6
_LEAST_MTU: Final = 1280  # IPv6's
_NO_VXLAN: Final = (
    "links without encryption (mesh.encryption vxlan) do not pass the program that connects containers of an "
    "ordinary user's node; start the node as root, or have the server use wireguard"
)


class MeshGround(Protocol):
    """The network of this node's containers, as the mesh needs it: `skerry.node.network.network.Network`."""

    @property
    def names(self) -> KernelNames: ...

    @property
    def networks(self) -> tuple[IPv4Network, ...]:
        """Of its containers."""
        ...

    @property
    def gateway(self) -> IPv4Address | None: ...

    @property
    def has_ipv6(self) -> bool:
        """True if containers have IPv6 addresses, too."""
        ...


class MeshDeps(msgspec.Struct, frozen=True):
    """What the mesh uses of this process."""

    node: NodeId
    ground: MeshGround
    clock: Clock
    report: Callable[[NetworkObject], None]
    addresses: Callable[[], tuple[str, ...]]  # of this machine
    unreachable_changed: Callable[[frozenset[NodeId]], None]  # nodes to which no packet gets now
    hindrance: str = ""  # why this node can have no links at all
    namespace: BridgeNamespace = OWN_NAMESPACE  # that the bridge of its containers is in


class NodeMesh:
    """The interface to other nodes, with everything that belongs to it."""

    def __init__(self, folder: Path, settings: MeshSettings, deps: MeshDeps) -> None:
        """`folder`: the data folder. Raises Invalid (the settings)."""
        self._path = folder / KEY_FILE
        self._settings = settings
        self._configured = configured_endpoints(settings.endpoints)
        self._node, self._ground, self._clock = deps.node, deps.ground, deps.clock
        self._report, self._addresses = deps.report, deps.addresses
        self._unreachable_changed = [deps.unreachable_changed]
        self._unreachable: frozenset[NodeId] = frozenset()
        self._namespace = deps.namespace
        self._programs = programs.find(namespace=deps.namespace)
        self._hindrance = deps.hindrance or missing_programs(self._programs)
        self._peers: Mapping[str, MeshPeer] = {}
        self._links: dict[NodeId, LinkState] = {}
        self._configs: list[PeerConfig] = []
        self._active_keys: dict[NodeId, str] = {}
        self._interface: MeshInterface | None = None
        self._link: LinkSetup | None = None
        self._encryption = MeshEncryption.NONE
        self._keys: MeshKeys | None = None
        self._port = 0
        self._tables: NftTables | None = None
        self._applied: object = None  # what the interface was last configured with
        self._statuses: Mapping[str, PeerStatus] = {}
        self._read_at = 0.0
        self._wake = asyncio.Event()
        self._probes = LinkProbes(deps.clock, self._answered, deps.namespace)
        self._reported: object = None
        self._reported_at = -_REPORT_S
        self._checked_at = 0.0
        self._failure = ""
        self._is_closed = False
        # Held while the kernel is changed: a thread goes on though the loop that started it was cancelled.
        self._kernel = threading.Lock()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why this node is not in the mesh, in a sentence; ideally empty."""
        if reason := self._failure or self._hindrance:
            return (f"containers of other nodes cannot be reached: {reason}",)
        return ()

    def set_peers(self, peers: Mapping[str, MeshPeer]) -> None:
        """Connect to exactly these nodes."""
        self._peers = dict(peers)
        self._wake.set()

    def follow_unreachable(self, call: Callable[[frozenset[NodeId]], None]) -> None:
        """Call this, too, with the nodes to which no packet gets, now and when they change."""
        self._unreachable_changed.append(call)
        call(self._unreachable)

    async def open(self) -> NodeMesh:
        """Read or make the key, choose the port, and report this node."""
        if self._hindrance:
            return self
        await tasks.in_thread(self._open)
        self._report_node()
        return self

    def _open(self) -> None:
        self._keys = MeshKeys(self._path, self._clock.now())
        tools = commands.find(namespace=self._namespace)
        self._tables = NftTables(tools, self._ground.names.mesh_table, rules.FAMILIES)
        adopted = self._make_interface(MeshEncryption.WIREGUARD).port()
        self._port = adopted or choose_port(self._settings.port)

    async def run(self) -> None:
        """Keep the interface, the rules and the links as they should be, for ever."""
        if self._keys is None:
            await asyncio.get_running_loop().create_future()
        while True:
            self._wake.clear()
            try:
                await self._step()
                self._failure = ""
            except (errors.Unavailable, OSError) as error:
                reason = error.message if isinstance(error, errors.SkerryError) else str(error)
                if reason != self._failure:
                    log.warning("mesh.failed", error=reason)
                self._failure, self._applied = reason, None
            wait_s = self._period_s if self._peers else _IDLE_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Stop watching. The interface stays, for containers that do: `remove` is for the end of both."""
        self._is_closed = True
        self._probes.close()

    def remove(self) -> None:
        """Remove the interface and its rules, after `close`. Blocks."""
        if self._keys is not None:
            self._remove()

    @property
    def _period_s(self) -> float:
        return max(1.0, len(self._peers) / _PROBES_PER_S)

    async def _step(self) -> None:
        if self._is_closed:
            return
        if not self._peers:
            self._probes.close()
            self._links.clear()
            self._note_unreachable()
            self._active_keys.clear()
            if self._applied != ():
                await asyncio.to_thread(self._remove)
                self._applied = ()
                self._report_links(is_changed=True)
            self._report_node()
            await self._rotate_key()
            return
        # Read here: there may be none any more when the thread runs.
        encryption = next(iter(self._peers.values())).encryption
        is_new = await tasks.in_thread(self._ensure, encryption)
        if is_new or (self._link is not None and not self._probes.is_open):
            self._probes.open(self._ground.names.mesh)
        if is_new or self._is_unsettled():
            self._statuses = await asyncio.to_thread(self._require_interface().status)
            self._read_at = self._clock.monotonic()
        await self._follow_links(self._statuses)
        self._note_unreachable()
        await tasks.in_thread(self._apply)
        self._report_node()
        self._report_links()
        await self._rotate_key()

    def _is_unsettled(self) -> bool:
        """True if the interface is to be asked now: it takes a process each time."""
        now = self._clock.monotonic()
        return (
            now - self._read_at >= _READ_S
            or self._links.keys() != self._peers.keys()
            or any(peer.next_key for peer in self._peers.values())
            or not all(link.is_up(now, self._period_s) for link in self._links.values())
        )

    # The interface

    def _ensure(self, encryption: MeshEncryption) -> bool:
        with self._kernel:
            return not self._is_closed and self._ensure_interface(encryption)

    def _ensure_interface(self, encryption: MeshEncryption) -> bool:
        if encryption is not self._encryption or self._interface is None:
            if self._interface is not None and self._encryption is not MeshEncryption.NONE:
                self._interface.remove()
            self._interface = self._make_interface(encryption)
            self._applied = None
        if self._link is not None and not self._link.exists:
            self._port = choose_port(self._port)  # another program may have taken it meanwhile
            self._interface = self._make_interface(encryption)
        is_new = self._interface.ensure()
        if is_new:
            log.info("mesh.began", interface=self._ground.names.mesh, encryption=encryption, port=self._port)
            self._applied = None
        return is_new

    def _make_interface(self, encryption: MeshEncryption) -> MeshInterface:
        tools, names = commands.find(namespace=self._namespace), self._ground.names
        kind = MeshEncryption.VXLAN if encryption is MeshEncryption.VXLAN else MeshEncryption.WIREGUARD
        if kind is MeshEncryption.VXLAN and self._namespace.descriptor is not None:
            raise errors.Unavailable(_NO_VXLAN)
        mtu = self._settings.mtu or interfaces.default_mtu(_OVERHEAD[kind], _LEAST_MTU)
        self._encryption = kind
        self._link = LinkSetup(tools, names.mesh, self._node, mtu)
        if kind is MeshEncryption.VXLAN:
            self._interface = VxlanInterface(self._programs, tools, self._link, self._node, self._port)
        else:
            self._interface = WireGuardInterface(self._programs, tools, self._link)
        return self._interface

    def _require_interface(self) -> MeshInterface:
        assert self._interface is not None, "there are peers"
        return self._interface

    def _apply(self) -> None:
        """Set peers, routes and rules, if they are not what was set last."""
        with self._kernel:
            if not self._is_closed:
                self._apply_plan()

    def _apply_plan(self) -> None:
        assert self._keys is not None
        assert self._link is not None
        own = self._ground.networks
        names = self._ground.names
        local = [
            *own,
            *(
                route.network
                for route in self._namespace.run(host_routes.read)
                if route.interface not in (names.bridge, names.mesh) and route.network.prefixlen > 8
            ),
        ]
        has_ipv6 = self._ground.has_ipv6
        self._configs = plans.decide(self._peers, self._active_keys, local, has_ipv6=has_ipv6)
        networks = plans.routes(self._configs)
        subnets = frozenset(
            IPv4Network(text) for peer in self._peers.values() for text in peer.subnets
        ) - frozenset(own)
        now = (self._keys.public, self._port, self._configs, own, subnets, self._ground.gateway)
        if now != self._applied:
            self._require_interface().configure(self._keys.private, self._port, self._configs)
            self._set_routes()
            self._write_rules(own, subnets)
            self._applied = now
        elif self._clock.monotonic() - self._checked_at >= _CHECK_RULES_S:
            assert self._tables is not None
            if self._tables.is_altered():
                self._write_rules(own, subnets)
            if self._link.routed() != networks:
                self._set_routes()
            self._checked_at = self._clock.monotonic()

    def _set_routes(self) -> None:
        assert self._link is not None
        has_hops = self._encryption is MeshEncryption.VXLAN
        self._link.set_routes(self._configs, self._ground.gateway, has_hops=has_hops)

    def _write_rules(self, own: tuple[IPv4Network, ...], peers: frozenset[IPv4Network]) -> None:
        assert self._tables is not None
        text = rules.write_table(self._ground.names, own, peers, has_ipv6=self._ground.has_ipv6)
        self._tables.write(text)
        self._checked_at = self._clock.monotonic()

    def _remove(self) -> None:
        with self._kernel:
            interface = self._interface or self._make_interface(MeshEncryption.WIREGUARD)
            interface.remove()
            if self._tables is not None and self._tables.exist():
                self._tables.remove(rules.write_removal(self._ground.names))

    # Links

    async def _follow_links(self, statuses: Mapping[str, PeerStatus]) -> None:
        now = self._clock.monotonic()
        peers = {peer.node: peer for peer in self._peers.values()}
        for node in self._links.keys() - peers.keys():
            del self._links[node]
            self._probes.forget(node)
            self._active_keys.pop(node, None)
        for node, peer in peers.items():
            link = self._links.setdefault(node, LinkState(node, since=now, tried_at=now))
            link.use(peer.endpoints, now)
            self._choose_key(peer, statuses)
            active = self._active_keys.get(node, peer.public_key)
            link.status = statuses.get(active, PeerStatus(active))
            if not self._probes.is_open and mesh_links.is_up_by_handshake(link.status, self._clock.now()):
                link.answered_at = now
            self._probes.send(node)
        await self._try_endpoints(now)

    def _note_unreachable(self) -> None:
        now = self._clock.monotonic()
        is_up = {node: link.is_up(now, self._period_s) for node, link in self._links.items()}
        found = plans.unreachable(self._peers, is_up)
        if found != self._unreachable:
            self._unreachable = found
            for call in self._unreachable_changed:
                call(found)

    def _choose_key(self, peer: MeshPeer, statuses: Mapping[str, PeerStatus]) -> None:
        """Of a node that replaces its key, use the one that it used last."""
        keys = [peer.public_key, *([peer.next_key] if peer.next_key else [])]
        before = self._active_keys.get(peer.node)
        if before is not None and before not in keys:
            before = None
        newest = max(keys, key=lambda key: statuses.get(key, PeerStatus(key)).handshake_at)
        used = statuses.get(newest, PeerStatus(newest)).handshake_at > 0
        self._active_keys[peer.node] = newest if used else before or peer.public_key

    async def _try_endpoints(self, now: float) -> None:
        configs = {config.node: config for config in self._configs if config.has_probe}
        for node, link in self._links.items():
            is_up = link.is_up(now, self._period_s)
            endpoint = link.next_endpoint(now, link.status, is_up=is_up)
            config = configs.get(node)
            if endpoint is not None and config is not None and config.public_key == link.status.public_key:
                await tasks.in_thread(self._require_interface().retry, config, endpoint)
                link.received = 0
                self._probes.send(node)

    def _answered(self, node: NodeId, round_trip_s: float) -> None:
        link = self._links.get(node)
        if link is None:
            return
        was_up = link.is_up(self._clock.monotonic(), self._period_s)
        link.answered(self._clock.monotonic(), round_trip_s)
        if not was_up:
            self._wake.set()  # so that it is reported at once

    # Reports

    def _report_node(self) -> None:
        assert self._keys is not None
        self._report(
            MeshNode(
                self._node,
                self._keys.public,
                self._port,
                self._addresses()[:MAX_ENDPOINTS],
                tuple(format_endpoint(address, port or self._port) for address, port in self._configured),
                self._keys.next_public,
                self._settings.relay,
                self._namespace.run(machine_of_this_thread),
            )
        )

    def _report_links(self, *, is_changed: bool = False) -> None:
        now = self._clock.monotonic()
        found = tuple(
            self._links[node].report(now, self._period_s, self._next_key_of(node))
            for node in sorted(self._links)
        )
        lasting = [(link.node, link.is_up, link.endpoint, link.public_key, link.next_key) for link in found]
        if is_changed or lasting != self._reported or now - self._reported_at >= _REPORT_S:
            self._reported, self._reported_at = lasting, now
            self._report(MeshLinks(self._node, found))

    def _next_key_of(self, node: NodeId) -> str:
        """The other key that the interface accepts for a node."""
        active = self._active_keys.get(node)
        return next(
            (each.public_key for each in self._configs if each.node == node and each.public_key != active), ""
        )

    # Keys

    async def _rotate_key(self) -> None:
        keys = self._keys
        assert keys is not None
        now = self._clock.now()
        if await asyncio.to_thread(keys.announce_next, now, self._settings.key_days * 86400):
            log.info("mesh.key_announced", public_key=keys.next_public)
            self._report_node()
        is_known = all(peer.known_key == keys.next_public for peer in self._peers.values())
        if keys.may_switch(now, is_known=is_known):
            await tasks.in_thread(keys.switch)
            log.info("mesh.key_switched", public_key=keys.public)
            if self._peers:
                await tasks.in_thread(self._apply)
                for node in self._links:
                    self._probes.send(node)  # which begins a handshake with the new key
            self._report_node()


def missing_programs(found: programs.MeshPrograms) -> str:
    """What to install; empty if everything is there."""
    return "" if found.wg else "the mesh needs the program wg; install wireguard-tools"


def configured_endpoints(texts: tuple[str, ...]) -> list[tuple[str, int]]:
    """Addresses and ports of the setting `mesh.endpoints`; the port is 0 if it names none."""
    found = []
    for text in texts:
        is_bare = text.count(":") != 1 and not text.startswith("[")
        try:
            address, port = parse_endpoint(format_endpoint(text, 1) if is_bare else text)
        except errors.Invalid:
            raise errors.Invalid(
                f"mesh.endpoints: {text[:60]!r} must read ADDRESS or ADDRESS:PORT, with an IP address",
                field="mesh.endpoints",
            ) from None
        found.append((address, 0 if is_bare else port))
    return found[:MAX_ENDPOINTS]


def choose_port(preferred: int) -> int:
    """A free UDP port, if possible the one that is preferred. Blocks."""
    candidates = [*range(preferred, min(preferred + _PORTS, 65536)), 0] if preferred else [0]
    for port in candidates:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            if port != preferred:
                log.warning("mesh.port_taken", preferred=preferred, port=probe.getsockname()[1])
            return int(probe.getsockname()[1])
    raise errors.Unavailable("no UDP port is free for the mesh")


def machine_of_this_thread() -> str:
    """Names the network stack of this thread, and says nothing else about it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    space = os.stat("/proc/thread-self/ns/net")
    return hashlib.sha256(f"{boot}{space.st_dev}:{space.st_ino}".encode()).hexdigest()[:32]
