"""The API on a unix socket: who gets in, and the socket as a file."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import aiohttp
import pytest

from skerry.control.identity.authenticator import Authenticator
from skerry.kit import unix_addresses
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.settings import HttpSettings
from skerry.transport.access.gate import AccessGate
from skerry.transport.unix_sockets import SocketPermissions, group_permissions
from tests.transport.http.conftest import Serve, StrangerGate

OWNER_ONLY = SocketPermissions(0o600)


class TokensOnlyGate(AccessGate):
    """The gate with `identity.local_trust` off."""

    def __init__(self, identity: Authenticator, own_uid: int) -> None:
        super().__init__(identity, own_uid, local_trust=False)


async def ask(path: Path, **headers: str) -> int:
    """The status of a list of tokens, which is for admins, over the socket at `path`."""
    connector = aiohttp.UnixConnector(str(path))
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as session,
        session.get("/token/", headers=headers) as response,
    ):
        return response.status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "http.sock"


async def test_root_and_the_user_of_the_server_are_admins_by_the_kernels_word(
    serve: Serve, path: Path
) -> None:
    site = await serve()
    site.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path) == 200


async def test_another_user_who_may_open_it_needs_a_token(serve: Serve, path: Path) -> None:
    site = await serve(gate=StrangerGate)
    site.server.listen_unix(path, SocketPermissions(0o666))
    assert await ask(path) == 401
    assert await ask(path, **await site.bearer(Role.VIEWER)) == 403
    assert await ask(path, **await site.bearer(Role.ADMIN)) == 200


async def test_a_token_that_is_shown_decides_also_for_root(serve: Serve, path: Path) -> None:
    site = await serve()
    site.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path, **await site.bearer(Role.VIEWER)) == 403
    assert await ask(path, Authorization="Bearer skerry_no_token") == 401


async def test_what_a_proxy_forwards_is_not_roots(serve: Serve, path: Path) -> None:
    site = await serve()
    site.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path, **{"X-Forwarded-For": "203.0.113.7"}) == 401


async def test_without_local_trust_root_needs_a_token_here_too(serve: Serve, path: Path) -> None:
    site = await serve(gate=TokensOnlyGate)
    site.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path) == 401
    assert await ask(path, **await site.bearer(Role.ADMIN)) == 200


async def test_a_web_page_under_a_name_of_its_own_is_kept_out_here_too(serve: Serve, path: Path) -> None:
    site = await serve()
    site.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path, Host="evil.example") == 403
    assert await ask(path, Origin="http://evil.example") == 403


async def test_the_socket_has_its_permissions_and_goes_with_the_server(serve: Serve, path: Path) -> None:
    site = await serve()
    site.server.listen_unix(path, SocketPermissions(0o660, os.getgid()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await site.server.stop(1.0)
    assert not path.exists()


async def test_the_socket_goes_with_the_server_also_while_a_child_of_it_holds_it(
    serve: Serve, path: Path
) -> None:
    site = await serve()
    before = sockets()
    site.server.listen_unix(path, OWNER_ONLY)
    # As a child has them between fork and exec.
    held = [os.dup(descriptor) for inode, descriptor in sockets().items() if inode not in before]
    try:
        await site.server.stop(1.0)
        assert held
        assert not path.exists()
    finally:
        for descriptor in held:
            os.close(descriptor)


def sockets() -> dict[int, int]:
    """The sockets that this process has open: inodes, and a descriptor of each."""
    found: dict[int, int] = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one that was opened for the look
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = descriptor
    return found


async def test_a_socket_that_a_killed_server_left_is_replaced_and_one_in_use_is_not(
    serve: Serve, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    site = await serve()
    site.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path) == 200
    other = await serve()
    with pytest.raises(errors.FailedPrecondition, match=r"is taken.*http\.socket"):
        other.server.listen_unix(path, OWNER_ONLY)
    assert await ask(path) == 200


async def test_a_data_folder_deeper_than_an_address_is_long_serves_all_the_same(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / ("deep" * 40) / "http.sock"
    site = await serve()
    site.server.listen_unix(path, OWNER_ONLY)
    with unix_addresses.address_of(path) as address:
        assert await ask(Path(address)) == 200
    await site.server.stop(1.0)
    assert not path.exists()


async def test_it_answers_while_every_place_of_the_port_is_taken(serve: Serve, path: Path) -> None:
    site = await serve(http=HttpSettings(max_connections=1, max_connections_per_source=1))
    site.server.listen_unix(path, OWNER_ONLY)
    wire = await site.wire()
    await wire.send(b"GET /events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"200" in await wire.reader.readuntil(b"\r\n")
    refused = await site.wire()
    await refused.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await refused.answer()).status == 503
    assert await ask(path) == 200


@pytest.mark.parametrize(
    ("group", "permissions"),
    [
        ("", OWNER_ONLY),
        ("a-group-that-nobody-made", OWNER_ONLY),
        pytest.param("65534", SocketPermissions(0o660, 65534), marks=pytest.mark.root(tries=1)),
        pytest.param("root", SocketPermissions(0o660, 0), marks=pytest.mark.root(tries=1)),
    ],
)
def test_a_socket_is_open_to_a_group_if_there_is_one(group: str, permissions: SocketPermissions) -> None:
    assert group_permissions(group) == permissions
