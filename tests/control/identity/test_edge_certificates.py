"""Certificates of nodes' HTTPS listeners: a node gets its own names, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.control.identity import certificates, edge_names
from skerry.control.identity.edge_names import EdgeNode
from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import EDGE, SERVER, AuthMethod, Caller, Role
from skerry.model.identity_settings import IdentitySettings
from tests.control.identity.test_authenticator import caller_of, join
from tests.support.clouds import Cloud, cloud_in, new_request

PI = EdgeNode("01m7gcw50e0jtcr1kycqgkzyxm", "pi", "198.51.100.7")


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    settings = IdentitySettings(edge_names=("pi=pi.example.org", "pi=203.0.113.9"))
    async with cloud_in(tmp_path, clock, settings) as made:
        yield made


def granted(*hosts: str, of_servers: tuple[str, ...] = (), of_others: tuple[str, ...] = ()) -> set[str]:
    return set(edge_names.decide_hosts(PI, hosts, of_servers=of_servers, of_others=of_others).granted)


def test_a_node_gets_its_own_names_loopback_private_addresses_and_the_one_it_calls_from() -> None:
    own = ("pi", "pi.local", "pi.node.skerry", "localhost", "127.0.0.1", "::1")
    found = ("192.168.1.10", "10.0.0.3", "172.16.9.9", "100.64.0.1", "fd00::5", "198.51.100.7")
    assert granted(*own, *found) == {*own, *found}
    assert granted("PI.Node.Skerry.", "::ffff:192.168.1.10") == {"pi.node.skerry", "192.168.1.10"}


def test_names_and_public_addresses_of_others_are_refused_with_a_reason() -> None:
    hosts = ("example.org", "pi.example.org", "pi2", "node.skerry", "8.8.8.8", "2600::1", "169.254.1.1")
    decided = edge_names.decide_hosts(PI, hosts, of_servers=(), of_others=())
    assert decided.granted == frozenset()
    assert len(decided.refused) == len(hosts)
    assert all("identity.edge_names" in reason for reason in decided.refused)


def test_what_a_server_has_is_refused_even_if_it_is_private_or_the_nodes_own_name() -> None:
    assert granted("192.168.1.2", "pi", "pi.local", of_servers=("192.168.1.2", "pi")) == {"pi.local"}


def test_a_name_of_another_node_is_refused_and_a_private_address_of_another_network_is_not() -> None:
    assert granted("pi", "192.168.1.10", of_others=("pi", "192.168.1.10")) == {"192.168.1.10"}


def test_an_admin_allows_more() -> None:
    node = EdgeNode(PI.id, PI.name, PI.address, frozenset({"pi.example.org", "192.168.1.2"}))
    hosts = ("pi.example.org", "192.168.1.2", "other.example.org")
    decided = edge_names.decide_hosts(node, hosts, of_servers=("192.168.1.2",), of_others=())
    assert decided.granted == {"pi.example.org", "192.168.1.2"}


def test_a_node_with_dots_in_its_name_has_it_below_the_clouds_domain_only() -> None:
    """A machine chooses its name when it joins."""
    assert edge_names.own_names("bank.example.org") == ("bank.example.org.node.skerry",)
    node = EdgeNode(PI.id, "10.1.2.3", "")
    decided = edge_names.decide_hosts(node, ["8.8.8.8", "10.1.2.3"], of_servers=("10.1.2.3",), of_others=())
    assert not decided.granted


@pytest.mark.parametrize(
    "host", ["", "*", "*.node.skerry", "a b", "0.0.0.0", "::", "224.0.0.1", "a/b", "x" * 300, "é"]
)
def test_what_no_certificate_can_name_is_refused(host: str) -> None:
    assert granted(host) == set()


@given(st.text(max_size=80))
def test_no_text_gets_more_than_the_nodes_own(text: str) -> None:
    for host in granted(text):
        assert host in {"pi", "pi.local", "pi.node.skerry", "localhost", PI.address} or edge_names._address(
            host
        )


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(errors.Invalid, match="at most 64"):
        granted(*(f"10.0.0.{number}" for number in range(65)))


@pytest.mark.parametrize("text", ["pi", "pi=", "=x.example.org", "pi=*", "pi=a b"])
def test_a_wrong_setting_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(errors.Invalid, match="NODE=HOST"):
        edge_names.parse_allowed([text])


async def test_a_node_gets_a_certificate_that_makes_no_caller(cloud: Cloud, tmp_path: Path) -> None:
    node = caller_of(cloud, (await join(cloud, tmp_path, "pi")).certificate_pem)
    hosts = ["pi.node.skerry", "192.168.1.10", "pi.example.org", "203.0.113.9", "bank.example.org"]
    made = await cloud.identity.issue_edge(node, new_request(tmp_path, "https"), hosts, "198.51.100.7")
    issued = pki.read_certificate(made.pem)
    assert (issued.role, issued.name, issued.hosts) == (EDGE, node.node, frozenset(hosts[:4]))
    assert [reason.split()[0] for reason in made.refused] == ["bank.example.org"]
    assert issued.not_after > cloud.clock.now() + 29 * 86400, "it must outlast a time without a server"
    with pytest.raises(errors.Unauthenticated, match="node's listener"):
        caller_of(cloud, made.pem)
    (record,) = [one for one in cloud.identity.certificates() if one.role == EDGE]
    assert (record.node, record.hosts) == (node.node, tuple(sorted(hosts[:4])))
    assert (await cloud.events("certificate.issued"))[-1].actor == f"node/{node.node}"


async def test_names_of_servers_and_of_other_nodes_are_taken(cloud: Cloud, tmp_path: Path) -> None:
    await cloud.identity.issue_local(
        new_request(tmp_path), role=SERVER, name="hub", hosts=["hub", "192.168.1.2", "localhost"]
    )
    first = caller_of(cloud, (await join(cloud, tmp_path, "edge-1")).certificate_pem)
    second = caller_of(cloud, (await join(cloud, tmp_path, "edge-1")).certificate_pem)
    assert first.node != second.node
    wanted = ["edge-1", "localhost", "192.168.1.2", "192.168.1.10"]
    request = new_request(tmp_path, "https")
    hosts = [
        pki.read_certificate((await cloud.identity.issue_edge(node, request, wanted, "")).pem).hosts
        for node in (first, second, first)
    ]
    assert hosts == [
        {"edge-1", "localhost", "192.168.1.10"},
        {"localhost", "192.168.1.10"},
        {"edge-1", "localhost", "192.168.1.10"},
    ]
    with pytest.raises(errors.Invalid, match="is a server's"):
        await cloud.identity.issue_edge(first, request, ["192.168.1.2"], "")


async def test_only_a_node_gets_one_and_not_without_end(cloud: Cloud, tmp_path: Path) -> None:
    for stranger in (
        Caller(AuthMethod.LOOPBACK, "uid:0", Role.ADMIN),
        Caller(AuthMethod.TOKEN, "token:x", Role.NODE, node="x"),
    ):
        with pytest.raises(errors.Forbidden):
            await cloud.identity.issue_edge(stranger, new_request(tmp_path), ["pi"], "")
    node = caller_of(cloud, (await join(cloud, tmp_path, "pi")).certificate_pem)
    for _ in range(certificates.MAX_EDGE_PER_NODE):
        await cloud.identity.issue_edge(node, new_request(tmp_path), ["pi"], "")
    with pytest.raises(errors.Overloaded):
        await cloud.identity.issue_edge(node, new_request(tmp_path), ["pi"], "")
    assert await cloud.identity.renew(node, new_request(tmp_path)), "its own is renewed all the same"
