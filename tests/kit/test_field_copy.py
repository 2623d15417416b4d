"""Copying fields of the same names between structs and messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skerry.kit.field_copy import copy_fields
from skerry.model.nodes import NodeFacts
from skerry.transport.proto import nodes_pb2 as pb


class Noun(msgspec.Struct, frozen=True):
    id: str
    amount: int
    secret: str = "kept"


class Document(msgspec.Struct, frozen=True):
    id: str
    amount: str


def test_fields_of_the_same_name_are_copied_and_the_rest_is_given() -> None:
    assert copy_fields(Document, Noun("a", 3), amount="3 MB") == Document("a", "3 MB")


def test_a_message_is_filled_from_a_struct_and_read_into_one() -> None:
    facts = NodeFacts("amd64", "linux", "6.1", "1.0", "crun", True, ("slow disk",), "full")
    message = copy_fields(pb.Facts, facts)
    rest: dict[str, Any] = {"features": (), "devices": (), "enforcement": None}
    assert (message.architecture, message.userns, list(message.warnings)) == ("amd64", True, ["slow disk"])
    assert copy_fields(NodeFacts, message, warnings=tuple(message.warnings), **rest) == facts


def test_a_field_that_nobody_gives_is_an_error_and_no_default() -> None:
    with pytest.raises(AttributeError, match="secret"):
        copy_fields(Noun, Document("a", "3"))
