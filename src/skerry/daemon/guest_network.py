"""The network of one guest, as a process of its own: `python -m skerry.daemon.guest_network DESCRIPTOR`.

The agent starts it in the network namespace of the guest's uplink (`skerry.node.guest_networks`). There it
runs what a node runs: a bridge for containers, the mesh interface, virtual addresses, names and policies, all
of the buyer's cloud. It serves requests of the agent, and ends when the agent does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import structlog

from skerry.daemon import names
from skerry.kit import files, json_codec, logs
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.mesh import MeshPeer
from skerry.model.mesh_settings import MeshSettings
from skerry.model.network_objects import (
    MAX_REPORTED_OBJECTS,
    NodeLocation,
    ServiceAddress,
    ServiceSubnet,
)
from skerry.node.agent.network_policies import NetworkPolicyFollower, cloud_of
from skerry.node.agent.network_state import NetworkState
from skerry.node.guest_networks import messages
from skerry.node.guest_networks.messages import (
    ApplyUpdate,
    AttachContainer,
    Call,
    CloseNetwork,
    DetachContainer,
    EncodedObject,
    EndSession,
    NetworkCondition,
    NodeReports,
    OpenNetwork,
    Reply,
    Request,
    RestrictContainer,
    UseSubnet,
)
from skerry.node.network.attachments import Attachment
from skerry.node.network.dns.name_server import NameServer
from skerry.node.network.mesh.mesh import MeshDeps, NodeMesh
from skerry.node.network.network import Network
from skerry.node.network.network_host import NetworkHost
from skerry.node.network.subnet_assignment import SubnetAssignment
from skerry.node.user_namespaces import UserNamespaces

log = structlog.get_logger(__name__)

_CONDITION_S: Final = 1.0
_EARLIER_S: Final = 30.0
_AGAIN_S: Final = 0.1
# It dials its peers, and nobody dials it: any port will do, and others are not reached by way of it.
_MESH: Final = MeshSettings(port=0, relay=False)


class GuestNetworkService:
    """The network, and the agent's requests."""

    def __init__(self, writer: asyncio.StreamWriter, undo: AsyncExitStack) -> None:
        self._writer = writer
        self._undo = undo
        self._clock = SystemClock()
        self._network: Network | None = None
        self._state: NetworkState | None = None
        self._subnet: SubnetAssignment | None = None

    async def handle(self, request: Request) -> None:
        """Answer one request."""
        attached: tuple[Attachment, ...] = ()
        try:
            attached = await self._do(request.call)
        except errors.SkerryError as error:
            reply = Reply(request.number, type(error).__name__, error.message)
        except Exception as error:  # a bug, which must not end the network
            log.error("guest_network.failed", error=repr(error), exc_info=error)
            reply = Reply(request.number, "Internal", "the network of the guest failed; see the log")
        else:
            reply = Reply(request.number, attached=attached)
        messages.write_line(self._writer, reply)

    async def _do(self, call: Call) -> tuple[Attachment, ...]:
        if isinstance(call, OpenNetwork):
            await self._open(call)
            return tuple(self._require().attachments().values())
        network, state = self._require(), self._state
        assert state is not None, "it is opened together with the network"
        match call:
            case AttachContainer():
                return (await network.attach(call.owner, policy=call.policy),)
            case DetachContainer():
                await network.detach(call.owner)
            case RestrictContainer():
                await network.restrict(call.owner, call.policy)
            case UseSubnet():
                await self._use(call.subnet)
            case ApplyUpdate():
                state.apply(call.decode())
                if call.is_full:
                    state.begin_session()
            case EndSession():
                state.end_session()
            case CloseNetwork():
                attached = tuple(network.attachments().values())
                await self._undo.aclose()
                return attached
        return ()

    def _require(self) -> Network:
        if self._network is None:
            raise errors.FailedPrecondition("the network of the guest is not open")
        return self._network

    async def _open(self, call: OpenNetwork) -> None:
        folder = files.private_folder(Path(call.folder))
        await self._lock(folder)
        host = NetworkHost(UserNamespaces(call.users))
        network = Network(folder / "network", call.settings, self._clock, key=call.key, host=host)
        server = None
        if call.settings.domain:
            server = NameServer(call.settings, self._clock)
            network.use_names(server)
        state = NetworkState(folder / "network.json", self._clock)
        self._subnet = SubnetAssignment(folder / "subnet.json")
        await network.open(assigned=self._subnet.subnet, waits=True, cloud=lambda own: cloud_of(state, own))
        self._undo.push_async_callback(network.close)
        self._network, self._state = network, state
        await self._use(call.subnet)
        if server is not None:
            names.follow(server, state, lambda namespace, name: False, call.settings.dns_grace_s)
        loops = await self._undo.enter_async_context(TaskSupervisor("guest network", clock=self._clock))
        deps = MeshDeps(
            call.node,
            network,
            self._clock,
            state.report,
            tuple,
            network.services.unreachable_changed,
        )
        mesh = await NodeMesh(folder, _MESH, deps).open()
        self._undo.push_async_callback(mesh.close)
        network.call_when_removed(mesh.remove)
        state.subscribe(MeshPeer, mesh.set_peers)
        balancer = network.services
        balancer.follow(call.node)
        state.subscribe(ServiceSubnet, balancer.ranges_changed)
        state.subscribe(NodeLocation, balancer.locations_changed)
        state.subscribe(ServiceAddress, balancer.services_changed)
        loops.forever("network", network.run)
        loops.forever("network objects", state.run)
        loops.forever("network policies", NetworkPolicyFollower(state, network).run)
        loops.forever("mesh", mesh.run)
        loops.forever("reports", lambda: self._send_reports(state))
        loops.forever("condition", lambda: self._send_condition(lambda: (*mesh.warnings, *network.lacking())))
        log.info("guest_network.opened", node=call.node, subnet=call.subnet, interface=network.names.mesh)

    async def _lock(self, folder: Path) -> None:
        """Wait until the process of an earlier agent has ended. Raises Unavailable."""
        lock = files.FolderLock(folder)
        deadline = self._clock.monotonic() + _EARLIER_S
        while True:
            try:
                lock.acquire()
            except files.FolderLocked as error:
                if self._clock.monotonic() >= deadline:
                    raise errors.Unavailable(
                        f"the network of the guest is still that of process {error.pid}; it is tried again"
                    ) from None
                await asyncio.sleep(_AGAIN_S)
            else:
                self._undo.callback(lock.release)
                return

    async def _use(self, subnet: str) -> None:
        assert self._subnet is not None
        await self._require().use(subnet)
        await self._subnet.save(subnet)

    async def _send_reports(self, state: NetworkState) -> None:
        while True:
            objects = await state.next_reports(MAX_REPORTED_OBJECTS)
            messages.write_line(self._writer, NodeReports(tuple(map(EncodedObject.of, objects))))
            await self._writer.drain()

    async def _send_condition(self, warnings: Callable[[], tuple[str, ...]]) -> None:
        sent: tuple[str, ...] = ()
        while True:
            if (now := warnings()) != sent:
                sent = now
                messages.write_line(self._writer, NetworkCondition(now))
            await asyncio.sleep(_CONDITION_S)


async def serve(descriptor: int) -> None:
    """Serve until the agent is gone, or closes the network."""
    sock = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=sock, limit=messages.MAX_LINE)
    changes: set[asyncio.Task[None]] = set()
    async with AsyncExitStack() as undo:
        service = GuestNetworkService(writer, undo)
        while line := await messages.read_line(reader):
            request = json_codec.decode(line, Request)
            if isinstance(request.call, AttachContainer | DetachContainer | RestrictContainer):
                task = asyncio.create_task(service.handle(request))
                changes.add(task)
                task.add_done_callback(changes.discard)
                continue
            await _settle(changes if isinstance(request.call, CloseNetwork) else ())
            await service.handle(request)
        await _settle(changes)
        # Whoever reads no more is gone: what was made is for the next agent.
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _settle(tasks: set[asyncio.Task[None]] | tuple[()]) -> None:
    work: list[Awaitable[None]] = list(tasks)
    await asyncio.gather(*work)


def main() -> None:
    # Its own end is that of the agent's socket: a signal to the agent's terminal is the agent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    logs.setup("info")
    asyncio.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
