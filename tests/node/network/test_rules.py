"""The text of the rules: what is published is in it once, and changes lead from one table to the next."""

from __future__ import annotations

import re
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.ports import Protocol
from skerry.node.network import rules
from skerry.node.network.rules import Door, Room
from skerry.node.network.subnets import Names, Subnet
from tests.node.network.machines import Ground, mappings, needs_root, run

NAMES = Names("0123abcd")
SUBNET = Subnet("10.0.0.0/24")
PORTS = st.integers(1, 65535)
DOORS = st.dictionaries(
    st.tuples(PORTS, st.sampled_from(Protocol)),
    st.tuples(st.integers(2, 254).map(lambda last: IPv4Address(f"10.0.0.{last}")), PORTS),
    max_size=8,
)


def read(text: str) -> dict[Door, Room]:
    """The doors that a text of rules fills its maps with."""
    found: dict[Door, Room] = {}
    for protocol in Protocol:
        for body in re.findall(rf"map {protocol}_ports {{(.*?)\n  }}", text, flags=re.S):
            for port, address, inner in re.findall(r"(\d+) : ([\d.]+) \. (\d+)", body):
                assert (int(port), protocol) not in found
                found[int(port), protocol] = (IPv4Address(address), int(inner))
    return found


def apply(doors: dict[Door, Room], changes: str) -> dict[Door, Room]:
    """As nft would: an element is deleted only if it is there, and added only if it is not."""
    after = dict(doors)
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
def test_the_table_publishes_what_it_was_told_and_nothing_else(doors: dict[Door, Room]) -> None:
    assert read(rules.write_table(NAMES, SUBNET, doors)) == doors


@given(DOORS, DOORS)
def test_changes_lead_from_one_table_to_the_other(before: dict[Door, Room], after: dict[Door, Room]) -> None:
    assert apply(before, rules.write_changes(NAMES, before, after)) == after


@given(DOORS)
def test_without_a_change_there_is_nothing_to_do(doors: dict[Door, Room]) -> None:
    assert rules.write_changes(NAMES, doors, dict(doors)) == ""


def test_mappings_become_doors_to_one_address() -> None:
    address = IPv4Address("10.0.0.2")
    assert rules.doors_of(address, mappings("8080:80", "8080:53/udp")) == {
        (8080, Protocol.TCP): (address, 80),
        (8080, Protocol.UDP): (address, 53),
    }


@needs_root
@pytest.mark.root
def test_nft_takes_the_table_the_changes_and_the_removal(ground: Ground) -> None:
    before = rules.doors_of(IPv4Address("10.0.0.2"), mappings("80", "53/udp", "443"))
    after = rules.doors_of(IPv4Address("10.0.0.3"), mappings("80", "54/udp"))
    for text in (
        rules.write_table(NAMES, SUBNET, {}),
        rules.write_table(NAMES, SUBNET, before),
        rules.write_changes(NAMES, before, after),
    ):
        run("nft", "-f", "-", text=text)
    listed = run("nft", "list", "table", "ip", NAMES.table)
    assert re.findall(r"(\d+) : ([\d.]+) \. (\d+)", listed) == [
        ("80", "10.0.0.3", "80"),
        ("54", "10.0.0.3", "54"),
    ]
    run("nft", "-f", "-", text=rules.write_removal(NAMES))
    run("nft", "-f", "-", text=rules.write_removal(NAMES))  # it is no error if there is none
