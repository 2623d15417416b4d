"""Health checks of a whole Skerry with a real container: by the command line, in events, across `kill -9`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.remains import left_of
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

QUICK = ("--set", "node.stop_grace_s=0.5", "--set", "fleet.restart_base_s=0.1")
SERVE = "echo >/tmp/health; echo >/tmp/alive; exec busybox httpd -f -p 80 -h /tmp"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("true",))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'box.tar')}"


def instance(skerry: Skerry) -> dict[str, Any]:
    status, found = skerry.call("GET", "/instance/")
    assert status == 200, found
    (one,) = found["instances"]
    return dict(one)


def kinds(skerry: Skerry) -> list[str]:
    """Of the events of the instance, without its status changes."""
    status, found = skerry.call("GET", f"/instance/{instance(skerry)['id']}/events")
    assert status == 200, found
    told = [event["kind"].removeprefix("instance.") for event in found["events"]]
    return [kind for kind in told if kind in ("ready", "unready", "crashed")]


def run(skerry: Skerry, *arguments: str) -> str:
    done = skerry.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readiness_and_restarts_are_told_and_a_killed_skerry_goes_on_without_a_flap(
    tmp_path: Path, image: str
) -> None:
    checks = ("--check", "http:80/health,interval=100ms", "--liveness", "http:80/alive,interval=100ms")
    skerry = Skerry(tmp_path, *QUICK)
    try:
        skerry.wait_ready()
        run(skerry, "run", "--name", "web", *checks, image, "--", "sh", "-c", SERVE)
        eventually_sync(lambda: instance(skerry)["ready"])
        run(skerry, "exec", "web", "--", "busybox", "rm", "/tmp/health")
        eventually_sync(lambda: not instance(skerry)["ready"])
        assert "HTTP 404" in instance(skerry)["check_message"]
        run(skerry, "exec", "web", "--", "sh", "-c", "echo >/tmp/health")
        eventually_sync(lambda: instance(skerry)["ready"])
        assert kinds(skerry) == ["ready", "unready", "ready"]
        assert instance(skerry)["restarts"] == 0
        before = instance(skerry)
    finally:
        skerry.kill()
    with running(tmp_path, *QUICK) as skerry:
        # What it uses is known when its node has reported again: that it is ready as it was.
        eventually_sync(lambda: instance(skerry)["resources"]["usage"]["memory"])
        after = instance(skerry)
        assert {name: after[name] for name in ("ready", "since", "restarts", "ip")} == {
            name: before[name] for name in ("ready", "since", "restarts", "ip")
        }
        assert kinds(skerry) == ["ready", "unready", "ready"]
        run(skerry, "exec", "web", "--", "busybox", "rm", "/tmp/alive")
        eventually_sync(lambda: instance(skerry)["restarts"] == 1 and instance(skerry)["ready"])
        assert kinds(skerry)[3:] == ["unready", "crashed", "ready"]
        run(skerry, "delete", "instance", "web")
        eventually_sync(lambda: skerry.call("GET", "/instance/")[1]["count"] == 0)
    assert left_of(skerry) == []
