"""`/service/` over HTTP, on the real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.model.callers import Role
from skerry.model.statuses import InstanceStatus
from tests.support.waiting import eventually
from tests.wire.kudo.rest_client import Rest

WEB: dict[str, Any] = {
    "name": "web",
    "image": "example.org/web:1",
    "replicas": 3,
    "environment": ["SECRET=1"],
    "checks": ["http:80/health"],
    "resources": {"cpu": 100, "memory": 64},
}


async def post(rest: Rest, path: str, body: Any = None) -> Any:
    answer = await rest.ask("POST", path, body)
    assert answer.status == 200, answer
    return answer.body


async def test_a_service_is_made_shown_listed_changed_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/service/", WEB)
    assert made.status == 201, made
    assert made.headers["Location"] == "/namespace/default/service/web"
    document = made.body
    assert (document["status"], document["replicas"], document["ready"]) == ("STARTING", 3, 0)
    assert (document["revision"], document["image"], document["copies"]) == (1, "example.org/web:1", [])
    assert document["rollout"]["phase"] == "updating"
    assert document["rollout"]["of"] == 3
    assert (await rest.ask("PUT", "/service/", WEB)).status == 200
    taken = await rest.ask("PUT", "/service/", {**WEB, "replicas": 4})
    assert taken.error[:2] == (409, "already-exists")
    for name in ("web", document["id"]):
        assert await rest.get(f"/service/{name}") == document
    summary = {field: value for field, value in document.items() if field != "copies"}
    assert await rest.get("/service/") == {"count": 1, "services": [summary], "cursor": None}
    changed = await rest.ask("PATCH", "/service/web", {"image": "example.org/web:2", "update": {"canary": 1}})
    assert (changed.status, changed.body["revision"], changed.body["update"]["canary"]) == (200, 2, 1)
    assert changed.body["checks"][0]["path"] == "/health"
    same = await rest.ask("PATCH", "/service/web", {"image": "example.org/web:2"})
    assert same.headers["ETag"] == changed.headers["ETag"]
    gone = await rest.ask("DELETE", "/service/web")
    assert (gone.status, gone.body["status"]) == (202, "DELETING")
    assert (await rest.ask("DELETE", "/service/web")).status == 202
    refused = await rest.ask("PUT", "/service/", WEB)
    assert refused.status == 409
    assert "is being deleted" in refused.body["error"]


async def test_a_document_has_these_fields_in_this_order(rest: Rest) -> None:
    document = await rest.make("/service/", {"name": "web", "image": "example.org/web:1"})
    shown = {**document, "id": "ID", "created_at": 1.0}
    shown["rollout"] = {**document["rollout"], "since": 1.0, "deadline": 601.0}
    assert list(shown.items()) == list(GOLDEN.items())


async def test_ports_and_affinity_of_the_address_are_set_changed_and_refused(rest: Rest) -> None:
    made = await rest.make(
        "/service/", {**WEB, "service_ports": ["80:8080=http", "53/udp"], "affinity_s": 600}
    )
    assert (made["service_ports"], made["affinity_s"]) == (["80:8080=http", "53/udp"], 600)
    # They are of the service, and no revision of its copies.
    changed = await rest.ask("PATCH", "/service/web", {"service_ports": ["81"], "affinity_s": None})
    document = changed.body
    assert (document["service_ports"], document["affinity_s"], document["revision"]) == (["81"], 0, 1)
    assert (await rest.ask("PATCH", "/service/web", {"replicas": 2})).body["service_ports"] == ["81"]
    assert (await rest.ask("PATCH", "/service/web", {"service_ports": None})).body["service_ports"] == []
    for refused in ({"service_ports": ["80/sctp"]}, {"service_ports": ["80", "80:81"]}, {"affinity_s": -1}):
        assert (await rest.ask("PATCH", "/service/web", refused)).status == 400


async def test_the_document_follows_the_copies(led: Rest) -> None:
    control = led.site.control
    await led.make("/service/", {**WEB, "replicas": 2, "checks": [], "update": {"min_ready_s": 0}})

    async def copies() -> list[dict[str, Any]]:
        return list((await led.get("/service/web"))["copies"])

    async def placed() -> bool:
        found = await copies()
        return len(found) == 2 and all(one["node_id"] == "n1" for one in found)

    await eventually(placed)
    for one in await copies():
        await control.report(
            one["instance_id"], InstanceStatus.STARTING, InstanceStatus.RUNNING, ip="10.64.0.2"
        )

    async def healthy() -> bool:
        return (await led.get("/service/web"))["status"] == "HEALTHY"

    await eventually(healthy)
    shown = await led.get("/service/web")
    assert (shown["ready"], shown["stable_revision"], shown["rollout"]) == (2, 1, None)
    assert [(one["index"], one["revision"], one["ready"]) for one in shown["copies"]] == [
        (0, 1, True),
        (1, 1, True),
    ]
    kinds = [one["kind"] for one in (await led.get("/service/web/events"))["events"]]
    assert kinds == ["service.created", "service.updated"]
    revisions = (await led.get("/service/web/revisions"))["revisions"]
    assert [(one["revision"], one["outcome"], one["image"]) for one in revisions] == [
        (1, "good", "example.org/web:1")
    ]


async def test_verbs_change_the_service(rest: Rest) -> None:
    await rest.make("/service/", WEB)
    assert (await post(rest, "/service/web/scale", {"replicas": 5}))["replicas"] == 5
    assert (await post(rest, "/service/web/pause"))["status"] == "PAUSED"
    assert (await post(rest, "/service/web/resume"))["status"] == "STARTING"
    no_canary = await rest.ask("POST", "/service/web/promote")
    assert no_canary.error[:2] == (412, "refused")
    nowhere = await rest.ask("POST", "/service/web/rollback")
    assert nowhere.status == 412
    assert "no good revision" in nowhere.body["error"]
    unknown = await rest.ask("POST", "/service/web/rollback", {"revision": 7})
    assert unknown.status == 404
    assert "it has 1" in unknown.body["error"]
    kinds = [one["kind"] for one in (await rest.get("/service/web/events"))["events"]]
    assert kinds == ["service.created", "service.scaled", "service.paused", "service.resumed"]


async def test_a_change_of_what_has_changed_is_412(rest: Rest) -> None:
    made = await rest.ask("PUT", "/service/", WEB)
    tag = {"If-Match": made.headers["ETag"]}
    assert (await rest.ask("PATCH", "/service/web", {"replicas": 4}, headers=tag)).status == 200
    assert (await rest.ask("PATCH", "/service/web", {"replicas": 5}, headers=tag)).status == 412


async def test_services_of_one_name_live_in_several_namespaces(rest: Rest) -> None:
    await rest.make("/service/", WEB)
    shop = await rest.make("/namespace/shop/service/", {**WEB, "replicas": 1})
    assert shop["namespace"] == "shop"
    assert (await rest.get("/service/web"))["replicas"] == 3
    assert (await rest.get("/service/web?namespace=shop"))["replicas"] == 1
    assert (await post(rest, "/namespace/shop/service/web/scale", {"replicas": 2}))["replicas"] == 2
    assert (await rest.get("/service/?namespace=*"))["count"] == 2
    assert (await rest.get("/namespace/shop/service/"))["count"] == 1
    moved = await rest.ask("PATCH", "/service/web", {"namespace": "shop"})
    assert moved.status == 400
    market = await rest.ask("PUT", "/namespace/market/service/", WEB)
    assert market.status == 403


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"replicas": 1_000_000}, "replicas are 0 to"),
        ({"replicas": -1}, "replicas are 0 to"),
        ({"update": {"max_surge": 0, "max_unavailable": 0}}, "cannot both be 0"),
        ({"update": {"order": "stop-first"}}, "stop-first needs"),
        ({"update": {"canary": 4}}, "canaries"),
        ({"update": {"max_surge": "one"}}, "number of copies"),
        ({"update": {"min_ready_s": 700}}, "no copy could become good in time"),
        ({"update": {"deadline_s": 1e12}}, "update.deadline_s"),
        ({"ports": ["8080:81"]}, "check"),
        ({"checks": ["http:0/"]}, "port"),
        ({"checks": ["nonsense"]}, "no check"),
        ({"autoscale": {"min": 3}}, "needs `min` and `max`"),
        ({"autoscale": {"min": 5, "max": 2}}, "between min and max"),
        ({"autoscale": {"min": 4, "max": 9}}, "are not between"),
        ({"autoscale": {"min": 1, "max": 9, "metric": "custom"}}, "needs `metric`"),
        ({"autoscale": {"min": 1, "max": 9}, "resources": None}, "needs a limit of cpu"),
        ({"autoscale": {"min": 1, "max": 9}, "update": {"canary": 2}}, "canaries are more"),
        ({"name": "Web"}, "name"),
        ({"name": "a" * 51}, "name"),
        ({"spread": ["a"] * 5}, "spread"),
        ({"max_per_node": -1}, "max_per_node"),
        ({"ready": 5}, "ready"),
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason_and_nothing_is_stored(
    rest: Rest, change: dict[str, Any], word: str
) -> None:
    before = await rest.stored()
    for method, path in (("PUT", "/service/"), ("POST", "/service/web/plan")):
        body = {key: value for key, value in change.items() if key != "name" or method == "PUT"}
        if not body:
            continue
        refused = await rest.ask(method, path, {**WEB, **body})
        assert refused.status == 400, refused
        assert word in refused.body["error"]
    assert await rest.stored() == before


async def test_while_autoscaled_replicas_are_not_for_people_to_decide(rest: Rest) -> None:
    await rest.make("/service/", {**WEB, "autoscale": {"min": 2, "max": 6}})
    refused = await rest.ask("POST", "/service/web/scale", {"replicas": 5})
    assert refused.status == 412
    assert "decided by autoscaling, between 2 and 6" in refused.body["error"]
    assert (await rest.ask("PATCH", "/service/web", {"replicas": 5})).status == 412
    narrowed = await rest.ask("PATCH", "/service/web", {"autoscale": {"min": 4}})
    assert (narrowed.body["replicas"], narrowed.body["autoscale"]["max"]) == (4, 6)
    off = await rest.ask("PATCH", "/service/web", {"autoscale": None, "replicas": 1})
    assert (off.body["autoscale"], off.body["replicas"]) == (None, 1)


async def test_a_plan_tells_what_would_change_and_where_and_writes_nothing(led: Rest) -> None:
    before = await led.stored()
    new = await post(led, "/service/web/plan", WEB)
    assert (new["action"], new["revision"], new["changes"], new["created"]) == ("create", 1, [], 3)
    assert [(one["index"], one["node_id"]) for one in new["copies"]] == [(0, "n1"), (1, "n1"), (2, "n1")]
    assert [(one["node_id"], one["fits"]) for one in new["nodes"]] == [("n1", True)]
    assert (new["order"], new["surge"], new["unavailable"]) == ("start-first", 1, 0)
    assert await led.stored() == before

    await led.make("/service/", WEB)

    async def placed() -> bool:
        copies = (await led.get("/service/web"))["copies"]
        return len(copies) == 3 and all(one["node_id"] for one in copies)

    await eventually(placed)
    before = await led.stored()
    huge = {"image": "example.org/web:2", "resources": {"cpu": 100_000, "memory": 64}, "ports": ["80:80"]}
    plan = await post(led, "/service/web/plan", huge)
    assert (plan["action"], plan["revision"]) == ("update", 2)
    assert {one["field"] for one in plan["changes"]} == {"image", "resources", "ports"}
    image = next(one for one in plan["changes"] if one["field"] == "image")
    assert (image["before"], image["after"]) == ("example.org/web:1", "example.org/web:2")
    assert (plan["order"], plan["unavailable"]) == ("stop-first", 1)
    assert "publish port 80" in plan["order_reason"]
    assert [one["node_id"] for one in plan["copies"]] == [None, None, None]
    assert "lacks" in plan["copies"][0]["reason"]
    assert all(one["replaces"] for one in plan["copies"])
    more = await post(led, "/service/web/plan", {"replicas": 5})
    assert (more["action"], [one["index"] for one in more["copies"]]) == ("change", [3, 4])
    assert (await post(led, "/service/web/plan", WEB))["action"] == "none"
    assert await led.stored() == before


async def test_viewers_see_no_values_of_the_environment_and_write_nothing(rest: Rest) -> None:
    await rest.make("/service/", WEB)
    viewer, deployer = await rest.site.bearer(Role.VIEWER), await rest.site.bearer(Role.DEPLOYER)
    assert (await rest.get("/service/web", headers=viewer))["environment"] == ["SECRET=<hidden>"]
    revisions = await rest.get("/service/web/revisions", headers=viewer)
    assert revisions["revisions"][0]["spec"]["environment"] == ["SECRET=<hidden>"]
    for verb in ("scale", "rollback", "promote", "pause", "resume", "plan"):
        assert (await rest.ask("POST", f"/service/web/{verb}", {}, headers=viewer)).status == 403
    path = await rest.ask("PATCH", "/service/web", {"image": "/etc"}, headers=deployer)
    assert path.status in (400, 403)
    host = await rest.ask("PATCH", "/service/web", {"userns": "host"}, headers=deployer)
    assert host.status == 403


GOLDEN: dict[str, Any] = {
    "id": "ID",
    "name": "web",
    "namespace": "default",
    "status": "STARTING",
    "replicas": 1,
    "ready": 0,
    "revision": 1,
    "stable_revision": None,
    "latest_revision": 1,
    "paused": False,
    "rollout": {
        "phase": "updating",
        "good": 0,
        "of": 1,
        "since": 1.0,
        "deadline": 601.0,
        "reason": "",
    },
    "type": "CONTAINER",
    "image": "example.org/web:1",
    "uri": "example.org/web:1",
    "environment": [],
    "resources": {"cpu": 0, "memory": 0, "disk": 0},
    "ports": [],
    "port_mappings": [],
    "restart": "always",
    "restart_budget": None,
    "arguments": [],
    "architecture": "",
    "constraints": [],
    "userns": "private",
    "checks": [],
    "spread": [],
    "max_per_node": 0,
    "metric": None,
    "update": {
        "order": "auto",
        "max_surge": 1,
        "max_unavailable": 0,
        "min_ready_s": 3.0,
        "drain_s": 5.0,
        "deadline_s": 600.0,
        "max_failures": 3,
        "canary": 0,
        "promote_after_s": None,
        "on_failure": "revert",
    },
    "budget": {"max_unavailable": 0},
    "autoscale": None,
    "created_at": 1.0,
    "copies": [],
    "quota_message": "",
    "address": "",
    "service_ports": [],
    "affinity_s": 0,
    "node": "",
    "cpu_limit": None,
    "user": "",
    "entrypoint": [],
    "stop_signal": "",
    "stop_grace_s": None,
    "read_only": False,
    "shm": 0,
    "ulimits": [],
    "init": False,
    "hostname": "",
    "extra_hosts": [],
    "dns": [],
    "secrets": [],
    "configs": [],
    "devices": [],
    "volumes": [],
    "tmpfs": [],
    "volume_templates": [],
    "egress": None,
}


async def test_a_copy_says_whose_it_is_and_runs_what_its_service_says(led: Rest) -> None:
    await led.make("/service/", {**WEB, "replicas": 1})

    async def made() -> bool:
        return (await led.get("/instance/"))["count"] == 1

    await eventually(made)
    [copy] = (await led.get("/instance/"))["instances"]
    assert (copy["name"], copy["owner"]) == ("web-0", "service/web")
    refused = await led.ask("PATCH", f"/instance/{copy['id']}", {"uri": "example.org/other:1"})
    assert refused.error[:2] == (412, "refused")
    assert "change that service instead" in refused.body["error"]
    assert (await led.ask("PATCH", f"/instance/{copy['id']}", {"status": "STOPPED"})).status == 200
