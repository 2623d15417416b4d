"""Who calls on a node's own socket."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import RevokedCertificate, Role
from skerry.model.node_messages import RevocationUpdate
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.revocations import RevocationList

NODE = "01m7gcw50e0jtcr1kycqgkzyxm"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authority(tmp_path: Path, clock: ManualClock) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path, clock)


def callers(folder: Path, clock: ManualClock) -> CertificateVerifier:
    return CertificateVerifier(NODE, clock, RevocationList(folder / "revoked.json", clock))


def certificate(authority: pki.CertificateAuthority, folder: Path, name: str, role: str) -> bytes:
    request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(folder / "key")))
    issued = authority.issue(request, name=name, role=role, lifetime_s=60)
    return ssl.PEM_cert_to_DER_cert(issued.pem.decode())


def test_the_nodes_own_certificate_stands_for_its_administrator(
    authority: pki.CertificateAuthority, tmp_path: Path, clock: ManualClock
) -> None:
    caller = callers(tmp_path, clock).caller_from_certificate(
        certificate(authority, tmp_path, NODE, Role.NODE)
    )
    assert (caller.role, caller.node) == (Role.ADMIN, NODE)


def test_another_node_is_only_a_node(
    authority: pki.CertificateAuthority, tmp_path: Path, clock: ManualClock
) -> None:
    caller = callers(tmp_path, clock).caller_from_certificate(
        certificate(authority, tmp_path, "another", Role.NODE)
    )
    assert caller.role is Role.NODE


@pytest.mark.parametrize("role", [Role.ADMIN, Role.DEPLOYER, Role.VIEWER])
def test_people_have_the_role_that_their_certificate_says(
    authority: pki.CertificateAuthority, tmp_path: Path, clock: ManualClock, role: Role
) -> None:
    visible = certificate(authority, tmp_path, "ada", role)
    assert callers(tmp_path, clock).caller_from_certificate(visible).role is role


def test_a_servers_certificate_calls_nobody(
    authority: pki.CertificateAuthority, tmp_path: Path, clock: ManualClock
) -> None:
    with pytest.raises(errors.Forbidden, match="'server' may not call a node"):
        callers(tmp_path, clock).caller_from_certificate(certificate(authority, tmp_path, "s", "server"))


def test_an_expired_certificate_is_refused(
    authority: pki.CertificateAuthority, tmp_path: Path, clock: ManualClock
) -> None:
    visible = certificate(authority, tmp_path, "ada", Role.ADMIN)
    clock.advance(61)
    with pytest.raises(errors.Unauthenticated, match="expired"):
        callers(tmp_path, clock).caller_from_certificate(visible)


def test_a_token_means_nothing_to_a_node(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(errors.Unauthenticated, match="client certificate"):
        callers(tmp_path, clock).caller_from_token("skerry_1_x")


@pytest.mark.parametrize("role", [Role.ADMIN, Role.NODE])
async def test_a_revoked_certificate_is_refused_whoever_it_names(
    authority: pki.CertificateAuthority, tmp_path: Path, clock: ManualClock, role: Role
) -> None:
    visible = certificate(authority, tmp_path, NODE, role)
    issued = pki.read_certificate(ssl.DER_cert_to_PEM_cert(visible).encode())
    revocations = RevocationList(tmp_path / "revoked.json", clock)
    known = CertificateVerifier(NODE, clock, revocations)
    assert known.caller_from_certificate(visible).role is Role.ADMIN
    await revocations.add(RevocationUpdate((RevokedCertificate(issued.serial, issued.not_after),)))
    with pytest.raises(errors.Unauthenticated, match="was revoked"):
        known.caller_from_certificate(visible)
