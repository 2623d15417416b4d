"""Which certificates make a node, with a real CA: its own that count, and no others."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.wire.kudo.grpc_registration import RegistrationRefused, registered_node
from tests.support.certificates import TestAuthority
from tests.support.clouds import Cloud, cloud_in, new_request

LOCAL = Caller(AuthMethod.LOOPBACK, "uid:0", Role.ADMIN)
ADMIN = Caller(AuthMethod.CERTIFICATE, "certificate:somebody", Role.ADMIN)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path, ManualClock()) as made:
        yield made


async def join(cloud: Cloud, folder: Path) -> tuple[str, str]:
    """A node's id and its certificate."""
    _, token = await cloud.identity.create_token(Role.NODE, ttl_s=600, note="", actor="somebody")
    joined = await cloud.identity.join(token, new_request(folder, token[-8:]), "attic")
    return joined.node, joined.certificate_pem.decode()


@pytest.mark.parametrize("caller", [LOCAL, ADMIN])
async def test_the_id_is_the_common_name_of_a_certificate_that_counts(cloud, tmp_path, caller):
    node, pem = await join(cloud, tmp_path)
    assert registered_node(pem, caller, cloud.identity) == node
    with_chain = f"subject: {node}\n{pem}{cloud.authority.certificate_pem.decode()}"
    assert registered_node(with_chain, caller, cloud.identity) == node


async def test_a_node_shows_its_own_be_it_another_than_that_of_the_connection(cloud, tmp_path):
    node, first = await join(cloud, tmp_path)
    other, others = await join(cloud, tmp_path)
    caller = cloud.identity.caller_from_certificate(ssl.PEM_cert_to_DER_cert(first))
    renewed = (await cloud.identity.renew(caller, new_request(tmp_path))).decode()
    assert [registered_node(pem, caller, cloud.identity) for pem in (first, renewed)] == [node, node]
    with pytest.raises(RegistrationRefused, match=f"it is node {other}'s"):
        registered_node(others, caller, cloud.identity)


async def test_a_revoked_certificate_makes_no_node(cloud, tmp_path):
    _, pem = await join(cloud, tmp_path)
    serial = pki.read_certificate(pem.encode()).serial
    await cloud.identity.revoke_certificate(serial, actor="somebody")
    with pytest.raises(RegistrationRefused, match="was revoked"):
        registered_node(pem, LOCAL, cloud.identity)


async def test_an_expired_certificate_makes_no_node(cloud, tmp_path):
    _, pem = await join(cloud, tmp_path)
    cloud.clock.advance(10 * 365 * 86400)
    with pytest.raises(RegistrationRefused, match="expired"):
        registered_node(pem, LOCAL, cloud.identity)


async def test_a_certificate_of_another_ca_makes_no_node(cloud, tmp_path):
    stranger = TestAuthority(tmp_path / "stranger")
    pem = stranger.issue("node-1", "node").certificate.read_text()
    with pytest.raises(RegistrationRefused, match="CA"):
        registered_node(pem, LOCAL, cloud.identity)


async def test_a_certificate_of_another_role_makes_no_node(cloud, tmp_path):
    issued = await cloud.identity.issue_local(new_request(tmp_path), role=Role.ADMIN, name="operator")
    with pytest.raises(RegistrationRefused, match="makes its holder admin, not a node"):
        registered_node(issued.pem.decode(), LOCAL, cloud.identity)


async def test_a_name_counts_only_from_the_user_who_runs_skerry_on_its_machine(cloud):
    assert registered_node("node-1", LOCAL, cloud.identity) == "node-1"
    with pytest.raises(RegistrationRefused, match="no PEM"):
        registered_node("node-1", ADMIN, cloud.identity)
