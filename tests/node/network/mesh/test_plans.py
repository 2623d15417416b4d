"""What the interface of a node should be: who gets which addresses, and the texts for `wg`."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.ids import NodeId
from skerry.model.mesh import MeshPeer, probe_address
from skerry.node.network.mesh import plans

A, B, R = NodeId("a"), NodeId("b"), NodeId("r")
SUBNETS = {A: "10.64.1.0/24", B: "10.64.2.0/24", R: "10.64.3.0/24"}


def key(node: str, number: int = 0) -> str:
    return f"{node}{number}".ljust(43, "A") + "="


def peer(node: NodeId, via: NodeId | None = None, **more: object) -> MeshPeer:
    endpoints = (f"192.0.2.{ord(node)}:51825",)
    return MeshPeer(node, node, key(node), (SUBNETS[node],), endpoints, via=via, **more)  # type: ignore[arg-type]


def subnets(configs: list[plans.PeerConfig]) -> dict[str, set[str]]:
    return {config.public_key: set(map(str, config.subnets)) for config in configs}


def test_a_relayed_peer_keeps_its_link_and_its_subnets_go_to_the_relay() -> None:
    configs = plans.decide({A: peer(A), B: peer(B, via=R), R: peer(R)}, {}, [])
    assert subnets(configs) == {
        key("a"): {SUBNETS[A]},
        key("b"): set(),
        key("r"): {SUBNETS[B], SUBNETS[R]},
    }
    assert {config.allowed[0] for config in configs} == {f"{probe_address(node)}/128" for node in (A, B, R)}
    assert plans.routes(configs) == {IPv4Network(text) for text in SUBNETS.values()}


def test_a_relay_that_is_not_known_is_not_used() -> None:
    assert subnets(plans.decide({B: peer(B, via=R)}, {}, [])) == {key("b"): {SUBNETS[B]}}


def test_subnets_that_the_machine_reaches_otherwise_stay_there() -> None:
    configs = plans.decide({A: peer(A), B: peer(B)}, {}, [IPv4Network("10.64.1.128/25")])
    assert plans.routes(configs) == {IPv4Network(SUBNETS[B])}


@pytest.mark.parametrize("active", [0, 1])
def test_of_a_node_that_replaces_its_key_the_one_in_use_has_the_addresses(active: int) -> None:
    peers = {A: peer(A, next_key=key("a", 1))}
    configs = plans.decide(peers, {A: key("a", active)}, [])
    assert [config.public_key for config in configs] == [key("a", active), key("a", 1 - active)]
    assert configs[0].allowed == (f"{probe_address(A)}/128", SUBNETS[A])
    assert configs[1].allowed == ()


@given(
    st.dictionaries(
        st.sampled_from([NodeId(f"n{number}") for number in range(8)]),
        st.tuples(
            st.lists(st.integers(0, 15).map(lambda number: f"10.64.{number}.0/24"), max_size=3),
            st.none() | st.sampled_from([NodeId(f"n{number}") for number in range(10)]),
        ),
        max_size=8,
    )
)
def test_no_address_belongs_to_two_peers(found: dict[NodeId, tuple[list[str], NodeId | None]]) -> None:
    peers = {
        node: MeshPeer(node, node, key(node), tuple(some), via=via) for node, (some, via) in found.items()
    }
    configs = plans.decide(peers, {}, [])
    given_away = [address for config in configs for address in config.allowed]
    assert len(given_away) == len(set(given_away))
    assert {config.node for config in configs} == peers.keys()
    everything = {text for some, _ in found.values() for text in some}
    assert {str(network) for network in plans.routes(configs)} == everything


def test_the_text_for_wg_leaves_endpoints_of_known_peers_as_they_are() -> None:
    configs = plans.decide({A: peer(A), B: peer(B)}, {}, [])
    text = plans.write_wireguard("secret", 51825, configs, {key("a")})
    assert text.count("[Peer]") == 2
    assert "Endpoint = 192.0.2.98:51825" in text
    assert "192.0.2.97" not in text
    assert "PrivateKey = secret\nListenPort = 51825" in text


def test_the_status_of_wg_is_read() -> None:
    text = (
        "cHJpdmF0ZQ==\tcHVibGlj\t51825\toff\n"
        f"{key('a')}\t(none)\t192.0.2.9:33000\t10.64.1.0/24,fd53::1/128\t1700000000\t120\t240\t20\n"
        f"{key('b')}\t(none)\t(none)\t(none)\t0\t0\t0\toff\n"
    )
    port, found = plans.read_dump(text)
    assert port == 51825
    assert found == {
        key("a"): plans.PeerStatus(key("a"), "192.0.2.9:33000", 1700000000.0, 120, 240),
        key("b"): plans.PeerStatus(key("b")),
    }
    assert plans.read_dump("") == (0, {})


def test_a_node_is_unreachable_if_its_link_or_that_of_its_relay_is_down() -> None:
    peers = {A: peer(A), B: peer(B, via=R), R: peer(R)}
    assert plans.unreachable(peers, {A: True, B: False, R: True}) == set()
    assert plans.unreachable(peers, {A: None, B: True, R: False}) == {B, R}
    assert plans.unreachable(peers, {A: False}) == {A}
    assert plans.unreachable({B: peer(B, via=R)}, {B: False}) == {B}
