"""`-n`, `-A` and SKERRY_NAMESPACE: verbs in a namespace, on the real control plane and a node that obeys."""

from __future__ import annotations

import os
import signal

import pytest
from click.testing import CliRunner, Result

from skerry.cli import main
from tests.support.nodes import Command, read_until
from tests.support.sites import CloudServer

IMAGE = "example.org/web:1"
FILE = "workloads: [{name: web, image: 'example.org/web:1'}]\ninstances: [{workload: web, count: 1}]\n"


def within(cloud: CloudServer, namespace: str, *arguments: str) -> Result:
    """A verb under SKERRY_NAMESPACE."""
    clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
    env = {**clean, "SKERRY_DATA": str(cloud.data), "SKERRY_NAMESPACE": namespace}
    return CliRunner().invoke(main.cli, list(arguments), env=env)


def run(cloud: CloudServer, name: str, *flags: str) -> str:
    """The id of an instance that runs."""
    return cloud.say("run", "--name", name, *flags, IMAGE).strip()


def listed(cloud: CloudServer, kind: str, *flags: str) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in cloud.json("get", kind, *flags)[kind]]


def written(cloud: CloudServer, text: str) -> str:
    (cloud.data / "file.yaml").write_text(text)
    return str(cloud.data / "file.yaml")


def test_every_verb_for_instances_works_in_its_namespace_alone(cloud: CloudServer) -> None:
    here, there = run(cloud, "web"), run(cloud, "web", "-n", "shop")
    assert listed(cloud, "instances") == [("default", "web")]
    assert listed(cloud, "instances", "-n", "shop") == [("shop", "web")]
    assert cloud.json("get", "instance", "web", "--namespace", "shop")["id"] == there
    assert cloud.json("get", "instance", "web")["id"] == here
    assert cloud.json("describe", "instance", "web", "-n", "shop")["instance"]["id"] == there
    assert "namespace" in cloud.say("describe", "instance", "web", "-n", "shop")
    assert cloud.json("explain", "web", "-n", "shop")["id"] == there
    assert cloud.say("stop", "web", "-n", "shop") == "web: STOPPED\n"
    assert cloud.json("get", "instance", here)["status"] == "RUNNING"
    assert cloud.say("start", "web", "-n", "shop") == "web: RUNNING\n"
    assert cloud.say("delete", "instance", "web", "-n", "shop") == "deleted instance web\n"
    assert listed(cloud, "instances", "-A") == [("default", "web")]


@pytest.mark.parametrize(
    "verb",
    [
        ["get", "instance", "web"],
        ["describe", "instance", "web"],
        ["delete", "instance", "web"],
        ["start", "web"],
        ["stop", "web"],
        ["logs", "web"],
        ["explain", "web"],
    ],
    ids=lambda verb: str(verb[0]),
)
def test_what_is_in_another_namespace_is_not_found_by_its_name(cloud: CloudServer, verb: list[str]) -> None:
    run(cloud, "web", "-d")
    result = cloud.cli(*verb, "-n", "lab")
    assert result.exit_code == 1
    assert "There is no instance 'web' in the namespace 'lab'. 'skerry get instances -n lab'" in result.stderr


def test_exec_looks_in_the_namespace(cloud: CloudServer) -> None:
    run(cloud, "web", "-d")
    result = cloud.cli("exec", "-n", "lab", "web", "true")
    assert result.exit_code == 125
    assert "no instance 'web' in the namespace 'lab'" in result.stderr


def test_an_id_is_found_without_a_namespace_and_in_no_wrong_one(cloud: CloudServer) -> None:
    id = run(cloud, "web", "-n", "shop")
    assert cloud.json("get", "instance", id)["namespace"] == "shop"
    assert cloud.cli("get", "instance", id, "-n", "lab").exit_code == 1


def test_all_namespaces_are_listed_with_a_column_for_them_and_one_is_without(cloud: CloudServer) -> None:
    run(cloud, "web", "-d")
    run(cloud, "web", "-d", "-n", "shop")
    assert cloud.say("get", "instances", "-n", "shop").splitlines()[0].split()[0] == "NAME"
    head, *lines = cloud.say("get", "instances", "-A").splitlines()
    assert head.split()[:2] == ["NAMESPACE", "NAME"]
    assert sorted(line.split()[:2] for line in lines) == [["default", "web"], ["shop", "web"]]
    for wrong in (("nodes", "-A"), ("instance", "web", "-A")):
        result = cloud.cli("get", *wrong)
        assert result.exit_code == 2
        assert "--all-namespaces applies to a list of instances or workloads" in result.stderr


def test_a_watch_of_all_namespaces_tells_where_what_goes_was(cloud: CloudServer) -> None:
    id = run(cloud, "web", "-n", "shop")
    with Command(cloud, "get", "instances", "-A", "-w") as process:
        assert process.stdout is not None
        read_until(process.stdout, b"RUNNING")
        cloud.say("delete", "instance", id)
        line = read_until(process.stdout, b"DELETED").splitlines()[-1].split()
        assert line[:4] == [b"shop", b"web", id.encode(), b"DELETED"]
        process.send_signal(signal.SIGINT)


def test_the_environment_names_a_namespace_and_an_option_another(cloud: CloudServer) -> None:
    assert within(cloud, "shop", "run", "-d", "--name", "web", IMAGE).exit_code == 0
    assert listed(cloud, "instances", "-A") == [("shop", "web")]
    assert "web" in within(cloud, "shop", "get", "instances").stdout
    assert "web" not in within(cloud, "shop", "get", "instances", "-n", "lab").stdout
    assert "web" in within(cloud, "lab", "get", "instances", "-A").stdout
    assert within(cloud, "lab", "get", "nodes").exit_code == 0
    assert within(cloud, "lab", "describe", "node", "n1").exit_code == 0


def test_a_node_is_described_and_drained_with_its_instances_of_every_namespace(cloud: CloudServer) -> None:
    id = run(cloud, "web", "-n", "shop")
    assert [one["id"] for one in cloud.json("describe", "node", "n1")["instances"]] == [id]
    result = cloud.cli("node", "drain", "n1", "--within", "0.2")
    assert result.exit_code == 0
    assert "1 left" in result.stderr


@pytest.mark.parametrize("said", ["by the option", "by the file", "by both"])
def test_a_file_is_applied_in_a_namespace(cloud: CloudServer, said: str) -> None:
    text = FILE if said == "by the option" else f"namespace: shop\n{FILE}"
    flags = [] if said == "by the file" else ["-n", "shop"]
    cloud.say("apply", "-f", written(cloud, FILE))
    assert cloud.say("apply", "-f", written(cloud, text), *flags).splitlines() == [
        "created workload web",
        "created instance web (1 of 1)",
    ]
    again = cloud.say("apply", "-f", written(cloud, text), *flags).splitlines()
    assert [line.split()[0] for line in again] == ["unchanged:"] * 2
    for kind in ("workloads", "instances"):
        assert listed(cloud, kind, "-A") == [("default", "web"), ("shop", "web")]
    cloud.say("delete", "workload", "web", "-n", "shop")
    assert listed(cloud, "workloads", "-A") == listed(cloud, "instances", "-A") == [("default", "web")]


def test_a_file_for_another_namespace_is_not_applied(cloud: CloudServer) -> None:
    result = cloud.cli("apply", "-f", written(cloud, f"namespace: shop\n{FILE}"), "-n", "lab")
    assert result.exit_code == 2
    assert "sets the namespace 'shop', not 'lab'" in result.stderr
    assert listed(cloud, "workloads", "-A") == []


def test_what_is_no_namespace_is_told_by_the_server(cloud: CloudServer) -> None:
    result = cloud.cli("run", "-n", "Shop", IMAGE)
    assert result.exit_code == 1
    assert "namespace 'Shop' must be 1 to 63 lower-case letters" in result.stderr
