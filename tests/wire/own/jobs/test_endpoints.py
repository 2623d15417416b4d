"""`/job/` and `/schedule/` over HTTP, on the real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.model.callers import Role
from skerry.model.statuses import InstanceStatus
from tests.support.waiting import eventually
from tests.wire.kudo.rest_client import Rest

SUMS: dict[str, Any] = {
    "name": "sums",
    "image": "example.org/sums:1",
    "environment": ["SECRET=1"],
    "completions": 2,
    "parallelism": 2,
    "retries": 1,
    "resources": {"cpu": 100, "memory": 64},
}
NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "cron": "30 3 * * *",
    "timezone": "Europe/Berlin",
    "job": {"image": "example.org/sums:1", "environment": ["SECRET=1"]},
}


async def test_a_job_is_made_shown_listed_cancelled_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/job/", SUMS)
    assert made.status == 201, made
    assert made.headers["Location"] == "/namespace/default/job/sums"
    document = made.body
    assert (document["status"], document["succeeded"], document["active"]) == ("RUNNING", 0, 0)
    assert (document["keep_for_s"], document["deadline_s"]) == (86400.0, None)
    assert document["environment"] == ["SECRET=1"]
    assert (await rest.ask("PUT", "/job/", SUMS)).status == 200
    taken = await rest.ask("PUT", "/job/", {**SUMS, "retries": 9})
    assert taken.error[:2] == (409, "already-exists")
    for name in ("sums", document["id"]):
        assert await rest.get(f"/job/{name}") == document
    assert await rest.get("/job/") == {"count": 1, "jobs": [document], "cursor": None}
    assert await rest.get("/job/sums/tries") == {"count": 0, "tries": []}
    cancelled = await rest.ask("POST", "/job/sums/cancel")
    assert (cancelled.status, cancelled.body["status"]) == (200, "CANCELLED")
    assert cancelled.body["reason"].startswith("cancelled by")
    gone = await rest.ask("DELETE", "/job/sums")
    assert (gone.status, gone.body["status"]) == (202, "DELETING")
    refused = await rest.ask("PUT", "/job/", SUMS)
    assert refused.status == 409
    assert "is being deleted" in refused.body["error"]


async def test_a_job_runs_and_its_tries_are_instances(led: Rest) -> None:
    await led.make("/job/", SUMS)

    async def tries() -> list[dict[str, Any]]:
        return list((await led.get("/job/sums/tries"))["tries"])

    async def placed() -> bool:
        made = await tries()
        return len(made) == 2 and all(each["node_id"] for each in made)

    await eventually(placed)
    first, second = await tries()
    assert (first["number"], first["index"], second["index"]) == (1, 0, 1)
    control = led.site.control
    run = (InstanceStatus.STARTING, InstanceStatus.RUNNING)
    for each in (first, second):
        await control.report(each["instance_id"], *run)
        await control.report(each["instance_id"], InstanceStatus.TERMINATED, exit_code=0)

    async def is_done() -> bool:
        return (await led.get("/job/sums"))["status"] == "SUCCEEDED"

    await eventually(is_done)
    instance = await led.get(f"/instance/{first['instance_id']}")
    assert "SKERRY_JOB_INDEX=0" in instance["environment"]
    assert instance["restart"] == "never"
    assert [each["exit_code"] for each in await tries()] == [0, 0]


async def test_without_a_name_one_is_made(rest: Rest) -> None:
    made = await rest.ask("PUT", "/job/", {"image": "example.org/team/2sums_2:1"})
    assert made.status == 201, made
    assert made.body["name"].startswith("j2sums-2-")


async def test_jobs_and_schedules_have_namespaces(rest: Rest) -> None:
    await rest.make("/namespace/shop/job/", SUMS)
    await rest.make("/job/?namespace=shop", {**SUMS, "name": "other"})
    assert (await rest.get("/job/"))["count"] == 0
    assert (await rest.get("/job/?namespace=*"))["count"] == 2
    assert (await rest.ask("GET", "/job/sums")).status == 404
    assert (await rest.get("/namespace/shop/job/sums"))["namespace"] == "shop"
    await rest.make("/namespace/shop/schedule/", NIGHTLY)
    assert (await rest.ask("GET", "/schedule/nightly")).status == 404
    assert (await rest.ask("POST", "/namespace/shop/schedule/nightly/pause")).body["paused"] is True
    assert (await rest.ask("PUT", "/namespace/market/job/", SUMS)).status == 403
    assert (await rest.ask("PUT", "/namespace/market/schedule/", NIGHTLY)).status == 403


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"completions": 0}, 400, "completions are 1 to 10000"),
        ({"completions": 1_000_000}, 400, "completions are 1 to 10000"),
        ({"parallelism": 0}, 400, "parallelism is 1 to"),
        ({"retries": -1}, 400, "retries are 0 to"),
        ({"deadline_s": 0}, 400, "deadline"),
        ({"keep_for_s": -1}, 400, "kept for"),
        ({"restart": "always"}, 400, "never restarts by itself"),
        ({"name": "Sums!"}, 400, "job name"),
        ({"name": "x" * 51}, 400, "job name"),
        ({"image": "not an image"}, 400, ""),
        ({"image": "example.org/a:1", "uri": "example.org/b:1"}, 400, "mean the same"),
        ({"type": "VM"}, 422, "virtual machines"),
        ({"unknown": 1}, 400, "unknown"),
        ({"environment": [f"V{number}=1" for number in range(99)]}, 400, "too many"),
    ],
)
async def test_a_job_that_cannot_be_is_refused_and_not_stored(
    rest: Rest, change: dict[str, Any], status: int, reason: str
) -> None:
    refused = await rest.ask("PUT", "/job/", {**SUMS, **change})
    assert refused.status == status, refused
    assert reason in refused.body["error"]
    assert (await rest.get("/job/"))["count"] == 0


async def test_a_schedule_is_made_shown_changed_paused_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/schedule/", NIGHTLY)
    assert made.status == 201, made
    document = made.body
    assert (document["overlap"], document["window_s"], document["paused"]) == ("skip", 3600.0, False)
    assert len(document["next"]) == len(document["next_local"]) == 5
    assert " 03:30 C" in document["next_local"][0]
    assert document["job"]["image"] == "example.org/sums:1"
    assert document["function"] is None
    assert (await rest.ask("PUT", "/schedule/", NIGHTLY)).status == 200
    assert (await rest.ask("PUT", "/schedule/", {**NIGHTLY, "window_s": 1})).status == 409
    assert (await rest.get("/schedule/"))["count"] == 1
    change = {"cron": "0 4 * * MON", "overlap": "queue", "timezone": None}
    changed = await rest.ask("PATCH", "/schedule/nightly", change)
    assert (changed.body["cron"], changed.body["timezone"]) == ("0 4 * * MON", "UTC")
    assert changed.body["job"] == document["job"]
    shown = await rest.ask("GET", "/schedule/nightly")
    stale = await rest.ask("PATCH", "/schedule/nightly", {"paused": True}, headers={"If-Match": '"1"'})
    assert stale.status == 412
    assert shown.headers["ETag"]
    paused = await rest.ask("POST", "/schedule/nightly/pause")
    assert (paused.body["paused"], paused.body["next"]) == (True, [])
    resumed = await rest.ask("POST", "/schedule/nightly/resume")
    assert len(resumed.body["next"]) == 5
    assert (await rest.ask("DELETE", "/schedule/nightly")).status == 200
    assert (await rest.ask("GET", "/schedule/nightly")).status == 404


async def test_a_schedule_runs_now_once_at_a_time(led: Rest) -> None:
    await led.make("/schedule/", NIGHTLY)
    run = await led.ask("POST", "/schedule/nightly/run")
    assert (run.status, run.body["manual"]) == (202, True)

    async def begun() -> Any:
        return [run for run in (await led.get("/schedule/nightly"))["runs"] if run["status"] == "RUNNING"]

    (begun_run,) = await eventually(begun)
    jobs = await led.get("/job/?schedule=nightly")
    assert [job["name"] for job in jobs["jobs"]] == [begun_run["target"]]
    again = await led.ask("POST", "/schedule/nightly/run")
    assert again.status == 412
    assert "goes on" in again.body["error"]


async def test_a_schedule_takes_the_spec_of_a_job_or_a_function(rest: Rest) -> None:
    await rest.make("/job/", SUMS)
    copied = await rest.make("/schedule/", {"name": "copied", "cron": "* * * * *", "from_job": "sums"})
    assert (copied["job"]["completions"], copied["job"]["environment"]) == (2, ["SECRET=1"])
    call = {"name": "there", "parameters": {"n": [1, {"deep": 1.5}]}}
    called = await rest.make("/schedule/", {"name": "called", "cron": "* * * * *", "function": call})
    assert called["function"] == {**call, "namespace": "default"}
    turned = await rest.ask("PATCH", "/schedule/called", {"job": {"image": "example.org/sums:1"}})
    assert turned.status == 400
    assert "create another" in turned.body["error"]


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"cron": "0 0 30 2 *"}, 400, "never due"),
        ({"cron": "0 0 31 4 *"}, 400, "never due"),
        ({"cron": "* * * *"}, 400, "five fields"),
        ({"cron": "61 * * * *"}, 400, "no cron expression"),
        ({"cron": "x" * 500}, 400, "at most 200"),
        ({"timezone": "Mars/Olympus"}, 400, "no time zone"),
        ({"window_s": -1}, 400, "0 to 7 days"),
        ({"overlap": "sometimes"}, 400, "overlap"),
        ({"name": "x" * 40}, 400, "at most 39"),
        ({"job": {"image": "example.org/a:1", "parallelism": 0}}, 400, "parallelism is 1 to"),
        ({"from_job": "missing"}, 404, "no job 'missing'"),
        ({"from_job": "missing", "job": {}}, 404, "no job"),
        ({"function": {"name": "missing"}, "job": None}, 400, ""),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_and_not_stored(
    rest: Rest, change: dict[str, Any], status: int, reason: str
) -> None:
    refused = await rest.ask("PUT", "/schedule/", {**NIGHTLY, **change})
    assert refused.status == status, refused
    assert reason in refused.body["error"]
    assert (await rest.get("/schedule/"))["count"] == 0


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"function": {"name": "missing"}}, 422, "no function 'missing'"),
        ({"function": {"name": "there"}, "overlap": "replace"}, 400, "cannot be cancelled"),
        ({}, 400, "needs `job`"),
    ],
)
async def test_a_schedule_of_what_is_not_there_is_refused(
    rest: Rest, body: dict[str, Any], status: int, reason: str
) -> None:
    refused = await rest.ask("PUT", "/schedule/", {"name": "calls", "cron": "* * * * *", **body})
    assert (refused.status, reason in refused.body["error"]) == (status, True), refused
    assert (await rest.get("/schedule/"))["count"] == 0


async def test_a_viewer_sees_no_values_and_changes_nothing_and_an_invoker_sees_nothing(rest: Rest) -> None:
    await rest.make("/job/", SUMS)
    await rest.make("/schedule/", NIGHTLY)
    viewer = await rest.site.bearer(Role.VIEWER)
    for path in ("/job/sums", "/schedule/nightly"):
        seen = await rest.ask("GET", path, headers=viewer)
        assert seen.status == 200
        assert "SECRET=1" not in str(seen.body)
        assert "SECRET=" in str(seen.body)
    for verb, path, body in (
        ("PUT", "/job/", SUMS),
        ("POST", "/job/sums/cancel", None),
        ("DELETE", "/job/sums", None),
        ("POST", "/schedule/nightly/run", None),
        ("PATCH", "/schedule/nightly", {}),
    ):
        assert (await rest.ask(verb, path, body, headers=viewer)).status == 403
    invoker = await rest.site.bearer(Role.INVOKER)
    assert (await rest.ask("GET", "/job/", headers=invoker)).status == 403
    assert (await rest.ask("GET", "/schedule/", headers=invoker)).status == 403


async def test_a_deployer_gets_no_more_than_their_own_authority(rest: Rest) -> None:
    deployer = await rest.site.bearer(Role.DEPLOYER)
    for body in ({**SUMS, "userns": "host"}, {**SUMS, "image": "oci-archive:/srv/secret.tar"}):
        assert (await rest.ask("PUT", "/job/", body, headers=deployer)).status == 403
    await rest.make("/job/", {**SUMS, "userns": "host"})  # by an admin
    copied = {"name": "copied", "cron": "* * * * *", "from_job": "sums"}
    assert (await rest.ask("PUT", "/schedule/", copied, headers=deployer)).status == 403
