"""A real gRPC server of Kudo's services, over fakes, and clients of both documents in their own processes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc_tools import protoc

from skerry.kit.clock import SystemClock
from skerry.model.settings import FleetSettings, GrpcSettings
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc import health
from skerry.transport.grpc.server import GrpcServer
from skerry.wire.kudo import grpc_services
from skerry.wire.kudo.grpc_ports import CertificateLookup, InstanceReportPort, NodeReportPort
from tests.support.certificates import Pair, TestAuthority
from tests.transport.grpc.fakes import FakeIdentity
from tests.wire.kudo.grpc_fakes import FakeInstances, FakeNodes

DOCUMENTS = Path(__file__).parent / "documents"
CONTROLLER, SCHEDULER = "controller", "scheduler"
# Nothing comes or ends by itself while a test looks.
SETTINGS = FleetSettings(report_s=3600.0, restart_base_s=3600.0, restart_cap_s=3600.0)


class DocumentClient:
    """One `document_client`, which does one thing at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, method: str, **message: Any) -> Any:
        return await self._ask("call", method, message)

    async def open(self, method: str, **message: Any) -> None:
        await self._ask("open", method, message)

    async def next(self) -> Any:
        return await self._ask("next")

    async def hang_up(self) -> None:
        await self._ask("hang_up")

    async def send(self, method: str, **message: Any) -> None:
        await self._ask("send", method, message)

    async def end(self) -> Any:
        return await self._ask("end")

    async def _ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        return json.loads(await self._process.stdout.readline())


@dataclass
class Served:
    """A server that is up."""

    port: int
    authority: TestAuthority
    stubs: Path
    instances: Any = field(default_factory=FakeInstances)
    nodes: Any = field(default_factory=FakeNodes)
    identity: Any = field(default_factory=FakeIdentity)

    @asynccontextmanager
    async def client(
        self, document: str, *, prefix: str = "", pair: Pair | None = None
    ) -> AsyncIterator[DocumentClient]:
        """A client that knows only `document`, of the same user on loopback, or with a certificate."""
        wanted = {
            "document": document,
            "stubs": str(self.stubs / document),
            "prefix": prefix,
            "target": f"localhost:{self.port}" if pair else f"127.0.0.1:{self.port}",
        }
        if pair is not None:
            wanted |= {
                "ca": str(self.authority.ca),
                "key": str(pair.key),
                "certificate": str(pair.certificate),
            }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.wire.kudo.document_client", json.dumps(wanted)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        try:
            yield DocumentClient(process)
        finally:
            process.stdin.close()
            assert await process.wait() == 0


def compile_documents(folder: Path) -> Path:
    """Stubs for grpcio, made from the documents' own messages, in a folder for each."""
    for document in (CONTROLLER, SCHEDULER):
        made = folder / document
        made.mkdir()
        options = [f"--proto_path={DOCUMENTS}", f"--python_out={made}", f"{document}.proto"]
        assert protoc.main(["protoc", f"--proto_path={well_known()}", *options]) == 0
    return folder


def well_known() -> Path:
    """Where google/protobuf/empty.proto is."""
    return Path(protoc.__file__).parent / "_proto"


@asynccontextmanager
async def serving(
    instances: InstanceReportPort,
    nodes: NodeReportPort,
    identity: CertificateLookup,
    authority: TestAuthority,
    settings: FleetSettings = SETTINGS,
) -> AsyncIterator[int]:
    """The port of a server on loopback that takes plaintext and TLS."""
    services = grpc_services.services(instances, nodes, identity, SystemClock(), settings)
    gate = AccessGate(identity, os.getuid())  # type: ignore[arg-type] # a fake is a whole identity
    server = GrpcServer(health.with_health_and_reflection(services, {}), gate, GrpcSettings())
    sock = socket.create_server(("127.0.0.1", 0))
    try:
        await server.listen_tcp(sock, authority.server_context(), plaintext=True)
        yield sock.getsockname()[1]
    finally:
        await server.stop(5.0)
