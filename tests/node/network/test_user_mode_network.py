"""The network between the containers of an ordinary user and the machine's."""

from __future__ import annotations

from ipaddress import IPv4Network

from skerry.node.network.user_mode_network import choose_network


def test_a_network_is_chosen_that_this_machine_does_not_use() -> None:
    assert choose_network([]) == IPv4Network("192.0.2.0/24")
    assert choose_network([IPv4Network("192.0.2.128/25")]) == IPv4Network("198.51.100.0/24")
    every = [IPv4Network("192.0.0.0/16"), IPv4Network("198.51.100.0/24"), IPv4Network("203.0.113.7/32")]
    assert choose_network(every) == IPv4Network("192.0.2.0/24")
