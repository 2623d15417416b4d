"""What a buyer sends of its network reaches that of the guest if it is right, and not too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, NodeLocation, ServiceSubnet
from skerry.model.node_messages import NetworkUpdate
from skerry.model.offline_tokens import TokenKey
from skerry.node.guest_networks.networks import GuestNetwork
from skerry.node.guests import network_feed
from skerry.node.guests.network_feed import GuestNetworkFeed

SUBNET = ServiceSubnet("10.63.0.0/16")


class FakeNetwork:
    """The network of a guest."""

    def __init__(self) -> None:
        self.updates: list[NetworkUpdate] = []
        self.has_ended = False
        self.reports: Callable[[tuple[NetworkObject, ...]], None] = lambda objects: None

    def apply(self, update: NetworkUpdate) -> None:
        self.updates.append(update)

    def end_session(self) -> None:
        self.has_ended = True


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork()


@pytest.fixture
def feed(network: FakeNetwork) -> GuestNetworkFeed:
    made = GuestNetworkFeed()
    made.use(cast(GuestNetwork, network))
    return made


def location(name: str, area: str = "") -> NodeLocation:
    return NodeLocation(NodeId(name), name, area)


def test_objects_of_the_mesh_are_passed_on_and_others_are_not(
    feed: GuestNetworkFeed, network: FakeNetwork
) -> None:
    gone = (NetworkKey("node", "b"),)
    feed.apply(NetworkUpdate(True, (SUBNET, TokenKey("1", "x")), gone))
    assert network.updates == [NetworkUpdate(True, (SUBNET,), gone)]


def test_nothing_of_an_update_with_something_wrong_is_passed_on(
    feed: GuestNetworkFeed, network: FakeNetwork
) -> None:
    with pytest.raises(errors.Invalid):
        feed.apply(NetworkUpdate(True, (SUBNET, ServiceSubnet("10.63.0.0/16 }"))))
    assert network.updates == []


def test_a_guest_has_so_many_objects_and_no_more(
    feed: GuestNetworkFeed, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_feed, "MAX_OBJECTS", 2)
    feed.apply(NetworkUpdate(True, (location("a"), location("b"))))
    feed.apply(NetworkUpdate(False, (location("b", "elsewhere"),)))
    with pytest.raises(errors.TooLarge):
        feed.apply(NetworkUpdate(False, (location("c"),)))
    feed.apply(NetworkUpdate(False, (location("c"),), (NetworkKey("node", "a"),)))
    feed.apply(NetworkUpdate(True, (location("d"), location("e"))))
    assert len(network.updates) == 4


def test_a_guest_outside_of_the_mesh_takes_none() -> None:
    with pytest.raises(errors.FailedPrecondition):
        GuestNetworkFeed().apply(NetworkUpdate(True, (SUBNET,)))


async def test_reports_are_sent_once_and_again_with_a_new_session(
    feed: GuestNetworkFeed, network: FakeNetwork
) -> None:
    reported: tuple[NetworkObject, ...] = (location("a"), location("b"))
    network.reports(reported)
    assert await feed.next_reports(1) == reported[:1]
    assert await feed.next_reports(10) == reported[1:]
    feed.begin_session()
    assert await feed.next_reports(10) == reported
    feed.end_session()
    assert network.has_ended
