"""Which versions of the node protocol speak with each other, and what is said to those that cannot."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from skerry import __version__
from skerry.model import errors, versions
from skerry.model.node_messages import NodeHello
from skerry.transport.links.nodes import messages, protocol
from skerry.transport.proto import nodes_pb2 as pb
from tests.support.fleets import FACTS, ROOM
from tests.transport.links.nodes.conftest import Served

HELLO = NodeHello("edge", FACTS, ROOM)


def test_both_sides_state_their_number_in_their_first_message() -> None:
    assert messages.encode_hello(HELLO).protocol == protocol.CURRENT
    assert pb.Hello(protocol=7).SerializeToString() == bytes([11 << 3, 7])
    assert pb.Welcome(protocol=7).SerializeToString() == bytes([10 << 3, 7])


async def test_a_server_states_its_number_to_a_node(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(protocol, "check_server", seen.append)
    await (await served.connect("n1")).hello(HELLO)
    assert seen == [protocol.CURRENT]


@pytest.mark.parametrize(("stated", "ours"), [(0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (4, 5), (5, 5)])
def test_a_server_takes_nodes_of_its_own_number_and_of_the_one_before(stated: int, ours: int) -> None:
    protocol.check_node(stated, "0.1.0", ours=ours)


@pytest.mark.parametrize(("stated", "ours"), [(0, 3), (1, 3), (3, 5)])
def test_a_node_that_is_too_old_is_told_to_upgrade(stated: int, ours: int) -> None:
    with pytest.raises(errors.FailedPrecondition, match=r"0\.1\.0 is too old: .* upgrade Skerry on the node"):
        protocol.check_node(stated, "0.1.0", ours=ours)


@pytest.mark.parametrize(("stated", "ours"), [(2, 1), (6, 5)])
def test_a_node_that_is_too_new_is_told_that_servers_come_first(stated: int, ours: int) -> None:
    with pytest.raises(errors.FailedPrecondition, match=r"0\.9\.0 is too new: .* upgrade the servers first"):
        protocol.check_node(stated, "0.9.0", ours=ours)


async def test_a_refused_node_gets_the_reason_over_its_connection_and_is_not_registered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "check_node", partial(protocol.check_node, ours=3))
    node = await served.connect("n1")
    with pytest.raises(
        errors.FailedPrecondition, match="this server takes 2 and 3; upgrade Skerry on the node"
    ):
        await node.hello(HELLO)
    assert served.fleet.nodes.list() == []


async def test_a_node_leaves_a_server_that_is_older_than_itself(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "check_server", partial(protocol.check_server, ours=2))
    node = await served.connect("n1")
    with pytest.raises(
        errors.FailedPrecondition, match=r"the server is too old: .* upgrade the servers first"
    ):
        await node.hello(HELLO)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.99.0", r"0\.99\.0 is newer than this server's, .* upgrade the servers first"),
        ("0.0.9", "too old for"),
    ],
)
async def test_a_node_of_another_minor_version_than_this_and_the_previous_is_refused_and_not_registered(
    served: Served, version: str, reason: str
) -> None:
    node = await served.connect("n1")
    with pytest.raises(errors.FailedPrecondition, match=reason):
        await node.hello(
            msgspec.structs.replace(HELLO, facts=msgspec.structs.replace(FACTS, version=version))
        )
    assert served.fleet.nodes.list() == []


async def test_a_node_of_the_previous_minor_version_goes_on(served: Served) -> None:
    previous = msgspec.structs.replace(FACTS, version=f"{versions.CURRENT.previous}.7")
    await (await served.connect("n1")).hello(msgspec.structs.replace(HELLO, facts=previous))
    (registered,) = served.fleet.nodes.list()
    assert registered.facts.version == previous.version


async def test_a_node_leaves_a_server_whose_skerry_is_older_than_its_own(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(protocol, "check_server_version", seen.append)
    await (await served.connect("n1")).hello(HELLO)
    assert seen == [__version__]
    monkeypatch.undo()
    with pytest.raises(errors.FailedPrecondition, match="upgrade the servers first"):
        protocol.check_server_version("")
