"""`skerry service`, on the real control plane and a node that obeys."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from skerry.cli import service_progress
from tests.support.fake_servers import on_tcp, skerry
from tests.support.nodes import Command, read_until
from tests.support.screens import Screen
from tests.support.sites import CloudServer
from tests.support.waiting import PATIENCE_S

IMAGE = "example.org/web:1"
QUICK = ("--min-ready", "0", "--drain", "0")


def test_create_waits_for_all_copies_and_tells_how_it_gets_on(cloud: CloudServer) -> None:
    result = cloud.cli("service", "create", "web", "--replicas", "3", *QUICK, IMAGE)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "created service web: HEALTHY, revision 1, 3 of 3 ready\n"
    assert "web: HEALTHY, revision 1" in result.stderr  # and STARTING, unless it is quicker than the command
    shown = json.loads(cloud.say("service", "describe", "web", "-o", "json"))
    assert (shown["replicas"], shown["ready"], shown["revision"]) == (3, 3, 1)
    assert shown["status"] == "HEALTHY"
    assert [one["kind"] for one in shown["events"]] == ["service.created", "service.updated"]
    table = cloud.say("service", "describe", "web")
    assert "3 of 3" in table
    assert "web-0" in table
    assert "machine-n1" in table
    assert cloud.say("describe", "service", "web") == table


def test_every_option_is_in_the_request(cloud: CloudServer, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("A=file\nB=2\n")
    options: dict[str, str] = {
        "--replicas": "4",
        "--check": "http:80/health,interval=2s",
        "--liveness": "tcp:80",
        "--startup": "exec:test -f /ready",
        "-e": "A=1",
        "--env-file": str(tmp_path / "env"),
        "-p": "8080:80",
        "--cpu": "100",
        "--memory": "32",
        "--disk": "1",
        "--restart": "on-failure",
        "--constraint": "zone!=far",
        "--spread": "zone",
        "--max-per-node": "4",
        "--budget": "25%",
        "--order": "stop-first",
        "--max-surge": "0",
        "--max-unavailable": "1",
        "--min-ready": "5s",
        "--drain": "0s",
        "--deadline": "5m",
        "--max-failures": "7",
        "--canary": "1",
        "--promote-after": "10m",
        "--on-failure": "pause",
        "--min": "2",
        "--max": "8",
        "--target-metric": "in_flight:9000=20",
        "--port": "80:8080/tcp=http",
        "--affinity": "10m",
    }
    words = [word for pair in options.items() for word in pair]
    made = json.loads(
        cloud.say("service", "create", "api", "-d", "-o", "json", *words, IMAGE, "--", "serve", "-x")
    )
    assert [(check["role"], check["method"]) for check in made["checks"]] == [
        ("readiness", "http"),
        ("liveness", "tcp"),
        ("startup", "exec"),
    ]
    assert made["checks"][0]["interval_s"] == 2.0
    assert made["environment"] == ["A=1", "B=2"]
    assert (made["arguments"], made["ports"]) == (["serve", "-x"], ["8080:80"])
    assert made["resources"] == {"cpu": 100, "memory": 32, "disk": 1}
    assert (made["constraints"], made["spread"], made["max_per_node"]) == (["zone!=far"], ["zone"], 4)
    assert (made["budget"], made["restart"]) == ({"max_unavailable": "25%"}, "on-failure")
    assert made["update"] == {
        "order": "stop-first",
        "max_surge": 0,
        "max_unavailable": 1,
        "min_ready_s": 5.0,
        "drain_s": 0.0,
        "deadline_s": 300.0,
        "max_failures": 7,
        "canary": 1,
        "promote_after_s": 600.0,
        "on_failure": "pause",
    }
    assert (made["service_ports"], made["affinity_s"]) == (["80:8080=http"], 600)
    assert made["metric"] == {"name": "in_flight", "port": 9000, "path": "/metrics"}
    assert (made["autoscale"]["metric"], made["autoscale"]["target"]) == ("custom", 20.0)
    assert (made["replicas"], made["autoscale"]["min"], made["autoscale"]["max"]) == (4, 2, 8)


def test_an_update_keeps_what_is_not_given_and_waits_until_all_copies_follow(cloud: CloudServer) -> None:
    cloud.say(
        "service", "create", "web", "--replicas", "2", "-e", "A=1", *QUICK, "--liveness", "tcp:80", IMAGE
    )
    updated = cloud.cli(
        "service", "update", "web", "--image", "example.org/web:2", "-e", "B=2", "--deadline", "5m"
    )
    assert updated.exit_code == 0, updated.stderr
    assert updated.stdout == "updated service web: HEALTHY, revision 2, 2 of 2 ready\n"
    shown = json.loads(cloud.say("service", "describe", "web", "-o", "json"))
    assert (shown["image"], shown["environment"]) == ("example.org/web:2", ["A=1", "B=2"])
    assert (shown["update"]["deadline_s"], shown["update"]["drain_s"]) == (300.0, 0.0)
    assert [check["role"] for check in shown["checks"]] == ["liveness"]
    history = cloud.say("service", "history", "web")
    assert [line.split()[:3] for line in history.splitlines()[1:]] == [
        ["1", "good", "example.org/web:1"],
        ["2", "good", "example.org/web:2"],
    ]
    back = cloud.cli("service", "rollback", "web")
    assert back.stdout == "rolled back service web: HEALTHY, revision 1, 2 of 2 ready\n"
    assert cloud.say("service", "rollback", "web", "--to", "2").startswith("rolled back service web: HEALTHY")
    nothing = cloud.cli("service", "update", "web")
    assert nothing.exit_code == 2


def test_scale_pause_resume_list_and_delete(cloud: CloudServer) -> None:
    cloud.say("service", "create", "web", *QUICK, IMAGE)
    assert (
        cloud.say("service", "scale", "web", "3") == "scaled service web: HEALTHY, revision 1, 3 of 3 ready\n"
    )
    assert cloud.say("service", "scale", "web", "1").endswith("1 of 1 ready\n")
    assert cloud.say("service", "pause", "web").startswith("paused service web")
    waiting = cloud.cli("service", "update", "web", "--image", "example.org/web:2")
    assert waiting.exit_code == 0
    assert "web is paused; 'skerry service resume web' goes on." in waiting.stderr
    assert cloud.say("service", "resume", "web").startswith("resumed service web")
    listed = cloud.say("service", "list").splitlines()
    assert listed[0].split()[:4] == ["NAME", "ID", "STATUS", "READY"]
    assert cloud.say("get", "services").splitlines()[0].split() == listed[0].split()
    assert cloud.json("get", "service", "web")["name"] == "web"
    assert cloud.say("service", "delete", "web") == "deleted service web\n"
    assert cloud.json("get", "services") == {"count": 0, "services": []}
    cloud.say("service", "create", "web", *QUICK, IMAGE)
    assert cloud.say("delete", "service", "web") == "deleted service web\n"
    missing = cloud.cli("service", "scale", "web", "3")
    assert missing.exit_code == 1
    assert "there is no service 'web'" in missing.stderr


def test_wait_ends_when_an_update_that_nobody_waited_for_has_ended(cloud: CloudServer) -> None:
    cloud.say("service", "create", "web", "--replicas", "3", *QUICK, IMAGE)
    cloud.say("service", "update", "web", "--no-wait", "--image", "example.org/web:2")
    assert cloud.say("service", "wait", "web") == "finished service web: HEALTHY, revision 2, 3 of 3 ready\n"
    assert json.loads(cloud.say("service", "wait", "web", "-o", "json"))["revision"] == 2
    assert cloud.cli("service", "wait", "nothing").exit_code == 1


def test_canaries_wait_for_somebody_to_promote_them(cloud: CloudServer) -> None:
    cloud.say("service", "create", "web", "--replicas", "3", *QUICK, "--canary", "1", IMAGE)
    tried = cloud.cli("service", "update", "web", "--image", "example.org/web:2")
    assert tried.exit_code == 0, tried.stderr
    assert "skerry service promote web" in tried.stderr
    assert tried.stdout.startswith("updated service web: CANARY, revision 2")
    promoted = cloud.say("service", "promote", "web")
    assert promoted == "promoted service web: HEALTHY, revision 2, 3 of 3 ready\n"


def test_an_update_that_fails_is_told_with_its_reason_and_an_exit_code(cloud: CloudServer) -> None:
    cloud.say("service", "create", "web", "--replicas", "2", *QUICK, IMAGE)
    failed = cloud.cli(
        "service",
        "update",
        "web",
        "--image",
        "example.org/broken:2",
        "--constraint",
        "zone=none",
        "--deadline",
        "1s",
    )
    assert failed.exit_code == 1
    assert "the update of web to revision 2 failed" in failed.stderr
    assert "It is back at revision 1, with 2 of 2 copies ready." in failed.stderr
    halted = cloud.cli(
        "service", "update", "web", "--constraint", "zone=none", "--deadline", "1s", "--on-failure", "pause"
    )
    assert halted.exit_code == 1
    assert "'skerry service rollback web' rolls back" in halted.stderr
    assert cloud.say("service", "rollback", "web").startswith("rolled back service web: HEALTHY, revision 1")


def test_ctrl_c_leaves_the_service_as_it_is(cloud: CloudServer) -> None:
    with Command(cloud, "service", "create", "big", "--cpu", "5000", IMAGE) as process:
        read_until(process.stderr, b"lacks 1200 milli-cores of cpu")
        process.send_signal(signal.SIGINT)
        _, errors_ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    assert b"big goes on without this command" in errors_
    assert cloud.json("get", "service", "big")["status"] == "STARTING"


def test_on_a_terminal_progress_is_a_live_table(cloud: CloudServer) -> None:
    with Screen() as screen:
        words = ("service", "create", "web", "--replicas", "2", *QUICK, IMAGE)
        with screen.command(cloud, *words) as process:
            screen.read_until(b"created service web: HEALTHY, revision 1, 2 of 2 ready")
            assert process.wait(PATIENCE_S) == 0
        assert b"REVISION" in screen.seen
        assert b"1 (target)" in screen.seen
        assert screen.is_as_before


def test_run_with_replicas_makes_a_service(cloud: CloudServer) -> None:
    assert cloud.say("run", "--name", "web", "--replicas", "2", "-e", "A=1", IMAGE) == "web\n"
    shown = cloud.json("get", "service", "web")
    assert (shown["replicas"], shown["ready"], shown["environment"]) == (2, 2, ["A=1"])


def test_autoscaling_is_set_and_taken_away(cloud: CloudServer) -> None:
    cloud.say("service", "create", "web", "--cpu", "100", *QUICK, IMAGE)
    cloud.say("service", "autoscale", "web", "--min", "2", "--max", "5", "--cpu", "70")
    shown = cloud.json("get", "service", "web")
    assert (shown["replicas"], shown["autoscale"]["target"]) == (2, 70.0)
    assert "2 to 5 copies, cpu 70" in cloud.say("service", "describe", "web")
    refused = cloud.cli("service", "scale", "web", "4")
    assert refused.exit_code == 1
    assert "decided by autoscaling" in refused.stderr
    cloud.say("service", "autoscale", "web", "--off")
    assert cloud.json("get", "service", "web")["autoscale"] is None
    assert cloud.cli("service", "autoscale", "web").exit_code == 2
    two = cloud.cli("service", "autoscale", "web", "--cpu", "7", "--memory", "8")
    assert (two.exit_code, "one metric" in two.stderr) == (2, True)


MANIFEST = """
services:
  - name: web
    image: example.org/web:{version}
    replicas: {replicas}
    resources: {{cpu: 100}}
    update: {{min_ready_s: 0, drain_s: 0}}
"""


def test_services_are_planned_and_applied_from_a_file(cloud: CloudServer, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST.format(version=1, replicas=2))
    planned = cloud.say("service", "plan", "-f", str(file))
    assert planned.startswith("web: would be created with 2 copies.\n")
    assert planned.count("machine-n1") == 2
    assert cloud.say("apply", "-f", str(file), "--dry-run") == "would create service web\n"
    assert cloud.json("get", "services")["count"] == 0
    assert cloud.say("apply", "-f", str(file)) == "created service web\n"
    assert cloud.say("apply", "-f", str(file)) == "unchanged: service web\n"
    file.write_text(MANIFEST.format(version=2, replicas=4))
    plan = json.loads(cloud.say("service", "plan", "-f", str(file), "-o", "json"))["plans"][0]
    assert {one["field"]: one["after"] for one in plan["changes"]} == {
        "image": "example.org/web:2",
        "replicas": 4,
    }
    planned = cloud.say("service", "plan", "-f", str(file))
    assert "would be updated to revision 2: start-first" in planned
    assert cloud.say("apply", "-f", str(file)) == "changed service web (replicas, image)\n"
    assert (
        cloud.say("service", "plan", "web", "--image", "example.org/web:2") == "web: nothing would change.\n"
    )
    large = cloud.say("service", "plan", "web", "--cpu", "100000")
    assert "lacks" in large
    assert "FEASIBLE" in large


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("services: [{name: web, image: a, replica: 3}]", "did you mean `replicas`?"),
        ("services: [{name: web, image: a, update: {max_surge: [1]}}]", "services[0] (web)"),
        ("services: [{name: web}]", "`image` must be"),
        ("services: [{name: web, image: a}, {name: web, image: b}]", "is there twice"),
        ("services: [{name: web, image: a, checks: ['ftp:1']}]", "no check"),
    ],
)
def test_a_manifest_with_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(text)
    with on_tcp() as server:
        result = skerry("apply", "-f", str(file), SKERRY_URL=server.url)
    assert result.exit_code == 1
    assert words in result.stderr
    assert not server.asked


@pytest.mark.parametrize(
    "words",
    [
        ("service", "create", "web", "--max-surge", "many", IMAGE),
        ("service", "create", "web", "--target-metric", "x", IMAGE),
        ("service", "create", "web", "--check", "nonsense", IMAGE),
        ("service", "create", "web", "--drain", "-1s", IMAGE),
        ("service", "scale", "web", "-1"),
        ("service", "plan"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_before_anything_is_sent(words: tuple[str, ...]) -> None:
    with on_tcp() as server:
        result = skerry(*words, SKERRY_URL=server.url)
    assert result.exit_code == 2, result.stderr
    assert not server.asked


def copy(name: str, revision: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "revision": revision,
        "status": "RUNNING",
        "ready": True,
        "retiring": False,
        "reason": "",
        "check_message": "",
        **fields,
    }


def test_progress_tells_of_every_revision_and_what_is_waited_for() -> None:
    service: dict[str, Any] = {
        "name": "web",
        "status": "UPDATING",
        "revision": 2,
        "replicas": 3,
        "ready": 3,
        "paused": False,
        "update": {"min_ready_s": 3.0},
        "rollout": {"phase": "updating", "good": 0, "of": 3, "deadline": 1.0, "reason": ""},
        "copies": [
            copy("web-0", 1, retiring=True, ready=False),
            copy("web-0", 2, ready=False, check_message="HTTP 503"),
            copy("web-1", 1),
            copy("web-2", 1, status="FAILED", ready=False),
        ],
    }
    assert service_progress.revision_rows(service) == [
        ("2 (target)", "1", "0"),
        ("1", "2 (1 retiring)", "1"),
    ]
    assert service_progress.waiting_for(service) == "web-0: RUNNING, HTTP 503"
    service["copies"][1] |= {"ready": True}
    assert service_progress.waiting_for(service) == "copies to be ready for 3s"
    service["rollout"] |= {"phase": "canary", "deadline": None}
    assert service_progress.waiting_for(service) == "somebody to promote it"
