"""Whether a subnet is free, by the routes of the machine."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

import pytest

from skerry.model import errors
from skerry.node.network import host_routes
from skerry.node.network.host_routes import HostRoute, HostRoute6
from skerry.node.network.subnets import NodeSubnet

# As a machine of little-endian byte order writes it, which all that we run on are.
TABLE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
tun0\t0000560A\t00000000\t0001\t0\t0\t0\t0080FFFF\t0\t0\t0
*\t0000A8C0\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
SUBNET = NodeSubnet("10.86.0.0/24")


def test_the_kernels_table_is_read() -> None:
    assert host_routes.parse(TABLE) == [
        HostRoute("eth0", IPv4Network("0.0.0.0/0")),
        HostRoute("eth0", IPv4Network("192.0.2.0/24")),
        HostRoute("tun0", IPv4Network("10.86.0.0/17")),
        HostRoute("*", IPv4Network("192.168.0.0/16")),
    ]
    assert host_routes.parse("") == []


def test_the_kernels_table_of_ipv6_is_read() -> None:
    nothing = "0" * 32
    zeros = f"{nothing} 00 {nothing} 00000400 00000001 00000000 00000001"
    text = f"fda85e7cf8fa0000000000000a400300 78 {zeros}    sw-1\n{nothing} 00 {zeros}       lo\n"
    assert host_routes.parse_ipv6(text) == [
        HostRoute6("sw-1", IPv6Network("fda8:5e7c:f8fa::10.64.3.0/120")),
        HostRoute6("lo", IPv6Network("::/0")),
    ]
    assert host_routes.parse_ipv6("") == []


def test_this_machines_tables_can_be_read() -> None:
    assert all(route.interface for route in (*host_routes.read(), *host_routes.read_ipv6()))


@pytest.mark.parametrize(
    "network", ["10.86.0.0/24", "10.86.0.128/25", "10.86.0.0/16", "10.0.0.0/8", "10.86.0.7/32"]
)
def test_a_subnet_that_overlaps_another_network_is_refused_by_the_name_of_the_interface(network: str) -> None:
    with pytest.raises(
        errors.FailedPrecondition, match=rf"10\.86\.0\.0/24 .* overlaps {network}, .* by tun0"
    ):
        host_routes.check_free(SUBNET, [HostRoute("tun0", IPv4Network(network))], "sk-0123abcd")


@pytest.mark.parametrize(
    ("interface", "network"),
    [
        ("sk-0123abcd", "10.86.0.0/24"),  # our own
        ("eth0", "0.0.0.0/0"),
        ("tun0", "0.0.0.0/1"),  # a VPN for everything
        ("eth0", "10.86.1.0/24"),
    ],
)
def test_our_own_bridge_ways_out_and_other_networks_do_not_matter(interface: str, network: str) -> None:
    host_routes.check_free(SUBNET, [HostRoute(interface, IPv4Network(network))], "sk-0123abcd")
