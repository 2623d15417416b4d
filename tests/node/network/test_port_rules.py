"""The text of the rules: what is published is in it once, and changes lead from one table to the next."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.ports import Protocol
from skerry.node.network import port_rules
from skerry.node.network.policy_rules import CloudNetwork
from skerry.node.network.port_rules import AddressRanges, ContainerPort, HostPort, NftTableContents
from skerry.node.network.rule_families import IPV6, table_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet
from tests.node.network.machines import Ground, mappings, run

NAMES = KernelNames("0123abcd")
SUBNETS = BridgeSubnets(NodeSubnet("10.0.0.0/24"))
BOTH = table_families(has_ipv6=True)
IPV4_ONLY = table_families(has_ipv6=False)
PORTS = st.integers(1, 65535)
DOORS = st.dictionaries(
    st.tuples(PORTS, st.sampled_from(Protocol)),
    st.tuples(st.integers(2, 254).map(lambda last: IPv4Address(f"10.0.0.{last}")), PORTS),
    max_size=8,
)
HELD = st.dictionaries(
    st.integers(2, 254).map(lambda last: IPv4Address(f"10.0.0.{last}")),
    # Isolated ones, which have chains, are in test_policy_rules.
    st.builds(NetworkPolicy, st.sampled_from([Ingress.ALL, Ingress.NODE]), st.sampled_from(Egress)),
    max_size=8,
)
POLICIES = {
    IPv4Address("10.0.0.2"): NetworkPolicy(Ingress.NODE, Egress.INTERNET),
    IPv4Address("10.0.0.3"): NetworkPolicy(egress=Egress.INTERNET),
}
RANGES = AddressRanges((IPv4Network("169.254.169.254/32"),), (IPv4Network("198.51.100.0/24"),))


def members(text: str) -> dict[str, set[str]]:
    """The keys of every set and map in a text of tables."""
    found: dict[str, set[str]] = {}
    for family, body in re.findall(r"^table (\w+) \w+ {\n(.*?)^}", text, flags=re.S | re.M):
        for name, filled in re.findall(r"^  (?:set|map) (\w+) {(.*)}$", body, flags=re.M):
            _, _, elements = filled.partition("elements = {")
            keys = {each.split(" : ")[0].strip(" }") for each in elements.split(", ")} - {""}
            found[f"{family} {NAMES.table} {name}"] = keys
    return found


def read(text: str) -> dict[HostPort, ContainerPort]:
    """The doors that a text of rules fills its maps with."""
    found: dict[HostPort, ContainerPort] = {}
    for protocol in Protocol:
        for body in re.findall(rf"map {protocol}_ports {{(.*?)\n", text):
            for port, address, inner in re.findall(r"(\d+) : ([\d.]+) \. (\d+)", body):
                assert (int(port), protocol) not in found
                found[int(port), protocol] = (IPv4Address(address), int(inner))
    return found


def apply(host_ports: dict[HostPort, ContainerPort], changes: str) -> dict[HostPort, ContainerPort]:
    """As nft would: an element is deleted only if it is there, and added only if it is not."""
    after = dict(host_ports)
    for line in changes.splitlines():
        form = re.fullmatch(r"(add|delete) element ip skerry_0123abcd (tcp|udp)_ports { (.*) }", line)
        assert form is not None, line
        verb, protocol, elements = form[1], Protocol(form[2]), form[3].split(", ")
        for element in elements:
            if verb == "delete":
                del after[int(element), protocol]
            else:
                port, address, inner = re.split(r" : | \. ", element)
                assert (int(port), protocol) not in after
                after[int(port), protocol] = (IPv4Address(address), int(inner))
    return after


@given(DOORS)
def test_the_table_publishes_what_it_was_told_and_nothing_else(
    host_ports: dict[HostPort, ContainerPort],
) -> None:
    assert (
        read(
            port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), NftTableContents(host_ports), IPV4_ONLY)
        )
        == host_ports
    )


@given(DOORS, DOORS)
def test_changes_lead_from_one_table_to_the_other(
    before: dict[HostPort, ContainerPort], after: dict[HostPort, ContainerPort]
) -> None:
    assert (
        apply(
            before,
            port_rules.write_changes(NAMES, NftTableContents(before), NftTableContents(after), IPV4_ONLY),
        )
        == after
    )


@given(DOORS, HELD, DOORS, HELD)
def test_changes_lead_from_some_policies_to_others(
    host_ports: dict[HostPort, ContainerPort],
    policies: dict[IPv4Address, NetworkPolicy],
    later_ports: dict[HostPort, ContainerPort],
    later_policies: dict[IPv4Address, NetworkPolicy],
) -> None:
    before, after = (
        NftTableContents(host_ports, policies),
        NftTableContents(later_ports, later_policies, ("192.0.2.53",)),
    )
    changes = port_rules.write_changes(NAMES, before, after, BOTH)
    sets = members(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), before, BOTH))
    for verb, name, elements in re.findall(r"(add|delete) element (\w+ \w+ \w+) { (.*) }", changes):
        for element in elements.split(", "):
            assert (element.split(" : ")[0] in sets[name]) == (verb == "delete")
            sets[name] ^= {element.split(" : ")[0]}
    assert sets == members(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), after, BOTH))


@given(HELD)
def test_a_kernel_without_rules_for_bridges_is_given_none(policies: dict[IPv4Address, NetworkPolicy]) -> None:
    contents = NftTableContents(policies=policies)
    families = table_families(has_ipv6=True, has_bridge=False)
    for text in (
        port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), contents, families),
        port_rules.write_changes(NAMES, NftTableContents(), contents, families),
        port_rules.write_removal(NAMES, families),
    ):
        assert "bridge skerry" not in text
        assert "ip6 skerry" not in text  # containers could send it to each other around the rules


@given(DOORS, HELD)
def test_the_rules_of_ipv6_are_those_of_ipv4_with_other_addresses(
    host_ports: dict[HostPort, ContainerPort], policies: dict[IPv4Address, NetworkPolicy]
) -> None:
    sets = members(
        port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), NftTableContents(host_ports, policies), BOTH)
    )
    for name in ("tcp_ports", "udp_ports"):
        assert sets[f"ip {NAMES.table} {name}"] == sets[f"ip6 {NAMES.table} {name}"]
    for name in ("node_only", "internet_only", "mesh_only", "no_egress"):
        expected = {IPV6.address(IPv4Address(each)) for each in sets[f"ip {NAMES.table} {name}"]}
        assert sets[f"ip6 {NAMES.table} {name}"] == expected


def test_without_ipv6_the_bridge_drops_it() -> None:
    text = port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), NftTableContents(), IPV4_ONLY)
    assert "ether type ip6 drop" in text
    assert "table ip6" not in text


@given(DOORS)
def test_without_a_change_there_is_nothing_to_do(host_ports: dict[HostPort, ContainerPort]) -> None:
    assert (
        port_rules.write_changes(
            NAMES, NftTableContents(host_ports), NftTableContents(dict(host_ports)), BOTH
        )
        == ""
    )


def test_mappings_become_doors_to_one_address() -> None:
    address = IPv4Address("10.0.0.2")
    assert port_rules.published_ports(address, mappings("8080:80", "8080:53/udp")) == {
        (8080, Protocol.TCP): (address, 80),
        (8080, Protocol.UDP): (address, 53),
    }


@pytest.mark.root
def test_nft_takes_the_table_the_changes_and_the_removal(ground: Ground) -> None:
    before = port_rules.published_ports(IPv4Address("10.0.0.2"), mappings("80", "53/udp", "443"))
    after = port_rules.published_ports(IPv4Address("10.0.0.3"), mappings("80", "54/udp"))
    for text in (
        port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), NftTableContents(), BOTH),
        port_rules.write_tables(
            NAMES, SUBNETS, RANGES, NftTableContents(before, POLICIES, ("192.0.2.53",)), BOTH
        ),
        port_rules.write_changes(
            NAMES, NftTableContents(before, POLICIES, ("192.0.2.53",)), NftTableContents(after), BOTH
        ),
    ):
        run("nft", "-f", "-", text=text)
    listed = run("nft", "list", "table", "ip", NAMES.table)
    assert re.findall(r"(\d+) : ([\d.]+) \. (\d+)", listed) == [
        ("80", "10.0.0.3", "80"),
        ("54", "10.0.0.3", "54"),
    ]
    listed6 = run("nft", "list", "table", "ip6", NAMES.table)
    assert re.findall(r"(\d+) : ([\da-f:]+) \. (\d+)", listed6) == [
        ("80", "fda8:5e7c:f8fa::a00:3", "80"),
        ("54", "fda8:5e7c:f8fa::a00:3", "54"),
    ]
    run("nft", "-f", "-", text=port_rules.write_removal(NAMES, BOTH))
    run("nft", "-f", "-", text=port_rules.write_removal(NAMES, BOTH))  # it is no error if there is none


@given(before=DOORS, after=DOORS)
def test_changed_ports_lead_from_one_map_to_the_next_in_both_families(
    before: dict[HostPort, ContainerPort], after: dict[HostPort, ContainerPort]
) -> None:
    changes = port_rules.element_changes(NAMES, NftTableContents(before), NftTableContents(after), BOTH)
    assert changes is not None
    for family, bytes_of_address in (("ip", 4), ("ip6", 16)):
        for protocol in Protocol:
            wanted = {port: target for (port, kind), (_, target) in after.items() if kind is protocol}
            ports = {port: target for (port, kind), (_, target) in before.items() if kind is protocol}
            for change in changes:
                if (change.family, change.name) != (family, f"{protocol}_ports"):
                    continue
                for key in change.removed:
                    del ports[int.from_bytes(key)]
                added = {int.from_bytes(each.key): each.data for each in change.added}
                assert not ports.keys() & added.keys()
                assert {len(data) - 4 for data in added.values()} <= {bytes_of_address}
                ports |= {port: int.from_bytes(data[-4:-2]) for port, data in added.items()}
            assert ports == wanted


def test_sets_of_intervals_and_jumps_are_changed_by_nft_alone() -> None:
    before = NftTableContents({(80, Protocol.TCP): (IPv4Address("10.0.0.2"), 80)}, POLICIES)
    cloud = CloudNetwork(subnets=(IPv4Network("10.9.0.0/24"),))
    assert port_rules.element_changes(NAMES, before, before, BOTH) == []
    assert port_rules.element_changes(NAMES, NftTableContents(), before, BOTH) != []
    assert port_rules.element_changes(NAMES, before, replace(before, cloud=cloud), BOTH) is None
