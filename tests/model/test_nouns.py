"""Nodes, functions and ids: what is accepted, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.kit import json_codec
from skerry.model import errors, ids
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.nodes import Liveness, Node, NodeFacts
from skerry.model.resources import Megabytes, Millicores
from skerry.model.statuses import NodeStatus

CODE = Digest("sha256:" + "0a" * 32)


def node(**changes: Any) -> Node:
    basics: dict[str, Any] = {
        "id": NodeId("n-1"),
        "name": "edge 1",
        "registered_at": 100.0,
        "reported_at": 100.0,
    }
    return Node(**basics | changes)


def function(**changes: Any) -> Function:
    basics: dict[str, Any] = {
        "name": FunctionName("is_prime"),
        "runtime": "python311",
        "memory": Megabytes(128),
        "created_at": 1.0,
        "handler": "primes.handler",
        "code": CODE,
    }
    return Function(**basics | changes)


@pytest.mark.parametrize("text", ["a", "A1", "a.b-c_d", "01h2x", "x" * 128])
def test_good_ids_come_back(text: str) -> None:
    assert ids.check_id(text) == text


@pytest.mark.parametrize("text", ["", ".", "..", "-a", "a-", "_a", "a/b", "a b", "a\n", "ä", "x" * 129])
def test_bad_ids_are_refused_by_field(text: str) -> None:
    with pytest.raises(errors.Invalid, match="workload") as caught:
        ids.check_id(text, "workload")
    assert caught.value.field == "workload"


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "g" * 64, "sha256:" + "A" * 64, "md5:" + "0" * 64]
)
def test_a_digest_is_sha256_in_lower_case_hex(text: str) -> None:
    assert ids.check_digest(CODE) == CODE
    with pytest.raises(errors.Invalid, match="digest"):
        ids.check_digest(text)


def test_a_node_survives_being_stored() -> None:
    one = node(labels={"zone": "north", "example.org-rack": ""}, facts=NodeFacts(architecture="arm64"))
    assert json_codec.decode(json_codec.encode(one), Node) == one


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "a/b"},
        {"name": "two\nlines"},
        {"labels": {"": "x"}},
        {"labels": {"a": "x\0"}},
        {"labels": {f"k{n}": "" for n in range(65)}},
    ],
)
def test_a_node_of_bad_parts_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(errors.Invalid):
        node(**changes)


@pytest.mark.parametrize("status", NodeStatus)
def test_only_a_ready_node_takes_work(status: NodeStatus) -> None:
    assert node(status=status).is_schedulable is (status is NodeStatus.READY)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (100.0, Liveness.LIVE),
        (114.9, Liveness.LIVE),
        (115.0, Liveness.SUSPECT),
        (159.9, Liveness.SUSPECT),
        (160.0, Liveness.LOST),
        (90.0, Liveness.LIVE),  # the clock was set back; silence is not proved
    ],
)
def test_silence_is_judged_by_its_length(now: float, expected: Liveness) -> None:
    assert node().liveness(now, suspect_after_s=15, lost_after_s=60) is expected


def test_a_function_survives_being_stored() -> None:
    one = function(cpu=Millicores(500), max_concurrency=4, environment=("A=b",))
    assert json_codec.decode(json_codec.encode(one), Function) == one


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"runtime": ""}, "runtime"),
        ({"memory": 0}, "memory"),
        ({"memory": 2**31}, "memory"),
        ({"cpu": 0}, "cpu"),
        ({"cpu": -1}, "cpu"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": 2**15}, "max_concurrency"),
        ({"handler": ""}, "handler"),
        ({"handler": "a\nb"}, "handler"),
        ({"code": None}, "code"),
        ({"code": "sha256:short"}, "code"),
        ({"image": "example.org/f"}, "image"),
        ({"runtime": CUSTOM}, "image"),
        ({"environment": ("X",)}, "environment"),
    ],
)
def test_a_function_of_bad_parts_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        function(**changes)
    assert caught.value.field == field


def test_a_function_with_its_own_image_needs_neither_handler_nor_code() -> None:
    custom = function(runtime=CUSTOM, image="example.org/f:1", handler="", code=None)
    assert custom.image == "example.org/f:1"
