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
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.model import errors, ports
from skerry.model.ports import PortMapping
from skerry.model.settings import NetworkSettings
from skerry.node import host
from skerry.node.network import adoption, nameservers, programs, routes, rules, subnets
from skerry.node.network.addresses import Addresses
from skerry.node.network.attachments import Attachment, AttachmentRecord, Records
from skerry.node.network.firewall import Firewall
from skerry.node.network.holds import Holds
from skerry.node.network.links import Links
from skerry.node.network.pool import Pool
from skerry.node.network.seclusion import Seclusion
from skerry.node.network.subnets import Names, Subnet

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
        boot: str,
        tools: programs.Programs,
        closed: Sequence[IPv4Network],
        reached: Callable[[str], None],
    ) -> None:
        self._folder = files.private_folder(folder)
        self._settings = settings
        self._clock = clock
        self._boot = boot
        self._reached = reached
        self._subnet = Subnet(settings.subnet)
        self._names = Names(key)
        self._records = Records(folder / "attached")
        self._links = Links(tools, self._names, self._subnet, folder / "ns", reached)
        self._firewall = Firewall(tools, self._names, self._subnet)
        self._seclusion = Seclusion(tools, self._names, self._subnet, closed)
        self._addresses = Addresses(self._subnet)
        self._pool = Pool(self._links, self._addresses, settings.pool)
        self._holds = Holds()
        self._attached: dict[str, Attachment] = {}
        self._coming: dict[str, asyncio.Future[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._hindrances: list[str] = []

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: NetworkSettings,
        clock: Clock,
        *,
        key: str,
        boot: str | None = None,
        closed: Sequence[IPv4Network] = (),
        reached: Callable[[str], None] = lambda step: None,
    ) -> Network:
        """Take over what is in `folder`, and make the rest.

        `key`: 8 hex digits that no other Skerry on this machine has. `closed`: networks of this cloud, for
        those who are kept apart; all that are private are closed to them anyway. Raises Unavailable (it
        cannot be had here), Refused (the subnet), Invalid (the settings).
        """
        nameservers.check(settings.dns)
        boot = host.boot_id() if boot is None else boot
        tools = programs.find()
        if not settings.subnet:
            found = Records(folder / "attached").scan()
            subnet = adoption.subnet_of(found, boot) or subnets.choose(
                key, routes.taken(routes.read(), Names(key).bridge)
            )
            settings = msgspec.structs.replace(settings, subnet=subnet)
        network = cls(
            folder, settings, clock, key=key, boot=boot, tools=tools, closed=closed, reached=reached
        )
        with _told():
            kept = await asyncio.to_thread(network._choose)
        try:
            with _told():
                await asyncio.to_thread(network._take_over, kept)
            for each in kept:
                for failure in await network._holds.retake(each.owner, each.ports):
                    log.warning("network.port_not_held", owner=each.owner, reason=failure)
        except BaseException:
            await network._give_up(is_anybody_attached=bool(kept))
            raise
        return network

    def _choose(self) -> list[Attachment]:
        return adoption.choose(self._records.scan(), self._boot, self._subnet, self._links.is_whole)

    def _take_over(self, kept: Sequence[Attachment]) -> None:
        routes.check_free(self._subnet, routes.read(), self._names.bridge)
        addresses = [IPv4Address(each.address) for each in kept]
        swept = self._links.sweep(addresses)
        self._reached("open.swept")
        self._records.keep_only(each.address for each in kept)
        self._links.build_bridge(anew=not kept)
        self._links.join(addresses)  # they are on it, unless somebody took the bridge away
        self._reached("open.bridge")
        doors: dict[rules.Door, rules.Room] = {}
        for each, address in zip(kept, addresses, strict=True):
            self._attached[each.owner] = each
            self._addresses.claim(address)
            doors |= rules.doors_of(address, each.ports)
        self._firewall.replace(doors)
        if apart := [IPv4Address(each.address) for each in kept if each.is_apart]:
            self._links.subject(apart)
        self._seclusion.replace(apart, self._name_servers())
        self._reached("open.ruled")
        self._hindrances = self._firewall.hindrances()
        for hindrance in self._hindrances:
            log.warning("network.hindered", reason=hindrance)
        log.info(
            "network.opened",
            bridge=self._names.bridge,
            subnet=str(self._subnet),
            kept=len(kept),
            removed=swept,
        )

    @property
    def subnet(self) -> str:
        """The network of the containers."""
        return str(self._subnet)

    def lacking(self) -> tuple[str, ...]:
        """What containers will not be able to do, and why, in plain sentences; best empty."""
        return (*self._hindrances, *(() if self._name_servers() else (nameservers.NONE_REACHABLE,)))

    def resolv_conf(self) -> str:
        """What a container's /etc/resolv.conf must say now."""
        return str(nameservers.read(self._settings.dns))

    def _name_servers(self) -> tuple[str, ...]:
        return nameservers.read(self._settings.dns).servers

    def attachments(self) -> dict[str, Attachment]:
        """Who is attached, by owner."""
        return dict(self._attached)

    async def attach(
        self, owner: str, mappings: Sequence[PortMapping] = (), *, is_apart: bool = False
    ) -> Attachment:
        """A namespace with an address, and `mappings` held for it; `publish` lets packets through them.

        With `is_apart` it reaches what is outside, and neither the node nor anybody else here reaches it or
        is reached by it. Raises AlreadyExists (it is attached), NoRoom (no address is free), Refused
        (somebody has a port, and who), Unavailable.
        """
        wanted = tuple(mappings)
        ports.check_all(wanted)
        if wanted and is_apart:
            raise errors.Invalid(f"{owner!r} is kept apart and cannot publish ports", field="ports")
        if owner in self._attached or owner in self._coming:
            raise errors.AlreadyExists(f"{owner!r} is attached to the network already")
        coming = self._coming[owner] = asyncio.get_running_loop().create_future()
        try:
            return await self._attach(owner, wanted, is_apart=is_apart)
        finally:
            del self._coming[owner]
            coming.set_result(None)

    async def _attach(self, owner: str, wanted: tuple[PortMapping, ...], *, is_apart: bool) -> Attachment:
        await self._holds.take(owner, wanted)
        try:
            with _told():
                address = await self._pool.take()
            try:
                attachment = Attachment(
                    owner=owner,
                    namespace=str(self._links.place(address)),
                    address=str(address),
                    prefix=self._subnet.prefix,
                    gateway=str(self._subnet.gateway),
                    ports=wanted,
                    is_apart=is_apart,
                )
                self._reached("attach.taken")
                if is_apart:
                    await self._wall_off(attachment)
                else:
                    if self._seclusion.holds(address):  # of one who was given up before it had begun
                        await self._seclusion.end(address)
                    self._write_down(attachment)
            except BaseException:
                self._pool.put_back(address)
                raise
        except BaseException:
            self._holds.release(wanted)
            raise
        self._attached[owner] = attachment
        log.info("network.attached", owner=owner, address=attachment.address, is_apart=is_apart)
        return attachment

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
            self._records.add(AttachmentRecord(attachment, self._boot, self._clock.now()))
        self._reached("attach.recorded")

    async def publish(self, owner: str) -> None:
        """Its ports lead to it when this returns. Raises NotFound, Unavailable."""
        attachment = self._attached.get(owner)
        if attachment is None or owner in self._leaving:
            raise errors.NotFound(f"{owner!r} is not attached to the network")
        await self._firewall.publish(IPv4Address(attachment.address), attachment.ports)
        self._reached("publish.ruled")

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
        with _told():
            await self._firewall.withdraw(attachment.ports)
            self._reached("detach.withdrawn")
            await self._pool.remove(address)
            if attachment.is_apart:  # not before its link is gone
                await self._seclusion.end(address)
                self._reached("detach.unwalled")
            self._records.remove(attachment.address)
            self._reached("detach.unrecorded")
        self._holds.release(attachment.ports)
        del self._attached[attachment.owner]
        self._pool.give_back(address)
        log.info("network.detached", owner=attachment.owner, address=attachment.address)

    async def keep_only(self, owners: set[str]) -> None:
        """Detach everybody else: after a restart, those whose owners are gone."""
        await asyncio.gather(*(self.detach(owner) for owner in self._attached if owner not in owners))

    async def run(self) -> None:
        """Keep namespaces ready and the rules in place, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pool.run())
            tasks.create_task(self._firewall.run())
            tasks.create_task(self._seclusion.run())

    async def close(self) -> None:
        """The agent ends. Who is attached stays so, with ports and all; if nobody is, nothing is left."""
        await asyncio.gather(*self._coming.values(), *self._leaving.values(), return_exceptions=True)
        try:
            await self._pool.close()
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
