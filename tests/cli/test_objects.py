"""`skerry get`, `describe` and `delete`, on the real control plane and a node that obeys."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from skerry.cli import object_kinds
from skerry.model.ids import InstanceId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import ReportedInstance
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.model.statuses import InstanceStatus, NodeStatus
from tests.support.nodes import Command, read_until
from tests.support.sites import CloudServer
from tests.support.waiting import PATIENCE_S, eventually_sync

IMAGE = "example.org/web:1"


def workload(cloud: CloudServer, name: str, count: int = 0) -> str:
    """The id of a workload with instances that run."""
    made = f"workloads: [{{name: {name}, image: {IMAGE}}}]\ninstances: [{{workload: {name}, count: {count}}}]"
    file = cloud.data / f"{name}.yaml"
    file.write_text(made)
    cloud.say("apply", "-f", str(file))
    eventually_sync(lambda: cloud.json("get", "instances", "--status", "RUNNING")["count"] >= count)
    return str(cloud.json("get", "workload", name)["id"])


def test_get_lists_each_kind_in_columns_under_a_header(cloud: CloudServer) -> None:
    workload(cloud, "shop", 1)
    cloud.say("service", "create", "shop", "--replicas", "0", IMAGE)
    cloud.say("volume", "create", "shop", "--size", "1")
    for kind in object_kinds.KINDS:
        header, row = cloud.say("get", kind.plural).splitlines()
        assert header.lower().split() == [*kind.columns]
        assert header.isupper()
        assert row.split()[0] == ("machine-n1" if kind is object_kinds.NODE else "shop")
        assert cloud.say("get", kind.word).splitlines()[0] == header


def test_get_of_one_takes_its_id_or_its_name(cloud: CloudServer) -> None:
    id = workload(cloud, "shop")
    assert cloud.json("get", "workload", "shop") == cloud.json("get", "workload", id)
    assert cloud.json("get", "node", "machine-n1") == cloud.json("get", "node", "n1")
    assert cloud.cli("get", "node", "nope").stderr.count("\n") == 1


def test_get_reads_every_page(cloud: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [cloud.json("run", "-d", IMAGE)["id"] for _ in range(5)]
    monkeypatch.setattr(object_kinds, "_ALL", "2")
    found = cloud.json("get", "instances")
    assert [one["id"] for one in found["instances"]] == made
    assert found["count"] == 5


def test_only_instances_of_a_status_are_shown_if_one_is_asked_for(cloud: CloudServer) -> None:
    cloud.say("run", "-d", "--cpu", "5000", IMAGE)
    runs = cloud.say("run", IMAGE).strip()
    assert [one["id"] for one in cloud.json("get", "instances", "--status", "running")["instances"]] == [runs]
    for wrong in (("nodes",), ("instance", runs), ("instances", "-w")):
        assert cloud.cli("get", *wrong, "--status", "RUNNING").exit_code == 2
    assert "RUNNING" in cloud.cli("get", "instances", "--status", "nonsense").stderr


def test_a_kind_that_is_none_is_answered_with_what_to_write(cloud: CloudServer) -> None:
    result = cloud.cli("describe", "web", "web")
    assert result.exit_code == 2
    assert "write instance or workload or service or volume or node before a name" in result.stderr


def test_a_watch_shows_what_changes_and_what_goes(cloud: CloudServer) -> None:
    id = cloud.say("run", "--name", "web", IMAGE).strip()
    with Command(cloud, "get", "instances", "-w") as process:
        assert b"RUNNING" in read_until(process.stdout, id.encode())
        cloud.say("stop", "web")
        # It may be seen while it still runs and is to be stopped; what has not changed is not shown again.
        seen = read_until(process.stdout, b"STOPPED").splitlines()
        assert len(seen) == len(set(seen)) <= 3
        cloud.say("delete", "instance", "web")
        read_until(process.stdout, b"DELETED")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_watch_for_scripts_is_an_object_on_each_line(cloud: CloudServer) -> None:
    id = cloud.say("run", "--name", "web", IMAGE).strip()
    with Command(cloud, "get", "instance", "web", "-w", "-o", "json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == id
        cloud.say("stop", id)
        seen = read_until(process.stdout, b'"STOPPED"')
        assert {json.loads(line)["id"] for line in seen.splitlines()} == {id}


def test_describe_of_an_instance_tells_what_happened_and_hides_values_of_its_environment(
    cloud: CloudServer,
) -> None:
    cloud.say("run", "--name", "web", "-e", "PASSWORD=hunter2", "--memory", "64", IMAGE)
    text = cloud.say("describe", "instance", "web")
    facts = dict(line.split(maxsplit=1) for line in text.partition("\n\n")[0].splitlines())
    assert facts["node"] == "machine-n1"
    assert facts["environment"] == "PASSWORD"
    assert facts["status"].startswith("RUNNING")
    assert "hunter2" not in text
    happened = [line.split()[2] for line in text.partition("Events:\n")[2].splitlines()[1:]]
    assert happened == ["scheduling", "scheduled", "starting", "running"]
    assert cloud.json("describe", "instance", "web")["events"][-1]["kind"] == "instance.running"


def test_an_instance_that_crashed_is_shown_with_its_exit_code_restarts_and_next_try(
    cloud: CloudServer,
) -> None:
    cloud.say("run", "-d", "--name", "crashing", IMAGE)
    crashed = eventually_sync(lambda: cloud.json("get", "instances", "--status", "CRASHED")["instances"])
    assert crashed[0]["retry_at"] > time.time()
    (line,) = cloud.say("get", "instance", "crashing").splitlines()[1:]
    assert re.search(r" 7 .* ended with code 3; next restart in [12]m", line)
    text = cloud.say("describe", "instance", "crashing")
    for fact in (r"exit code +3", r"restarts +7", r"next restart +in [12]m", r"restart policy +always"):
        assert re.search(rf"^{fact}$", text, re.MULTILINE), fact
    last = cloud.json("describe", "instance", "crashing")["events"][-1]
    assert last["kind"] == "instance.crashed"
    assert {"exit_code": "3", "restarts": "7"}.items() <= last["data"].items()
    assert float(last["data"]["retry_at"]) == pytest.approx(crashed[0]["retry_at"], abs=0.01)


def test_an_instance_that_is_not_ready_is_shown_with_its_checks_and_why(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "unready", "--check", "http:80/health,interval=2s", IMAGE)
    cloud.say("run", "--name", "web", "--liveness", "tcp:80", "--startup", "exec:test -e /up", IMAGE)
    head, *lines = cloud.say("get", "instances").splitlines()
    assert head.split()[:4] == ["NAME", "ID", "STATUS", "READY"]
    shown = {line.split()[0]: line.split()[2:4] for line in lines}
    assert shown == {"unready": ["RUNNING", "no"], "web": ["RUNNING", "yes"]}
    why = "readiness check http:80/health failed: HTTP 503 (3 times)"
    assert lines[[line.split()[0] for line in lines].index("unready")].endswith(why)
    text = cloud.say("describe", "instance", "unready")
    assert re.search(rf"^ready +no: {re.escape(why)}$", text, re.MULTILINE)
    assert re.search(r"^checks +readiness=http:80/health$", text, re.MULTILINE)
    assert re.search(
        r"^checks +liveness=tcp:80 startup=exec:test -e /up$",
        cloud.say("describe", "instance", "web"),
        re.MULTILINE,
    )
    one = cloud.json("get", "instance", "unready")
    assert (one["ready"], one["check_message"]) == (False, why)
    assert one["checks"][0]["interval_s"] == 2.0


def test_a_check_that_is_none_is_refused_before_anything_is_asked(cloud: CloudServer) -> None:
    done = cloud.cli("run", "--check", "ping:80", IMAGE)
    assert done.exit_code == 2
    assert "is no check; write" in done.stderr


def test_describe_of_one_that_waits_tells_what_nodes_say(cloud: CloudServer) -> None:
    cloud.say("run", "-d", "--name", "big", "--cpu", "5000", IMAGE)
    assert "lacks 1200 milli-cores of cpu (free:" in cloud.say("describe", "instance", "big")


def test_describe_of_a_workload_and_of_a_node_lists_their_instances(cloud: CloudServer) -> None:
    workload(cloud, "shop", 2)
    for text in (cloud.say("describe", "workload", "shop"), cloud.say("describe", "node", "n1")):
        assert [line.split()[0] for line in text.partition("\nInstances:\n")[2].splitlines()[1:]] == [
            "shop"
        ] * 2


def test_describe_of_a_foreign_node_shows_what_it_reports(cloud: CloudServer) -> None:
    nodes, used = cloud.control.nodes, Resources(Millicores(10), Megabytes(20))
    cloud.do(nodes.register("kudo", NodeHello("kudo"), foreign=True))
    assert "Reported" not in cloud.say("describe", "node", "kudo")
    has = ReportedInstance(InstanceId("x"), "web", InstanceStatus.CRASHED, IMAGE, usage=used)
    cloud.do(nodes.report("kudo", NodeStatus.READY, usage=used, instances=[has]))
    text = cloud.say("describe", "node", "kudo")
    assert re.search(r"^usage +10m cpu, 20MB memory$", text, re.MULTILINE), text
    assert re.search(r"^last report +\d+s ago$", text, re.MULTILINE), text
    [row] = text.partition("Reported instances:\n")[2].splitlines()[1:]
    assert row.split() == ["x", "web", "CRASHED", IMAGE, *["10m", "cpu,", "20MB", "memory"]]
    assert cloud.json("describe", "node", "kudo")["node"]["instances"][0]["id"] == "x"


def test_delete_waits_until_instances_are_gone(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    assert cloud.cli("run", "--name", "broken", IMAGE).exit_code == 1
    result = cloud.cli("delete", "instance", "web", "nope", "broken")
    assert result.exit_code == 1
    assert result.stdout == "deleted instance web\ndeleted instance broken\n"
    assert cloud.json("get", "instances")["instances"] == []


def test_a_workload_is_deleted_with_its_instances_unless_they_are_to_be_kept(cloud: CloudServer) -> None:
    workload(cloud, "shop", 2)
    refused = cloud.cli("delete", "workload", "--keep-instances", "shop")
    assert refused.exit_code == 1
    assert cloud.json("get", "instances")["count"] == 2
    assert cloud.say("delete", "workload", "shop") == "deleted workload shop\n"
    assert cloud.json("get", "instances")["count"] == cloud.json("get", "workloads")["count"] == 0


def test_a_delete_that_is_not_waited_for_says_so(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    assert cloud.say("delete", "instance", "-d", "web") == "deleting instance web\n"
