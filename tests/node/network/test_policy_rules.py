"""Rules of policies: changes lead from one table to the next, and what is not known is admitted nowhere."""

from __future__ import annotations

import itertools
import json
import re
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.network_objects import InstanceAddress, NodeLocation, ServiceAddress, ServiceEndpoint
from skerry.model.network_policies import IsolatedNamespace
from skerry.model.ports import Protocol
from skerry.node.network import nft_elements, policy_rules, port_rules
from skerry.node.network.cloud_network import compile_cloud
from skerry.node.network.policy_rules import CloudNetwork
from skerry.node.network.port_rules import AddressRanges, ContainerPort, HostPort, NftTableContents
from skerry.node.network.rule_families import table_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet
from tests.node.network import machines
from tests.node.network.machines import run

NAMES = KernelNames("0123abcd")
SUBNETS = BridgeSubnets(NodeSubnet("10.0.0.0/24"))
BOTH = table_families(has_ipv6=True)
NAMESPACES = ("a", "shop", "with-a-dash")
HERE = st.integers(2, 60).map(lambda last: IPv4Address(f"10.0.0.{last}"))
AWAY = st.integers(2, 60).map(lambda last: IPv4Address(f"10.0.{last % 3 + 1}.{last}"))
NAMES_OF = st.sampled_from(NAMESPACES)
POLICIES = st.dictionaries(
    HERE,
    st.builds(NetworkPolicy, st.sampled_from(Ingress), st.sampled_from(Egress), NAMES_OF),
    max_size=6,
)
OTHERS = st.dictionaries(
    HERE,
    st.builds(NetworkPolicy, st.sampled_from([Ingress.ALL, Ingress.NODE]), st.sampled_from(Egress), NAMES_OF),
    max_size=6,
)
CLOUDS = st.builds(
    CloudNetwork,
    st.sets(st.sampled_from([IPv4Network(f"10.0.{each}.0/24") for each in (1, 2, 3)])).map(
        lambda found: tuple(sorted(found))
    ),
    st.frozensets(st.integers(1, 9).map(lambda last: IPv4Address(f"10.63.0.{last}"))),
    st.dictionaries(NAMES_OF, st.frozensets(NAMES_OF)),
    st.dictionaries(NAMES_OF, st.frozensets(AWAY, max_size=4)),
)
CONTENTS = st.builds(
    lambda policies, cloud: NftTableContents(policies=policies, cloud=cloud), POLICIES, CLOUDS
)
SET = re.compile(r"^  (?:set|map) ([\w-]+) {(?:.*elements = { (.*) })? *.*}$", flags=re.M)


def sets_of(text: str) -> dict[str, set[str]]:
    """The elements of every set and map of the tables `ip` and `ip6`, by family and name."""
    found = {}
    for family in ("ip", "ip6"):
        body = text[text.index(f"table {family} skerry_0123abcd {{") :].partition("\n}\n")[0]
        for name, filled in SET.findall(body):
            found[f"{family} {name}"] = set(filter(None, filled.split(", ")))
    return found


@given(CONTENTS, OTHERS, CLOUDS)
def test_changes_lead_from_one_table_to_the_other(
    before: NftTableContents, others: dict[IPv4Address, NetworkPolicy], cloud: CloudNetwork
) -> None:
    isolated = {
        address: policy for address, policy in before.policies.items() if policy.ingress is Ingress.NAMESPACE
    }
    after = NftTableContents(policies=others | isolated, cloud=cloud)
    assert port_rules.has_same_chains(before, after)
    sets = sets_of(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), before, BOTH))
    changes = port_rules.write_changes(NAMES, before, after, BOTH)
    for verb, family, set_name, elements in re.findall(
        r"(add|delete) element (ip6?) \w+ ([\w-]+) { (.*) }", changes
    ):
        found, name = set(elements.split(", ")), f"{family} {set_name}"
        assert found <= sets[name] if verb == "delete" else not found & sets[name]
        sets[name] ^= found
    assert sets == sets_of(port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), after, BOTH))


@pytest.mark.root
@settings(max_examples=8, deadline=None)
@given(contents=st.lists(CONTENTS, min_size=2, max_size=3))
def test_nft_takes_every_table_and_every_change(
    tmp_path_factory: pytest.TempPathFactory, contents: list[NftTableContents]
) -> None:
    with machines.machine(tmp_path_factory.mktemp("machine")):
        for before, after in itertools.pairwise(contents):
            run("nft", "-f", "-", text=port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), before, BOTH))
            if port_rules.has_same_chains(before, after):
                run("nft", "-f", "-", text=port_rules.write_changes(NAMES, before, after, BOTH))


def elements_in_kernel() -> dict[tuple[str, str], set[str]]:
    listing = json.loads(run("nft", "-j", "list", "ruleset"))["nftables"]
    sets = [each[kind] for each in listing for kind in ("set", "map") if kind in each]
    return {(one["family"], one["name"]): set(map(json.dumps, one.get("elem", []))) for one in sets}


@pytest.mark.root
@settings(max_examples=8, deadline=None)
@given(
    before=OTHERS,
    after=OTHERS,
    ports=st.dictionaries(
        st.tuples(st.integers(1, 65535), st.sampled_from(Protocol)), st.tuples(HERE, st.integers(1, 65535))
    ),
)
def test_what_is_changed_without_nft_is_what_nft_would_have_written(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[IPv4Address, NetworkPolicy],
    after: dict[IPv4Address, NetworkPolicy],
    ports: dict[HostPort, ContainerPort],
) -> None:
    old, new = NftTableContents(policies=before), NftTableContents(ports, after)
    with machines.machine(tmp_path_factory.mktemp("machine")):
        for one, other in ((old, new), (new, old)):
            run("nft", "-f", "-", text=port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), one, BOTH))
            changes = port_rules.element_changes(NAMES, one, other, BOTH)
            assert changes is not None
            nft_elements.apply(NAMES.table, changes)
            changed = elements_in_kernel()
            run("nft", "-f", "-", text=port_rules.write_tables(NAMES, SUBNETS, AddressRanges(), other, BOTH))
            assert changed == elements_in_kernel()


@given(CONTENTS)
def test_only_members_and_those_allowed_are_admitted(contents: NftTableContents) -> None:
    policies, cloud = contents.policies, contents.cloud
    for namespace in policy_rules.isolated_namespaces(policies):
        allowed = {namespace, *cloud.allow_from.get(namespace, ())}
        for address in policy_rules.admitted_sources(namespace, policies, cloud):
            owners = (
                {policies[address].namespace}
                if address in policies
                else {owner for owner, found in cloud.containers.items() if address in found}
            )
            assert owners & allowed


def endpoint(instance: str, node: str, address: str) -> ServiceEndpoint:
    return ServiceEndpoint(InstanceId(instance), NodeId(node), address)


def test_addresses_of_other_nodes_are_taken_only_from_the_subnets_of_their_nodes() -> None:
    shop = Namespace("shop")
    cloud = compile_cloud(
        [IPv4Network("10.0.0.0/24")],
        [
            NodeLocation(NodeId("me"), "me", subnets=("10.0.0.0/24",)),
            NodeLocation(NodeId("b"), "b", subnets=("10.0.1.0/24", "no network")),
            NodeLocation(NodeId("c"), "c", subnets=("10.0.1.128/25",)),  # overlaps, and so is not taken
        ],
        [
            ServiceAddress(
                ServiceId("s"),
                "web",
                shop,
                "10.63.0.1",
                endpoints=(
                    endpoint("i1", "b", "10.0.1.5"),
                    endpoint("i2", "b", "10.0.0.7"),  # this node's: its attachments say whose it is
                    endpoint("i3", "c", "10.0.1.6"),  # of another node's subnet
                    endpoint("i4", "unknown", "10.0.2.5"),
                    endpoint("i5", "b", ""),
                ),
            ),
            ServiceAddress(ServiceId("t"), "later", shop),
        ],
        [
            InstanceAddress(Namespace("lab"), endpoint("i6", "b", "10.0.1.9")),
            InstanceAddress(Namespace("open"), endpoint("i7", "b", "10.0.1.10")),  # nobody isolated allows it
        ],
        [IsolatedNamespace(shop, (Namespace("lab"),))],
    )
    assert cloud == CloudNetwork(
        (IPv4Network("10.0.1.0/24"),),
        frozenset({IPv4Address("10.63.0.1")}),
        {"shop": frozenset({"lab"})},
        {"shop": frozenset({IPv4Address("10.0.1.5")}), "lab": frozenset({IPv4Address("10.0.1.9")})},
    )
