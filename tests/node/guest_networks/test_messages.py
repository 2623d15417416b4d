"""What the agent and the process of a guest's network say to each other arrives as it was."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.network_objects import NetworkKey, NodeLocation, ServiceSubnet
from skerry.model.node_messages import NetworkUpdate
from skerry.model.settings import NetworkSettings
from skerry.node.guest_networks import messages
from skerry.node.guest_networks.messages import (
    Answer,
    ApplyUpdate,
    AttachContainer,
    Call,
    EncodedObject,
    NodeReports,
    OpenNetwork,
    Reply,
    Request,
)

UPDATE = NetworkUpdate(
    True,
    (ServiceSubnet("10.63.0.0/16"), NodeLocation(NodeId("a"), "a", "", ("10.64.1.0/24",))),
    (NetworkKey("node", "b"),),
)


@pytest.mark.parametrize(
    "call",
    [
        OpenNetwork("/f", "01234567", "scope", NetworkSettings(), NodeId("borrowed-1"), "10.64.9.0/24"),
        AttachContainer("g-1", NetworkPolicy(Ingress.NAMESPACE, Egress.MESH, "shop")),
        ApplyUpdate.of(UPDATE),
    ],
)
def test_a_request_is_the_same_on_the_other_side(call: Call) -> None:
    request = Request(7, call)
    assert json_codec.decode(json_codec.encode(request), Request) == request


def test_an_update_is_decoded_to_what_it_was_made_of() -> None:
    sent = json_codec.decode(json_codec.encode(Request(1, ApplyUpdate.of(UPDATE))), Request)
    assert isinstance(sent.call, ApplyUpdate)
    assert sent.call.decode() == UPDATE


def test_a_kind_of_a_later_version_is_left_out() -> None:
    later = EncodedObject("a-new-kind", "k", msgspec.Raw(b"{}"))
    assert ApplyUpdate(True, (later,)).decode() == NetworkUpdate(True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ResourcesExhausted", errors.ResourcesExhausted), ("NoSuchError", errors.Unavailable)],
)
def test_an_error_is_raised_as_it_was_or_as_unavailable(name: str, kind: type[errors.SkerryError]) -> None:
    with pytest.raises(kind, match="no address is free"):
        Reply(1, name, "no address is free").raise_error()
    Reply(1).raise_error()


def test_an_event_is_told_from_a_reply() -> None:
    event = NodeReports((EncodedObject.of(ServiceSubnet("10.63.0.0/16")),))
    for answer in (event, Reply(1)):
        assert type(json_codec.decode(json_codec.encode(answer), Answer)) is type(answer)  # type: ignore[arg-type]


async def test_half_a_line_is_the_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b'{"number":1}\n{"num')
    reader.feed_eof()
    assert await messages.read_line(reader) == b'{"number":1}\n'
    assert await messages.read_line(reader) == b""
