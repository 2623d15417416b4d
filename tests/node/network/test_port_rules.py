"""The text of the rules: what is published is in it once, and changes lead from one table to the next."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.ports import Protocol
from skerry.node.network import port_rules
from skerry.node.network.port_rules import AddressRanges, ContainerPort, HostPort, NftTableContents
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet
from tests.node.network.machines import Ground, mappings, needs_root, run

NAMES = KernelNames("0123abcd")
SUBNETS = BridgeSubnets(NodeSubnet("10.0.0.0/24"))
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
        read(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), NftTableContents(host_ports)))
        == host_ports
    )


@given(DOORS, DOORS)
def test_changes_lead_from_one_table_to_the_other(
    before: dict[HostPort, ContainerPort], after: dict[HostPort, ContainerPort]
) -> None:
    assert (
        apply(before, port_rules.write_changes(NAMES, NftTableContents(before), NftTableContents(after)))
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
    changes = port_rules.write_changes(NAMES, before, after)
    sets = members(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), before))
    for verb, name, elements in re.findall(r"(add|delete) element (\w+ \w+ \w+) { (.*) }", changes):
        for element in elements.split(", "):
            assert (element.split(" : ")[0] in sets[name]) == (verb == "delete")
            sets[name] ^= {element.split(" : ")[0]}
    assert sets == members(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), after))


@given(HELD)
def test_a_kernel_without_rules_for_bridges_is_given_none(policies: dict[IPv4Address, NetworkPolicy]) -> None:
    contents = NftTableContents(policies=policies)
    for text in (
        port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), contents, has_bridge_family=False),
        port_rules.write_changes(NAMES, NftTableContents(), contents, has_bridge_family=False),
        port_rules.write_removal(NAMES, has_bridge_family=False),
    ):
        assert "bridge skerry" not in text


@given(DOORS)
def test_without_a_change_there_is_nothing_to_do(host_ports: dict[HostPort, ContainerPort]) -> None:
    assert (
        port_rules.write_changes(NAMES, NftTableContents(host_ports), NftTableContents(dict(host_ports)))
        == ""
    )


def test_mappings_become_doors_to_one_address() -> None:
    address = IPv4Address("10.0.0.2")
    assert port_rules.published_ports(address, mappings("8080:80", "8080:53/udp")) == {
        (8080, Protocol.TCP): (address, 80),
        (8080, Protocol.UDP): (address, 53),
    }


@needs_root
@pytest.mark.root
def test_nft_takes_the_table_the_changes_and_the_removal(ground: Ground) -> None:
    before = port_rules.published_ports(IPv4Address("10.0.0.2"), mappings("80", "53/udp", "443"))
    after = port_rules.published_ports(IPv4Address("10.0.0.3"), mappings("80", "54/udp"))
    for text in (
        port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), NftTableContents()),
        port_rules.write_tables(NAMES, SUBNETS, RANGES, NftTableContents(before, POLICIES, ("192.0.2.53",))),
        port_rules.write_changes(
            NAMES, NftTableContents(before, POLICIES, ("192.0.2.53",)), NftTableContents(after)
        ),
    ):
        run("nft", "-f", "-", text=text)
    listed = run("nft", "list", "table", "ip", NAMES.table)
    assert re.findall(r"(\d+) : ([\d.]+) \. (\d+)", listed) == [
        ("80", "10.0.0.3", "80"),
        ("54", "10.0.0.3", "54"),
    ]
    run("nft", "-f", "-", text=port_rules.write_removal(NAMES))
    run("nft", "-f", "-", text=port_rules.write_removal(NAMES))  # it is no error if there is none
