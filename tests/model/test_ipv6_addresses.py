"""IPv6 addresses follow from IPv4 ones, and lead back to them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from hypothesis import given
from hypothesis import strategies as st

from skerry.model.ipv6_addresses import CLOUD_PREFIX, ipv4_of, ipv6_network_of, ipv6_of
from skerry.model.mesh import PROBE_NETWORK

NETWORKS = st.builds(
    lambda address, prefix: IPv4Network((address, prefix), strict=False),
    st.ip_addresses(v=4),
    st.integers(0, 32),
)


def test_an_address_has_the_ipv4_one_at_its_end() -> None:
    assert ipv6_of(IPv4Address("10.64.3.2")) == IPv6Address("fda8:5e7c:f8fa::10.64.3.2")
    assert ipv6_network_of(IPv4Network("10.64.3.0/24")) == IPv6Network("fda8:5e7c:f8fa::a40:300/120")


@given(st.ip_addresses(v=4))
def test_an_address_leads_back(address: IPv4Address) -> None:
    assert ipv4_of(ipv6_of(address)) == address


@given(st.ip_addresses(v=6))
def test_other_addresses_lead_nowhere(address: IPv6Address) -> None:
    assert (ipv4_of(address) is None) == (address not in CLOUD_PREFIX)


@given(NETWORKS, st.ip_addresses(v=4))
def test_a_network_has_the_addresses_of_its_addresses(network: IPv4Network, address: IPv4Address) -> None:
    assert (ipv6_of(address) in ipv6_network_of(network)) == (address in network)


def test_no_address_is_one_for_probes_of_the_mesh() -> None:
    assert not CLOUD_PREFIX.overlaps(IPv6Network(PROBE_NETWORK))
