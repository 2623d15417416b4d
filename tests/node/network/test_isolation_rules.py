"""The text of the rules around those who are kept apart."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.node.network import isolation_rules
from skerry.node.network.isolation_rules import IsolatedAddresses
from skerry.node.network.rule_families import IPV6, table_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet, mac_of
from tests.node.network.machines import Ground, run

NAMES = KernelNames("0123abcd")
SUBNETS = BridgeSubnets(NodeSubnet("10.0.0.0/24"))
SUBNETS.has_ipv6 = True
BOTH = table_families(has_ipv6=True)
CLOUD = IPv4Network("198.51.100.0/24")
ADDRESSES = st.frozensets(st.integers(2, 254).map(lambda last: IPv4Address(f"10.0.0.{last}")), max_size=8)


def identity(address: IPv4Address) -> str:
    return f'"{NAMES.link(address)}" . {mac_of(address)} . {address}'


def read(text: str) -> frozenset[str]:
    """Whom the text of all tables keeps apart, if all of their sets agree."""
    text, _, of_ipv6 = text.partition(f"table ip6 {NAMES.isolation_table} {{")
    sets = dict(re.findall(r"set (\w+) { type [^;]+; elements = { (.*?) } }", text))
    guests6 = dict(re.findall(r"set (\w+) { type [^;]+; elements = { (.*?) } }", of_ipv6)).get("guests", "")
    expected6 = [IPV6.address(IPv4Address(each)) for each in sets.get("guests", "").split(", ") if each]
    assert guests6 == ", ".join(expected6)
    identities6 = [each.split(" . ")[2] for each in sets.get("identities6", "").split(", ") if each]
    assert identities6 == expected6
    identities = frozenset(sets.get("identities", "").split(", ")) - {""}
    for name, pick in (("links", (0,)), ("addresses", (0, 2)), ("guests", (2,))):
        reported = frozenset(sets.get(name, "").split(", ")) - {""}
        assert reported == {" . ".join(each.split(" . ")[part] for part in pick) for each in identities}
    return identities


def apply(before: frozenset[str], changes: str) -> frozenset[str]:
    """As nft would: an element is deleted only if it is there, and added only if it is not."""
    after = set(before)
    for verb, elements in re.findall(
        r"(add|delete) element bridge skerry_0123abcd_apart identities { (.*) }", changes
    ):
        for element in elements.split(", "):
            assert (element in after) == (verb == "delete")
            after ^= {element}
    return frozenset(after)


@given(ADDRESSES)
def test_the_tables_keep_apart_whom_they_were_told_and_nobody_else(addresses: frozenset[IPv4Address]) -> None:
    text = isolation_rules.write_tables(NAMES, SUBNETS, [CLOUD], IsolatedAddresses(addresses))
    assert read(text) == set(map(identity, addresses))


@given(ADDRESSES, ADDRESSES)
def test_changes_lead_from_some_to_others(
    before: frozenset[IPv4Address], after: frozenset[IPv4Address]
) -> None:
    changes = isolation_rules.write_changes(NAMES, before, after, BOTH)
    assert apply(frozenset(map(identity, before)), changes) == set(map(identity, after))


@given(ADDRESSES)
def test_without_a_change_there_is_nothing_to_do(addresses: frozenset[IPv4Address]) -> None:
    assert isolation_rules.write_changes(NAMES, addresses, addresses, BOTH) == ""


@pytest.mark.root
def test_nft_takes_the_tables_the_changes_and_the_removal(ground: Ground) -> None:
    before = frozenset({IPv4Address("10.0.0.2"), IPv4Address("10.0.0.3")})
    after = frozenset({IPv4Address("10.0.0.3"), IPv4Address("10.0.0.4")})
    isolated = IsolatedAddresses(before, ("10.0.0.1", "192.0.2.9"))
    for text in (
        isolation_rules.write_tables(NAMES, SUBNETS, [CLOUD, IPv4Network("10.64.0.0/10")], isolated),
        isolation_rules.write_tables(NAMES, SUBNETS, [], isolated),
        isolation_rules.write_changes(NAMES, before, after, BOTH),
    ):
        run("nft", "-f", "-", text=text)
    listed = run("nft", "list", "set", "bridge", NAMES.isolation_table, "identities")
    assert set(re.findall(r'"\w+" \. [\w:]+ \. [\d.]+', listed)) == set(map(identity, after))
    assert "10.0.0.3, 10.0.0.4" in run("nft", "list", "set", "ip", NAMES.isolation_table, "guests")
    run("nft", "-f", "-", text=isolation_rules.write_removal(NAMES, BOTH))
    run("nft", "-f", "-", text=isolation_rules.write_removal(NAMES, BOTH))  # it is no error if there is none
