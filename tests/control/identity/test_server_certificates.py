"""A server's own certificates: made, kept, replaced when they must be, and renewed while running."""

from __future__ import annotations

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from skerry.control.identity import server_certificates
from skerry.control.identity.server_certificates import ServerCertificates
from skerry.control.identity.server_names import ServerNames
from skerry.kit import pki, renewal, tls
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model import errors
from skerry.model.callers import NODE_TLS_NAME, Role
from skerry.model.identity_settings import IdentitySettings
from tests.support.clouds import Cloud, cloud_in

LOCAL = frozenset({"localhost", NODE_TLS_NAME})
EDGE = ServerNames("edge-1", frozenset(), LOCAL)


class Enough(BaseException):
    """Ends a loop that never ends."""


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path, clock) as made:
        yield made


def exposed(*own: str) -> ServerNames:
    """A server that others reach by these names."""
    return ServerNames("hub", frozenset(own), LOCAL | frozenset(own))


def credentials_in(
    folder: Path,
    cloud: Cloud,
    names: Callable[[], ServerNames] = lambda: EDGE,
    sleep: renewal.Sleep = asyncio.sleep,
) -> ServerCertificates:
    return ServerCertificates(
        folder, cloud.identity, cloud.authority, cloud.clock, names=names, check_every_s=15.0, sleep=sleep
    )


def certificate(folder: Path, name: str) -> pki.IssuedCertificate:
    return pki.read_certificate((folder / "pki" / f"{name}.crt").read_bytes())


async def test_the_first_start_makes_both_pairs_and_keys_are_private(tmp_path: Path, cloud: Cloud) -> None:
    made = credentials_in(tmp_path, cloud)
    await made.prepare()
    assert certificate(tmp_path, "server").role == "server"
    assert certificate(tmp_path, "client").role == "admin"
    for name in ("ca", "server", "client"):
        assert stat.S_IMODE((tmp_path / "pki" / f"{name}.key").stat().st_mode) == 0o600
    caller = cloud.identity.caller_from_certificate(
        ssl.PEM_cert_to_DER_cert(made.client_certificate_file.read_text())
    )
    assert caller.role is Role.ADMIN
    assert len(cloud.identity.certificates()) == 2


async def test_the_next_start_keeps_them(tmp_path: Path, cloud: Cloud) -> None:
    await credentials_in(tmp_path, cloud).prepare()
    before = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    await credentials_in(tmp_path, cloud).prepare()
    assert (certificate(tmp_path, "server"), certificate(tmp_path, "client")) == before


async def test_a_server_with_new_names_gets_a_new_certificate_and_its_client_does_not(
    tmp_path: Path, cloud: Cloud
) -> None:
    await credentials_in(tmp_path, cloud).prepare()
    client = certificate(tmp_path, "client")
    await credentials_in(tmp_path, cloud, lambda: exposed("cloud.example")).prepare()
    assert "cloud.example" in certificate(tmp_path, "server").hosts
    assert certificate(tmp_path, "client") == client


async def test_a_client_certificate_that_was_revoked_is_replaced_at_the_next_start(
    tmp_path: Path, cloud: Cloud
) -> None:
    await credentials_in(tmp_path, cloud).prepare()
    revoked = certificate(tmp_path, "client").serial
    await cloud.identity.revoke_certificate(revoked, actor="test")
    await credentials_in(tmp_path, cloud).prepare()
    assert certificate(tmp_path, "client").serial != revoked


@pytest.mark.parametrize("spoil", ["torn", "another key"])
async def test_a_certificate_that_does_not_serve_is_replaced(
    tmp_path: Path, cloud: Cloud, spoil: str
) -> None:
    await credentials_in(tmp_path, cloud).prepare()
    if spoil == "torn":
        (tmp_path / "pki" / "server.crt").write_bytes(b"-----BEGIN CERT")
    else:
        (tmp_path / "pki" / "server.key").unlink()
    await credentials_in(tmp_path, cloud).prepare()
    key = (tmp_path / "pki" / "server.key").read_bytes()
    assert certificate(tmp_path, "server").key == pki.key_digest(key)


async def test_a_broken_key_is_named_and_not_overwritten(tmp_path: Path, cloud: Cloud) -> None:
    key = tmp_path / "pki" / "server.key"
    key.write_bytes(b"torn")
    with pytest.raises(errors.FailedPrecondition, match=r"server\.key is not a PEM private key.*remove it"):
        await credentials_in(tmp_path, cloud).prepare()
    assert key.read_bytes() == b"torn"


def test_a_broken_ca_is_refused_in_plain_words(tmp_path: Path, clock: ManualClock) -> None:
    server_certificates.open_authority(tmp_path, clock)
    (tmp_path / "pki" / "ca.key").unlink()
    with pytest.raises(errors.FailedPrecondition, match=r"ca\.key is missing"):
        server_certificates.open_authority(tmp_path, clock)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pki").write_bytes(b"a file where a folder should be")
    with pytest.raises(errors.FailedPrecondition, match="cannot be used"):
        server_certificates.open_authority(tmp_path / "other", clock)


async def test_a_server_that_others_reach_has_a_certificate_for_its_names_and_addresses(
    tmp_path: Path, cloud: Cloud
) -> None:
    made = credentials_in(tmp_path, cloud, lambda: exposed("hub", "hub.example", "192.0.2.1", "2001:db8::1"))
    await made.prepare()
    assert made.names == {"hub", "hub.example", "192.0.2.1", "2001:db8::1"}
    assert certificate(tmp_path, "server").hosts >= made.names


async def test_a_new_address_is_noticed_while_running_and_at_the_next_start(
    tmp_path: Path, cloud: Cloud, clock: ManualClock
) -> None:
    addresses = ["192.0.2.1"]
    waited = 0.0

    async def nap(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        clock.advance(seconds)
        if "192.0.2.2" in certificate(tmp_path, "server").hosts:
            raise Enough
        addresses[:] = ["192.0.2.2"]

    def names() -> ServerNames:
        return exposed("hub", *addresses)

    made = credentials_in(tmp_path, cloud, names, sleep=nap)
    await made.prepare()
    with pytest.raises(Enough):
        await made.run()
    assert waited <= 60
    assert made.names == {"hub", "192.0.2.2"}
    addresses[:] = ["192.0.2.3"]
    await credentials_in(tmp_path, cloud, names).prepare()
    assert "192.0.2.3" in certificate(tmp_path, "server").hosts


async def test_both_are_renewed_before_two_thirds_of_their_life_with_the_same_keys(
    tmp_path: Path, clock: ManualClock
) -> None:
    life = 86400
    ends: dict[str, float] = {}  # by serial

    async def nap(seconds: float) -> None:
        clock.advance(seconds)
        for name in ("server", "client"):
            issued = certificate(tmp_path, name)
            assert clock.now() < issued.issued_at + life * 2 / 3
            ends[issued.serial] = issued.not_after
        if len(ends) == 6:
            raise Enough

    async with cloud_in(tmp_path, clock, IdentitySettings(server_certificate_s=life)) as cloud:
        made = credentials_in(tmp_path, cloud, sleep=nap)
        await made.prepare()
        keys = [(tmp_path / "pki" / f"{name}.key").read_bytes() for name in ("server", "client")]
        with pytest.raises(Enough):
            await made.run()
        valid = {serial for serial, end in ends.items() if end > clock.now()}
        assert len(valid) >= 4
        assert {record.serial for record in cloud.identity.certificates()} == valid
    assert keys == [(tmp_path / "pki" / f"{name}.key").read_bytes() for name in ("server", "client")]


async def test_a_listener_shows_the_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    async with cloud_in(tmp_path, SystemClock()) as cloud:
        made = credentials_in(tmp_path, cloud)
        await made.prepare()
        seen = []
        server = await asyncio.start_server(_hang_up, "127.0.0.1", 0, ssl=made.contexts.grpc)
        async with server:
            for _ in range(2):
                seen.append(await _shown(made, server.sockets[0].getsockname()[1]))
                (tmp_path / "pki" / "server.crt").unlink()
                await made.prepare()
        assert seen[0] != seen[1]


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _shown(made: ServerCertificates, port: int) -> str:
    """The serial that the listener shows to a client with the local admin's files, called as Aurae does."""
    context = tls.client(made.ca_file.read_bytes())
    tls.load(context, made.client_certificate_file, made.client_key_file)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=NODE_TLS_NAME
    )
    assert await reader.read() == b""
    serial: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await writer.wait_closed()
    return serial
