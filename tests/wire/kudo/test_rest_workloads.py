"""`/workload/` over HTTP, on the real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.kit import pki
from tests.support.waiting import eventually
from tests.transport.http.conftest import serving
from tests.wire.kudo.rest_client import WEB, Rest


async def test_a_workload_is_made_shown_listed_changed_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/workload/", {**WEB, "restart": "on-failure"})
    assert made.status == 201
    assert made.headers["Location"] == f"/workload/{made.body['id']}"
    assert made.body["resources"] == {"cpu": 500, "memory": 64, "disk": 0}
    assert (made.body["type"], made.body["restart"], made.body["version"]) == ("CONTAINER", "on-failure", 1)
    for name in (made.body["id"], "web"):
        shown = await rest.ask("GET", f"/workload/{name}")
        assert (shown.body, shown.headers["ETag"]) == (made.body, made.headers["ETag"])
    listed = await rest.ask("GET", "/workload/?type=CONTAINER&limit=10")
    assert listed.body == {"count": 1, "workloads": [made.body], "cursor": None}
    assert listed.headers["X-Total-Count"] == "1"
    changed = await rest.ask("PATCH", "/workload/web?rollout=rolling", {"uri": "example.org/web:2"})
    assert (changed.body["version"], changed.body["rollout"]) == (2, "rolling")
    assert changed.body["restart"] == "on-failure"
    gone = await rest.ask("DELETE", f"/workload/{made.body['id']}")
    assert (gone.status, gone.body) == (200, {"id": made.body["id"], "status": "DESTROYING"})
    assert (await rest.ask("GET", "/workload/web")).status == 404


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("path", ["/workload", "/workload/"])
async def test_a_name_is_given_once_and_the_second_gets_409(rest: Rest, method: str, path: str) -> None:
    assert (await rest.ask(method, path, WEB)).status == 201
    taken = await rest.ask(method, path, {**WEB, "uri": "example.org/other"})
    assert taken.error[:2] == (409, "already-exists")
    assert "the name 'web' belongs to workload" in taken.body["error"]
    assert (await rest.get("/workload/"))["count"] == 1


async def test_the_same_id_or_key_is_the_same_workload(rest: Rest) -> None:
    assert (await rest.ask("PUT", "/workload/", {**WEB, "id": "mine"})).status == 201
    assert (await rest.ask("PUT", "/workload/", {**WEB, "id": "mine"})).status == 200
    assert (await rest.ask("PUT", "/workload/", {**WEB, "id": "mine", "env": ["A=1"]})).status == 409
    headers = {"Idempotency-Key": "k"}
    first = await rest.ask("PUT", "/workload/", {**WEB, "name": "two"}, headers=headers)
    again = await rest.ask("PUT", "/workload/", {**WEB, "name": "two"}, headers=headers)
    assert (first.status, again.status, again.body) == (201, 200, first.body)


async def test_a_change_of_what_has_changed_is_412_and_a_taken_name_409(rest: Rest) -> None:
    made = await rest.ask("PUT", "/workload/", WEB)
    await rest.make("/workload/", {**WEB, "name": "taken"})
    path, tag = f"/workload/{made.body['id']}", {"If-Match": made.headers["ETag"]}
    assert (await rest.ask("PATCH", path, {"name": "x"}, headers=tag)).status == 200
    assert (await rest.ask("PATCH", path, {"name": "y"}, headers=tag)).error[:2] == (412, "refused")
    assert (await rest.ask("PATCH", path, {"name": "taken"})).error[:2] == (409, "already-exists")
    assert (await rest.get(path))["name"] == "x"


BAD_PATCHES: list[tuple[str, Any, int, str]] = [
    ("", {"id": "other"}, 400, "the id of a workload cannot change"),
    ("", {"type": "vm"}, 422, "virtual machines"),
    ("", {"status": "STOPPED"}, 400, "unknown field `status`"),
    ("", {"version": 7}, 400, "`version` cannot be changed"),
    ("", {"kind": "instance"}, 400, "kind"),
    ("", {"uri": None}, 400, "`uri` is needed"),
    ("?rollout=big-bang", {"name": "x"}, 400, "rollout"),
]


@pytest.mark.parametrize(("query", "body", "status", "text"), BAD_PATCHES)
async def test_a_bad_patch_changes_nothing(rest: Rest, query: str, body: Any, status: int, text: str) -> None:
    made = await rest.make("/workload/", WEB)
    before = await rest.stored()
    answer = await rest.ask("PATCH", f"/workload/{made['id']}{query}", body)
    assert answer.status == status
    assert text in answer.body["error"]
    assert await rest.stored() == before


async def test_a_workload_with_instances_goes_with_them_or_not_at_all(
    cloud: pki.CertificateAuthority,
) -> None:
    async with serving(cloud, leads=True) as site:
        rest = Rest(site, await site.session())
        made = await rest.make("/workload/", WEB)
        await rest.make("/instance/", {"workload_id": made["id"]})
        kept = await rest.ask("DELETE", f"/workload/{made['id']}?cascade=false")
        assert kept.error[:2] == (409, "conflict")
        assert (await rest.ask("GET", "/workload/web")).status == 200
        gone = await rest.ask("DELETE", f"/workload/{made['id']}")
        assert gone.status == 200
        await eventually(lambda: site.control.instances.list().total == 0)
        assert (await rest.ask("DELETE", f"/workload/{made['id']}")).status == 404


async def test_a_rolling_change_reaches_the_instances(cloud: pki.CertificateAuthority) -> None:
    async with serving(cloud, leads=True) as site:
        rest = Rest(site, await site.session())
        made = await rest.make("/workload/", WEB)
        one = await rest.make("/instance/", {"workload_id": made["id"]})
        await rest.ask("PATCH", f"/workload/{made['id']}?rollout=none", {"uri": "example.org/web:2"})
        assert (await rest.get(f"/instance/{one['id']}"))["uri"] == WEB["uri"]
        await rest.ask("PATCH", f"/workload/{made['id']}?rollout=rolling", {"uri": "example.org/web:3"})
        await eventually(lambda: site.control.instances.get(one["id"]).spec.uri == "example.org/web:3")
