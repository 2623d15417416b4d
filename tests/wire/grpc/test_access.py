"""Every RPC that is served gives each role what its row in the access table says."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpclib._typing import IServable
from grpclib.const import Status
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from skerry.kit.clock import SystemClock
from skerry.kit.recent import Recent
from skerry.model import errors
from skerry.model.identity import ANONYMOUS, Caller, Role
from skerry.model.ids import Digest
from skerry.wire import access
from skerry.wire.aurae.observe import ObserveService
from skerry.wire.aurae.runtime import RuntimeService
from skerry.wire.cells.service import CellService
from skerry.wire.containers.service import ContainerService, ImageService
from skerry.wire.gate import Gate
from skerry.wire.grpc import standard
from skerry.wire.grpc.identity import IdentityService
from skerry.wire.kudo import grpc_services as kudo
from skerry.wire.nodes.code import CodeService
from skerry.wire.nodes.service import NodeService, ServerService
from skerry.wire.peers import Peer
from tests.support.cells import FakeKeeper, a_node
from tests.support.containers import FakeContainers, FakeImages
from tests.wire.grpc.fakes import FakeIdentity
from tests.wire.grpc.raw import RawClient, framed
from tests.wire.kudo.grpc_fakes import FakeInstances, FakeNodes

MESSAGE = {
    path: ServerReflectionRequest(list_services="").SerializeToString()
    for path in access.GRPC
    if "Refl" in path
}


class NobodyKnown(Gate):
    """For whom every caller without a token is a stranger, whatever the kernel says."""

    def caller(self, peer: Peer, authorization: str | None) -> Caller:
        return ANONYMOUS if authorization is None else super().caller(peer, authorization)


def expected(path: str, role: Role | None) -> Status | None:
    """How the role is turned away, if it is."""
    row = access.GRPC[path]
    if row.anybody or role in row.roles:
        return None
    return Status.UNAUTHENTICATED if role is None else Status.PERMISSION_DENIED


async def _no_code(digest: Digest) -> bytes:
    raise errors.NotFound("none here")


def everything(folder: Path) -> list[IServable]:
    """Every service that any of our processes serves."""
    recent = Recent()
    recent.add("info", "something to follow")
    keeper, images = FakeKeeper(folder), FakeImages()
    return [
        IdentityService(FakeIdentity()),
        RuntimeService(keeper),
        ObserveService(keeper, recent),
        CellService(keeper, a_node),
        ImageService(images),
        ContainerService(FakeContainers(folder, images), images),
        NodeService(object(), SystemClock(), counts=lambda serial: True),  # nobody here gets to a session
        ServerService(object()),  # nor to a tunnel
        CodeService(_no_code, is_member=lambda node: True),
        *kudo.services(FakeInstances(), FakeNodes(), FakeIdentity(), SystemClock()),
    ]


def test_the_table_has_a_row_for_every_rpc_and_no_other(tmp_path):
    served = standard.beside(everything(tmp_path), {})
    assert {path for service in served for path in service.__mapping__()} == set(access.GRPC)


@pytest.mark.parametrize("path", sorted(access.GRPC))
@pytest.mark.parametrize("role", [None, *Role])
async def test_each_role_gets_what_its_row_says(serve, path, role, tmp_path):
    served = await serve(gate=NobodyKnown(FakeIdentity(), own_uid=0), services=everything(tmp_path))
    shown = [] if role is None else [("authorization", f"Bearer {role}")]
    async with RawClient(served.port) as raw:
        status = await raw.first_status(path, framed(MESSAGE.get(path, b"")), *shown)
    # Whoever is let in gets as far as what is wrong with an empty message.
    told = Status(status)
    assert (told if told in (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED) else None) is expected(
        path, role
    )
