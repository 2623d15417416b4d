"""The network of this node's containers: an address, a way out and published ports for whoever is attached.

The only door to this folder. `attach` hands out a namespace that was made ahead and holds the ports;
`publish` makes them lead there, and may run beside the start of what will listen. Attachments outlive the
agent: `open` takes over what an earlier one left, `close` leaves them with their rules. Who the owners are,
and what runs in their namespaces, is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.model import errors, ports
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping
from skerry.model.settings import NetworkSettings
from skerry.node import host
from skerry.node.network import adoption, commands, host_routes, nameservers, port_rules, subnets
from skerry.node.network.address_ranges import parse_allowed
from skerry.node.network.attachments import Attachment, AttachmentRecord, attachment_records
from skerry.node.network.bridge import Bridge
from skerry.node.network.firewall import Firewall
from skerry.node.network.isolation import NetworkIsolation
from skerry.node.network.namespace_pools import NamespacePools
from skerry.node.network.namespace_sockets import NamespaceSockets
from skerry.node.network.port_reservations import PortReservations
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet
from skerry.node.user_namespaces import UserNamespaces

__all__ = ["Attachment", "Network"]

log = structlog.get_logger(__name__)


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
        users: UserNamespaces | None = None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`key`: 8 hex digits that no other Skerry on this machine has. `closed`: networks of this cloud, for
        those who are kept apart; all that are private are closed to them anyway. `users`: makes the user
        namespaces that network namespaces are to belong to. Raises Unavailable (it cannot be had here),
        Invalid (the settings)."""
        nameservers.check(settings.dns)
        ranges = port_rules.AddressRanges(parse_allowed(settings.allow), tuple(closed))
        tools = commands.find()
        self._folder = files.private_folder(folder)
        self._settings = settings
        self._clock = clock
        self._boot = host.boot_id() if boot is None else boot
        self._key = key
        self._reached = reached
        self._names = KernelNames(key)
        self._records = attachment_records(folder / "attached")
        self._subnets = BridgeSubnets()
        self._links = Bridge(tools, self._names, self._subnets, folder / "ns", reached, users)
        self._firewall = Firewall(tools, self._names, self._subnets, ranges, self._name_servers)
        self._seclusion = NetworkIsolation(tools, self._names, self._subnets, ranges.closed)
        self._pools: NamespacePools | None = None  # of the current subnet
        self._loops: asyncio.TaskGroup | None = None  # while `run` runs
        self._switching = asyncio.Lock()
        self._why_no_subnet: Callable[[], str] = lambda: ""
        self._holds = PortReservations()
        self._attached: dict[str, Attachment] = {}
        self._coming: dict[str, asyncio.Future[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._hindrances: list[str] = []
        self._sockets = NamespaceSockets()

    async def open(self, *, assigned: str = "", waits: bool = False) -> Network:
        """Take over what is in the folder, and make the rest.

        `assigned`: the subnet that the server gave this node; without one it has the setting, or one of its
        own choice. With `waits` it chooses none: containers have to wait until it `use`s one. Raises
        Unavailable (it cannot be had here), FailedPrecondition (the subnet).
        """
        with _told():
            kept = await asyncio.to_thread(self._choose)
        try:
            with _told():
                subnet = self._first_subnet(assigned, kept, waits=waits)
                await asyncio.to_thread(self._take_over, kept, subnet)
            for each in kept:
                for failure in await self._holds.retake(each.owner, each.ports):
                    log.warning("network.port_not_held", owner=each.owner, reason=failure)
        except BaseException:
            await self._give_up(is_anybody_attached=bool(kept))
            raise
        return self

    def _choose(self) -> list[Attachment]:
        return adoption.choose(self._records.scan(), self._boot, self._links.is_whole)

    def _first_subnet(self, assigned: str, kept: Sequence[Attachment], *, waits: bool) -> NodeSubnet | None:
        """What new containers get addresses of before the server was asked. Raises FailedPrecondition."""
        if assigned:
            try:
                self._check_free(NodeSubnet(assigned))
            except errors.SkerryError as error:
                log.warning("network.subnet_unusable", subnet=assigned, reason=error.message)
            else:
                return NodeSubnet(assigned)
        elif self._settings.subnet and not waits:
            subnet = NodeSubnet(self._settings.subnet)
            self._check_free(subnet)
            return subnet
        if networks := adoption.networks_of(kept):
            return NodeSubnet(str(networks[0]))
        return None if waits or assigned else NodeSubnet(subnets.choose(self._key, self._reached_otherwise()))

    def _reached_otherwise(self) -> list[IPv4Network]:
        return host_routes.taken(host_routes.read(), self._names.bridge)

    def _check_free(self, subnet: NodeSubnet) -> None:
        host_routes.check_free(subnet, host_routes.read(), self._names.bridge)

    def _take_over(self, kept: Sequence[Attachment], subnet: NodeSubnet | None) -> None:
        self._subnets.replace(subnet, [NodeSubnet(str(each)) for each in adoption.networks_of(kept)])
        addresses = [IPv4Address(each.address) for each in kept]
        swept = self._links.sweep(addresses)
        self._reached("open.swept")
        self._records.keep_only(each.address for each in kept)
        if not self._subnets.all:
            log.info("network.waits", bridge=self._names.bridge, removed=swept)
            return
        self._links.build_bridge(anew=not kept)
        self._links.join(addresses)  # they are on it, unless somebody took the bridge away
        self._reached("open.bridge")
        host_ports: dict[port_rules.HostPort, port_rules.ContainerPort] = {}
        for each, address in zip(kept, addresses, strict=True):
            self._attached[each.owner] = each
            host_ports |= port_rules.published_ports(address, each.ports)
        policies = {IPv4Address(each.address): each.policy for each in kept if each.policy != OPEN_POLICY}
        self._firewall.open(host_ports, policies)
        if apart := [IPv4Address(each.address) for each in kept if each.is_apart]:
            self._links.subject(apart)
        self._seclusion.replace(apart, self._name_servers())
        self._reached("open.ruled")
        if subnet is not None:
            self._pools = self._pools_of(subnet)
        self._hindrances = self._firewall.hindrances()
        for hindrance in self._hindrances:
            log.warning("network.hindered", reason=hindrance)
        log.info(
            "network.opened",
            bridge=self._names.bridge,
            subnets=[str(each) for each in self._subnets.all],
            kept=len(kept),
            removed=swept,
        )

    @property
    def subnet(self) -> str:
        """What new containers get addresses of; empty while there is none."""
        return "" if self._subnets.current is None else str(self._subnets.current)

    @property
    def former(self) -> tuple[str, ...]:
        """Subnets that it had before, for as long as containers have addresses of them."""
        return tuple(map(str, self._subnets.former))

    @property
    def occupied(self) -> tuple[str, ...]:
        """Networks that this machine reaches otherwise, the widest first: no use as a subnet."""
        networks = sorted(set(self._reached_otherwise()), key=lambda each: (each.prefixlen, each))
        return tuple(map(str, networks))

    def explain_wait(self, reason: Callable[[], str]) -> None:
        """Let `reason` say why there is no subnet yet, if it knows."""
        self._why_no_subnet = reason

    async def use(self, text: str) -> None:
        """Give new containers addresses of this subnet. Those that have others keep them, with everything
        that leads there, until they end. Raises Invalid, FailedPrecondition (this machine reaches it
        otherwise), Unavailable."""
        subnet = NodeSubnet(text)
        async with self._switching:
            before = self._subnets.current
            if before is not None and before.network == subnet.network:
                return
            with _told():
                await asyncio.to_thread(self._check_free, subnet)
                await self._add_subnet(subnet)
            old, self._pools = self._pools, self._pools_of(subnet)
            if self._loops is not None:
                self._pools.begin(self._loops)
            if old is not None:
                with _told():
                    await old.close()
            await self._drop_unused()
        log.info("network.subnet_changed", before=str(before or ""), after=text)

    async def _add_subnet(self, subnet: NodeSubnet) -> None:
        is_first = not self._subnets.all
        before, others = self._subnets.current, self._subnets.former
        self._subnets.switch(subnet)
        try:
            await asyncio.to_thread(self._links.build_bridge, anew=is_first)
            if is_first:
                await asyncio.to_thread(self._firewall.open, {}, {})
            else:
                await self._firewall.rewrite()
                await self._seclusion.rewrite()
        except BaseException:
            self._subnets.replace(before, others)
            raise

    async def _drop_unused(self) -> None:
        """Take former subnets away that nobody has, or is about to have, an address of."""
        if self._coming or not self._subnets.former:
            return  # looked at again when one of them leaves
        dropped = self._subnets.keep_only(adoption.networks_of(self._attached.values()))
        if dropped:
            with _told():
                await asyncio.to_thread(self._links.drop_subnets, dropped)
                await self._firewall.rewrite()
                await self._seclusion.rewrite()
            log.info("network.subnets_dropped", subnets=[str(each) for each in dropped])

    def _pools_of(self, subnet: NodeSubnet) -> NamespacePools:
        taken = [IPv4Address(each.address) for each in self._attached.values()]
        return NamespacePools(subnet, taken, self._links, self._settings.pool, self._firewall.restrict)

    def lacking(self) -> tuple[str, ...]:
        """What containers will not be able to do, and why, in plain sentences; best empty."""
        names = () if self._name_servers() else (nameservers.NONE_REACHABLE,)
        return (*self._hindrances, *self._firewall.lacking(), *names)

    def resolv_conf(self, servers: Sequence[str] = ()) -> str:
        """What a container's /etc/resolv.conf must say now; with `servers` instead of the node's."""
        return str(nameservers.read(servers or self._settings.dns))

    def _name_servers(self) -> tuple[str, ...]:
        return nameservers.read(self._settings.dns).servers

    def attachments(self) -> dict[str, Attachment]:
        """Who is attached, by owner."""
        return dict(self._attached)

    async def attach(
        self,
        owner: str,
        mappings: Sequence[PortMapping] = (),
        *,
        is_apart: bool = False,
        policy: NetworkPolicy = OPEN_POLICY,
    ) -> Attachment:
        """A namespace with an address, and `mappings` held for it; `publish` lets packets through them.

        It is held to `policy` before anything runs in it. With `is_apart` it reaches what is outside, and
        neither the node nor anybody else here reaches it or is reached by it. Raises AlreadyExists (it is
        attached), ResourcesExhausted (no address is free), FailedPrecondition (somebody has a port, and who),
        Unavailable.
        """
        wanted = tuple(mappings)
        ports.check_all(wanted)
        if wanted and is_apart:
            raise errors.Invalid(f"{owner!r} is kept apart and cannot publish ports", field="ports")
        if owner in self._attached or owner in self._coming:
            raise errors.AlreadyExists(f"{owner!r} is attached to the network already")
        coming = self._coming[owner] = asyncio.get_running_loop().create_future()
        try:
            return await self._attach(owner, wanted, is_apart=is_apart, policy=policy)
        finally:
            del self._coming[owner]
            coming.set_result(None)

    async def _attach(
        self, owner: str, wanted: tuple[PortMapping, ...], *, is_apart: bool, policy: NetworkPolicy
    ) -> Attachment:
        await self._holds.take(owner, wanted)
        try:
            pools = self._require_pools()
            with _told():
                address = await pools.take(policy)
            try:
                subnet = self._subnets.of(address)
                attachment = Attachment(
                    owner=owner,
                    namespace=str(self._links.place(address)),
                    address=str(address),
                    prefix=subnet.prefix,
                    gateway=str(subnet.gateway),
                    ports=wanted,
                    is_apart=is_apart,
                    users=self._links.users(address),
                    policy=policy,
                )
                self._reached("attach.taken")
                await self._firewall.restrict(address, policy)
                self._reached("attach.restricted")
                if is_apart:
                    await self._wall_off(attachment)
                else:
                    if self._seclusion.holds(address):  # of one who was given up before it had begun
                        await self._seclusion.end(address)
                    self._write_down(attachment)
            except BaseException:
                await self._put_back(pools, address, policy)
                raise
        except BaseException:
            self._holds.release(wanted)
            raise
        self._attached[owner] = attachment
        log.info("network.attached", owner=owner, address=attachment.address, is_apart=is_apart)
        return attachment

    def _require_pools(self) -> NamespacePools:
        if self._pools is None:
            why = self._why_no_subnet() or "no server was reached yet"
            raise errors.Unavailable(
                f"this node waits for the subnet of its containers, which its server gives it: {why}"
            )
        return self._pools

    async def _put_back(self, pools: NamespacePools, address: IPv4Address, policy: NetworkPolicy) -> None:
        if pools is self._pools:
            pools.put_back(address, policy)
        else:  # of a subnet that is former by now
            await pools.remove(address)

    async def _wall_off(self, attachment: Attachment) -> None:
        """Before anybody is in its namespace, and before it is on disk: what is there and apart has walls."""
        address = IPv4Address(attachment.address)
        try:
            await asyncio.to_thread(self._links.subject, [address])
            await self._seclusion.begin(address, self._name_servers())
            self._reached("attach.walled")
            self._write_down(attachment)
        except BaseException:
            with contextlib.suppress(errors.Unavailable):  # whoever gets the address next tries again
                await self._seclusion.end(address)
            raise

    def _write_down(self, attachment: Attachment) -> None:
        with _told():
            self._records.save(AttachmentRecord(attachment, self._boot, self._clock.now()))
        self._reached("attach.recorded")

    def open_socket(self, owner: str) -> asyncio.Future[socket.socket]:
        """A TCP socket in the namespace of `owner`, not connected, which does not block. Raises
        FailedPrecondition (it is not attached), OSError."""
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving:
            raise errors.FailedPrecondition(f"{owner!r} is not attached to the network")
        return self._sockets.open(attachment.namespace)

    async def publish(self, owner: str) -> None:
        """Its ports lead to it when this returns. Raises NotFound, Unavailable."""
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving:
            raise errors.NotFound(f"{owner!r} is not attached to the network")
        await self._firewall.publish(IPv4Address(attachment.address), attachment.ports)
        self._reached("publish.ruled")

    async def restrict(self, owner: str, policy: NetworkPolicy) -> None:
        """It is held to `policy` from now on, also when the agent is another. Nothing if it is not attached.
        Raises Unavailable."""
        if (coming := self._coming.get(owner)) is not None:
            await asyncio.shield(coming)
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving or attachment.policy == policy:
            return
        await self._firewall.restrict(IPv4Address(attachment.address), policy)
        self._reached("restrict.ruled")
        if self._attached.get(owner) is attachment:  # it may have left meanwhile
            held = msgspec.structs.replace(attachment, policy=policy)
            self._write_down(held)
            self._attached[owner] = held

    async def detach(self, owner: str) -> None:
        """Take its ports, links and namespace away; nothing to do if there is none. Its address and ports are
        free when this returns. Done to its end even if the caller goes. Raises Unavailable: detach again."""
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
        with _told():
            await self._firewall.withdraw(attachment.ports)
            self._reached("detach.withdrawn")
            await self._require_pools().remove(address)
            if attachment.is_apart:  # not before its link is gone
                await self._seclusion.end(address)
                self._reached("detach.unwalled")
            await self._firewall.restrict(address, OPEN_POLICY)
            self._reached("detach.unrestricted")
            self._records.remove(attachment.address)
            self._reached("detach.unrecorded")
        self._holds.release(attachment.ports)
        del self._attached[attachment.owner]
        self._require_pools().give_back(address)
        async with self._switching:
            await self._drop_unused()
        log.info("network.detached", owner=attachment.owner, address=attachment.address)

    async def keep_only(self, owners: set[str]) -> None:
        """Detach everybody else: after a restart, those whose owners are gone."""
        await asyncio.gather(*(self.detach(owner) for owner in self._attached if owner not in owners))

    async def run(self) -> None:
        """Keep namespaces ready and the rules in place, for ever."""
        try:
            async with asyncio.TaskGroup() as self._loops:
                if self._pools is not None:
                    self._pools.begin(self._loops)
                self._loops.create_task(self._firewall.run())
                self._loops.create_task(self._seclusion.run())
        finally:
            self._loops = None

    async def close(self) -> None:
        """The agent ends. Who is attached stays so, with ports and all; if nobody is, nothing is left."""
        self._sockets.close()
        await asyncio.gather(*self._coming.values(), *self._leaving.values(), return_exceptions=True)
        try:
            if self._pools is not None:
                await self._pools.close()
            await self._firewall.drain()
            await self._seclusion.drain()
            if not self._attached and self._folder.exists():
                await asyncio.to_thread(self._remove)
        finally:
            self._holds.close()

    async def _give_up(self, *, is_anybody_attached: bool) -> None:
        """Opening failed: what there was before stays, and nothing else."""
        self._holds.close()
        if not is_anybody_attached:
            try:
                await asyncio.to_thread(self._remove)
            except (errors.SkerryError, OSError) as error:  # most likely what opening failed of
                log.warning("network.not_removed", error=str(error))

    def _remove(self) -> None:
        self._links.sweep([])
        self._links.remove_bridge()
        self._reached("close.bridge")
        try:
            self._firewall.remove()
            self._seclusion.replace((), ())
            self._reached("close.unruled")
        finally:
            shutil.rmtree(self._folder)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What the kernel or the disk refuses becomes an error for callers."""
    try:
        yield
    except OSError as error:
        raise errors.Unavailable(
            f"the network of containers could not be changed: {error.strerror}", detail=repr(error)
        ) from error
