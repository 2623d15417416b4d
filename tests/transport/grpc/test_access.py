"""Every RPC that is served gives each role what its row in the access table says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpclib._typing import IServable
from grpclib.const import Status
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from skerry.kit.clock import SystemClock
from skerry.kit.log_buffer import LogBuffer
from skerry.model import errors
from skerry.model.callers import ANONYMOUS, Caller, Role
from skerry.model.ids import Digest
from skerry.model.settings import FleetSettings
from skerry.node.signals.following import SignalSource
from skerry.transport.access import revalidation, rules
from skerry.transport.access.gate import AccessGate
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.grpc import health
from skerry.transport.links.nodes.code_transfer import CodeService
from skerry.transport.links.nodes.departure import DepartureService
from skerry.transport.links.nodes.service import NodeSessionService, ServerTunnelService
from skerry.wire.aurae.cells_v0 import CellServiceV0
from skerry.wire.aurae.discovery_v0 import DiscoveryServiceV0
from skerry.wire.aurae.observe import ObserveService
from skerry.wire.aurae.observe_v0 import ObserveServiceV0
from skerry.wire.aurae.runtime import AuraeCellService
from skerry.wire.kudo import grpc_services as kudo
from skerry.wire.own.cells.service import CellService
from skerry.wire.own.containers.service import ContainerService, ImageService
from skerry.wire.own.grpc_identity import IdentityService
from tests.support.cells import FakeKeeper, a_node
from tests.support.containers import FakeContainers, FakeImages
from tests.support.signals import FakeKernel
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.grpc.fakes import FakeIdentity
from tests.transport.grpc.raw import RawClient, framed
from tests.wire.kudo.grpc_fakes import FakeInstances, FakeNodes

MESSAGE = {
    path: ServerReflectionRequest(list_services="").SerializeToString()
    for path in rules.GRPC_RULES
    if "Refl" in path
} | {
    # Of a kind that there is none of: an empty message is for the whole machine, and that stream never ends.
    "/aurae.observe.v0.ObserveService/GetPosixSignalsStream": bytes.fromhex("0a020803")
}


class NobodyKnown(AccessGate):
    """For whom every caller without a token is a stranger, whatever the kernel says."""

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        return (
            ANONYMOUS
            if authorization is None
            else super().caller(peer, authorization, is_forwarded=is_forwarded)
        )


def expected(path: str, role: Role | None) -> Status | None:
    """How the role is turned away, if it is."""
    row = rules.GRPC_RULES[path]
    if row.anybody or role in row.roles:
        return None
    return Status.UNAUTHENTICATED if role is None else Status.PERMISSION_DENIED


async def _no_code(digest: Digest) -> bytes:
    raise errors.NotFound("none here")


def everything(folder: Path, instances: FakeInstances | None = None) -> list[IServable]:
    """Every service that any of our processes serves."""
    recent = LogBuffer()
    recent.add("info", "something to follow")
    keeper, images = FakeKeeper(folder), FakeImages()
    return [
        IdentityService(FakeIdentity()),
        AuraeCellService(keeper),
        ObserveService(keeper, recent),
        CellServiceV0(keeper),
        ObserveServiceV0(keeper, SignalSource(keeper, FakeKernel().open), recent),
        DiscoveryServiceV0(health.ReadinessChecks({}).all_pass),
        CellService(keeper, a_node),
        ImageService(images),
        ContainerService(FakeContainers(folder, images), images),
        NodeSessionService(
            object(), SystemClock(), is_revoked=lambda serial: False
        ),  # nobody here gets to a session
        ServerTunnelService(object()),  # nor to a tunnel
        DepartureService(object(), object(), SystemClock()),  # nor away
        CodeService(_no_code, is_member=lambda node: True),
        *kudo.services(
            instances or FakeInstances(), FakeNodes(), FakeIdentity(), SystemClock(), FleetSettings()
        ),
    ]


def test_the_table_has_a_row_for_every_rpc_and_no_other(tmp_path):
    served = health.with_health_and_reflection(everything(tmp_path), {})
    assert {path for service in served for path in service.__mapping__()} == set(rules.GRPC_RULES)


@pytest.mark.parametrize("role", [None, *Role])
async def test_each_role_gets_what_its_row_says(serve, role, tmp_path):
    served = await serve(gate=NobodyKnown(FakeIdentity(), own_uid=0), services=everything(tmp_path))
    shown = [] if role is None else [("authorization", f"Bearer {role}")]
    refused = {}
    for path in rules.GRPC_RULES:
        async with RawClient(served.port) as raw:
            told = Status(await raw.first_status(path, framed(MESSAGE.get(path, b"")), *shown))
        # Whoever is let in gets as far as what is wrong with an empty message.
        refused[path] = told if told in (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED) else None
    assert refused == {path: expected(path, role) for path in rules.GRPC_RULES}


async def test_metadata_that_a_proxy_added_ends_the_trust_in_the_local_user(serve):
    served = await serve()
    reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    async with RawClient(served.port) as raw:
        assert await raw.call(reflection) == (Status.OK.value, "")
        for name in ("x-forwarded-for", "forwarded", "via"):
            status, _ = await raw.call(reflection, b"", (name, "192.0.2.1"))
            assert status == Status.UNAUTHENTICATED.value, name


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_a_stream_ends_when_the_token_that_began_it_is_revoked(
    serve, tmp_path, monkeypatch, is_revoked
):
    monkeypatch.setattr(revalidation, "RECHECK_S", 0.01)
    identity = FakeIdentity()
    served = await serve(gate=NobodyKnown(identity, own_uid=0), services=everything(tmp_path))
    shown = ("authorization", "Bearer viewer")
    async with RawClient(served.port) as raw:
        log = "/observe.Observe/GetAuraeDaemonLogStream"
        # It is answered before anything is wrong: the first line comes, and no end.
        assert await raw.first_status(log, framed(b""), shown) == Status.OK.value
        following = asyncio.ensure_future(raw.call(log, framed(b""), shown))
        await eventually(lambda: raw.http2.open_outbound_streams > 1)
        if not is_revoked:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await following
            return
        identity.revoke("viewer")
        async with asyncio.timeout(PATIENCE_S):
            assert (await following)[0] == Status.UNAUTHENTICATED.value
