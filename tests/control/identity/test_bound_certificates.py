"""Certificates for clients, bound to namespaces or not: servers know them by record, nodes by themselves."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import Role, read_certificate_role
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.revocations import RevocationList
from tests.support.clouds import Cloud, cloud_in


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path, clock) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock) -> CertificateVerifier:
    return CertificateVerifier("n1", clock, RevocationList(tmp_path / "revoked.json", clock))


async def issued(cloud: Cloud, role: Role, *namespaces: str, ttl_s: float | None = None) -> bytes:
    request = pki.make_request(pki.new_key())
    _, pem = await cloud.identity.issue_client(
        request, name="ci", role=role, actor="test", ttl_s=ttl_s, namespaces=namespaces
    )
    return ssl.PEM_cert_to_DER_cert(pem.decode())


@pytest.mark.parametrize("namespaces", [(), ("shop",), ("shop", "store")])
@pytest.mark.parametrize("role", [Role.DEPLOYER, Role.INVOKER, Role.VIEWER])
async def test_servers_and_nodes_read_the_same_role_and_namespaces(
    cloud: Cloud, node: CertificateVerifier, role: Role, namespaces: tuple[str, ...]
) -> None:
    der = await issued(cloud, role, *namespaces)
    for caller in (cloud.identity.caller_from_certificate(der), node.caller_from_certificate(der)):
        assert (caller.role, caller.namespaces) == (role, namespaces or None)
    (record,) = cloud.identity.certificates()
    assert (record.role, record.namespaces, record.name) == (role, namespaces or None, "ci")
    (event,) = await cloud.events("certificate.issued")
    assert event.data.get("bound_to", "") == " ".join(namespaces)
    assert event.namespace is None  # for admins


async def test_a_program_that_knows_no_bindings_does_not_know_the_role_of_a_bound_certificate(
    cloud: Cloud,
) -> None:
    shown = pki.read_certificate(ssl.DER_cert_to_PEM_cert(await issued(cloud, Role.VIEWER, "shop")).encode())
    assert shown.role not in set(Role)
    assert shown.units == ("shop",)


async def test_it_is_refused_when_it_is_revoked_or_expires(cloud: Cloud, clock: ManualClock) -> None:
    der = await issued(cloud, Role.DEPLOYER, "shop", ttl_s=60)
    other = await issued(cloud, Role.DEPLOYER, "shop", ttl_s=60)
    caller = cloud.identity.caller_from_certificate(der)
    await cloud.identity.revoke_certificate(caller.serial, actor="test")
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        cloud.identity.caller_from_certificate(der)
    assert [one.serial for one in cloud.identity.revoked()] == [caller.serial]  # which nodes are told
    assert cloud.identity.caller_from_certificate(other).namespaces == ("shop",)
    clock.advance(61)
    with pytest.raises(errors.Unauthenticated, match="expired"):
        cloud.identity.caller_from_certificate(other)


@pytest.mark.parametrize(
    ("role", "namespaces", "ttl_s", "why"),
    [
        (Role.ADMIN, ("shop",), None, "cannot be bound"),
        (Role.NODE, (), None, "by joining"),
        (Role.NODE, ("shop",), None, "cannot be bound"),
        (Role.VIEWER, ("Shop",), None, "lower-case"),
        (Role.VIEWER, ("market",), None, "cells of contracts"),
        (Role.VIEWER, (), 1.0, "60 s to 366 days"),
        (Role.VIEWER, (), 1e9, "60 s to 366 days"),
    ],
)
async def test_what_cannot_be_issued_is_refused(
    cloud: Cloud, role: Role, namespaces: tuple[str, ...], ttl_s: float | None, why: str
) -> None:
    with pytest.raises(errors.Invalid, match=why):
        await issued(cloud, role, *namespaces, ttl_s=ttl_s)
    assert cloud.identity.certificates() == []


def test_a_binding_is_never_read_as_the_whole_cloud() -> None:
    assert read_certificate_role("viewer", ()) == (Role.VIEWER, None)
    assert read_certificate_role("bound-viewer", ()) == (Role.VIEWER, ())  # which is nothing
    assert read_certificate_role("viewer", ("shop",)) == (Role.VIEWER, ("shop",))
    for role, units in (
        ("bound-admin", ("shop",)),
        ("admin", ("shop",)),
        ("bound-", ()),
        ("bound-bound-x", ()),
    ):
        with pytest.raises(ValueError):
            read_certificate_role(role, units)
