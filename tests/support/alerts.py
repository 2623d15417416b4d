"""Alerts in tests: sources that a test sets, and receivers that are real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from skerry.control.alerts.delivery import AlertSender
from skerry.control.alerts.observations import (
    AlertSources,
    BoughtContract,
    ObservedNode,
    ObservedService,
    ServerDisk,
)
from skerry.control.telemetry.certificate_metrics import CertificateEnd
from skerry.model.alert_settings import AlertSettings
from skerry.model.ids import NodeId
from skerry.model.jobs import Job
from skerry.model.nodes import Liveness, Node
from skerry.model.workloads import Instance

LOCAL = AlertSettings(allow_local=True, timeout_s=5.0)


@dataclass
class Observed:
    """What the rules of a test observe."""

    lost: list[str] = field(default_factory=list)
    services: list[ObservedService] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    certificates: list[CertificateEnd] = field(default_factory=list)
    free_share: float = 0.5
    contracts: list[BoughtContract] = field(default_factory=list)
    last_backup: float | None = None

    def sources(self) -> AlertSources:
        last_backup = self.last_backup
        return AlertSources(
            lambda: [ObservedNode(Node(NodeId(id), id, 0.0, 0.0), Liveness.LOST) for id in self.lost],
            lambda: self.services,
            lambda: self.instances,
            lambda: self.jobs,
            lambda: self.certificates,
            lambda: ServerDisk("hub", self.free_share),
            lambda: self.contracts,
            None if last_backup is None else lambda: last_backup,
        )


async def _no_password(name: str) -> str:
    return f"password of {name}"


def sender(settings: AlertSettings = LOCAL) -> AlertSender:
    return AlertSender(settings, server="hub.example.org", password=_no_password)


@dataclass
class Webhook:
    """A real HTTP server on loopback that takes notifications, or refuses them with `status`."""

    url: str = ""
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    keys: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None  # answers wait for it

    @property
    def states(self) -> list[str]:
        return [str(body["status"]) for body in self.bodies]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(headers["content-length"]))
            status = self.status
            if status == 200:
                assert head.startswith("POST /hook/TOKEN ")
                self.bodies.append(json.loads(body))
                self.keys.append(headers["idempotency-key"])
            else:
                self.refused += 1
            if self.hold is not None:
                await self.hold.wait()
            writer.write(
                f"HTTP/1.1 {status} X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    receiver = Webhook()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    receiver.url = f"http://{host}:{port}/hook/TOKEN"
    try:
        yield receiver
    finally:
        server.close()
        await server.wait_closed()
