"""Whole objects over HTTP: what was read is taken back, names that are left out are made, errors as data."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.model.callers import Role
from skerry.model.statuses import InstanceStatus
from skerry.wire.kudo.documents import InstanceDocument, InstanceInput, WorkloadDocument, WorkloadInput
from skerry.wire.kudo.envelope import ENVELOPE
from tests.wire.kudo.rest_client import WEB, Rest

FULL = {**WEB, "environment": ["A=1"], "ports": ["8080:80"], "restart": "on-failure", "arguments": ["x"]}


async def make(rest: Rest, kind: str) -> dict[str, Any]:
    """One of them, with something in every field, as it is read."""
    workload = await rest.make("/workload/", FULL)
    if kind == "workload":
        return await rest.get(f"/workload/{workload['id']}")
    id = await rest.running({"workload_id": workload["id"]})
    return await rest.get(f"/instance/{id}")


@pytest.mark.parametrize("kind", ["instance", "workload"])
async def test_what_was_read_is_taken_back_whole_by_patch_and_by_put_and_changes_nothing(
    rest: Rest, kind: str
) -> None:
    read = await make(rest, kind)
    headers = await rest.site.bearer(Role.DEPLOYER)
    before = await rest.stored()
    for method, path in (("PATCH", f"/{kind}/{read['id']}"), ("PUT", f"/{kind}/"), ("POST", f"/{kind}/")):
        again = await rest.ask(method, path, read, headers=headers)
        assert (again.status, again.body) == (200, read), method
    assert await rest.stored() == before


async def test_an_instance_of_a_spec_of_its_own_is_taken_back_too(rest: Rest) -> None:
    id = await rest.running(FULL)
    read, before = await rest.get(f"/instance/{id}"), await rest.stored()
    for method, path in (("PATCH", f"/instance/{id}"), ("PUT", "/instance/")):
        assert (await rest.ask(method, path, read)).status == 200
    assert await rest.stored() == before


CHANGED: dict[str, dict[str, Any]] = {
    "instance": {
        "since": 1.0,
        "ready": "yes",
        "check_message": "because",
        "desired": "STOPPED",
        "reason": "because",
        "description": "because",
        "statusDescription": "because",
        "exit_code": 3,
        "retry_at": 5.0,
        "restarts": 7,
        "ip": "10.0.0.1",
        "node_id": None,
        "workload_version": 9,
        "owner": "service/other",
        "generation": 9,
        "created_at": 1,
    },
    "workload": {"version": 7, "rollout": "rolling", "created_at": None},
}


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind, told in CHANGED.items() for field in told]
)
async def test_what_only_the_server_writes_cannot_be_changed(rest: Rest, kind: str, field: str) -> None:
    read = await make(rest, kind)
    before = await rest.stored()
    for method, path in (("PATCH", f"/{kind}/{read['id']}"), ("PUT", f"/{kind}/")):
        refused = await rest.ask(method, path, {**read, field: CHANGED[kind][field]})
        assert refused.error[:2] == (400, "invalid")
        assert f"`{field}` cannot be changed" in refused.body["error"]
        assert refused.body["field"] == field
    assert await rest.stored() == before


def test_every_field_that_is_written_is_read() -> None:
    for read, written in ((InstanceInput, InstanceDocument), (WorkloadInput, WorkloadDocument)):
        assert set(written.__struct_encode_fields__) <= set(read.__struct_encode_fields__)


async def test_a_change_in_a_whole_document_is_made(rest: Rest) -> None:
    read = await make(rest, "instance")
    changed = await rest.ask("PATCH", f"/instance/{read['id']}", {**read, "environment": ["A=2"]})
    assert (changed.status, changed.body["env"], changed.body["environment"]) == (200, ["A=2"], ["A=2"])
    assert (changed.body["ports"], changed.body["workload_id"]) == (read["ports"], read["workload_id"])
    stop = await rest.get(f"/instance/{read['id']}")
    stopped = await rest.ask("PATCH", f"/instance/{read['id']}", {**stop, "status": "STOPPED"})
    assert (stopped.status, stopped.body["desired"]) == (200, "STOPPED")
    # While it still runs, what is read says RUNNING, which is no wish to start it again.
    running = await rest.get(f"/instance/{read['id']}")
    assert running["status"] == "RUNNING"
    same = await rest.ask("PATCH", f"/instance/{read['id']}", running)
    assert (same.status, same.body["desired"]) == (200, "STOPPED")


async def test_a_put_with_another_spec_is_a_conflict_that_says_what_to_do(rest: Rest) -> None:
    for kind in ("instance", "workload"):
        read = await make(rest, kind) if kind == "instance" else await rest.get("/workload/web")
        refused = await rest.ask("PUT", f"/{kind}/", {**read, "arguments": ["y"]})
        assert refused.error[:2] == (409, "already-exists")
        assert "change it" in refused.body["error"]


async def test_a_document_that_is_out_of_date_is_told_to_be_read_again(rest: Rest) -> None:
    read = await make(rest, "instance")
    await rest.site.control.report(read["id"], InstanceStatus.CRASHED, reason="exited with 3", exit_code=3)
    late = await rest.ask("PATCH", f"/instance/{read['id']}", {**read, "environment": []})
    assert late.error[:2] == (400, "invalid")
    assert "read it again" in late.body["error"]


async def test_one_that_is_over_is_taken_back_as_it_is_and_not_otherwise(rest: Rest) -> None:
    read = await make(rest, "instance")
    await rest.site.control.report(read["id"], InstanceStatus.TERMINATED, exit_code=0)
    over = await rest.get(f"/instance/{read['id']}")
    assert (await rest.ask("PATCH", f"/instance/{read['id']}", over)).body == over
    assert (await rest.ask("PATCH", f"/instance/{read['id']}", {**over, "env": []})).status == 412


async def test_a_rollout_that_is_under_way_goes_on_if_its_workload_is_sent_back(rest: Rest) -> None:
    made = await rest.make("/workload/", WEB)
    path = f"/workload/{made['id']}"
    rolling = await rest.ask("PATCH", f"{path}?rollout=rolling", {"uri": "example.org/web:2"})
    assert (await rest.ask("PATCH", path, rolling.body)).body == rolling.body


async def test_what_is_not_there_is_not_made_with_what_only_the_server_writes(rest: Rest) -> None:
    read = await make(rest, "workload")
    await rest.ask("DELETE", f"/workload/{read['id']}")
    refused = await rest.ask("PUT", "/workload/", read)
    assert refused.error[:2] == (400, "invalid")
    assert "`version` is written by the server; leave it out" in refused.body["error"]


# Names


@pytest.mark.parametrize("kind", ["instance", "workload"])
@pytest.mark.parametrize("name", [{}, {"name": None}])
async def test_who_gives_no_name_gets_one(rest: Rest, kind: str, name: dict[str, None]) -> None:
    body = {"uri": "example.org/team/web:1", **name}
    one, two = [await rest.make(f"/{kind}/", body) for _ in range(2)]
    assert one["name"].startswith("web-")
    assert one["name"] != two["name"]
    if kind == "workload":
        assert (await rest.get(f"/workload/{one['name']}"))["id"] == one["id"]


@pytest.mark.parametrize("kind", ["instance", "workload"])
async def test_a_repeat_without_a_name_is_the_same_request(rest: Rest, kind: str) -> None:
    body = {"uri": "example.org/web:1"}
    for repeated, headers in (({"id": "x-1"}, {}), ({}, {"Idempotency-Key": "k"})):
        first, again = [
            await rest.ask("PUT", f"/{kind}/", {**body, **repeated}, headers=headers) for _ in "ab"
        ]
        assert (first.status, again.status) == (201, 200)
        assert first.body == again.body


# Errors in the envelope


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/instance/none", None, 404),
        ("GET", "/instance/?limit=x", None, 400),
        ("GET", "/instance/none/logs", None, 404),
        ("GET", "/namespace/shop/workload/none", None, 404),
        ("GET", "/workload/none/nothing/here", None, 404),
        ("PUT", "/workload/", {"name": "web"}, 400),
        ("PUT", "/workload/", [], 400),
        ("PUT", "/instance/", {**WEB, "type": "vm"}, 422),
        ("PATCH", "/instance/", WEB, 405),
        ("DELETE", "/node/none", None, 404),
    ],
)
async def test_errors_come_in_the_envelope_if_it_is_asked_for(
    rest: Rest, method: str, path: str, body: Any, status: int
) -> None:
    plain = await rest.ask(method, path, body)
    asked = await rest.ask(method, path, body, headers={"Accept": f"{ENVELOPE}, */*"})
    assert (plain.status, plain.headers["Content-Type"]) == (status, "application/json")
    assert (asked.status, asked.headers["Content-Type"]) == (status, ENVELOPE)
    assert asked.body["data"] is None
    metadata = asked.body["metadata"]
    assert {**metadata, "request_id": ""} == {**plain.body, "request_id": ""}
    assert metadata["error"]
    assert metadata["request_id"]


async def test_who_may_not_is_told_so_in_the_envelope(rest: Rest) -> None:
    headers = {**await rest.site.bearer(Role.VIEWER), "Accept": ENVELOPE}
    refused = await rest.ask("PUT", "/workload/", WEB, headers=headers)
    assert (refused.status, set(refused.body)) == (403, {"data", "metadata"})
    stranger = await rest.ask("GET", "/workload/", headers={"Authorization": "Bearer no", "Accept": ENVELOPE})
    assert (stranger.status, stranger.body["metadata"]["code"]) == (401, "unauthenticated")


async def test_routes_that_know_no_envelope_answer_as_ever(rest: Rest) -> None:
    asked = await rest.ask("GET", "/token/none", headers={"Accept": ENVELOPE})
    assert asked.headers["Content-Type"] == "application/json"
    assert "metadata" not in asked.body
