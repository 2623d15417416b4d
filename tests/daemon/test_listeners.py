"""Each gRPC listener of each kind of process serves what docs/grpc.md says, and no more."""

from __future__ import annotations

import os
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from grpclib.reflection.v1.reflection_grpc import ServerReflectionStub
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from skerry.daemon import node_runtime
from skerry.daemon.role_parts import RoleContext
from skerry.kit.clock import SystemClock
from skerry.model.settings import Settings
from skerry.node.rootless.decisions import unavailable
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc.channels import dial
from tests.support.certificates import SERVER_NAME, TestAuthority
from tests.support.skerry import Skerry, running
from tests.transport.grpc.fakes import FakeIdentity

PAGE = Path(__file__).parents[2] / "docs" / "grpc.md"


def documented() -> dict[str, set[str]]:
    """The columns of the table of listeners: what each serves."""
    _, _, rest = PAGE.read_text().partition("## Listeners")
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in rest.partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    heading, _, *body = rows
    return {
        name: {row[0].strip("`") for row in body if row[column] == "yes"}
        for column, name in enumerate(heading)
        if column
    }


async def listed(target: str, tls: ssl.SSLContext | None) -> set[str]:
    channel = dial(target, tls, server_name=None if tls is None else SERVER_NAME)
    try:
        [reply] = await ServerReflectionStub(channel).ServerReflectionInfo(
            [ServerReflectionRequest(list_services="")]
        )
    finally:
        channel.close()
    return {service.name for service in reply.list_services_response.service}


def credentials(ready: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ready["ca"])
    context.load_cert_chain(ready["client_cert"], ready["client_key"])
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.root
async def test_up_serves_the_control_plane_on_tcp_and_the_node_on_its_socket(tmp_path):
    with running(tmp_path) as up:
        tls = credentials(up.ready)
        assert await listed(up.ready["grpc"], None) == documented()["`up`: TCP"]
        assert await listed(up.ready["grpc"], tls) == documented()["`up`: TCP"]
        assert await listed(up.ready["socket"], tls) == documented()["`up`: socket"]


@pytest.mark.root
async def test_a_server_serves_the_control_plane_on_both_and_a_node_the_node_on_its_socket(tmp_path):
    for name in ("server", "machine"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "server", role="server") as server:
        tls = credentials(server.ready)
        for target in (server.ready["grpc"], server.ready["socket"]):
            assert await listed(target, tls) == documented()["`server`: TCP, socket"]
        assert await node_services(server, tmp_path / "machine") == documented()["`node`: socket"]


async def test_a_machine_without_cells_serves_health_reflection_and_discovery_on_its_socket(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    authority = TestAuthority(tmp_path / "ca")
    socket = tmp_path / "s.sock"
    async with AsyncExitStack() as undo:
        started = await node_runtime.start(
            RoleContext(
                Settings(), tmp_path, SystemClock(), undo, enforcement=unavailable("no user namespaces")
            ),
            gate=AccessGate(FakeIdentity(), os.getuid()),
            tls=authority.server_context(),
            socket_path=socket,
            checks={},
            has_server=True,
        )
        assert started.cells is None
        tls = authority.client_context(authority.issue("an-admin", "admin"))
        in_all = set.intersection(*documented().values())
        assert await listed(str(socket), tls) == in_all | {"aurae.discovery.v0.DiscoveryService"}


async def node_services(server: Skerry, folder: Path) -> set[str]:
    """What a node serves that has joined `server`; an admin of the cloud asks."""
    done = server.cli("token", "create", "--role", "node")
    with running(folder, "--join", done.stdout.strip(), role="node") as node:
        return await listed(node.ready["socket"], credentials(server.ready))
