"""`/instance/` over HTTP, on the real control plane in which nobody places anything but the test."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.resources import Millicores, Resources
from skerry.model.statuses import InstanceStatus
from skerry.wire.kudo.envelope import ENVELOPE
from tests.transport.http.conftest import StrangerGate, serving
from tests.wire.kudo.rest_client import WEB, Rest


async def test_an_instance_is_made_shown_listed_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/instance/", {**WEB, "ports": ["8080:80"], "env": ["A=1"]})
    assert made.status == 201
    assert made.headers["Location"] == f"/instance/{made.body['id']}"
    assert (made.body["status"], made.body["desired"]) == ("SCHEDULING", "RUNNING")
    assert (made.body["ports"], made.body["environment"]) == (["8080:80"], ["A=1"])
    assert made.body["resources"]["max"] == {"cpu": 500, "memory": 64, "disk": 0}
    shown = await rest.ask("GET", f"/instance/{made.body['id']}")
    assert (shown.status, shown.body) == (200, made.body)
    assert shown.headers["ETag"] == made.headers["ETag"]
    listed = await rest.ask("GET", "/instance/")
    assert listed.body == {"count": 1, "instances": [made.body], "cursor": None}
    assert listed.headers["X-Total-Count"] == "1"
    gone = await rest.ask("DELETE", f"/instance/{made.body['id']}")
    assert (gone.status, gone.body) == (200, {"id": made.body["id"], "status": "DESTROYING"})
    assert (await rest.ask("GET", f"/instance/{made.body['id']}")).status == 404


async def test_it_is_durable_when_it_is_acknowledged(rest: Rest) -> None:
    made = await rest.make("/instance/", WEB)
    assert await rest.site.plane.store.get(f"instance/{made['id']}") is not None


@pytest.mark.parametrize("path", ["/instance", "/instance/"])
@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_both_verbs_and_both_spellings_of_the_path_create_without_a_redirect(
    rest: Rest, method: str, path: str
) -> None:
    made = await rest.ask(method, path, WEB)
    assert made.status == 201
    for path in (f"/instance/{made.body['id']}", f"/instance/{made.body['id']}/"):
        assert (await rest.ask("GET", path)).status == 200
        assert (await rest.ask("PATCH", path, {"status": "STOPPED"})).status == 200
    assert (await rest.ask("DELETE", f"/instance/{made.body['id']}/")).status == 200


async def test_an_instance_is_made_of_a_workload_by_each_way_of_naming_it(rest: Rest) -> None:
    workload = await rest.make("/workload/", WEB)
    answers = [
        await rest.ask("PUT", f"/instance/?workloadId={workload['id']}"),
        await rest.ask("PUT", f"/instance/?workloadId={workload['id']}", {}),
        await rest.ask("PUT", "/instance/", {"workload_id": workload["id"]}),
        await rest.ask("PUT", "/instance/", {"workload_name": "web"}),
        await rest.ask("POST", "/instance/", {"workload_name": "web", "workload_id": None}),
    ]
    assert [answer.status for answer in answers] == [201] * 5
    assert len({answer.body["id"] for answer in answers}) == 5
    for answer in answers:
        assert answer.body["workload_id"] == workload["id"]
        assert (answer.body["name"], answer.body["uri"]) == ("web", WEB["uri"])
        assert answer.body["workload_version"] == 1


async def test_a_workload_is_never_taken_for_one_that_has_its_name_as_id(rest: Rest) -> None:
    await rest.make("/workload/", {**WEB, "id": "second", "name": "first"})
    await rest.make("/workload/", {**WEB, "name": "second"})
    refused = await rest.ask("PUT", "/instance/", {"workload_name": "second"})
    assert refused.error[:2] == (400, "invalid")
    assert "by its id" in refused.body["error"]
    assert (await rest.make("/instance/", {"workload_id": "second"}))["name"] == "first"


async def test_an_id_of_ones_own_makes_a_repeat_safe(rest: Rest) -> None:
    first = await rest.ask("PUT", "/instance/", {**WEB, "id": "mine"})
    again = await rest.ask("PUT", "/instance/", {**WEB, "id": "mine"})
    other = await rest.ask("PUT", "/instance/", {**WEB, "id": "mine", "uri": "example.org/web:2"})
    assert (first.status, again.status, other.status) == (201, 200, 409)
    assert again.body == first.body
    assert other.body["code"] == "already-exists"
    assert (await rest.get("/instance/"))["count"] == 1


async def test_an_idempotency_key_makes_a_repeat_safe(rest: Rest) -> None:
    headers = {"Idempotency-Key": "once"}
    answers = await asyncio.gather(*(rest.ask("PUT", "/instance/", WEB, headers=headers) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 201]
    assert len({answer.body["id"] for answer in answers}) == 1
    other = await rest.ask("PUT", "/instance/", {**WEB, "name": "x"}, headers=headers)
    assert other.error[:2] == (409, "already-exists")
    [id] = {answer.body["id"] for answer in answers}
    await rest.ask("DELETE", f"/instance/{id}")
    assert (await rest.ask("PUT", "/instance/", WEB, headers=headers)).status == 410
    too_long = await rest.ask("PUT", "/instance/", WEB, headers={"Idempotency-Key": "x" * 300})
    assert too_long.error[:2] == (400, "invalid")


async def test_a_struct_as_the_document_has_it_is_taken_and_its_status_is_not_believed(rest: Rest) -> None:
    made = await rest.make(
        "/instance/",
        {
            "id": "",
            "name": "web",
            "type": "Container",
            "status": "RUNNING",
            "uri": "example.org/web",
            "environment": [],
            "resources": {"max": {"cpu": 1, "memory": 2, "disk": 3}, "usage": {"cpu": 9}},
            "ports": ["80"],
        },
    )
    assert (made["status"], made["resources"]["usage"]["cpu"]) == ("SCHEDULING", 0)
    assert made["id"]


async def test_stop_and_start_are_patches_of_the_status(rest: Rest) -> None:
    id = await rest.running()
    stopped = await rest.ask("PATCH", f"/instance/{id}", {"status": "STOPPED"})
    assert (stopped.status, stopped.body["desired"]) == (200, "STOPPED")
    await rest.site.control.report(id, InstanceStatus.STOPPING, InstanceStatus.STOPPED)
    assert (await rest.get(f"/instance/{id}"))["status"] == "STOPPED"
    started = await rest.ask("PATCH", f"/instance/{id}", {"status": "running"})
    assert (started.status, started.body["desired"]) == (200, "RUNNING")


async def test_a_change_of_the_spec_replaces_the_copy(rest: Rest) -> None:
    id = await rest.running()
    before = await rest.get(f"/instance/{id}")
    assert (before["ip"], before["node_id"], before["generation"]) == ("10.64.0.2", "n1", 1)
    changed = await rest.ask("PATCH", f"/instance/{id}", {"resources": {"max": {"cpu": 900}}, "env": ["A=1"]})
    assert changed.body["resources"]["limit"] == {"cpu": 900, "memory": 64, "disk": 0}
    assert changed.body["environment"] == ["A=1"]
    assert changed.body["generation"] > before["generation"]
    same = await rest.ask("PATCH", f"/instance/{id}", {"env": ["A=1"]})
    assert same.headers["ETag"] == changed.headers["ETag"]
    workload = await rest.make("/workload/", {**WEB, "uri": "example.org/other"})
    moved = await rest.ask("PATCH", f"/instance/{id}", {"workload_id": workload["id"]})
    assert (moved.body["workload_id"], moved.body["uri"]) == (workload["id"], "example.org/other")


async def test_a_patch_may_be_called_a_merge_patch(rest: Rest) -> None:
    made = await rest.make("/instance/", {**WEB, "arguments": ["a"]})
    headers = {"Content-Type": "application/merge-patch+json"}
    changed = await rest.ask(
        "PATCH", f"/instance/{made['id']}", headers=headers, data=b'{"arguments":null,"name":"x"}'
    )
    assert (changed.status, changed.body["arguments"], changed.body["name"]) == (200, [], "x")


async def test_a_patch_of_what_was_read_is_taken_if_nothing_was_changed_meanwhile(rest: Rest) -> None:
    made = await rest.ask("PUT", "/instance/", WEB)
    path, tag = f"/instance/{made.body['id']}", made.headers["ETag"]
    changed = await rest.ask("PATCH", path, {"name": "two"}, headers={"If-Match": f'"0", {tag}'})
    assert (changed.status, changed.body["name"]) == (200, "two")
    assert changed.headers["ETag"] != tag
    late = await rest.ask("PATCH", path, {"name": "three"}, headers={"If-Match": tag})
    assert late.error[:2] == (412, "refused")
    assert "read it again" in late.body["error"]
    weak = await rest.ask("PATCH", path, {"name": "x"}, headers={"If-Match": f"W/{changed.headers['ETag']}"})
    assert weak.status == 412
    assert (await rest.get(path))["name"] == "two"
    assert (await rest.ask("PATCH", path, {"name": "four"}, headers={"If-Match": "*"})).status == 200
    assert (await rest.ask("PATCH", path, {"name": "x"}, headers={"If-Match": "812"})).status == 400
    gone = await rest.ask("PATCH", "/instance/none", {"name": "x"}, headers={"If-Match": "*"})
    assert gone.status == 404


async def test_a_document_that_was_read_can_be_sent_back_with_its_status(rest: Rest) -> None:
    made = await rest.make("/instance/", WEB)
    read = {name: made[name] for name in ("id", "name", "type", "status", "uri", "environment", "ports")}
    answer = await rest.ask("PATCH", f"/instance/{made['id']}", read)
    assert (answer.status, answer.body["desired"]) == (200, "RUNNING")


async def test_deleting_again_is_fine_until_it_is_gone(rest: Rest) -> None:
    id = await rest.running()
    for _ in range(2):
        answer = await rest.ask("DELETE", f"/instance/{id}")
        assert (answer.status, answer.body) == (200, {"id": id, "status": "DESTROYING"})
        assert (await rest.get(f"/instance/{id}"))["status"] == "DESTROYING"
    started = await rest.ask("PATCH", f"/instance/{id}", {"status": "RUNNING"})
    assert started.error[:2] == (412, "refused")
    await rest.site.control.report(id, InstanceStatus.TERMINATED)
    assert (await rest.ask("DELETE", f"/instance/{id}")).error[:2] == (404, "not-found")


async def test_a_list_is_filtered_and_cut(rest: Rest) -> None:
    running = await rest.running()
    waiting = [(await rest.make("/instance/", {**WEB, "name": f"w{n}"}))["id"] for n in range(4)]

    async def ids(query: str) -> tuple[int, list[str]]:
        page = await rest.get(f"/instance/?{query}")
        return page["count"], [one["id"] for one in page["instances"]]

    assert await ids("") == (5, [running, *waiting])
    assert await ids("state=running") == (1, [running])
    assert await ids("status=RUNNING,Scheduling&type=container") == (5, [running, *waiting])
    assert await ids("state=FAILED") == (0, [])
    assert await ids("node=n1") == (1, [running])
    assert await ids("workload=none") == (0, [])
    assert await ids("limit=2&offset=1") == (5, waiting[:2])
    assert await ids("offset=99") == (5, [])
    assert await ids("limit=0") == (5, [running, *waiting])
    assert await ids("namespace=default") == (5, [running, *waiting])


async def test_a_cursor_neither_skips_nor_repeats_while_things_come_and_go(rest: Rest) -> None:
    made = [(await rest.make("/instance/", {**WEB, "name": f"w{n}"}))["id"] for n in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = await rest.get("/instance/", params={"limit": "2", "cursor": cursor})
        seen += [one["id"] for one in page["instances"]]
        if page["cursor"] is None:
            break
        cursor = page["cursor"]
        await rest.ask("DELETE", f"/instance/{seen[0]}")
    assert seen == made


async def test_the_envelope_comes_if_it_is_asked_for(rest: Rest) -> None:
    headers = {"Accept": f"text/html;q=0.1, {ENVELOPE}"}
    made = await rest.ask("PUT", "/instance/", WEB, headers=headers)
    assert (made.status, made.headers["Content-Type"]) == (201, ENVELOPE)
    assert set(made.body) == {"data", "metadata"}
    assert made.body["metadata"] == {}
    listed = await rest.ask("GET", "/instance/", headers=headers)
    assert listed.body == {"data": [made.body["data"]], "metadata": {"count": 1}}
    assert listed.headers["X-Total-Count"] == "1"
    gone = await rest.ask("DELETE", f"/instance/{made.body['data']['id']}", headers=headers)
    assert gone.body["data"]["status"] == "DESTROYING"
    plain = await rest.ask("GET", "/instance/", headers={"Accept": "application/json"})
    assert plain.headers["Content-Type"] == "application/json"


BAD_QUERIES = [
    ("limit=-1", 400, "limit"),
    ("limit=1001", 400, "limit"),
    ("limit=x", 400, "limit"),
    ("offset=-1", 400, "offset"),
    ("offset=1.5", 400, "offset"),
    ("offset=99999999999999999999", 400, "offset"),
    ("state=ASLEEP", 400, "'ASLEEP' is no status; they are SCHEDULING, SCHEDULED"),
    ("state=RUNNING,", 400, "'' is no status"),
    ("state=RUNNING&status=FAILED", 400, "`state` and `status` mean the same and differ"),
    ("type=pod", 400, "'pod' is no type"),
    ("type=vm", 422, "virtual machines are not run here"),
    ("namespace=Other", 400, "namespace 'Other' must be 1 to 63 lower-case letters"),
    ("cursor=%21", 400, "this cursor is not one of ours"),
    ("cursor=YS9i&offset=1", 400, "a cursor or an offset, not both"),
    ("odd=1", 400, "odd"),
    ("limit=1&limit=2", 400, "given twice"),
]


@pytest.mark.parametrize(("query", "status", "text"), BAD_QUERIES)
async def test_a_bad_query_is_told_what_is_wrong(rest: Rest, query: str, status: int, text: str) -> None:
    answer = await rest.ask("GET", f"/instance/?{query}")
    assert answer.status == status
    assert text in answer.body["error"]


BAD_BODIES: list[tuple[Any, int, str, str]] = [
    ({}, 400, "invalid", "says nothing of what to run; give a workload"),
    ({"name": "web"}, 400, "invalid", "`uri` is needed"),
    ({**WEB, "workload_id": "w"}, 400, "invalid", "or a spec (`name`, `uri`, ...), not both"),
    (
        {"workload_id": "w", "workload_name": "w"},
        400,
        "invalid",
        "`workload_id` or `workload_name`, not both",
    ),
    ({"workload_id": "none"}, 404, "not-found", "there is no workload 'none'"),
    ({"workload_name": "none"}, 404, "not-found", "there is no workload 'none'"),
    ({**WEB, "id": "a/b"}, 400, "invalid", "id 'a/b' must be 1 to 128 letters"),
    ({**WEB, "type": "vm"}, 422, "unprocessable", "virtual machines"),
    ({**WEB, "ports": ["0:80"]}, 400, "invalid", "is no port mapping"),
    ({**WEB, "resources": {"cpu": -5}}, 400, "invalid", "`resources.cpu`"),
    ({**WEB, "resources": {"cpu": 2**31}}, 400, "invalid", "`resources.cpu`"),
    ({**WEB, "environment": ["A=1"] * 101}, 400, "invalid", "101 variables are too many"),
    ({**WEB, "ip": "10.0.0.1"}, 400, "invalid", "`ip` is written by the server; leave it out"),
    ({**WEB, "ip": [[]]}, 400, "invalid", "ip"),
    ({**WEB, "odd": 1}, 400, "invalid", "unknown field `odd`"),
    ({**WEB, "uri": "UPPER//x"}, 400, "invalid", ""),
    ([], 400, "invalid", "body"),
]


@pytest.mark.parametrize(("body", "status", "code", "text"), BAD_BODIES)
async def test_a_bad_instance_is_told_what_is_wrong_and_nothing_of_it_is_stored(
    rest: Rest, body: Any, status: int, code: str, text: str
) -> None:
    before = await rest.stored()
    answer = await rest.ask("PUT", "/instance/", body, headers={"Idempotency-Key": "k"})
    assert answer.error[:2] == (status, code)
    assert text in answer.body["error"]
    assert answer.body["request_id"]
    assert await rest.stored() == before
    assert (await rest.make("/instance/", WEB, headers={"Idempotency-Key": "k"}))["id"]


async def test_what_is_too_large_is_refused_before_it_is_read_or_stored(rest: Rest) -> None:
    before = await rest.stored()
    large = {**WEB, "environment": [f"K{n}={'x' * 30_000}" for n in range(20)]}
    assert (await rest.ask("PUT", "/instance/", large)).error[:2] == (413, "too-large")
    flood = io.BytesIO(b"[" * (3 * 1024 * 1024))
    headers = {"Content-Type": "application/json"}
    refused = await rest.ask("PUT", "/instance/", data=flood, headers=headers)
    assert refused.error[:2] == (413, "too-large")
    assert await rest.stored() == before


BAD_PATCHES: list[tuple[Any, int, str]] = [
    ({"id": "other"}, 400, "the id of an instance cannot change"),
    ({"type": "vm"}, 422, "virtual machines"),
    ({"status": "FAILED"}, 400, "status can be set to RUNNING or STOPPED, not to FAILED; DELETE"),
    ({"status": "ASLEEP"}, 400, "'ASLEEP' is no status"),
    ({"status": None}, 400, "status"),
    ({"name": None}, 400, "`name` is needed"),
    ({"node_id": "n1"}, 400, "`node_id` cannot be changed"),
    ({"odd": 1}, 400, "unknown field `odd`"),
    ({"resources": {"gpu": 1}}, 400, "gpu"),
    ({"workload_id": "none"}, 404, "no workload 'none'"),
    ({"ports": ["80", "80"]}, 400, "mapped twice"),
]


@pytest.mark.parametrize(("body", "status", "text"), BAD_PATCHES)
async def test_a_bad_patch_changes_nothing(rest: Rest, body: Any, status: int, text: str) -> None:
    made = await rest.make("/instance/", WEB)
    before = await rest.stored()
    # Also beside something that would be good by itself.
    for patch in (body, {"architecture": "arm64", **body}):
        answer = await rest.ask("PATCH", f"/instance/{made['id']}", patch)
        assert answer.status == status
        assert text in answer.body["error"]
    assert await rest.stored() == before


async def test_an_instance_cannot_be_taken_from_its_workload(rest: Rest) -> None:
    await rest.make("/workload/", WEB)
    made = await rest.make("/instance/", {"workload_name": "web"})
    answer = await rest.ask("PATCH", f"/instance/{made['id']}", {"workload_id": None})
    assert answer.error[:2] == (400, "invalid")
    assert "cannot be taken from its workload" in answer.body["error"]
    free = await rest.make("/instance/", {**WEB, "workload_id": None})
    assert (await rest.ask("PATCH", f"/instance/{free['id']}", {"workload_id": None})).status == 200


async def test_a_store_that_is_away_is_503_and_nothing_is_promised(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await rest.make("/instance/", WEB)

    async def away(*args: object, **options: object) -> int:
        raise errors.Unavailable("the store is away; try again")

    monkeypatch.setattr(rest.site.plane.store, "commit", away)
    for method, path, body in [
        ("PUT", "/instance/", WEB),
        ("PUT", "/workload/", WEB),
        ("PATCH", f"/instance/{made['id']}", {"status": "STOPPED"}),
        ("DELETE", f"/instance/{made['id']}", None),
    ]:
        answer = await rest.ask(method, path, body)
        assert answer.error == (503, "unavailable", "the store is away; try again")
    assert await rest.get("/instance/") == {"count": 1, "instances": [made], "cursor": None}


async def test_a_report_without_resources_takes_none_away(rest: Rest) -> None:
    id = await rest.running()
    limit = {"cpu": 500, "memory": 64, "disk": 0}
    await rest.site.control.report(id, InstanceStatus.RUNNING, usage=Resources(Millicores(7)))
    assert (await rest.get(f"/instance/{id}"))["resources"]["usage"]["cpu"] == 7
    await rest.site.control.report(id, InstanceStatus.CRASHED)
    shown = (await rest.get(f"/instance/{id}"))["resources"]
    assert shown["max"] == shown["limit"] == limit


async def test_what_is_over_cannot_be_started(rest: Rest) -> None:
    id = await rest.running()
    await rest.site.control.report(id, InstanceStatus.TERMINATED, exit_code=0)
    shown = await rest.get(f"/instance/{id}")
    assert (shown["status"], shown["exit_code"]) == ("TERMINATED", 0)
    for patch in ({"status": "RUNNING"}, {"status": "STOPPED"}, {"name": "x"}):
        answer = await rest.ask("PATCH", f"/instance/{id}", patch)
        assert answer.error == (412, "refused", "it is TERMINATED, which is final; create a new instance")


async def test_an_unknown_id_is_404_on_every_route(rest: Rest) -> None:
    for method, path in [
        ("GET", "/instance/none"),
        ("PATCH", "/instance/none"),
        ("DELETE", "/instance/none"),
        ("GET", "/instance/none/logs"),
        ("GET", "/instance/none/events"),
        ("GET", "/instance/none/explain"),
    ]:
        answer = await rest.ask(method, path, {"status": "STOPPED"} if method == "PATCH" else None)
        assert answer.error[:2] == (404, "not-found"), path
        assert "there is no instance 'none'" in answer.body["error"]
    assert (await rest.ask("GET", "/instance/" + "x" * 129)).status == 400


async def test_a_verb_that_is_not_there_is_405_with_those_that_are(rest: Rest) -> None:
    answer = await rest.ask("DELETE", "/instance/")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST, PUT")


@pytest.mark.parametrize("sent", ["put-1", "two words", "x" * 65, ""])
async def test_events_carry_the_id_that_the_request_was_answered_with(rest: Rest, sent: str) -> None:
    made = await rest.ask("PUT", "/instance/", WEB, headers={"X-Request-Id": sent})
    await rest.site.control.join("n1")
    await rest.site.control.bind(made.body["id"], "n1")
    told = (await rest.get(f"/instance/{made.body['id']}/events"))["events"]
    answered = made.headers["X-Request-Id"]
    assert (answered == sent) is (sent == "put-1")
    assert [(one["kind"], one["request_id"]) for one in told] == [
        ("instance.scheduling", answered),
        ("instance.scheduled", answered),
    ]


async def test_events_tell_the_story_with_reasons_and_actors(rest: Rest) -> None:
    id = await rest.running()
    told = await rest.get(f"/instance/{id}/events")
    assert [one["kind"] for one in told["events"]] == [
        "instance.scheduling",
        "instance.scheduled",
        "instance.starting",
        "instance.running",
    ]
    assert told["count"] == 4
    assert told["events"][0]["actor"].startswith("uid:")
    assert told["events"][1]["reason"] == "placed on node n1"
    newest = await rest.get(f"/instance/{id}/events?limit=1")
    assert (newest["count"], [one["kind"] for one in newest["events"]]) == (4, ["instance.running"])


async def test_what_a_node_uses_and_says_of_an_instance_is_shown(rest: Rest) -> None:
    id = await rest.running()
    await rest.site.control.report(id, InstanceStatus.CRASHED, reason="exit code 3", exit_code=3, restarts=2)
    shown = await rest.get(f"/instance/{id}")
    assert (shown["status"], shown["reason"], shown["exit_code"]) == ("CRASHED", "exit code 3", 3)
    assert shown["description"] == shown["statusDescription"] == "exit code 3"
    assert shown["restarts"] == 2


async def test_explain_says_per_node_which_filter_and_by_how_much(cloud: Any) -> None:
    async with serving(cloud, leads=True) as site:
        rest = Rest(site, await site.session())
        await site.control.join("n1", zone="edge")
        await site.control.join("n2")
        made = await rest.make(
            "/instance/", {**WEB, "resources": {"cpu": 9000}, "constraints": ["zone=edge"]}
        )
        told = await rest.get(f"/instance/{made['id']}/explain")
        assert (told["count"], told["fit"], told["status"]) == (2, 0, "SCHEDULING")
        by_node = {one["node_id"]: one for one in told["nodes"]}
        [refusal] = by_node["n1"]["refusals"]
        assert (refusal["filter"], by_node["n1"]["fits"]) == ("room", False)
        assert refusal["lack"]["cpu"] == 9000 - by_node["n1"]["free"]["cpu"]
        assert f"lacks {refusal['lack']['cpu']} milli-cores of cpu" in by_node["n1"]["text"]
        assert {one["filter"] for one in by_node["n2"]["refusals"]} == {"label", "room"}
        page = await rest.get(f"/instance/{made['id']}/explain?limit=1&offset=1")
        assert (page["count"], len(page["nodes"])) == (2, 1)


async def test_only_who_may_can_read_and_change(cloud: Any) -> None:
    async with serving(cloud, gate=StrangerGate) as site:
        rest = Rest(site, await site.session())
        assert (await rest.ask("GET", "/instance/")).status == 401
        viewer, deployer = await site.bearer(Role.VIEWER), await site.bearer(Role.DEPLOYER)
        assert (await rest.ask("GET", "/instance/", headers=viewer)).status == 200
        assert (await rest.ask("PUT", "/instance/", WEB, headers=viewer)).status == 403
        assert (await rest.ask("PUT", "/instance/", WEB, headers=deployer)).status == 201
        assert (await rest.ask("GET", "/node/", headers=viewer)).status == 200
        assert (await rest.ask("POST", "/node/n1/cordon", headers=deployer)).status == 403
        invoker = await site.bearer(Role.INVOKER)
        assert (await rest.ask("GET", "/workload/", headers=invoker)).status == 403
        from_path = {**WEB, "uri": "oci:/etc"}
        refused = await rest.ask("PUT", "/instance/", from_path, headers=deployer)
        assert refused.error[:2] == (403, "forbidden")
        made = await rest.ask("PUT", "/workload/", WEB, headers=deployer)
        patch = {"uri": "oci:/etc"}
        assert (
            await rest.ask("PATCH", f"/workload/{made.body['id']}", patch, headers=deployer)
        ).status == 403
        admin = await site.bearer(Role.ADMIN)
        assert (await rest.ask("PUT", "/instance/", from_path, headers=admin)).status == 201


async def test_only_an_admin_may_have_the_nodes_users(cloud: Any) -> None:
    async with serving(cloud, gate=StrangerGate) as site:
        rest = Rest(site, await site.session())
        deployer, admin = await site.bearer(Role.DEPLOYER), await site.bearer(Role.ADMIN)
        host = {**WEB, "userns": "host"}
        for kind in ("instance", "workload"):
            refused = await rest.ask("PUT", f"/{kind}/", host, headers=deployer)
            assert refused.error[:2] == (403, "forbidden")
            plain = await rest.ask("PUT", f"/{kind}/", {**WEB, "name": "plain"}, headers=deployer)
            assert plain.body["userns"] == "private"
            path = f"/{kind}/{plain.body['id']}"
            assert (await rest.ask("PATCH", path, {"userns": "host"}, headers=deployer)).status == 403
            made = await rest.ask("PUT", f"/{kind}/", host, headers=admin)
            assert (made.status, made.body["userns"]) == (201, "host")
            # Nor is another image put in the place of one that an admin trusts so far.
            path = f"/{kind}/{made.body['id']}"
            assert (
                await rest.ask("PATCH", path, {"uri": "example.org/other:1"}, headers=deployer)
            ).status == 403
            given_up = await rest.ask("PATCH", path, {"userns": None}, headers=deployer)
            assert (given_up.status, given_up.body["userns"]) == (200, "private")
