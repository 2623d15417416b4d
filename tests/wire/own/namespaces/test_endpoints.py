"""`/namespace/` over HTTP, and quotas as every way of creating instances meets them."""

from __future__ import annotations

from typing import Any

from skerry.model.callers import Role
from skerry.model.ids import Namespace
from skerry.model.statuses import InstanceStatus
from tests.support.waiting import eventually
from tests.wire.kudo.rest_client import WEB, Rest

SHOP: dict[str, Any] = {"name": "web", "image": "example.org/web:1", "resources": {"cpu": 1000}}


async def test_a_namespace_is_created_shown_limited_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/namespace/", {"name": "shop", "quota": {"cpu": 4000}})
    assert (made.status, made.headers["Location"]) == (201, "/namespace/shop")
    assert made.body["quota"] == {
        "cpu": 4000,
        "memory": None,
        "disk": None,
        "instances": None,
        "functions": None,
        "volumes": None,
    }
    assert (await rest.ask("PUT", "/namespace/", {"name": "shop", "quota": {"cpu": 4000}})).status == 200
    taken = await rest.ask("PUT", "/namespace/", {"name": "shop"})
    assert taken.error[:2] == (409, "already-exists")
    changed = await rest.ask("PATCH", "/namespace/shop", {"quota": {"cpu": None, "instances": 2}})
    assert (changed.body["quota"]["cpu"], changed.body["quota"]["instances"]) == (None, 2)
    await rest.make("/instance/", {"name": "a", "uri": "example.org/a:1", "namespace": "lab"})
    listed = await rest.get("/namespace/")
    assert [each["name"] for each in listed["namespaces"]] == ["default", "lab", "shop"]
    lab = await rest.get("/namespace/lab")
    assert (lab["created_at"], lab["objects"], lab["used"]["instances"]) == (None, {"instance": 1}, 1)
    assert (await rest.ask("DELETE", "/namespace/shop")).status == 204
    assert (await rest.ask("GET", "/namespace/shop")).error[:2] == (404, "not-found")
    assert (await rest.ask("DELETE", "/namespace/shop")).error[:2] == (404, "not-found")


async def test_what_is_not_valid_is_refused(rest: Rest) -> None:
    for body in (
        {"name": "Shop"},
        {"name": "shop", "quota": {"cpu": -1}},
        {"name": "shop", "quota": {"cpus": 1}},
        {"name": "market", "quota": {"cpu": 1}},
    ):
        assert (await rest.ask("PUT", "/namespace/", body)).error[:2] == (400, "invalid"), body
    assert (await rest.ask("PATCH", "/namespace/shop", {"quota": {"instances": "2"}})).status == 400
    stale = await rest.ask("PATCH", "/namespace/shop", {"quota": {"cpu": 1}}, headers={"If-Match": '"7"'})
    assert stale.error[:2] == (412, "refused")


async def test_a_namespace_that_is_in_use_is_not_deleted(rest: Rest) -> None:
    await rest.ask("PUT", "/namespace/", {"name": "shop"})
    await rest.make("/namespace/shop/instance/", WEB)
    refused = await rest.ask("DELETE", "/namespace/shop")
    assert refused.error[:2] == (412, "refused")
    assert "there is something in namespace shop: 1 instance" in refused.body["error"]


async def test_only_an_admin_changes_quotas_and_readers_see_them(rest: Rest) -> None:
    await rest.ask("PUT", "/namespace/", {"name": "shop", "quota": {"cpu": 1}})
    for role, may_read in ((Role.DEPLOYER, True), (Role.VIEWER, True), (Role.INVOKER, False)):
        headers = await rest.site.bearer(role)
        for method, path, body in (
            ("PUT", "/namespace/", {"name": "lab"}),
            ("PATCH", "/namespace/shop", {"quota": {"cpu": 9}}),
            ("DELETE", "/namespace/shop", None),
        ):
            assert (await rest.ask(method, path, body, headers=headers)).status == 403, (role, method)
        assert (await rest.ask("GET", "/namespace/shop", headers=headers)).status == (
            200 if may_read else 403
        )


async def test_a_request_above_the_quota_is_403_and_says_by_how_much(rest: Rest) -> None:
    await rest.ask("PUT", "/namespace/", {"name": "shop", "quota": {"cpu": 700}})
    made = await rest.make("/namespace/shop/instance/", WEB)
    refused = await rest.ask("PUT", "/namespace/shop/instance/", WEB)
    assert refused.error[:2] == (403, "quota-exceeded")
    assert (
        "namespace shop has 500 of 700 milli-cores in use; this needs 500: 300 too many"
        in refused.body["error"]
    )
    larger = {"resources": {"cpu": 2000}}
    assert (await rest.ask("PATCH", f"/instance/{made['id']}", larger)).error[:2] == (403, "quota-exceeded")
    await rest.ask("DELETE", f"/instance/{made['id']}")
    assert (await rest.ask("PUT", "/namespace/shop/instance/", WEB)).status == 201


async def test_a_service_above_the_quota_says_so_and_gets_its_copies_when_there_is_room(led: Rest) -> None:
    await led.ask("PUT", "/namespace/", {"name": "shop", "quota": {"cpu": 1500}})
    await led.make("/namespace/shop/service/", {**SHOP, "replicas": 3})

    async def message() -> str:
        return str((await led.get("/namespace/shop/service/web"))["quota_message"])

    await eventually(message)
    assert await message() == (
        "namespace shop has 1000 of 1500 milli-cores in use; this needs 1000: 500 too many"
    )
    copies = (await led.get("/namespace/shop/service/web"))["copies"]
    assert [copy["name"] for copy in copies] == ["web-0"]
    events = (await led.get("/namespace/shop/service/web/events"))["events"]
    assert "service.quota-exceeded" in {event["kind"] for event in events}
    await led.ask("PATCH", "/namespace/shop", {"quota": {"cpu": 3000}})

    async def copies_now() -> int:
        return len((await led.get("/namespace/shop/service/web"))["copies"])

    async def is_whole() -> bool:
        return await copies_now() == 3 and await message() == ""

    await eventually(is_whole)


async def test_volumes_of_a_service_count_and_copies_without_room_for_theirs_wait(led: Rest) -> None:
    await led.ask("PUT", "/namespace/", {"name": "shop", "quota": {"volumes": 2, "disk": 5}})
    await led.make("/namespace/shop/service/", {**SHOP, "replicas": 3, "volume_templates": ["data:/data:2"]})

    async def shown() -> dict[str, Any]:
        return dict(await led.get("/namespace/shop/service/web"))

    async def waits() -> bool:
        return len((await shown())["copies"]) == 2 and bool((await shown())["quota_message"])

    await eventually(waits)
    assert (await shown())["quota_message"] == (
        "namespace shop has 4 of 5 GB of disk in use; this needs 2: 1 too many; 2 of 2 volumes in use; "
        "this needs 1: 1 too many"
    )
    used = (await led.get("/namespace/shop"))["used"]
    assert (used["volumes"], used["disk"], used["instances"]) == (2, 4, 2)
    await led.ask("PATCH", "/namespace/shop", {"quota": None})

    async def is_whole() -> bool:
        return len((await shown())["copies"]) == 3

    await eventually(is_whole)


async def test_a_job_above_the_quota_waits_and_goes_on_when_a_try_ends(led: Rest) -> None:
    await led.ask("PUT", "/namespace/", {"name": "shop", "quota": {"instances": 1}})
    job = {**SHOP, "name": "sums", "completions": 2, "parallelism": 2}
    await led.make("/namespace/shop/job/", job)

    async def shown() -> dict[str, Any]:
        return dict(await led.get("/namespace/shop/job/sums"))

    async def waits() -> bool:
        return (await shown())["reason"].startswith("namespace shop has 1 of 1 instances in use")

    await eventually(waits)
    for _ in range(2):

        async def running() -> list[dict[str, Any]]:
            tries = (await led.get("/namespace/shop/job/sums/tries"))["tries"]
            return [each for each in tries if each["status"] == "SCHEDULED"]

        [one] = await eventually(running)
        await led.site.control.report(one["instance_id"], InstanceStatus.STARTING, InstanceStatus.RUNNING)
        await led.site.control.report(one["instance_id"], InstanceStatus.TERMINATED, exit_code=0)

    async def is_done() -> bool:
        return (await shown())["status"] == "SUCCEEDED"

    await eventually(is_done)
    assert (await shown())["reason"] == ""


async def test_a_rollout_above_the_quota_waits_and_goes_on_when_there_is_room(led: Rest) -> None:
    await led.ask("PUT", "/namespace/", {"name": "shop", "quota": {"cpu": 500}})
    workload = await led.make("/namespace/shop/workload/", WEB)
    made = await led.make("/namespace/shop/instance/", {"workload_id": workload["id"]})
    changed = await led.ask(
        "PATCH", f"/workload/{workload['id']}?rollout=rolling", {"resources": {"cpu": 2000}}
    )
    assert changed.status == 200, changed

    async def is_refused() -> bool:
        found = await led.site.control.events.list_after("0", frozenset({"workload.quota-exceeded"}))
        return bool(found)

    await eventually(is_refused)
    assert (await led.get(f"/instance/{made['id']}"))["resources"]["cpu"] == 500
    await led.ask("PATCH", "/namespace/shop", {"quota": {"cpu": 2000}})

    async def follows() -> bool:
        return bool((await led.get(f"/instance/{made['id']}"))["resources"]["cpu"] == 2000)

    await eventually(follows)


async def test_a_bound_caller_sees_its_own_namespace_alone(rest: Rest) -> None:
    for name in ("shop", "lab"):
        await rest.ask("PUT", "/namespace/", {"name": name, "quota": {"cpu": 1}})
    identity = rest.site.plane.identity
    _, text = await identity.create_token(
        Role.DEPLOYER, ttl_s=None, note="", actor="test", namespaces=(Namespace("shop"), Namespace("new"))
    )
    headers = {"Authorization": f"Bearer {text}"}
    listed = await rest.get("/namespace/", headers=headers)
    assert [one["name"] for one in listed["namespaces"]] == ["new", "shop"]
    assert (await rest.get("/namespace/shop", headers=headers))["quota"]["cpu"] == 1
    assert (await rest.get("/namespace/new", headers=headers))["created_at"] is None
    other, absent = [await rest.ask("GET", f"/namespace/{name}", headers=headers) for name in ("lab", "xxx")]
    assert other.status == absent.status == 404
    assert other.body["error"].replace("lab", "xxx") == absent.body["error"]
    events = await rest.site.control.events.list_after("0", frozenset({"namespace"}))
    assert {one.event.namespace for one in events} == {"shop", "lab"}
