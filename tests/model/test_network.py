"""The egress of namespaces, as a setting says it, and policies of one container."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.network import (
    UNRESTRICTED,
    Egress,
    Ingress,
    NamespaceEgress,
    NetworkAccess,
    NetworkPolicy,
    strictest,
)
from skerry.model.network_policies import EgressChoice

SHOP = Namespace("shop")


def test_a_namespace_reaches_everything_unless_it_is_said_otherwise() -> None:
    assert UNRESTRICTED.of(SHOP) is Egress.ALL
    rules = NamespaceEgress.parse(["shop=internet"])
    assert (rules.of(SHOP), rules.of(DEFAULT_NAMESPACE)) == (Egress.INTERNET, Egress.ALL)


def test_a_star_stands_for_every_other_namespace() -> None:
    rules = NamespaceEgress.parse(["*=internet", "shop=all"])
    assert (rules.of(SHOP), rules.of(DEFAULT_NAMESPACE)) == (Egress.ALL, Egress.INTERNET)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["shop"], "write NAMESPACE=EGRESS"),
        (["shop=closed"], "write NAMESPACE=EGRESS"),
        (["=internet"], "namespace"),
        (["Shop=internet"], "namespace 'Shop' must be"),
        (["shop=internet", "shop=all"], "named twice"),
    ],
)
def test_what_is_no_rule_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        NamespaceEgress.parse(texts)


def test_every_egress_is_a_part_of_the_one_before() -> None:
    assert [each.value for each in Egress] == ["all", "internet", "mesh", "none"]
    assert Egress.ALL.exceeds(Egress.NONE)
    assert not Egress.MESH.exceeds(Egress.MESH)
    assert strictest(Egress.INTERNET, None, Egress.MESH) is Egress.MESH
    assert strictest(Egress.NONE, Egress.ALL) is Egress.NONE


def test_a_choice_counts_if_it_is_stricter_or_granted() -> None:
    assert EgressChoice(Egress.ALL).within(Egress.MESH) is Egress.MESH
    assert EgressChoice(Egress.NONE).within(Egress.MESH) is Egress.NONE
    assert EgressChoice(Egress.ALL, is_granted=True).within(Egress.MESH) is Egress.ALL


def test_isolation_never_opens_what_only_the_node_may_call() -> None:
    access = NetworkAccess(Egress.MESH, "shop", is_isolated=True)
    assert access.policy(Ingress.ALL) == NetworkPolicy(Ingress.NAMESPACE, Egress.MESH, "shop")
    assert access.policy(Ingress.NODE).ingress is Ingress.NODE
    # Namespaces of containers are prepared before their owner is known.
    assert access.policy(Ingress.ALL).shared == NetworkPolicy(egress=Egress.MESH)
