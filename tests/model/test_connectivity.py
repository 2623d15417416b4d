"""Explanations of connections that need no kernel: guests, nodes, and what comes from outside."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from msgspec.structs import replace

from skerry.model import connectivity
from skerry.model.connectivity import (
    ConnectionRequest,
    ConnectionRule,
    EndpointKind,
    NetworkEndpoint,
    PublishedPort,
    ReservedNetworks,
)
from skerry.model.ids import Namespace
from skerry.model.network import Egress, Ingress
from skerry.model.network_policies import NamespacePolicy
from skerry.model.ports import PortMapping, Protocol, parse

SHOP, LAB = Namespace("shop"), Namespace("lab")
DB = NetworkEndpoint(
    "shop/db", EndpointKind.CONTAINER, "10.64.1.2", "a", SHOP, Ingress.NAMESPACE, ports=(parse("8080:80"),)
)
TOOL = NetworkEndpoint("lab/tool", EndpointKind.CONTAINER, "10.64.2.2", "b", LAB)
NODE_A, NODE_B = (NetworkEndpoint(f"node {name}", EndpointKind.NODE, node=name) for name in "ab")
INTERNET = NetworkEndpoint("internet")
NETWORKS = ReservedNetworks((IPv4Network("169.254.0.0/16"),), (IPv4Network("10.0.0.0/8"),))
ISOLATED = NamespacePolicy(True, (Namespace("front"),))


def decide(source: NetworkEndpoint, destination: NetworkEndpoint, port: int = 80) -> tuple[bool, str, str]:
    def published(node: str, wanted: int, protocol: Protocol) -> PublishedPort | None:
        return PublishedPort(DB, PortMapping(8080, 80)) if (node, wanted) == ("a", 8080) else None

    verdict = connectivity.explain(
        ConnectionRequest(source, destination, port), lambda namespace: ISOLATED, published, NETWORKS
    )
    return verdict.is_allowed, verdict.rule, verdict.node


FUNCTION = replace(TOOL, name="worker", ingress=Ingress.NODE)
GUEST = replace(TOOL, name="guest", is_guest=True)


@pytest.mark.parametrize(
    ("source", "destination", "port", "expected"),
    [
        (TOOL, DB, 80, (False, ConnectionRule.NAMESPACE_POLICY, "a")),
        (replace(TOOL, namespace=Namespace("front")), DB, 80, (True, ConnectionRule.NAMESPACE_POLICY, "a")),
        (replace(TOOL, namespace=SHOP), DB, 80, (True, ConnectionRule.NAMESPACE_POLICY, "a")),
        (DB, TOOL, 80, (True, ConnectionRule.OPEN, "b")),
        (DB, DB, 80, (True, ConnectionRule.OPEN, "a")),
        (NODE_B, DB, 80, (True, ConnectionRule.OPEN, "a")),
        (INTERNET, DB, 80, (True, ConnectionRule.PUBLISHED, "a")),
        (INTERNET, DB, 81, (False, ConnectionRule.NOT_PUBLISHED, "a")),
        (INTERNET, NODE_A, 8080, (True, ConnectionRule.PUBLISHED, "a")),
        # Its own node sends it out with that node's address.
        (TOOL, NODE_A, 8080, (True, ConnectionRule.PUBLISHED, "a")),
        (replace(TOOL, node="a"), NODE_A, 8080, (False, ConnectionRule.NAMESPACE_POLICY, "a")),
        (TOOL, NODE_A, 22, (True, ConnectionRule.OPEN, "a")),
        (replace(TOOL, egress=Egress.INTERNET), NODE_A, 8080, (False, ConnectionRule.EGRESS, "b")),
        (replace(TOOL, egress=Egress.MESH), INTERNET, 443, (False, ConnectionRule.EGRESS, "b")),
        (replace(TOOL, egress=Egress.NONE), DB, 80, (False, ConnectionRule.EGRESS, "b")),
        (TOOL, FUNCTION, 80, (True, ConnectionRule.OPEN, "b")),  # it is itself, by its address
        (DB, FUNCTION, 80, (False, ConnectionRule.FUNCTION, "b")),
        (NODE_B, FUNCTION, 80, (True, ConnectionRule.OPEN, "b")),
        (NODE_A, FUNCTION, 80, (False, ConnectionRule.FUNCTION, "b")),
        (DB, GUEST, 80, (False, ConnectionRule.GUEST, "b")),
        (GUEST, DB, 80, (False, ConnectionRule.GUEST, "b")),
        (GUEST, INTERNET, 443, (True, ConnectionRule.OPEN, "b")),
        (TOOL, replace(DB, address=""), 80, (False, ConnectionRule.NOT_RUNNING, "a")),
        (TOOL, replace(DB, is_node_live=False), 80, (False, ConnectionRule.NODE_AWAY, "a")),
        (TOOL, NetworkEndpoint("s", EndpointKind.SERVICE), 80, (False, ConnectionRule.NOT_READY, "")),
        (TOOL, NetworkEndpoint("x", address="169.254.169.254"), 80, (False, ConnectionRule.METADATA, "b")),
    ],
)
def test_a_connection_is_decided_by_the_first_rule_that_it_meets(
    source: NetworkEndpoint, destination: NetworkEndpoint, port: int, expected: tuple[bool, str, str]
) -> None:
    assert decide(source, destination, port) == expected
