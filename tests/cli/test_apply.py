"""`skerry apply`: files made real on the real control plane, and files that are wrong."""

from __future__ import annotations

import io
import re
import subprocess
from typing import Any

import pytest

from skerry.cli import manifests
from tests.support.nodes import Command
from tests.support.sites import CloudServer
from tests.support.waiting import PATIENCE_S, eventually_sync
from tests.test_repo import ROOT

SHOP = """
workloads:
  - name: shop
    image: example.org/shop:1
    environment: {MODE: fast, DEBUG: 0}
    resources: {cpu: 100, memory: 64}
    ports: [8080:53]
    restart: on-failure
    restart_budget: 3
    arguments: [serve, --all]
    constraints: [zone!=far]
    architecture: amd64
"""
COPIES = SHOP.replace("ports: [8080:53]", "ports: []") + "instances: [{workload: shop, count: %d}]\n"
OWN = "instances: [{name: cache, image: 'example.org/cache:%d', resources: {memory: %d}}]\n"


def apply(cloud: CloudServer, text: str, *flags: str) -> list[str]:
    """What was done, line by line."""
    (cloud.data / "file.yaml").write_text(text)
    return cloud.say("apply", "-f", str(cloud.data / "file.yaml"), *flags).splitlines()


def refused(cloud: CloudServer, text: str) -> str:
    """What is said of a file that cannot be applied, in one line."""
    (cloud.data / "file.yaml").write_text(text)
    before = kept(cloud)
    result = cloud.cli("apply", "-f", str(cloud.data / "file.yaml"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert kept(cloud) == before
    return result.stderr


def instances(cloud: CloudServer) -> list[dict[str, Any]]:
    return list(cloud.json("get", "instances")["instances"])


def kept(cloud: CloudServer) -> Any:
    """All that an apply could change."""
    copies = [(one["id"], one["generation"], one["desired"]) for one in instances(cloud)]
    return cloud.json("get", "workloads"), copies


def all_run(cloud: CloudServer) -> bool:
    return all(one["status"] == "RUNNING" for one in instances(cloud))


def test_a_workload_is_made_of_all_that_the_file_says(cloud: CloudServer) -> None:
    assert apply(cloud, SHOP) == ["created workload shop"]
    made = cloud.json("get", "workload", "shop")
    assert made["uri"] == "example.org/shop:1"
    assert made["environment"] == ["MODE=fast", "DEBUG=0"]
    assert made["resources"] == {"cpu": 100, "memory": 64, "disk": 0}
    assert made["ports"] == ["8080:53"]
    assert (made["restart"], made["restart_budget"]) == ("on-failure", 3)
    assert made["arguments"] == ["serve", "--all"]
    assert (made["constraints"], made["architecture"]) == (["zone!=far"], "amd64")


def test_the_same_file_again_changes_nothing(cloud: CloudServer) -> None:
    apply(cloud, COPIES % 2)
    eventually_sync(lambda: all_run(cloud))
    before = kept(cloud)
    assert [line.split()[0] for line in apply(cloud, COPIES % 2)] == ["unchanged:"] * 3
    assert kept(cloud) == before


def test_what_differs_is_changed_and_named(cloud: CloudServer) -> None:
    apply(cloud, SHOP)
    changed = SHOP.replace("shop:1", "shop:2").replace("memory: 64", "memory: 32")
    assert apply(cloud, changed) == ["changed workload shop (image, resources)"]
    made = cloud.json("get", "workload", "shop")
    assert (made["uri"], made["resources"]["memory"], made["version"]) == ("example.org/shop:2", 32, 2)


def test_what_is_taken_out_of_the_file_goes_back_to_its_default(cloud: CloudServer) -> None:
    apply(cloud, SHOP)
    [line] = apply(cloud, "workloads: [{name: shop, image: 'example.org/shop:1', resources: {cpu: 100}}]")
    assert line == (
        "changed workload shop (environment, resources, ports, restart, arguments, architecture, constraints)"
    )
    made = cloud.json("get", "workload", "shop")
    assert (made["environment"], made["ports"], made["restart"]) == ([], [], "always")
    assert made["resources"] == {"cpu": 100, "memory": 0, "disk": 0}


@pytest.mark.parametrize(("rollout", "image"), [("rolling", "shop:2"), ("none", "shop:1")])
def test_instances_follow_a_workload_that_changes_unless_they_are_not_to(
    cloud: CloudServer, rollout: str, image: str
) -> None:
    apply(cloud, COPIES % 1)
    eventually_sync(lambda: all_run(cloud))
    apply(cloud, (COPIES % 1).replace("shop:1", "shop:2"), "--rollout", rollout)
    eventually_sync(lambda: [one["uri"] for one in instances(cloud)] == [f"example.org/{image}"])


def test_there_are_as_many_copies_as_the_file_says_and_the_oldest_stay(cloud: CloudServer) -> None:
    apply(cloud, COPIES % 2)
    first, _ = instances(cloud)
    assert apply(cloud, COPIES % 3)[1:] == [
        "unchanged: instance shop (1 of 3)",
        "unchanged: instance shop (2 of 3)",
        "created instance shop (3 of 3)",
    ]
    steps = apply(cloud, COPIES % 1)
    assert [step.split()[0] for step in steps] == ["unchanged:", "deleted", "deleted", "unchanged:"]
    eventually_sync(lambda: [one["id"] for one in instances(cloud)] == [first["id"]])


def test_an_instance_of_its_own_is_made_kept_and_changed(cloud: CloudServer) -> None:
    assert apply(cloud, OWN % (1, 64)) == ["created instance cache"]
    assert apply(cloud, OWN % (1, 64)) == ["unchanged: instance cache"]
    assert apply(cloud, OWN % (1, 32)) == ["changed instance cache (resources)"]
    [one] = instances(cloud)
    assert one["resources"]["max"]["memory"] == 32


def test_one_that_has_failed_is_made_anew(cloud: CloudServer) -> None:
    broken = (OWN % (1, 64)).replace("cache", "broken")
    apply(cloud, broken)
    [failed] = eventually_sync(lambda: [one for one in instances(cloud) if one["status"] == "FAILED"])
    assert apply(cloud, broken) == [
        f"deleted instance {failed['id']} (it is FAILED)",
        "created instance broken",
    ]
    eventually_sync(lambda: [one["id"] for one in instances(cloud) if one["id"] != failed["id"]])


def test_a_dry_run_tells_all_and_changes_nothing(cloud: CloudServer) -> None:
    before = kept(cloud)
    assert apply(cloud, COPIES % 1, "--dry-run") == [
        "would create workload shop",
        "would create instance shop (1 of 1)",
    ]
    assert kept(cloud) == before


def test_steps_can_be_read_by_a_program(cloud: CloudServer) -> None:
    (cloud.data / "file.yaml").write_text(SHOP)
    assert cloud.json("apply", "-f", str(cloud.data / "file.yaml")) == {
        "steps": [{"do": "create", "kind": "workload", "name": "shop", "why": ""}]
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it must have at least one of these lists: `volumes:`"),
        ("- web", "it must have at least one of these lists: `volumes:`"),
        ("namespace: shop", "it must have at least one of these lists: `volumes:`"),
        ("namespace: Shop\nworkloads: []", "namespace 'Shop' must be 1 to 63 lower-case letters"),
        ("workload: []", "has no `workload`; did you mean `workloads`?"),
        ("workloads: {name: web}", "`workloads:` must be a list"),
        ("workloads: [{image: x}]", "workloads[0]: `name` is needed"),
        ("workloads: [{name: web}]", "workloads[0] (web): `image` must be an image reference"),
        ("workloads: [{name: web, image: 'UPPER CASE'}]", "workloads[0] (web): "),
        ("workloads: [{name: web, image: x, port: [80]}]", "has no `port`; did you mean `ports`?"),
        ("workloads: [{name: web, image: x, ports: [hello]}]", "workloads[0] (web): "),
        ("workloads: [{name: web, image: x, ports: 80}]", "$.ports"),
        ("workloads: [{name: web, image: x, resources: {cpus: 1}}]", "did you mean `cpu`?"),
        ("workloads: [{name: web, image: x, resources: {cpu: -1}}]", "$.resources.cpu"),
        ("workloads: [{name: web, image: x, restart: no}]", "$.restart"),
        ("workloads: [{name: web, image: x, environment: {A: true}}]", "environment.A in quotes"),
        ("workloads: [{name: web, image: x}, {name: web, image: x}]", 'workload "web" is there twice'),
        ("instances: [{workload: web, count: -1}]", "`count` must be a number from 0"),
        ("instances: [{workload: web, name: x}]", "has no `name`; there are workload, count"),
        ("instances:\n- name: a\n  name: b", "line 3: `name` is there twice"),
        ("instances: [", "line 2: "),
        ("instances: !!python/object:os.system {}", "line 1: could not determine a constructor"),
        ("{[a]: b}", "line 1: a key must be a single word"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("instances: [{workload: nowhere}]", "nowhere"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place_and_nothing_is_done(
    cloud: CloudServer, text: str, says: str
) -> None:
    assert says in refused(cloud, text)


def test_an_instance_that_cannot_be_told_from_others_is_not_touched(cloud: CloudServer) -> None:
    for _ in range(2):
        cloud.say("run", "-d", "--name", "cache", "example.org/cache:1")
    eventually_sync(lambda: all_run(cloud))
    assert "Several instances are named 'cache'" in refused(cloud, OWN % (1, 64))


def test_a_file_can_come_by_standard_input(cloud: CloudServer) -> None:
    with Command(cloud, "apply", "-f", "-", stdin=subprocess.PIPE) as process:
        output, _ = process.communicate(SHOP.encode(), timeout=PATIENCE_S)
    assert output == b"created workload shop\n"


def test_the_file_that_the_docs_show_is_a_good_one() -> None:
    [shown] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "running.md").read_text(), flags=re.S)
    file = io.BytesIO(shown.encode())
    file.name = "running.md"
    wanted = manifests.read(file)
    assert [one.name for one in wanted.workloads] == ["web"]
    assert wanted.instances[0] == manifests.ManifestReplicas("web", 3)
    assert wanted.namespace == "shop"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22:22", "22:22"),
        ("no", "no"),
        ("0x10", "0x10"),
        ("2026-01-01", "2026-01-01"),
        ("010", 10),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("~", None),
        ("", None),
        ("true", True),
        ("'1'", "1"),
    ],
)
def test_plain_values_are_read_as_yaml_1_2_has_them(text: str, value: object) -> None:
    assert manifests.load(f"a: {text}".encode()) == {"a": value}
