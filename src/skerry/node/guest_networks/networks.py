"""The networks of guests on this node: one for each leased cell that takes part in the mesh of its buyer.

    guest-networks/
      i-contract-01hx/    of a leased cell, by its name
        guest.json        the node that the buyer knows it as, and its subnet
        network/, ...     files of its process (`skerry.daemon.guest_network`)

Each is a process in a network namespace of its own, behind an isolated attachment to the network of this node
(`skerry.node.guest_networks.uplink`). `skerry.node.guests` makes and removes them;
`skerry.node.containers` attaches the containers of the cell to it instead of to this node's bridge.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.kit.backoff import Backoff
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.network import NetworkPolicy
from skerry.model.network_objects import NetworkObject, UnknownObject
from skerry.model.node_messages import NetworkUpdate
from skerry.model.settings import NetworkSettings
from skerry.node.guest_networks import messages, uplink
from skerry.node.guest_networks.messages import NodeReports, OpenNetwork
from skerry.node.guest_networks.process import GuestNetworkProcess
from skerry.node.network import commands, nameservers
from skerry.node.network.attachments import Attachment
from skerry.node.network.dns.zone import search_domains
from skerry.node.network.namespace_sockets import NamespaceSockets
from skerry.node.network.network import Network
from skerry.node.network.subnets import KernelNames

log = structlog.get_logger(__name__)

_FILE: Final = "guest.json"
_POOL: Final = 1  # namespaces made ahead for a guest
_BACKOFF: Final = Backoff(first_s=0.5)


class GuestNode(msgspec.Struct, frozen=True):
    """A leased cell as a node of its buyer's cloud."""

    node: NodeId
    subnet: str  # of its containers


class GuestNetwork:
    """The network of one leased cell. `joined` is false once its buyer has taken it out of the mesh: new
    containers are not attached to it."""

    def __init__(self, cell: str, folder: Path, own: Network, settings: NetworkSettings) -> None:
        self.cell = cell
        self.folder = folder
        self.is_joined = True
        self._own = own
        self._settings = settings
        self.key = hashlib.sha256(f"{own.key}/{cell}".encode()).hexdigest()[:8]
        self._process: GuestNetworkProcess | None = None
        self._guest: GuestNode | None = None
        self._attached: dict[str, Attachment] = {}
        self._changing = asyncio.Lock()
        self._over = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None
        self.reports: Callable[[tuple[NetworkObject, ...]], None] = lambda objects: None
        self.restarted: Callable[[], None] = lambda: None  # it has forgotten the session

    @property
    def warnings(self) -> tuple[str, ...]:
        return () if self._process is None else self._process.warnings

    @property
    def attached(self) -> Mapping[str, Attachment]:
        return self._attached

    @property
    def uplink_owner(self) -> str:
        return uplink_owner(self.cell)

    async def open(self, guest: GuestNode) -> None:
        """Have it as `guest`; whatever there was before is adopted. Raises Unavailable,
        ResourcesExhausted, FailedPrecondition (the subnet)."""
        async with self._changing:
            if self._process is not None and not self._process.is_over and self._guest is not None:
                if self._guest.node == guest.node:
                    await self._process.call(messages.UseSubnet(guest.subnet))
                    await self._save(guest)
                    return
                raise errors.FailedPrecondition("the leased cell is another node already")
            await self._save(guest)
            await self._start()
            if self._restarting is None:
                self._restarting = asyncio.create_task(self._keep_running())

    async def _save(self, guest: GuestNode) -> None:
        if guest != self._guest:
            await asyncio.to_thread(_write, self.folder, guest)
            self._guest = guest

    async def _start(self) -> None:
        assert self._guest is not None
        link = self._own.attachments().get(self.uplink_owner)
        if link is None:
            link = await self._own.attach(self.uplink_owner, is_isolated=True)
        try:
            await asyncio.to_thread(uplink.prepare, commands.find(), link, self._own.bridge_mac)
            options = OpenNetwork(
                str(self.folder / "process"),
                self.key,
                f"skerry-guest-{self.key}",
                self._settings,
                self._guest.node,
                self._guest.subnet,
            )
            self._over.clear()
            if self._process is not None:
                await self._process.end()
            started = await GuestNetworkProcess.start(Path(link.namespace), options, self)
        except OSError as error:
            raise errors.Unavailable(
                f"the network of a guest could not be made: {error.strerror}", detail=repr(error)
            ) from error
        self._process, attached = started
        self._attached = dict(attached)
        log.info("guest_network.started", cell=self.cell, address=link.address, kept=len(self._attached))

    async def _keep_running(self) -> None:
        """Start the process again whenever it has ended."""
        failures = 0
        while True:
            await self._over.wait()
            log.warning("guest_network.over", cell=self.cell)
            await asyncio.sleep(_BACKOFF.delay(failures))
            try:
                async with self._changing:
                    await self._start()
                failures = 0
                self.restarted()
            except errors.SkerryError as error:
                log.warning("guest_network.not_started", cell=self.cell, error=error.message)
                failures += 1
                self._over.set()

    # Events of the process

    def reported(self, reports: NodeReports) -> None:
        try:
            decoded = tuple(each.decode() for each in reports.objects)
        except errors.SkerryError as error:
            log.warning("guest_network.bad_report", cell=self.cell, error=error.message)
            return
        self.reports(tuple(each for each in decoded if not isinstance(each, UnknownObject)))

    def ended(self) -> None:
        self._over.set()

    # Containers

    async def attach(self, owner: str, policy: NetworkPolicy) -> Attachment:
        """Raises the errors of `Network.attach`."""
        if owner in self._attached:
            raise errors.AlreadyExists(f"{owner!r} is already attached to the network")
        (attachment,) = (await self._running().call(messages.AttachContainer(owner, policy))).attached
        self._attached[owner] = attachment
        return attachment

    async def detach(self, owner: str) -> None:
        """Raises Unavailable: detach again."""
        await self._running().call(messages.DetachContainer(owner))
        self._attached.pop(owner, None)

    async def restrict(self, owner: str, policy: NetworkPolicy) -> None:
        """Raises Unavailable."""
        await self._running().call(messages.RestrictContainer(owner, policy))
        self._attached[owner] = msgspec.structs.replace(self._attached[owner], policy=policy)

    def resolv_conf(self, attachment: Attachment) -> str:
        """The /etc/resolv.conf of a container: names of the buyer's cloud."""
        search = search_domains(attachment.policy.namespace, self._settings.domain)
        if not self._settings.domain:
            return str(nameservers.read(self._settings.dns))
        return str(nameservers.of_node(attachment.gateway, search))

    # The session with the buyer

    def apply(self, update: NetworkUpdate) -> None:
        """Raises Unavailable, Overloaded."""
        self._running().send(messages.ApplyUpdate.of(update))

    def end_session(self) -> None:
        with suppress(errors.SkerryError):
            self._running().send(messages.EndSession())

    async def leave(self) -> None:
        """The buyer has taken it out of the mesh: forget its network, and attach no more containers."""
        self.is_joined = False
        await self._running().call(messages.ApplyUpdate(is_full=True))

    def _running(self) -> GuestNetworkProcess:
        if self._process is None or self._process.is_over:
            raise errors.Unavailable("the network of the guest is not running; it is started again")
        return self._process

    # The end

    async def close(self) -> None:
        """Stop the process. Attached containers keep their network; without any nothing stays."""
        await self._stop_restarting()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            self._attached = {each.owner: each for each in await process.close()}
        except errors.SkerryError as error:
            log.warning("guest_network.not_closed", cell=self.cell, error=error.message)
            return
        if not self._attached:
            await self._drop_uplink()

    async def remove(self) -> None:
        """Remove everything; no container is attached. Raises Unavailable: it is tried again."""
        await self._stop_restarting()
        async with self._changing:
            process, self._process = self._process, None
            if process is not None:
                with suppress(errors.SkerryError):  # what it did not remove goes with its namespace
                    await process.close()
            await self._drop_uplink()
            await asyncio.to_thread(shutil.rmtree, self.folder, True)
        log.info("guest_network.removed", cell=self.cell)

    async def _drop_uplink(self) -> None:
        link = self._own.attachments().get(self.uplink_owner)
        if link is not None:
            names = KernelNames(self.key)
            await asyncio.to_thread(uplink.remove_leftovers, commands.find(), link, names)
            await self._own.detach(self.uplink_owner)

    async def _stop_restarting(self) -> None:
        restarting, self._restarting = self._restarting, None
        if restarting is not None:
            await cancel_and_wait([restarting])


class GuestNetworks:
    """All of them, by leased cell."""

    def __init__(
        self, folder: Path, own: Network, settings: NetworkSettings, *, is_allowed: bool = True
    ) -> None:
        """`own`: the network of this node. Unless it `is_allowed`, guests get no new ones."""
        self.is_allowed = is_allowed
        self._folder = files.private_folder(folder)
        self._own = own
        # A loopback resolver of this machine is not reached from a guest's network.
        servers = nameservers.read(settings.dns).servers
        self._settings = NetworkSettings(dns=servers, domain=settings.domain, pool=_POOL)
        self._networks: dict[str, GuestNetwork] = {}
        self._sockets = NamespaceSockets()

    async def open(self) -> GuestNetworks:
        """Go on with those of an earlier agent; what cannot be is logged."""
        for folder in sorted(self._folder.iterdir()):
            try:
                guest = json_codec.decode((folder / _FILE).read_bytes(), GuestNode)
                network = self._networks[folder.name] = self._make(folder.name)
                await network.open(guest)
            except (errors.SkerryError, OSError, json_codec.InvalidJson) as error:
                log.warning("guest_network.not_adopted", cell=folder.name, error=str(error))
        return self

    def _make(self, cell: str) -> GuestNetwork:
        return GuestNetwork(cell, self._folder / cell, self._own, self._settings)

    async def ensure(self, cell: str, guest: GuestNode) -> GuestNetwork:
        """The network of `cell`, running as `guest`. Raises Unavailable, ResourcesExhausted,
        FailedPrecondition."""
        network = self._networks.get(cell)
        if network is None:
            network = self._networks[cell] = self._make(cell)
        network.is_joined = True
        await network.open(guest)
        return network

    def get(self, cell: str) -> GuestNetwork | None:
        return self._networks.get(cell)

    async def remove(self, cell: str) -> None:
        """Remove the network of a cell, if it has one, when its containers are gone. Raises Unavailable."""
        network = self._networks.get(cell)
        if network is not None:
            await network.remove()
            del self._networks[cell]

    async def keep_only(self, cells: set[str]) -> None:
        """Remove those of other cells: after a crash between the end of a cell and that of its network."""
        for folder in list(self._folder.iterdir()):
            if folder.name not in cells:
                self._networks.setdefault(folder.name, self._make(folder.name))
        for cell in self._networks.keys() - cells:
            await self.remove(cell)

    @property
    def uplinks(self) -> frozenset[str]:
        """Owners of attachments to the network of this node."""
        return frozenset(uplink_owner(folder.name) for folder in self._folder.iterdir()) | frozenset(
            each.uplink_owner for each in self._networks.values()
        )

    def all(self) -> Iterator[GuestNetwork]:
        yield from self._networks.values()

    def of_container(self, owner: str) -> GuestNetwork | None:
        """The network that a container is attached to."""
        return next((each for each in self._networks.values() if owner in each.attached), None)

    def open_socket(self, attachment: Attachment) -> asyncio.Future[socket.socket]:
        """An unconnected, non-blocking TCP socket in its namespace. Raises OSError."""
        return self._sockets.open(attachment.namespace)

    def forget_sockets(self, attachment: Attachment) -> None:
        self._sockets.forget(attachment.namespace)

    async def close(self) -> None:
        """Stop all processes."""
        self._sockets.close()
        await asyncio.gather(*(each.close() for each in self._networks.values()))


def uplink_owner(cell: str) -> str:
    """The owner of the attachment; no container has such a name."""
    return f"uplink of {cell}"


def _write(folder: Path, guest: GuestNode) -> None:
    files.private_folder(folder)
    files.write_atomically(folder / _FILE, json_codec.encode(guest), files.PRIVATE)
