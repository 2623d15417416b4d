"""Services on three machines with real containers: updates under load, bad versions, drains and kills.

Requests come from outside, to the published ports of the copies that the server calls ready; none may be
lost. Each test makes what it needs and takes it away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import imagery
from tests.support.lans import Lan
from tests.support.traffic import Traffic
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

SMALL = {"cpu": 50, "memory": 32}
# Requests that are under way are answered before the end: what people call a graceful stop.
SERVES = "echo $VERSION > /www/index.html; exec httpd -f -p 80 -h /www"
CHECK = {"role": "readiness", "method": "http", "port": 80, "interval_s": 0.3, "timeout_s": 2}
QUICK = {"min_ready_s": 0.2, "drain_s": 2, "deadline_s": 60}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", SERVES))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


def create(cloud: Lan, image: str, replicas: int = 3, **fields: Any) -> None:
    cloud.call(
        "PUT",
        "/service/",
        {
            "name": "web",
            "image": image,
            "replicas": replicas,
            "environment": ["VERSION=1"],
            "ports": ["8080:80"],
            "resources": SMALL,
            "checks": [CHECK],
            "update": QUICK,
            **fields,
        },
    )
    until(cloud, lambda seen: seen["status"] == "HEALTHY", "it is healthy")


def update(cloud: Lan, version: int, **fields: Any) -> None:
    cloud.call("PATCH", "/service/web", {"environment": [f"VERSION={version}"], **fields})


def until(cloud: Lan, is_so: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """The service, when it is so."""
    seen: dict[str, Any] = {}

    def look() -> bool:
        nonlocal seen
        try:
            status, seen = cloud.server.call("GET", "/service/web")
        except OSError:  # the server is being started
            return False
        return status == 200 and is_so(seen)

    try:
        eventually_sync(look, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {seen}") from None
    return seen


def is_at(revision: int, replicas: int = 3) -> Callable[[dict[str, Any]], bool]:
    def is_so(seen: dict[str, Any]) -> bool:
        copies = seen["copies"]
        return (
            (seen["status"], seen["revision"], seen["ready"]) == ("HEALTHY", revision, replicas)
            and len(copies) == replicas
            and all(copy["revision"] == revision for copy in copies)
        )

    return is_so


def test_an_update_under_load_loses_no_request(cloud: Lan, image: str) -> None:
    create(cloud, image)
    with Traffic(cloud, "web", 8080) as traffic:
        eventually_sync(lambda: traffic.answers["1"] > 20)
        update(cloud, 2)
        until(cloud, is_at(2), "all copies are of revision 2")
        eventually_sync(lambda: traffic.answers["2"] > 20)
    assert traffic.failures == []
    assert traffic.fewest_ready is not None
    assert traffic.fewest_ready >= 2, "at most one was out of service at a time"


def test_a_bad_version_is_reverted_and_the_service_never_falls_below_its_minimum(
    cloud: Lan, image: str
) -> None:
    create(cloud, image)
    with Traffic(cloud, "web", 8080) as traffic:
        eventually_sync(lambda: traffic.answers["1"] > 20)
        # It runs, and answers nothing.
        update(cloud, 2, arguments=["sh", "-c", "exec sleep 1000"], update={**QUICK, "deadline_s": 3})
        until(cloud, lambda seen: seen["status"] == "REVERTING", "it reverts")
        until(cloud, is_at(1), "all copies are of revision 1 again")
    assert traffic.failures == []
    assert traffic.answers.keys() == {"1"}
    assert traffic.fewest_ready is not None
    assert traffic.fewest_ready >= 2
    revisions = cloud.call("GET", "/service/web/revisions")["revisions"]
    assert {one["revision"]: one["outcome"] for one in revisions} == {1: "good", 2: "failed"}
    kinds = [event["kind"] for event in cloud.call("GET", "/service/web/events")["events"]]
    assert kinds[-3:] == ["service.failed", "service.reverting", "service.reverted"]


def test_a_version_that_crashes_is_reverted_without_waiting_for_the_deadline(cloud: Lan, image: str) -> None:
    create(cloud, image, 2)
    update(cloud, 2, arguments=["sh", "-c", "exit 3"], update={**QUICK, "deadline_s": 3000})
    until(cloud, is_at(1, 2), "it was reverted")
    failed = [
        event
        for event in cloud.call("GET", "/service/web/events")["events"]
        if event["kind"] == "service.failed"
    ]
    assert "code 3" in failed[0]["reason"]


def test_a_drain_under_load_starts_the_replacement_first_and_loses_no_request(cloud: Lan, image: str) -> None:
    create(cloud, image, 2)
    here = cloud.node_of({"node_id": until(cloud, is_at(1, 2), "it is well")["copies"][0]["node_id"]})
    with Traffic(cloud, "web", 8080) as traffic:
        eventually_sync(lambda: traffic.answers["1"] > 20)
        cloud.call("POST", f"/node/{here}/drain")
        cloud.until_node(here, status="drained")
        until(cloud, is_at(1, 2), "both copies are elsewhere")
    assert traffic.failures == []
    assert traffic.fewest_ready == 2


def test_a_node_that_dies_during_an_update_does_not_stop_it(cloud: Lan, image: str) -> None:
    create(cloud, image, 2)
    copies = until(cloud, is_at(1, 2), "it is well")["copies"]
    victim = cloud.node_of({"node_id": copies[0]["node_id"]})
    update(cloud, 2)
    cloud.cut(victim)
    seen = until(cloud, is_at(2, 2), "two copies of revision 2 run")
    assert victim not in {cloud.node_of(copy) for copy in seen["copies"]}
    cloud.mend(victim)
    cloud.until_ready(victim)
    ids = [copy["instance_id"] for copy in seen["copies"]]
    eventually_sync(lambda: sorted(id for id, _ in cloud.copies()) == sorted(ids))


MOMENTS = (
    "service.changed",
    "instance.retiring",
    "instance.destroying",
    "instance.terminated",
    "instance.scheduled",
    "instance.ready",
)


@dataclass
class Kill:
    """An update in whose middle the server was killed."""

    failures: list[str]
    service: dict[str, Any]
    copies: list[str]  # that run when it is done


@pytest.fixture(scope="module")
def kills(machines: Lan, image: str) -> dict[str, Kill]:
    """One update after the other; each time the server is killed when something has just happened."""
    create(machines, image, 2, update={**QUICK, "drain_s": 1})
    found = {}
    for revision, moment in enumerate(MOMENTS, start=2):
        before = count(machines, moment)
        with Traffic(machines, "web", 8080) as traffic:
            eventually_sync(lambda traffic=traffic: sum(traffic.answers.values()) > 5)
            update(machines, revision)
            eventually_sync(
                lambda moment=moment, before=before: count(machines, moment) > before, what=moment
            )
            machines.server.kill()
            machines.restart_server()
            machines.until_ready(*machines.nodes)
            service = until(machines, is_at(revision, 2), f"all copies are of revision {revision}")
        found[moment] = Kill(traffic.failures, service, [])
        ids = sorted(copy["instance_id"] for copy in service["copies"])
        eventually_sync(lambda ids=ids: sorted(id for id, _ in machines.copies()) == ids)
        found[moment].copies += ids
    machines.tidy_up()
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_update_goes_on_when_the_server_is_killed_in_the_middle_of_it(
    kills: dict[str, Kill], moment: str
) -> None:
    kill = kills[moment]
    assert kill.failures == []
    assert kill.service["status"] == "HEALTHY"
    assert len(kill.copies) == 2, "none is lost, doubled or orphaned"


def count(cloud: Lan, kind: str) -> int:
    """How often something has happened."""
    return str(cloud.call("GET", "/events?follow=false")).count(kind)
