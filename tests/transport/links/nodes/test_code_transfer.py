"""Code by its digest, over real TLS: whole, to those who may have it, and no more than is bearable."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import pytest

from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.settings import GrpcSettings
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc.server import GrpcServer
from skerry.transport.links.nodes import code_transfer
from skerry.transport.links.nodes.code_transfer import CodeService
from tests.support.certificates import TestAuthority
from tests.support.shares import free_port
from tests.transport.grpc.fakes import FakeIdentity

HERE = Digest("sha256:" + "1" * 64)
EMPTY = Digest("sha256:" + "2" * 64)
ARCHIVES = {HERE: os.urandom(1_000_000), EMPTY: b""}


async def archive(digest: Digest) -> bytes:
    if digest not in ARCHIVES:
        raise errors.NotFound("not on this node")
    return ARCHIVES[digest]


@pytest.fixture
async def target(authority: TestAuthority) -> AsyncIterator[str]:
    service = CodeService(archive, is_member=lambda node: node == "member")
    server = GrpcServer([service], AccessGate(FakeIdentity(), os.getuid()), GrpcSettings())
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    await server.listen_tcp(listening, authority.server_context(), plaintext=False)
    yield address
    await server.stop(5.0)


@pytest.fixture
def shown(authority: TestAuthority) -> Callable[[str, str], ssl.SSLContext]:
    return lambda name, role: authority.client_context(authority.issue(name, role))


@pytest.mark.parametrize(("name", "role"), [("member", "node"), ("server", "admin")])
async def test_members_and_servers_get_it_as_it_is(target, shown, name: str, role: str) -> None:
    for digest, data in ARCHIVES.items():
        assert (
            await code_transfer.fetch_archive(target, shown(name, role), digest, most_bytes=1_000_000) == data
        )


@pytest.mark.parametrize(("name", "role"), [("other", "node"), ("ann", "deployer"), ("bob", "invoker")])
async def test_nobody_else_does(target, shown, name: str, role: str) -> None:
    with pytest.raises(errors.Forbidden):
        await code_transfer.fetch_archive(target, shown(name, role), HERE, most_bytes=1_000_000)


async def test_what_is_not_there_is_told_apart_from_nobody_there(target, shown) -> None:
    tls = shown("member", "node")
    with pytest.raises(errors.NotFound):
        await code_transfer.fetch_archive(target, tls, Digest("sha256:" + "3" * 64), most_bytes=1000)
    with pytest.raises(errors.Invalid):
        await code_transfer.fetch_archive(target, tls, Digest("../../etc/passwd"), most_bytes=1000)
    with pytest.raises(errors.Unavailable):
        await code_transfer.fetch_archive(f"127.0.0.1:{free_port()}", tls, HERE, most_bytes=1000)


async def test_more_than_is_taken_is_not_read_to_its_end(target, shown) -> None:
    with pytest.raises(errors.TooLarge, match="max_code_bytes"):
        await code_transfer.fetch_archive(target, shown("member", "node"), HERE, most_bytes=300_000)
