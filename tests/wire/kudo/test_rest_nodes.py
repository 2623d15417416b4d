"""`/node/` over HTTP, on the real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.model.ids import InstanceId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import ReportedInstance
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import InstanceStatus, NodeStatus
from tests.support.controls import ROOM
from tests.wire.kudo.rest_client import Rest


async def test_nodes_are_listed_by_id_in_pages(rest: Rest) -> None:
    for id in ("n2", "n3", "n1"):
        await rest.site.control.join(id)
    first = await rest.ask("GET", "/node/?limit=2")
    assert (first.body["count"], first.headers["X-Total-Count"]) == (3, "3")
    assert [one["id"] for one in first.body["nodes"]] == ["n1", "n2"]
    rest_of = await rest.get("/node/", params={"cursor": first.body["cursor"]})
    assert [one["id"] for one in rest_of["nodes"]] == ["n3"]
    assert rest_of["cursor"] is None


async def test_a_node_is_shown_by_id_and_by_name_with_what_is_known_of_it(rest: Rest) -> None:
    await rest.site.control.join("n1", zone="edge")
    shown = await rest.get("/node/n1")
    assert shown == await rest.get("/node/machine-n1/")
    assert (shown["status"], shown["liveness"], shown["is_cordoned"]) == ("ready", "live", False)
    assert (shown["labels"], shown["facts"]["architecture"]) == ({"zone": "edge"}, "amd64")
    assert shown["resources"] == {"cpu": 4000, "memory": 8000, "disk": 100}
    assert shown["subnet"].endswith("/24")
    assert (await rest.ask("GET", "/node/none")).error[:2] == (404, "not-found")


async def test_what_a_foreign_node_reports_is_shown(rest: Rest) -> None:
    nodes = rest.site.control.nodes
    await nodes.register("kudo", NodeHello("kudo", resources=ROOM), foreign=True)
    silent = await rest.get("/node/kudo")
    assert (silent["last_report_at"], silent["usage"], silent["instances"]) == (None, None, None)
    used = Resources(Millicores(10), Megabytes(20), Gigabytes(1))
    has = ReportedInstance(
        InstanceId("x"), "web", InstanceStatus.CRASHED, "example.org/web:1", limit=ROOM, usage=used
    )
    await nodes.report("kudo", NodeStatus.READY, usage=used, instances=[has])
    shown = await rest.get("/node/kudo")
    assert shown["usage"] == {"cpu": 10, "memory": 20, "disk": 1}
    assert shown["last_report_at"] >= shown["registered_at"]
    assert shown["instances"] == [
        {
            "id": "x",
            "name": "web",
            "status": "CRASHED",
            "uri": "example.org/web:1",
            "limit": {"cpu": 4000, "memory": 8000, "disk": 100},
            "usage": {"cpu": 10, "memory": 20, "disk": 1},
        }
    ]
    [listed] = (await rest.get("/node/"))["nodes"]
    assert listed == {name: value for name, value in shown.items() if name != "instances"}


async def test_a_node_is_cordoned_and_uncordoned(rest: Rest) -> None:
    await rest.site.control.join("n1")
    for body in (None, {"reason": "new disk"}):
        cordoned = await rest.ask("POST", "/node/n1/cordon", body)
        assert (cordoned.status, cordoned.body["is_cordoned"]) == (200, True)
    [told] = await rest.site.plane.events.list_after("0", frozenset({"node.cordoned"}))
    assert told.event.actor.startswith("uid:")
    free = await rest.ask("POST", "/node/n1/uncordon")
    assert (free.status, free.body["is_cordoned"]) == (200, False)


async def test_a_node_is_drained_within_a_time(rest: Rest) -> None:
    await rest.site.control.join("n1")
    now = rest.site.plane.clock.now()
    drained = await rest.ask("POST", "/node/n1/drain", {"within_s": 60})
    assert drained.status == 200
    assert now + 60 <= drained.body["drain_by"] <= rest.site.plane.clock.now() + 60
    default = await rest.ask("POST", "/node/n1/drain")
    assert default.body["drain_by"] > now + 200
    assert (await rest.ask("POST", "/node/n1/uncordon")).body["drain_by"] is None


async def test_labels_are_merged_and_null_takes_one_away(rest: Rest) -> None:
    await rest.site.control.join("n1", zone="edge", disk="slow")
    changed = await rest.ask("PATCH", "/node/n1", {"labels": {"disk": None, "gpu": "yes"}})
    assert changed.body["labels"] == {"zone": "edge", "gpu": "yes"}
    assert (await rest.ask("PATCH", "/node/n1", {"labels": {"a b": "x"}})).status == 400
    assert (await rest.get("/node/n1"))["labels"] == {"zone": "edge", "gpu": "yes"}


async def test_a_node_with_instances_is_unregistered_by_force_only(rest: Rest) -> None:
    await rest.running()
    assert (await rest.ask("DELETE", "/node/n1")).error[:2] == (412, "refused")
    assert (await rest.ask("DELETE", "/node/n1?force=true")).status == 204
    assert (await rest.ask("DELETE", "/node/n1")).status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/node/n1/drain", {"within_s": -1}),
        ("/node/n1/drain", {"within_s": 1e12}),
        ("/node/n1/drain", {"within_s": "soon"}),
        ("/node/n1/drain", {"by": 1}),
        ("/node/n1/cordon", {"reason": "two\nlines"}),
        ("/node/n1/cordon", []),
    ],
)
async def test_a_bad_wish_changes_nothing(rest: Rest, path: str, body: Any) -> None:
    await rest.site.control.join("n1")
    before = (await rest.get("/node/n1"))["is_cordoned"]
    assert (await rest.ask("POST", path, body)).error[:2] == (400, "invalid")
    shown = await rest.get("/node/n1")
    assert (shown["is_cordoned"], shown["drain_by"]) == (before, None)
