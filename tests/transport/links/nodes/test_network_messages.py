"""Network objects on the wire between servers and nodes: they arrive as they were sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import (
    MAX_REPORTED_OBJECTS,
    EndpointState,
    InstanceAddress,
    NetworkKey,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
)
from skerry.model.node_messages import NetworkReportBatch, NetworkUpdate
from skerry.transport.links.nodes import messages, network_messages
from skerry.transport.links.nodes.messages import MessageReader
from skerry.transport.proto import nodes_pb2 as pb

ENDPOINT = ServiceEndpoint(InstanceId("i1"), NodeId("n1"), "10.64.0.2", EndpointState.DRAINING, 0)
NODE = NodeLocation(NodeId("n1"), "edge-1", "home", ("10.64.0.0/24",))
SERVICE = ServiceAddress(
    ServiceId("s1"), "web", Namespace("shop"), "10.63.0.1", (ServicePort(80, 8080),), 60, (ENDPOINT,)
)
INSTANCE = InstanceAddress(Namespace("shop"), ENDPOINT)


@given(st.integers(0, 300), st.booleans())
def test_objects_arrive_as_they_were_sent_in_as_many_parts_as_it_takes(count: int, is_full: bool) -> None:
    many = tuple(NodeLocation(NodeId(f"n{number}"), "x" * 5000) for number in range(count))
    removed = () if is_full else (NetworkKey("service", "s9"),)
    update = NetworkUpdate(is_full, (NODE, SERVICE, INSTANCE, *many), removed)
    reader = MessageReader()
    *before, last = [reader.read(part) for part in messages.encode_server_message(update)]
    assert last == update
    assert not any(before)


def test_objects_of_a_kind_from_a_later_version_are_ignored() -> None:
    message = pb.Network(whole=True, objects=[pb.NetworkObject(kind="wormhole", key="1", value=b"?")])
    assert network_messages.decode_update([message]) == NetworkUpdate(True)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("n1", b"{", "cannot be read"),
        ("n1", b'{"node": 7}', "cannot be read"),
        ("n2", b'{"node": "n1", "name": "edge-1"}', "another key"),
    ],
)
def test_an_object_that_cannot_be_read_is_refused(key: str, value: bytes, reason: str) -> None:
    message = pb.Network(objects=[pb.NetworkObject(kind="node", key=key, value=value)])
    with pytest.raises(errors.Invalid, match=reason):
        network_messages.decode_update([message])


def test_reports_arrive_as_they_were_sent_and_are_bounded() -> None:
    batch = NetworkReportBatch((NODE, SERVICE))
    assert network_messages.decode_reports(network_messages.encode_reports(batch)) == batch
    with pytest.raises(errors.TooLarge):
        network_messages.decode_reports(
            network_messages.encode_reports(NetworkReportBatch((NODE,) * (MAX_REPORTED_OBJECTS + 1)))
        )
