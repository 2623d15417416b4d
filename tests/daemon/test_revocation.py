"""Stolen keys of a node and of an admin, once they are revoked: nodes refuse them, also without a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError

from skerry.functions.continuum.member_api import CallNotStarted, ForwardedCall
from skerry.kit import pki
from skerry.kit.backoff import Backoff
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.callers import NODE_TLS_NAME
from skerry.model.calls import CallRequest
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import NodeHello
from skerry.model.settings import FunctionSettings
from skerry.node.agent.node_identity import NodeIdentity
from skerry.transport.grpc.channels import dial
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.nodes.client import GrpcControlDialer
from skerry.transport.proto import cells_pb2 as pb
from skerry.transport.proto.cells_grpc import CellServiceStub
from tests.daemon.test_members import Machine, until_taken
from tests.daemon.test_node import join_token
from tests.support.clusters import sweep
from tests.support.functions import ECHO
from tests.support.links import OpenAccess
from tests.support.shares import free_port
from tests.support.skerry import Skerry
from tests.support.waiting import PATIENCE_S, eventually, eventually_sync

pytestmark = pytest.mark.root


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Skerry]:
    folder = tmp_path / "server"
    folder.mkdir()
    skerry = Skerry(folder, role="server")
    try:
        skerry.wait_ready()
        yield skerry
    finally:
        skerry.kill()


class Neighbour(Machine):
    """One that others find at the same address after a restart."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._port = free_port()
        super().__init__(folder, *flags)

    def start(self, *flags: str) -> None:
        super().start("--set", f"functions.neighbours=127.0.0.1:{self._port}", *flags)


@pytest.fixture
def machine(tmp_path: Path, server: Skerry) -> Iterator[Machine]:
    folder = tmp_path / "machine"
    folder.mkdir()
    made = Neighbour(folder, "--join", server.ready["http"], "--token", join_token(server), "--name", "edge")
    try:
        yield made
        assert made.skerry.stop() == 0, made.skerry.said()
    finally:
        sweep(made.skerry)


class StolenNode:
    """A node that joined, and whose key is used by somebody else."""

    def __init__(self, node: str, membership: NodeIdentity, grpc: str) -> None:
        self.node = NodeId(node)
        self._membership = membership
        self._grpc = grpc

    @classmethod
    async def join(cls, folder: Path, server: Skerry) -> StolenNode:
        membership = NodeIdentity(folder / "node", SystemClock())
        place = await membership.join(server.ready["http"], join_token(server), "stolen")
        return cls(place.node, membership, place.grpc)

    @property
    def serial(self) -> str:
        return pki.read_certificate(self._membership.certificate_file.read_bytes()).serial

    async def register(self) -> None:
        """Become a member, as any node does."""
        async with GrpcControlDialer(self._grpc, self._membership.context).dial() as connection:
            await connection.hello(NodeHello("stolen", member=ContinuumMember(self.node, "stolen", "lab")))

    @asynccontextmanager
    async def links(self) -> AsyncIterator[LinkPool]:
        links = LinkPool(
            self.node,
            self._membership.context,
            SystemClock(),
            FunctionSettings(),
            timeout_s=10.0,
            access=OpenAccess(),
            backoff=Backoff(first_s=0.0, cap_s=0.0),
        )
        try:
            yield links
        finally:
            await links.close()


def members_known_to(machine: Machine) -> dict[str, ContinuumMember]:
    told = json.loads((machine.skerry.data / "functions" / "members.json").read_text())["members"]
    return {
        one["node"]: ContinuumMember(NodeId(one["node"]), one["name"], "", address=one["address"])
        for one in told
    }


async def use_neighbour(
    thief: StolenNode, links: LinkPool, server: Skerry, machine: Machine
) -> tuple[ContinuumMember, Digest]:
    """Call a function there and fetch its code, as any member may; whom and what this was of."""
    until_taken(server, "echo", ECHO)
    machine.knows("echo")
    eventually_sync(lambda: thief.node in members_known_to(machine))
    edge = members_known_to(machine)[machine.skerry.ready["node"]]
    assert (await links.invoke(edge, call(), at_once=False)).answer.result == b"1"
    code = Digest(server.call("GET", "/function/echo")[1]["Code"])
    assert await links.fetch(edge, code)
    return edge, code


async def is_refused(links: LinkPool, edge: ContinuumMember, code: Digest) -> bool:
    """Neither code nor a call; False if either goes through, which may be so until the edge has heard."""
    try:
        await links.fetch(edge, code)
    except errors.Unavailable:
        pass
    else:
        return False
    with pytest.raises(CallNotStarted):
        await links.invoke(edge, call(), at_once=False)
    return True


def call() -> ForwardedCall:
    return ForwardedCall(CallRequest(FunctionName("echo"), b"1"), version=1)


async def test_the_key_of_a_revoked_node_gets_no_code_and_no_call_from_its_neighbours(
    server: Skerry, machine: Machine, tmp_path: Path
) -> None:
    thief = await StolenNode.join(tmp_path, server)
    await thief.register()
    async with thief.links() as links:
        edge, code = await use_neighbour(thief, links, server, machine)
        assert server.cli("certificate", "revoke", thief.serial).returncode == 0
        await eventually(lambda: is_refused(links, edge, code))
        assert thief.node in members_known_to(machine), "it was refused for its certificate"

    kept = machine.skerry.data / "node" / "revoked.json"
    eventually_sync(lambda: thief.serial in kept.read_text())
    server.kill()
    machine.skerry.kill()
    machine.start()
    async with thief.links() as links:
        assert await is_refused(links, edge, code)


async def test_a_node_that_was_removed_gets_no_code_and_no_call_though_its_certificate_is_good(
    server: Skerry, machine: Machine, tmp_path: Path
) -> None:
    thief = await StolenNode.join(tmp_path, server)
    await thief.register()
    async with thief.links() as links:
        edge, code = await use_neighbour(thief, links, server, machine)
        removed = server.cli("node", "remove", "stolen", "--force")
        assert removed.returncode == 0, removed.stderr
        await eventually(lambda: is_refused(links, edge, code))


def test_a_revoked_admin_certificate_is_refused_on_the_sockets_of_nodes(
    server: Skerry, machine: Machine, tmp_path: Path
) -> None:
    # A data folder that leads to the node, with the certificate of the server's local admin.
    ready = {**server.ready, "pid": os.getpid(), "socket": machine.skerry.ready["socket"]}
    (tmp_path / "ready.json").write_text(json.dumps(ready))

    def ask_node() -> subprocess.CompletedProcess[str]:
        return server.cli("cell", "list", SKERRY_DATA=str(tmp_path))

    assert ask_node().returncode == 0
    serial = pki.read_certificate(Path(server.ready["client_cert"]).read_bytes()).serial
    assert server.cli("certificate", "revoke", serial).returncode == 0
    eventually_sync(lambda: "certificate was revoked" in ask_node().stderr)

    kept = machine.skerry.data / "node" / "revoked.json"
    eventually_sync(lambda: serial in kept.read_text())
    server.kill()
    machine.skerry.kill()
    machine.start()
    refused = ask_node()
    assert (refused.returncode, "certificate was revoked" in refused.stderr) == (1, True), refused.stderr


async def test_a_connection_to_a_node_that_is_open_when_its_certificate_is_revoked_ends_with_its_streams(
    server: Skerry, machine: Machine
) -> None:
    """Also one that sends nothing more: what it follows would go on for days."""
    ready = server.ready
    context = ssl.create_default_context(cafile=ready["ca"])
    context.load_cert_chain(ready["client_cert"], ready["client_key"])
    context.set_alpn_protocols(["h2"])
    channel = dial(machine.skerry.ready["socket"], context, server_name=NODE_TLS_NAME)
    try:
        cells = CellServiceStub(channel)
        await cells.Allocate(pb.AllocateRequest(cell="box"))
        await cells.Start(pb.StartRequest(cell="box", executable="quiet", command="sleep 600"))
        async with cells.Wait.open() as stream:
            await stream.send_message(pb.WaitRequest(cell="box", executable="quiet"), end=True)
            waiting = asyncio.ensure_future(stream.recv_message())
            serial = pki.read_certificate(Path(ready["client_cert"]).read_bytes()).serial
            assert (await asyncio.to_thread(server.cli, "certificate", "revoke", serial)).returncode == 0
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises((GRPCError, StreamTerminatedError)):
                    await waiting
    finally:
        channel.close()


async def test_the_key_of_a_revoked_node_gets_nothing_from_the_server_also_by_the_session_that_it_has(
    server: Skerry, tmp_path: Path
) -> None:
    thief = await StolenNode.join(tmp_path, server)
    async with GrpcControlDialer(thief._grpc, thief._membership.context).dial() as connection:
        await connection.hello(NodeHello("stolen", member=ContinuumMember(thief.node, "stolen", "lab")))
        assert (await asyncio.to_thread(server.cli, "certificate", "revoke", thief.serial)).returncode == 0
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(errors.SkerryError):
                async for _ in connection.messages():
                    pass
    with pytest.raises(errors.SkerryError):
        await thief.register()
