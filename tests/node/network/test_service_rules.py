"""The text of the rules of virtual addresses: changes lead from one table to the next."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.model.network_objects import ServicePort
from skerry.model.ports import Protocol
from skerry.node.network import service_rules
from skerry.node.network.rule_families import IPV6
from skerry.node.network.service_rules import (
    BalancedService,
    ServiceTableBase,
    ServiceTableContents,
    compile_service,
)
from skerry.node.network.subnets import KernelNames
from tests.node.network.machines import Ground, run

NAMES = KernelNames("0123abcd")
BASE = ServiceTableBase(("10.63.0.0/16",), "02:53:0a:63:00:01", has_ipv6=True)
COPIES = st.dictionaries(
    st.integers(2, 9).map(lambda last: f"10.64.0.{last}"), st.integers(1, 9), min_size=1, max_size=4
)
PORTS = st.lists(
    st.builds(ServicePort, st.integers(1, 5), st.sampled_from([0, 8080]), st.sampled_from(Protocol)),
    max_size=3,
    unique_by=lambda port: (port.port, port.protocol),
).map(tuple)
SERVICES = st.lists(
    st.builds(
        BalancedService,
        st.integers(1, 5).map(lambda last: f"10.63.0.{last}"),
        COPIES,
        PORTS,
        st.sampled_from([0, 60, 600]),
    ),
    unique_by=lambda service: service.address,
    max_size=4,
)
CONTENTS = st.builds(
    lambda services, local: ServiceTableContents(
        {each.address: compile_service(each) for each in services},
        frozenset(local),
        {each.address: compile_service(each, IPV6) for each in services},
    ),
    SERVICES,
    st.sets(st.integers(2, 9).map(lambda last: f"10.64.0.{last}")),
)


def ranges(rule: str) -> dict[str, int]:
    """How many numbers lead to each copy."""
    found = {}
    for first, last, copy in re.findall(r"(\d+)(?:-(\d+))? : ([\d.]+)", rule):
        found[copy] = int(last or first) - int(first) + 1
    return found


@given(COPIES)
def test_every_copy_has_as_many_numbers_as_its_weight_and_each_number_leads_somewhere(weights) -> None:
    objects = compile_service(BalancedService("10.63.0.1", weights))
    ((rule,),) = objects.chains.values()
    if len(weights) == 1:
        assert rule.endswith(f"dnat ip to {next(iter(weights))}")
    else:
        assert f"mod {sum(weights.values())} " in rule
        assert ranges(rule) == weights


def test_a_service_without_ready_copies_is_nothing() -> None:
    assert compile_service(BalancedService("10.63.0.1", {})) == service_rules.NO_OBJECTS


def test_equal_tables_need_no_change_and_one_service_changes_alone() -> None:
    web, shop = (compile_service(BalancedService(f"10.63.0.{n}", {"10.64.0.2": 1})) for n in (1, 2))
    more = compile_service(BalancedService("10.63.0.1", {"10.64.0.2": 1, "10.64.0.3": 1}))
    before = ServiceTableContents({"web": web, "shop": shop})
    assert service_rules.write_changes(NAMES, before, before, BASE.families) == ""
    text = service_rules.write_changes(
        NAMES, before, ServiceTableContents({"web": more, "shop": shop}), BASE.families
    )
    assert [line.split()[:2] for line in text.splitlines()] == [["flush", "chain"], ["add", "rule"]]
    assert "0a3f0002" not in text


def listed() -> tuple[list[str], dict[str, list[str]]]:
    """The tables as the kernel has them: sets and chains, which are in no order, and rules by chain."""
    objects: list[str] = []
    rules: dict[str, list[str]] = {}
    for entry in json.loads(run("nft", "-js", "list", "ruleset"))["nftables"]:
        ((kind, value),) = entry.items()
        value.pop("handle", None)
        value["elem"] = sorted(map(json.dumps, value.get("elem", ())))
        if kind == "rule":
            rules.setdefault(f"{value['family']} {value['chain']}", []).append(json.dumps(value))
        else:
            objects.append(json.dumps(entry))
    return sorted(objects), rules


@pytest.mark.root
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=CONTENTS, after=CONTENTS)
def test_changes_make_of_one_table_what_would_be_written_as_a_whole(
    ground: Ground, before: ServiceTableContents, after: ServiceTableContents
) -> None:
    try:
        run("nft", "-f", "-", text=service_rules.write_tables(NAMES, BASE, before))
        if text := service_rules.write_changes(NAMES, before, after, BASE.families):
            run("nft", "-f", "-", text=text)
        changed = listed()
        run("nft", "-f", "-", text=service_rules.write_tables(NAMES, BASE, after))
        assert changed == listed()
    finally:
        run("nft", "-f", "-", text=service_rules.write_removal(NAMES, *BASE.families))
