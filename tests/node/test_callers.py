"""Who calls on a node's own socket."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.identity import Role
from skerry.node.callers import CertificateCallers

NODE = "01m7gcw50e0jtcr1kycqgkzyxm"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authority(tmp_path: Path, clock: ManualClock) -> pki.Authority:
    return pki.Authority.load_or_create(tmp_path, clock)


def certificate(authority: pki.Authority, folder: Path, name: str, role: str) -> bytes:
    request = pki.Request.parse(pki.make_request(pki.load_or_create_key(folder / "key")))
    issued = authority.issue(request, name=name, role=role, lifetime_s=60)
    return ssl.PEM_cert_to_DER_cert(issued.pem.decode())


def test_the_nodes_own_certificate_stands_for_its_administrator(
    authority: pki.Authority, tmp_path: Path, clock: ManualClock
) -> None:
    caller = CertificateCallers(NODE, clock).caller_from_certificate(
        certificate(authority, tmp_path, NODE, Role.NODE)
    )
    assert (caller.role, caller.node) == (Role.ADMIN, NODE)


def test_another_node_is_only_a_node(authority: pki.Authority, tmp_path: Path, clock: ManualClock) -> None:
    caller = CertificateCallers(NODE, clock).caller_from_certificate(
        certificate(authority, tmp_path, "another", Role.NODE)
    )
    assert caller.role is Role.NODE


@pytest.mark.parametrize("role", [Role.ADMIN, Role.DEPLOYER, Role.VIEWER])
def test_people_have_the_role_that_their_certificate_says(
    authority: pki.Authority, tmp_path: Path, clock: ManualClock, role: Role
) -> None:
    shown = certificate(authority, tmp_path, "ada", role)
    assert CertificateCallers(NODE, clock).caller_from_certificate(shown).role is role


def test_a_servers_certificate_calls_nobody(
    authority: pki.Authority, tmp_path: Path, clock: ManualClock
) -> None:
    with pytest.raises(errors.Forbidden, match="'server' calls nobody"):
        CertificateCallers(NODE, clock).caller_from_certificate(
            certificate(authority, tmp_path, "s", "server")
        )


def test_an_expired_certificate_is_refused(
    authority: pki.Authority, tmp_path: Path, clock: ManualClock
) -> None:
    shown = certificate(authority, tmp_path, "ada", Role.ADMIN)
    clock.advance(61)
    with pytest.raises(errors.Unauthenticated, match="expired"):
        CertificateCallers(NODE, clock).caller_from_certificate(shown)


def test_a_token_means_nothing_to_a_node(clock: ManualClock) -> None:
    with pytest.raises(errors.Unauthenticated, match="client certificate"):
        CertificateCallers(NODE, clock).caller_from_token("skerry_1_x")
