"""The certificate of a node's HTTPS listener: requested, kept, renewed, or an operator's files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import EDGE
from skerry.node.agent.listener_certificates import FileListenerCertificate, IssuedListenerCertificate
from tests.support.certificates import TestAuthority
from tests.support.waiting import eventually

DAY_S = 86400.0


class Site:
    """A node and a server that issues certificates, unless it is away."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder, self.clock = folder, clock
        self.authority = pki.CertificateAuthority.load_or_create(folder / "pki", clock)
        self.hosts = frozenset({"pi", "192.168.1.10", "pi.example.org"})
        self.is_away = False
        self.role = EDGE
        self.requests: list[list[str]] = []

    async def request(self, csr: bytes, hosts: Sequence[str]) -> tuple[bytes, tuple[str, ...]]:
        if self.is_away:
            raise errors.Unavailable("no server")
        self.requests.append(list(hosts))
        granted = [host for host in hosts if not host.endswith(".org")]
        issued = self.authority.issue(
            pki.SigningRequest.parse(csr),
            name="n1",
            role=self.role,
            lifetime_s=30 * DAY_S,
            server=True,
            hosts=granted,
        )
        return issued.pem, tuple(f"{host} is not yours" for host in hosts if host not in granted)

    def agent(self) -> IssuedListenerCertificate:
        return IssuedListenerCertificate(
            self.folder,
            self.authority.certificate_pem,
            lambda: self.hosts,
            self.request,
            self.clock,
            sleep=self.sleep,
            chance=lambda: 0.0,
        )

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Site:
    return Site(tmp_path, clock)


async def test_it_is_requested_once_and_kept(site: Site) -> None:
    site.hosts = frozenset({"pi", "192.168.1.10"})
    for _ in range(2):
        agent = site.agent()
        await agent.prepare()
        assert agent.hosts == {"pi", "192.168.1.10"}
        assert agent.warnings == ()
    assert site.requests == [["192.168.1.10", "pi"]]
    assert (site.folder / "https.key").stat().st_mode & 0o077 == 0


async def test_what_a_server_refuses_is_a_warning_and_requested_again_at_the_next_start(site: Site) -> None:
    agent = site.agent()
    await agent.prepare()
    assert agent.hosts == {"pi", "192.168.1.10"}
    assert [warning.split(": ")[1] for warning in agent.warnings] == ["pi.example.org is not yours"]
    await site.agent().prepare()
    assert len(site.requests) == 2


async def test_without_a_server_the_stored_one_is_used_and_without_any_there_is_a_warning(site: Site) -> None:
    site.is_away = True
    agent = site.agent()
    await agent.prepare()
    assert agent.hosts == frozenset()
    assert "no certificate yet" in agent.warnings[0]
    site.is_away = False
    await agent.prepare()
    site.is_away = True
    site.clock.advance(20 * DAY_S)
    again = site.agent()
    await again.prepare()
    assert again.hosts == {"pi", "192.168.1.10"}


async def test_it_is_renewed_in_time_and_for_new_addresses_but_not_for_addresses_that_are_gone(
    site: Site,
) -> None:
    agent = site.agent()
    await agent.prepare()
    began = site.clock.now()
    first = agent.not_after
    running = asyncio.ensure_future(agent.run())
    try:
        await eventually(lambda: agent.not_after != first)
        assert site.clock.now() - began > 16 * DAY_S
        before = len(site.requests)
        site.hosts = frozenset({"pi"})
        at = site.clock.now()
        await eventually(lambda: site.clock.now() > at + 3600)
        assert len(site.requests) == before
        site.hosts = frozenset({"pi", "192.168.1.11"})
        await eventually(lambda: "192.168.1.11" in agent.hosts)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_certificate_of_another_cloud_key_or_role_is_not_used(site: Site, tmp_path: Path) -> None:
    await site.agent().prepare()
    (site.folder / "https.key").unlink()
    agent = site.agent()
    await agent.prepare()
    assert len(site.requests) == 2
    other = Site(tmp_path / "other", site.clock)
    moved = IssuedListenerCertificate(
        site.folder, other.authority.certificate_pem, lambda: other.hosts, other.request, site.clock
    )
    await moved.prepare()
    assert len(other.requests) == 1
    (site.folder / "https.crt").unlink()
    site.role = "node"
    agent = site.agent()
    await agent.prepare()
    assert agent.hosts == frozenset()


async def test_files_of_an_operator_are_read_again_when_they_change(
    tmp_path: Path, clock: ManualClock
) -> None:
    authority = pki.CertificateAuthority.load_or_create(tmp_path / "pki", clock)
    operator = TestAuthority(tmp_path / "operator")
    pair = operator.issue("pi", server=True)
    shown = FileListenerCertificate(
        pair.certificate, pair.key, authority.certificate_pem, clock, sleep=lambda _: asyncio.sleep(0.001)
    )
    await shown.prepare()
    assert "localhost" in shown.hosts
    first = shown.not_after
    running = asyncio.ensure_future(shown.run())
    try:
        operator.issue("pi", server=True, expired=True)
        await eventually(lambda: shown.not_after < first)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    pair.key.write_text("broken")
    with pytest.raises(errors.FailedPrecondition, match=r"node\.tls_key"):
        await shown.prepare()
