"""`skerry run`, `start`, `stop`, `logs` and `explain`, on the real control plane and a node that obeys."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit import pki
from skerry.model import errors
from skerry.model.cells import OutputChannel
from skerry.model.streams import LogStreamRequest, TunnelChannel, TunnelFrame
from tests.support.nodes import Command, read_until
from tests.support.sites import CloudServer
from tests.support.waiting import PATIENCE_S

IMAGE = "example.org/web:1"


def test_run_tells_how_it_gets_on_and_prints_the_id_alone(cloud: CloudServer) -> None:
    result = cloud.cli("run", "--name", "web", "-p", "8080:80", IMAGE)
    assert result.exit_code == 0
    [instance] = cloud.json("get", "instances")["instances"]
    assert result.stdout == f"{instance['id']}\n"
    assert instance["status"] == "RUNNING"
    assert "web: RUNNING" in result.stderr
    assert "web: node machine-n1, ip 10.64.0.2, ports 8080:80" in result.stderr


def test_run_asks_for_all_that_its_options_say(cloud: CloudServer, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("A=file\nB=2\n")
    resources = ("--cpu", "500", "--memory", "64", "--disk", "1")
    variables = ("-e", "A=1", "--env-file", str(tmp_path / "env"))
    rules = ("--restart", "on-failure", "--constraint", "zone!=far")
    made = cloud.json("run", "-d", *resources, IMAGE, *variables, *rules, "--", "sh", "-c", "echo -p")
    assert made["name"].startswith("web-")
    assert made["uri"] == IMAGE
    assert made["arguments"] == ["sh", "-c", "echo -p"]
    assert made["environment"] == ["A=1", "B=2"]
    assert made["resources"]["max"] == {"cpu": 500, "memory": 64, "disk": 1}
    assert made["restart"] == "on-failure"
    assert made["constraints"] == ["zone!=far"]


OPTIONS = {
    "--node": ("machine-n1", "node", "machine-n1"),
    "--cpu-limit": ("2.0", "cpu_limit", 2000),
    "-u": ("1000:1000", "user", "1000:1000"),
    "--entrypoint": ("/bin/serve", "entrypoint", ["/bin/serve"]),
    "--stop-signal": ("SIGINT", "stop_signal", "SIGINT"),
    "--stop-grace": ("500ms", "stop_grace_s", 0.5),
    "--shm-size": ("1g", "shm", 1024),
    "--ulimit": ("nofile=1024:4096", "ulimits", ["nofile=1024:4096"]),
    "--hostname": ("db", "hostname", "db"),
    "--add-host": ("db:192.0.2.7", "extra_hosts", ["db:192.0.2.7"]),
    "--dns": ("192.0.2.53", "dns", ["192.0.2.53"]),
}


def test_run_services_and_jobs_take_the_same_container_options(cloud: CloudServer) -> None:
    words = [word for option, (value, _, _) in OPTIONS.items() for word in (option, value)]
    words += ["--read-only", "--init", "--cpu", "0.5", "--memory", "256m", "--disk", "1g"]
    expected = {field: value for _, field, value in OPTIONS.values()} | {"read_only": True, "init": True}
    made = [
        cloud.json("run", "-d", *words, IMAGE),
        json.loads(cloud.say("service", "create", "api", "-d", "-o", "json", *words, IMAGE)),
        json.loads(cloud.say("job", "run", "-o", "json", *words, IMAGE)),
        json.loads(cloud.say("schedule", "add", "nightly", "30 3 * * *", "-o", "json", *words, IMAGE))["job"],
    ]
    for one in made:
        assert {field: one[field] for field in expected} == expected
        assert {part: one["resources"][part] for part in ("cpu", "memory", "disk")} == {
            "cpu": 500,
            "memory": 256,
            "disk": 1,
        }
    shown = cloud.say("describe", "service", "api")
    for text in ("pinned to node", "2000m", "0.5s", "1024MB", "nofile=1024:4096"):
        assert text in shown
    cloud.say("service", "update", "api", "-d", "--writable", "--cpu-limit", "0")
    after = cloud.json("get", "service", "api")
    assert (after["read_only"], after["cpu_limit"], after["init"]) == (False, 0, True)


def test_amounts_that_make_no_sense_are_refused_before_anything_is_sent(cloud: CloudServer) -> None:
    for option, value, why in (
        ("--cpu", "much", "write 500 (thousandths of a core), 500m or 0.5"),
        ("--cpu", "0", "less than 1"),
        ("--memory", "100k", "whole parts of a MB"),
        ("--stop-grace", "soon", "write 500ms, 90s, 15m, 2h or 7d"),
    ):
        result = cloud.cli("run", option, value, IMAGE)
        assert result.exit_code == 2
        assert why in result.stderr.replace("\n", " ")


def test_an_image_from_a_path_is_named_by_its_whole_path(cloud: CloudServer) -> None:
    made = cloud.json("run", "-d", "oci-archive:web.tar")
    assert made["uri"] == f"oci-archive:{Path('web.tar').absolute()}"


def test_run_of_what_fails_says_why_and_what_to_do(cloud: CloudServer) -> None:
    result = cloud.cli("run", "--name", "broken", IMAGE)
    assert result.exit_code == 1
    assert result.stdout == ""
    *_, last = result.stderr.splitlines()
    assert "there is no such image" in last
    assert "skerry delete instance" in last


def test_what_the_server_refuses_is_told_in_one_line(cloud: CloudServer) -> None:
    result = cloud.cli("run", "-p", "nonsense", IMAGE)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "nonsense" in result.stderr


def test_ctrl_c_leaves_an_instance_that_waits_for_room_and_says_so(cloud: CloudServer) -> None:
    with Command(cloud, "run", "--name", "big", "--cpu", "5000", IMAGE) as process:
        read_until(process.stderr, b"lacks 1200 milli-cores of cpu")
        process.send_signal(signal.SIGINT)
        _, errors_ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    assert b"big is not stopped by this" in errors_
    assert cloud.json("get", "instance", "big")["status"] == "SCHEDULING"


def test_run_of_what_is_tried_again_for_ever_says_at_once_how_to_be_rid_of_it(cloud: CloudServer) -> None:
    with Command(cloud, "run", "--name", "crashing", IMAGE) as process:
        said = read_until(process.stderr, b"deletes it.").decode()
    instance = cloud.json("get", "instance", "crashing")["id"]
    assert "crashing: CRASHED, ended with code 3\n" in said
    assert f"Ctrl-C ends this command, not the instance; 'skerry delete instance {instance}'" in said


def test_reasons_are_shown_while_it_starts(cloud: CloudServer) -> None:
    with Command(cloud, "run", "--name", "slow", IMAGE) as process:
        read_until(process.stderr, b"slow: STARTING, pulling a large image")
        cloud.hurry()
        assert process.wait(PATIENCE_S) == 0


def test_stop_and_start_wait_until_it_is_done(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    assert cloud.say("stop", "web") == "web: STOPPED\n"
    assert cloud.json("get", "instance", "web")["status"] == "STOPPED"
    assert cloud.say("start", "web") == "web: RUNNING\n"
    assert cloud.say("start", "--detach", "web") == "web: RUNNING\n"


def test_a_start_that_is_not_waited_for_says_what_is_wished(cloud: CloudServer) -> None:
    cloud.say("run", "-d", "--name", "slow", IMAGE)
    cloud.say("stop", "slow")
    assert "(desired: RUNNING)" in cloud.say("start", "-d", "slow")


def test_one_that_is_not_there_does_not_keep_the_others(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    result = cloud.cli("stop", "nope", "web")
    assert result.exit_code == 1
    assert result.stdout == "web: STOPPED\n"
    assert "There is no instance 'nope'. 'skerry get instances' lists" in result.stderr


def test_a_name_that_several_have_is_not_guessed_at(cloud: CloudServer) -> None:
    one, other = (cloud.say("run", "--name", "web", IMAGE).strip() for _ in range(2))
    result = cloud.cli("stop", "web")
    assert result.exit_code == 1
    assert "2 instances are named 'web'" in result.stderr
    assert one in result.stderr
    cloud.say("stop", one)
    assert cloud.json("get", "instance", other)["status"] == "RUNNING"


def test_a_name_means_the_one_that_is_not_over(cloud: CloudServer) -> None:
    assert cloud.cli("run", "--name", "broken", IMAGE).exit_code == 1
    made = cloud.json("run", "-d", "--name", "broken", "--cpu", "5000", IMAGE)
    assert cloud.json("get", "instance", "broken")["id"] == made["id"]


def test_explain_says_what_every_node_lacks(cloud: CloudServer) -> None:
    cloud.say("run", "-d", "--name", "big", "--cpu", "5000", "--constraint", "zone=edge", IMAGE)
    text = cloud.say("explain", "big")
    assert "big: SCHEDULING" in text
    assert "0 of 1 nodes are feasible now." in text
    *_, last = text.splitlines()
    assert last.split()[:2] == ["machine-n1", "no"]
    assert "lacks 1200 milli-cores of cpu" in last
    assert 'label zone is not set, "edge" is wanted' in last
    [verdict] = cloud.json("explain", "big")["nodes"]
    assert {refusal["filter"] for refusal in verdict["refusals"]} == {"room", "label"}


async def writes(end: TunnelEndpoint) -> None:
    await end.send(TunnelFrame(TunnelChannel.OUTPUT, b"out\xff\0\n").pack())
    await end.send(TunnelFrame(TunnelChannel.ERRORS, b"err\n").pack())


async def breaks_off(end: TunnelEndpoint) -> None:
    await end.send(TunnelFrame(TunnelChannel.OUTPUT, b"some").pack())
    raise errors.Unavailable("the node is gone")


def test_logs_are_shown_byte_for_byte(tmp_path: Path, cloud_authority: pki.CertificateAuthority) -> None:
    with CloudServer(tmp_path, cloud_authority, writes) as cloud:
        cloud.say("run", "--name", "web", IMAGE)
        assert cloud.cli("logs", "web").stdout_bytes == b"out\xff\0\nerr\n"
        cloud.say("logs", "-f", "--tail", "5", "--only", "stderr", "web")
        assert cloud.far.asked == [
            LogStreamRequest(),
            LogStreamRequest(follow=True, tail=5, stream=OutputChannel.STDERR),
        ]


def test_logs_that_break_off_are_not_taken_for_all(
    tmp_path: Path, cloud_authority: pki.CertificateAuthority
) -> None:
    with CloudServer(tmp_path, cloud_authority, breaks_off) as cloud:
        cloud.say("run", "--name", "web", IMAGE)
        result = cloud.cli("logs", "web")
        assert result.exit_code == 3
        assert result.stdout == "some"
        assert "broke off" in result.stderr


@pytest.mark.parametrize("verb", [("logs",), ("exec", "big", "true")])
def test_what_is_on_no_node_is_told_so(cloud: CloudServer, verb: tuple[str, ...]) -> None:
    cloud.say("run", "-d", "--name", "big", "--cpu", "5000", IMAGE)
    result = cloud.cli(*(verb if len(verb) > 1 else (*verb, "big")))
    assert result.exit_code == (1 if verb == ("logs",) else 125)
    assert "on no node" in result.stderr
