"""The name server of one node: listens at the bridge's address in each subnet of containers.

`skerry.node.network.network` says which subnets there are; `skerry.daemon.names` connects it to what the node
knows of the cloud. Where its port is in use it goes on trying, and containers get the machine's resolvers.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Final

import structlog

from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.network_objects import NetworkObject
from skerry.model.ports import Protocol
from skerry.model.settings import NetworkSettings
from skerry.node.network import nameservers
from skerry.node.network.bridge_namespace import OWN_NAMESPACE
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.dns import listeners, rules
from skerry.node.network.dns.budgets import ClientLimit, WorkBudget
from skerry.node.network.dns.forwarder import PORT, Forwarder
from skerry.node.network.dns.listeners import DnsListener
from skerry.node.network.dns.reply_cache import ReplyCache
from skerry.node.network.dns.resolver import Resolver
from skerry.node.network.dns.views import NameViews
from skerry.node.network.dns.zone import Zone, search_domains
from skerry.node.network.nft_tables import NftTables
from skerry.node.network.port_reservations import find_holder
from skerry.node.network.subnets import KernelNames, NodeSubnet

log = structlog.get_logger(__name__)

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?){0,3}")
_AGAIN_S: Final = 10.0
_IDLE_S: Final = 10.0  # of a connection
_CACHE_ENTRIES: Final = 10_000
_CACHE_BYTES: Final = 16 * 1024 * 1024
_CLIENTS_AT_ONCE: Final = 10  # that may use all of their tokens
_KNOWN_CLIENTS: Final = 4096
_PROBE_S: Final = 1.0
_PROBE_AGAIN_S: Final = 30.0
_UNREACHED: Final = (
    "containers cannot resolve names of this cloud: another firewall of this machine drops their packets to "
    "port {port} of {gateway}; let it accept them from the bridge, for TCP and UDP. Until then they get the "
    "name servers of this machine when they start"
)


class NameServer:
    """Names of one Skerry's containers."""

    def __init__(
        self,
        settings: NetworkSettings,
        clock: Clock,
        *,
        ranges: Iterable[IPv4Network] = (),
        port: int = PORT,
        upstream_port: int = PORT,
    ) -> None:
        """`ranges`: networks of this cloud, whose addresses have no names elsewhere. Raises Invalid."""
        check_domain(settings.domain)
        self._settings = settings
        self._port = port
        self._machine = nameservers.MachineResolvers(settings.dns)
        self.zone = Zone(settings.domain, ranges)
        self.views = NameViews(self._namespace_of)
        self._is_confirmed: Callable[[], bool] = lambda: False
        rate = float(settings.dns_rate)
        self._resolver = Resolver(
            self.zone,
            self.views,
            Forwarder(self.upstreams, ReplyCache(_CACHE_ENTRIES, _CACHE_BYTES), clock, port=upstream_port),
            WorkBudget(rate, rate * _CLIENTS_AT_ONCE),
            clock,
            ttl_s=settings.dns_ttl_s,
            is_confirmed=lambda: self._is_confirmed(),
        )
        self._connections = ClientLimit(listeners.MAX_CONNECTIONS_PER_CLIENT, listeners.MAX_CONNECTIONS)
        self._subnets: tuple[NodeSubnet, ...] = ()
        self._listeners: dict[str, DnsListener] = {}
        self._failures: dict[str, str] = {}  # why there is no listener at an address
        self._unreached: set[str] = set()  # listeners that containers cannot reach
        self._next_probes: dict[str, float] = {}
        self._clock = clock
        self._changing = asyncio.Lock()
        self._clients: dict[str, IPv4Address | None] = {}  # None: it is not answered
        self._is_isolated: Callable[[IPv4Address], bool] = lambda address: False
        self._namespace_at: Callable[[IPv4Address], str] = lambda address: ""
        self._rules: tuple[NftTables, KernelNames] | None = None
        self._is_closed = False
        self._namespace = OWN_NAMESPACE

    def use_kernel(
        self,
        programs: NetworkCommands,
        names: KernelNames,
        is_isolated: Callable[[IPv4Address], bool],
        namespace_at: Callable[[IPv4Address], str],
    ) -> None:
        """Limit packets by rules of the kernel, and answer no isolated container. `namespace_at` gives the
        namespace of a container of this node by its address; empty: it has none."""
        self._rules = (NftTables(programs, rules.table_name(names), rules.FAMILIES), names)
        self._namespace = programs.namespace
        self._is_isolated = is_isolated
        self._namespace_at = namespace_at

    def use_objects(self, kind: type[NetworkObject], objects: Mapping[str, NetworkObject]) -> None:
        """These are all objects of a kind from now on."""
        self.zone.replace(kind, objects)

    def use_state(
        self, is_confirmed: Callable[[], bool], has_function: Callable[[Namespace, str], bool]
    ) -> None:
        """`is_confirmed`: no name that a server knows is missing here. Before, unknown names are SERVFAIL."""
        self._is_confirmed = is_confirmed
        self.zone.has_function = has_function

    @property
    def domain(self) -> str:
        return self._settings.domain

    def search_domains(self, namespace: str) -> tuple[str, ...]:
        return search_domains(namespace, self.domain)

    def upstreams(self) -> tuple[str, ...]:
        """The resolvers that are asked for other names, none of them this one."""
        own = {str(each.gateway) for each in self._subnets}
        return tuple(each for each in self._machine.servers() if each not in own)

    def serves(self, gateway: str) -> bool:
        """True if containers with this default route are answered."""
        return gateway in self._listeners and gateway not in self._unreached

    def lacking(self) -> tuple[str, ...]:
        """What does not work and why, in sentences; ideally empty."""
        unreached = [_UNREACHED.format(gateway=each, port=self._port) for each in sorted(self._unreached)]
        return (*self._failures.values(), *unreached)

    async def probe(self, gateway: str, open_socket: Callable[[], Awaitable[socket.socket]]) -> None:
        """Connect from a container, the first time and after failures: another firewall of this machine may
        drop what containers send to it. Until it works they get the machine's resolvers."""
        now = self._clock.monotonic()
        if gateway not in self._listeners or self._next_probes.get(gateway, 0.0) > now:
            return
        self._next_probes[gateway] = math.inf
        try:
            with await open_socket() as container:
                async with asyncio.timeout(_PROBE_S):
                    await asyncio.get_running_loop().sock_connect(container, (gateway, self._port))
        except (OSError, TimeoutError, errors.SkerryError) as error:
            self._next_probes[gateway] = now + _PROBE_AGAIN_S
            if gateway in self._listeners and gateway not in self._unreached:
                self._unreached.add(gateway)
                log.warning("dns.unreached", address=gateway, error=repr(error))
        else:
            self._unreached.discard(gateway)

    async def serve(self, subnets: Sequence[NodeSubnet]) -> None:
        """Listen for the containers of exactly these subnets. What fails is tried again by `run`. Nothing
        after `close`: a change of the subnets may still be under way, as after the end of a container."""
        async with self._changing:
            if self._is_closed:
                return
            await self._serve(tuple(subnets))

    async def _serve(self, subnets: tuple[NodeSubnet, ...]) -> None:
        self._subnets = subnets
        self._clients.clear()
        self._failures.clear()
        self._unreached.clear()
        self._next_probes.clear()
        gateways = {str(each.gateway) for each in subnets}
        for address in [each for each in self._listeners if each not in gateways]:
            await self._listeners.pop(address).close()
        await tasks.in_thread(self._write_rules)
        await self._listen()

    async def _listen(self) -> None:
        for subnet in self._subnets:
            address = str(subnet.gateway)
            if address in self._listeners:
                continue
            listener = DnsListener(
                address,
                self._resolver,
                self._accepts,
                self._connections,
                idle_s=_IDLE_S,
                namespace=self._namespace,
            )
            try:
                self._listeners[address] = await listener.open(self._port)
            except OSError as error:
                await self._note_failure(address, error)
            else:
                self._failures.pop(address, None)
                log.info("dns.listening", address=address, domain=self.domain)

    async def _note_failure(self, address: str, error: OSError) -> None:
        if address in self._failures:
            return
        holders = [
            await asyncio.to_thread(find_holder, (self._port, each)) for each in (Protocol.UDP, Protocol.TCP)
        ]
        holder = next((each for each in holders if each is not None), None)
        reason = error.strerror if holder is None else f"it is used by {holder}"
        self._failures[address] = (
            f"containers cannot resolve names of this cloud: port {self._port} of {address} cannot be had: "
            f"{reason}; until it is free, they get the name servers of this machine when they start"
        )
        log.warning("dns.not_listening", address=address, reason=reason)

    def _accepts(self, client: str) -> bool:
        """Containers of these subnets, and the node itself; no other host that has a route here."""
        if (address := self._clients.get(client)) is None:
            if client in self._clients:
                return False
            parsed = IPv4Address(client)
            is_here = any(parsed in each.network for each in self._subnets)
            if not is_here and self._namespace.run(lambda: _is_of_this_machine(client)):
                return True  # not remembered: the machine may lose it
            if len(self._clients) >= _KNOWN_CLIENTS:
                self._clients.clear()
            address = self._clients[client] = parsed if is_here else None
        return address is not None and not self._is_isolated(address)

    def _namespace_of(self, client: str) -> Namespace | None:
        """The namespace of a container here, empty if it has none; None for the node itself."""
        address = self._clients.get(client)
        if address is None or any(address == each.gateway for each in self._subnets):
            return None
        return Namespace(self._namespace_at(address)) or self.zone.namespace_of(client) or Namespace("")

    def _write_rules(self) -> None:
        if self._rules is None:
            return
        tables, names = self._rules
        try:
            if not self._subnets:
                if tables.exist():
                    tables.remove(rules.write_removal(names))
                return
            try:
                tables.write(rules.write_table(names, self._subnets, self._settings.dns_rate))
            except errors.Unavailable as error:
                log.warning("dns.no_limit", reason=error.message)
                tables.write(rules.write_table(names, self._subnets, None))
        except errors.Unavailable as error:  # names are served without them, too
            log.warning("dns.no_rules", reason=error.message)

    async def run(self) -> None:
        """Try again to listen, and keep the rules in place, for ever."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            await self.check()

    async def check(self) -> None:
        """Listen where that failed before, and write the rules again if they were removed or altered."""
        async with self._changing:
            await self._listen()
            if self._rules is not None and self._subnets:
                tables, _ = self._rules
                if await asyncio.to_thread(tables.is_altered):
                    await tasks.in_thread(self._write_rules)

    async def close(self) -> None:
        """Stop, and remove the rules."""
        async with self._changing:
            self._is_closed = True
            await self._serve(())
        await self._resolver.close()


def _is_of_this_machine(address: str) -> bool:
    """True for its own questions, which the rules may have given another of its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def check_domain(domain: str) -> None:
    if not _DOMAIN.fullmatch(domain):
        raise errors.Invalid(
            f"{domain[:60]!r} is no domain for containers; write lower-case letters, digits and '-', such as "
            "skerry",
            field="network.domain",
        )
