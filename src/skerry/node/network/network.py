"""The network of this node's containers: addresses, masquerading and published ports for attachments.

The entry point of this package. `attach` returns a prestarted namespace and reserves ports; `publish`
forwards them, and may run concurrently with the start of the program that will listen. Attachments outlive
the agent: `open` adopts what an earlier one left, `close` leaves them with their rules. Owners, and what runs
in their namespaces, are not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, tasks
from skerry.kit.clock import Clock
from skerry.model import errors, ports
from skerry.model.ids import Namespace
from skerry.model.ipv6_addresses import ipv6_of
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping
from skerry.model.settings import AUTO, NetworkSettings
from skerry.node.host import boot_id
from skerry.node.network import adoption, commands, ipv6_forwarding, nameservers, port_rules
from skerry.node.network.address_ranges import parse_allowed
from skerry.node.network.attachments import Attachment, AttachmentRecord, AttachmentRecords
from skerry.node.network.bridge import Bridge
from skerry.node.network.dns.forwarder import PORT as DNS_PORT
from skerry.node.network.dns.name_server import NameServer
from skerry.node.network.firewall import Firewall
from skerry.node.network.isolation import NetworkIsolation
from skerry.node.network.namespace_pools import NamespacePools
from skerry.node.network.namespace_sockets import NamespaceSockets
from skerry.node.network.network_host import ROOT_HOST, NetworkHost
from skerry.node.network.policy_rules import NO_CLOUD, CloudNetwork
from skerry.node.network.port_reservations import PortReservations
from skerry.node.network.service_balancer import ServiceBalancer
from skerry.node.network.subnet_choice import SubnetChoice
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet

__all__ = ["Attachment", "Network"]

log = structlog.get_logger(__name__)

_CloudOf = Callable[[tuple[IPv4Network, ...]], CloudNetwork]  # what is known, for a node with these subnets


class Network:
    """The bridge of one Skerry, with everything on it."""

    def __init__(
        self,
        folder: Path,
        settings: NetworkSettings,
        clock: Clock,
        *,
        key: str,
        boot: str | None = None,
        closed: Sequence[IPv4Network] = (),
        host: NetworkHost = ROOT_HOST,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`key`: 8 hex digits that no other Skerry on this machine has. `closed`: networks of this cloud,
        closed to isolated attachments, as all private ones are. `host` is where the
        bridge is. Raises Unavailable (no network here), Invalid (the settings)."""
        nameservers.check(settings.dns)
        ranges = port_rules.AddressRanges(parse_allowed(settings.allow), tuple(closed))
        tools = commands.find(namespace=host.namespace)
        self._folder = files.private_folder(folder)
        self._settings = settings
        self._clock = clock
        self._boot = boot_id() if boot is None else boot
        self._key = key
        self._failpoint = failpoint
        self._names = KernelNames(key)
        self._choice = SubnetChoice(settings, self._names, key)
        self._records = AttachmentRecords(folder / "attached")
        self._subnets = BridgeSubnets()
        self._subnets.has_ipv6 = settings.ipv6 == AUTO and host.namespace.run(ipv6_forwarding.has_ipv6)
        self._links = Bridge(tools, self._names, self._subnets, folder / "ns", failpoint, host)
        self._firewall = Firewall(tools, self._names, self._subnets, ranges, self._open_resolvers)
        self._isolation = NetworkIsolation(tools, self._names, self._subnets, ranges.closed)
        self.services = ServiceBalancer(tools, self._names, self._subnets)
        self._pools: NamespacePools | None = None  # of the current subnet
        self._loops: asyncio.TaskGroup | None = None  # while `run` runs
        self._switching = asyncio.Lock()
        self._no_subnet_reason: Callable[[], str] = lambda: ""
        self._dns: NameServer | None = None
        self._tools = tools
        self._forwarder = host.forwarder
        self._reservations = self._reserve_ports()
        self._attached: dict[str, Attachment] = {}
        self._coming: dict[str, asyncio.Future[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._hindrances: list[str] = []
        self._removals: list[Callable[[], None]] = []
        self._sockets = NamespaceSockets(host.namespace)

    @property
    def key(self) -> str:
        """What distinguishes this Skerry from others on this machine."""
        return self._key

    def use_names(self, names: NameServer) -> None:
        """Before `open`: containers ask this name server, instead of the machine's resolvers."""
        names.use_kernel(
            self._tools, self._names, self._isolation.may_be_isolated, self._firewall.namespace_at
        )
        self._dns = names
        if self._forwarder is None:  # else the name server is in another network namespace
            self._reservations = self._reserve_ports(DNS_PORT)

    def _reserve_ports(self, *shared: int) -> PortReservations:
        return PortReservations(lambda: self._subnets.has_ipv6, shared, self._forwarder)

    async def open(
        self,
        *,
        assigned: str = "",
        waits: bool = False,
        cloud: _CloudOf = lambda own: NO_CLOUD,
    ) -> Network:
        """Adopt the attachments in the folder, and create the rest.

        `assigned`: the subnet that the server assigned to this node; without one it uses the setting, or
        chooses one. With `waits` it chooses none: attachments fail until `use` sets one. `cloud` returns what
        is known of other nodes, for a node with these subnets. Raises Unavailable (no network here),
        FailedPrecondition (the subnet).
        """
        with commands.translated_errors():
            adopted = await asyncio.to_thread(self._choose)
        try:
            with commands.translated_errors():
                subnet = self._choice.first(assigned, adopted, waits=waits)
                await tasks.in_thread(self._take_over, adopted, subnet, cloud)
                await self._serve_names()
            for each in adopted:
                for failure in await self._reservations.reserve_again(each.owner, each.ports):
                    log.warning("network.port_not_held", owner=each.owner, reason=failure)
        except BaseException:
            await self._clean_up(is_anybody_attached=bool(adopted))
            raise
        return self

    def _choose(self) -> list[Attachment]:
        return adoption.choose(self._records.scan(), self._boot, self._links.is_whole)

    def _take_over(self, adopted: Sequence[Attachment], subnet: NodeSubnet | None, cloud: _CloudOf) -> None:
        self._subnets.replace(subnet, [NodeSubnet(str(each)) for each in adoption.networks_of(adopted)])
        addresses = [IPv4Address(each.address) for each in adopted]
        swept = self._links.sweep(addresses)
        self._failpoint("open.swept")
        self._records.keep_only(each.address for each in adopted)
        if not self._subnets.all:
            log.info("network.waits", bridge=self._names.bridge, removed=swept)
            return
        self._links.build_bridge(is_new=not adopted)
        self._links.join(addresses)  # they are on it, unless somebody removed the bridge
        self._failpoint("open.bridge")
        host_ports: dict[port_rules.HostPort, port_rules.ContainerPort] = {}
        for each, address in zip(adopted, addresses, strict=True):
            host_ports |= port_rules.published_ports(address, each.ports)
        policies = {IPv4Address(each.address): each.policy for each in adopted if each.policy != OPEN_POLICY}
        self._open_firewall(host_ports, policies, cloud(self._subnets.networks))
        for each in adopted:
            address6 = each.address6 if self._subnets.has_ipv6 else ""
            self._attached[each.owner] = msgspec.structs.replace(each, address6=address6)
        if isolated := [IPv4Address(each.address) for each in adopted if each.is_isolated]:
            self._links.forward_lldp(isolated)
        self._isolation.replace(isolated, self._name_servers())
        self._failpoint("open.ruled")
        if subnet is not None:
            self._pools = self._pools_of(subnet)
        self._hindrances = self._firewall.hindrances()
        for hindrance in self._hindrances:
            log.warning("network.hindered", reason=hindrance)
        log.info(
            "network.opened",
            bridge=self._names.bridge,
            subnets=[str(each) for each in self._subnets.all],
            kept=len(adopted),
            removed=swept,
        )

    def _open_firewall(
        self,
        host_ports: port_rules.PublishedPorts,
        policies: Mapping[IPv4Address, NetworkPolicy],
        cloud: CloudNetwork | None = None,
    ) -> None:
        had_ipv6 = self._subnets.has_ipv6
        self._firewall.open(host_ports, policies, cloud)
        if self._subnets.has_ipv6 != had_ipv6:  # its rules cannot be had
            self._links.build_bridge(is_new=False)

    @property
    def has_ipv6(self) -> bool:
        """True if containers have IPv6 addresses, too."""
        return self._subnets.has_ipv6

    @property
    def subnet(self) -> str:
        """The subnet of new containers; empty while there is none."""
        return "" if self._subnets.current is None else str(self._subnets.current)

    @property
    def names(self) -> KernelNames:
        """Of its objects in the kernel."""
        return self._names

    @property
    def networks(self) -> tuple[IPv4Network, ...]:
        """The networks of all its subnets."""
        return self._subnets.networks

    @property
    def gateway(self) -> IPv4Address | None:
        """The node's own address among its containers."""
        return None if self._subnets.current is None else self._subnets.current.gateway

    @property
    def bridge_mac(self) -> str:
        return self._subnets.bridge_mac

    @property
    def former(self) -> tuple[str, ...]:
        """Former subnets that containers still have addresses of."""
        return tuple(map(str, self._subnets.former))

    @property
    def occupied(self) -> tuple[str, ...]:
        """Networks with other routes of this machine, the widest first: not usable as a subnet."""
        networks = sorted(set(self._choice.routed_networks()), key=lambda each: (each.prefixlen, each))
        return tuple(map(str, networks))

    def call_when_removed(self, callback: Callable[[], None]) -> None:
        """Call it, in a thread, when the network is removed because nothing is attached."""
        self._removals.append(callback)

    def explain_wait(self, reason: Callable[[], str]) -> None:
        """Set a callback that explains why there is no subnet yet."""
        self._no_subnet_reason = reason

    async def use(self, text: str) -> None:
        """Use this subnet for new containers. Existing addresses stay, with their ports, until their
        containers end. Raises Invalid, FailedPrecondition (this machine has another route to it),
        Unavailable."""
        subnet = NodeSubnet(text)
        async with self._switching:
            before = self._subnets.current
            if before is not None and before.network == subnet.network:
                return
            with commands.translated_errors():
                await asyncio.to_thread(self._choice.check_free, subnet)
                await self._add_subnet(subnet)
            old, self._pools = self._pools, self._pools_of(subnet)
            if self._loops is not None:
                self._pools.start_filling(self._loops)
            await self._serve_names()
            if old is not None:
                with commands.translated_errors():
                    await old.close()
                owned = {IPv4Address(each.address) for each in self._attached.values()}
                await self._firewall.keep_only(owned, subnet)
            await self._drop_unused()
        log.info("network.subnet_changed", before=str(before or ""), after=text)

    async def _add_subnet(self, subnet: NodeSubnet) -> None:
        is_first = not self._subnets.all
        before, former = self._subnets.current, self._subnets.former
        self._subnets.switch(subnet)
        try:
            await tasks.in_thread(self._links.build_bridge, is_new=is_first)
            if is_first:
                await tasks.in_thread(self._open_firewall, {}, {})
            else:
                await self._firewall.rewrite()
                await self._isolation.rewrite()
            self.services.subnets_changed()
        except BaseException:
            self._subnets.replace(before, former)
            raise

    async def _drop_unused(self) -> None:
        """Remove former subnets without attachments."""
        if self._coming or not self._subnets.former:
            return  # checked again when one of them is detached
        dropped = self._subnets.keep_only(adoption.networks_of(self._attached.values()))
        if dropped:
            with commands.translated_errors():
                await self._serve_names()
                await tasks.in_thread(self._links.drop_subnets, dropped)
                await self._firewall.rewrite()
                await self._isolation.rewrite()
                self.services.subnets_changed()
            log.info("network.subnets_dropped", subnets=[str(each) for each in dropped])

    def _pools_of(self, subnet: NodeSubnet) -> NamespacePools:
        in_use = [IPv4Address(each.address) for each in self._attached.values()]
        return NamespacePools(subnet, in_use, self._links, self._settings.pool, self._firewall.restrict)

    def lacking(self) -> tuple[str, ...]:
        """What containers cannot do here, and why, in sentences; ideally empty."""
        known = self._name_servers() if self._dns is None else self._dns.upstreams()
        names = () if known else (nameservers.NONE_REACHABLE,)
        unserved = () if self._dns is None else self._dns.lacking()
        return (*self._hindrances, *self._firewall.lacking(), *names, *unserved)

    def resolv_conf(
        self, attachment: Attachment, servers: Sequence[str] = (), *, tenant: Namespace | str = ""
    ) -> str:
        """The current /etc/resolv.conf of a container in the namespace `tenant`; with `servers` instead of
        the node's. A guest's has resolvers outside: it must not learn names of this cloud."""
        names = self._dns
        if servers or names is None or attachment.is_isolated or not names.serves(attachment.gateway):
            return str(nameservers.read(servers or self._settings.dns))
        return str(nameservers.of_node(attachment.gateway, names.search_domains(tenant)))

    def _name_servers(self) -> tuple[str, ...]:
        """Those that containers can reach without the node's help."""
        return nameservers.read(self._settings.dns).servers

    def _open_resolvers(self) -> tuple[str, ...]:
        """What every container may reach on port 53, whatever its egress."""
        own = () if self._dns is None else tuple(str(each.gateway) for each in self._subnets.all)
        return tuple(dict.fromkeys((*self._name_servers(), *own)))

    async def _serve_names(self) -> None:
        if self._dns is not None:
            await self._dns.serve(self._subnets.all)

    def attachments(self) -> dict[str, Attachment]:
        """Attachments by owner."""
        return dict(self._attached)

    async def attach(
        self,
        owner: str,
        mappings: Sequence[PortMapping] = (),
        *,
        is_isolated: bool = False,
        policy: NetworkPolicy = OPEN_POLICY,
        for_worker: bool = False,
    ) -> Attachment:
        """A namespace with an address, and reservations of `mappings`; `publish` forwards them. Where the
        node has user namespaces, one owns it, unless it is `for_worker`, of a function; and the next agent
        removes what is.

        `policy` is effective before anything runs in it. With `is_isolated` it reaches outside addresses
        only, and neither the node nor other containers can connect to it. Raises AlreadyExists (it is
        attached), ResourcesExhausted (no address is free), FailedPrecondition (a port is in use, and by
        whom), Unavailable.
        """
        requested = tuple(mappings)
        ports.check_all(requested)
        if requested and is_isolated:
            raise errors.Invalid(f"{owner!r} has an isolated network and cannot publish ports", field="ports")
        if owner in self._attached or owner in self._coming:
            raise errors.AlreadyExists(f"{owner!r} is already attached to the network")
        coming = self._coming[owner] = asyncio.get_running_loop().create_future()
        try:
            return await self._attach(
                owner, requested, is_isolated=is_isolated, policy=policy, for_worker=for_worker
            )
        finally:
            del self._coming[owner]
            coming.set_result(None)

    def expect_workers(self, policy: NetworkPolicy, count: int) -> None:
        """So many may be attached at once, `for_worker`."""
        if self._pools is not None:
            self._pools.expect(policy, count, with_users=False)

    async def _attach(
        self,
        owner: str,
        mappings: tuple[PortMapping, ...],
        *,
        is_isolated: bool,
        policy: NetworkPolicy,
        for_worker: bool,
    ) -> Attachment:
        await self._reservations.reserve(owner, mappings)
        try:
            pools = self._require_pools()
            with commands.translated_errors():
                address = await pools.take(policy, with_users=not for_worker)
            try:
                subnet = self._subnets.of(address)
                self._records.exclude(str(address), is_excluded=for_worker)
                attachment = Attachment(
                    owner=owner,
                    namespace=str(self._links.namespace_path(address)),
                    address=str(address),
                    prefix=subnet.prefix,
                    gateway=str(subnet.gateway),
                    ports=mappings,
                    is_isolated=is_isolated,
                    users=self._links.users(address),
                    policy=policy,
                    address6=str(ipv6_of(address)) if self._subnets.has_ipv6 else "",
                )
                self._failpoint("attach.taken")
                await self._firewall.restrict(address, policy)
                self._failpoint("attach.restricted")
                if is_isolated:
                    await self._isolate(attachment)
                else:
                    if self._isolation.may_be_isolated(address):  # left by an attach that failed
                        await self._isolation.release(address)
                    if self._dns is not None:
                        opened = partial(self._sockets.open, attachment.namespace)
                        await self._dns.probe(attachment.gateway, opened)
                    self._store(attachment)
            except BaseException:
                await self._put_back(pools, address, policy, with_users=not for_worker)
                raise
        except BaseException:
            self._reservations.release(mappings)
            raise
        self._attached[owner] = attachment
        log.info("network.attached", owner=owner, address=attachment.address, is_apart=is_isolated)
        return attachment

    def _require_pools(self) -> NamespacePools:
        if self._pools is None:
            reason = self._no_subnet_reason() or "no server has been reached yet"
            raise errors.Unavailable(
                f"this node waits for its server to assign a subnet for containers: {reason}"
            )
        return self._pools

    async def _put_back(
        self, pools: NamespacePools, address: IPv4Address, policy: NetworkPolicy, *, with_users: bool
    ) -> None:
        self._sockets.forget(str(self._links.namespace_path(address)))
        if pools is self._pools:
            pools.put_back(address, policy, with_users=with_users)
        else:  # of a former subnet by now
            await pools.remove(address)

    async def _isolate(self, attachment: Attachment) -> None:
        """Before anything is in its namespace, and before the record is written: a recorded attachment is
        isolated."""
        address = IPv4Address(attachment.address)
        try:
            await asyncio.to_thread(self._links.forward_lldp, [address])
            await self._isolation.isolate(address, self._name_servers())
            self._failpoint("attach.walled")
            self._store(attachment)
        except BaseException:
            with contextlib.suppress(errors.Unavailable):  # the next owner of the address tries again
                await self._isolation.release(address)
            raise

    def _store(self, attachment: Attachment) -> None:
        with commands.translated_errors():
            self._records.save(AttachmentRecord(attachment, self._boot, self._clock.now()))
        self._failpoint("attach.recorded")

    def open_socket(self, owner: str) -> asyncio.Future[socket.socket]:
        """An unconnected, non-blocking TCP socket in the namespace of `owner`. Raises FailedPrecondition (it
        is not attached), OSError."""
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving:
            raise errors.FailedPrecondition(f"{owner!r} is not attached to the network")
        return self._sockets.open(attachment.namespace)

    async def publish(self, owner: str) -> None:
        """Publish its ports; effective on return. Raises NotFound, Unavailable."""
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving:
            raise errors.NotFound(f"{owner!r} is not attached to the network")
        await self._firewall.publish(IPv4Address(attachment.address), attachment.ports)
        await self._reservations.publish(attachment.ports)
        self._failpoint("publish.ruled")

    async def restrict(self, owner: str, policy: NetworkPolicy) -> None:
        """Apply `policy` from now on, durably. Does nothing if it is not attached. Raises Unavailable."""
        if (coming := self._coming.get(owner)) is not None:
            await asyncio.shield(coming)
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving or attachment.policy == policy:
            return
        await self._firewall.restrict(IPv4Address(attachment.address), policy)
        self._failpoint("restrict.ruled")
        if self._attached.get(owner) is attachment:  # it may have been detached meanwhile
            restricted = msgspec.structs.replace(attachment, policy=policy)
            self._store(restricted)
            self._attached[owner] = restricted

    async def follow_cloud(self, cloud: CloudNetwork) -> None:
        """Apply policies with what is known of other nodes from now on. Raises Unavailable."""
        await self._firewall.follow_cloud(cloud)

    async def detach(self, owner: str) -> None:
        """Remove its ports, links and namespace; does nothing if there is none. Its address and ports are
        free on return. Completes even if the caller is cancelled. Raises Unavailable: detach again."""
        if (coming := self._coming.get(owner)) is not None:
            await asyncio.shield(coming)
        leaving = self._leaving.get(owner)
        if leaving is None:
            attachment = self._attached.get(owner)
            if attachment is None:
                return
            leaving = self._leaving[owner] = asyncio.create_task(self._detach(attachment))
            leaving.add_done_callback(lambda _: self._leaving.pop(owner))
        await asyncio.shield(leaving)

    async def _detach(self, attachment: Attachment) -> None:
        address = IPv4Address(attachment.address)
        self._sockets.forget(attachment.namespace)  # they would keep it alive
        with commands.translated_errors():
            await self._reservations.withdraw(attachment.ports)
            await self._firewall.withdraw(attachment.ports)
            self._failpoint("detach.withdrawn")
            await self._require_pools().remove(address)
            if attachment.is_isolated:  # not before its link is gone
                await self._isolation.release(address)
                self._failpoint("detach.unwalled")
            await self._firewall.release(address)
            self._failpoint("detach.unrestricted")
            self._records.remove(attachment.address)
            self._failpoint("detach.unrecorded")
        self._reservations.release(attachment.ports)
        del self._attached[attachment.owner]
        self._require_pools().release(address)
        async with self._switching:
            await self._drop_unused()
        log.info("network.detached", owner=attachment.owner, address=attachment.address)

    async def keep_only(self, owners: set[str]) -> None:
        """Detach all others: after a restart, those whose owners are gone."""
        await asyncio.gather(*(self.detach(owner) for owner in self._attached if owner not in owners))

    async def run(self) -> None:
        """Keep namespaces ready and the rules in place, for ever."""
        try:
            async with asyncio.TaskGroup() as self._loops:
                if self._pools is not None:
                    self._pools.start_filling(self._loops)
                self._loops.create_task(self._reservations.run())
                self._loops.create_task(self._firewall.run())
                self._loops.create_task(self._isolation.run())
                self._loops.create_task(self.services.run())
                if self._dns is not None:
                    self._loops.create_task(self._dns.run())
        finally:
            self._loops = None

    async def close(self) -> None:
        """Stop the agent's part. Attachments stay, with their ports; without any, everything is removed."""
        self._sockets.close()
        if self._dns is not None:
            await self._dns.close()
        await asyncio.gather(*self._coming.values(), *self._leaving.values(), return_exceptions=True)
        try:
            if self._pools is not None:
                await self._pools.close()
            await self._firewall.drain()
            await self._isolation.drain()
            await self.services.drain()
            if not self._attached and self._folder.exists():
                await asyncio.to_thread(self._remove)
        finally:
            self._reservations.close()

    async def _clean_up(self, *, is_anybody_attached: bool) -> None:
        """Opening failed: keep existing attachments, and remove the rest."""
        self._reservations.close()
        if self._dns is not None:
            await self._dns.close()
        if not is_anybody_attached:
            try:
                await asyncio.to_thread(self._remove)
            except (errors.SkerryError, OSError) as error:  # most likely the cause of the failure
                log.warning("network.not_removed", error=str(error))

    def _remove(self) -> None:
        for callback in self._removals:
            callback()
        self._links.sweep([])
        self._links.remove_bridge()
        self._failpoint("close.bridge")
        try:
            self._firewall.remove()
            self._isolation.replace((), ())
            self.services.remove()
            self._failpoint("close.unruled")
        finally:
            shutil.rmtree(self._folder)
