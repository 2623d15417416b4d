"""`skerry node`: looking after nodes; joining is tested where a whole Skerry runs."""

from __future__ import annotations

import json

import msgspec
import pytest

from skerry.cli import object_kinds
from skerry.cli.commands import objects
from skerry.model.enforcement import ContainerNetwork, Isolation, LimitMeans, Limits, NodeEnforcement
from tests.support.sites import CloudServer
from tests.support.waiting import eventually_sync

IMAGE = "example.org/web:1"


def test_nodes_are_listed_like_everything_else(cloud: CloudServer) -> None:
    assert cloud.say("node", "list") == cloud.say("get", "nodes")
    [node] = json.loads(cloud.say("node", "ls", "-o", "json"))["nodes"]
    assert node["name"] == "machine-n1"


def test_a_cordoned_node_takes_nothing_new_until_it_is_uncordoned(cloud: CloudServer) -> None:
    assert cloud.say("node", "cordon", "n1", "--reason", "new disk") == "machine-n1: ready, cordoned\n"
    cloud.say("run", "-d", "--name", "web", IMAGE)
    assert "is cordoned" in cloud.say("explain", "web")
    assert cloud.say("node", "uncordon", "machine-n1") == "machine-n1: ready\n"
    eventually_sync(lambda: cloud.json("get", "instance", "web")["status"] == "RUNNING")


def test_a_drain_waits_until_nothing_is_left(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    result = cloud.cli("node", "drain", "n1", "--within", "0.2")
    assert result.exit_code == 0, result.stderr
    assert "machine-n1: 1 left; deadline " in result.stderr
    assert "instances that no other node can take are evicted" in result.stderr
    assert "drain deadline" not in cloud.say("describe", "node", "n1")
    assert result.stdout == "machine-n1: drained\n"
    assert cloud.json("get", "instance", "web")["node_id"] is None


def test_a_drain_that_is_not_waited_for_says_how_far_it_is(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    assert cloud.say("node", "drain", "-d", "n1") == "machine-n1: draining\n"


def test_labels_are_set_and_taken_away(cloud: CloudServer) -> None:
    assert cloud.say("node", "label", "n1", "zone=edge", "disk=ssd") == "machine-n1: disk=ssd zone=edge\n"
    assert cloud.say("node", "label", "n1", "disk-", "rack=") == "machine-n1: rack= zone=edge\n"
    assert cloud.cli("node", "label", "n1", "zone").exit_code == 2


def test_a_node_with_instances_is_removed_only_by_force(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", IMAGE)
    refused = cloud.cli("node", "remove", "n1")
    assert refused.exit_code == 1
    assert "skerry node drain" in refused.stderr
    assert cloud.say("node", "rm", "--force", "n1") == "removed n1\n"
    assert cloud.json("get", "nodes")["count"] == 0


@pytest.mark.parametrize("flags", [("--join", "http://127.0.0.1:1"), ("--data", "/nowhere")])
def test_options_for_joining_are_refused_before_a_verb_that_talks_to_a_server(
    cloud: CloudServer, flags: tuple[str, ...]
) -> None:
    result = cloud.cli("node", *flags, "list")
    assert result.exit_code == 2
    assert f"{flags[0]}: write options of 'list' after that word" in result.stderr


def test_without_a_verb_it_still_joins(cloud: CloudServer) -> None:
    result = cloud.cli("node", "--set", "nonsense=1")
    assert result.exit_code != 0
    assert "nonsense" in result.stderr


def test_a_node_with_a_full_disk_is_shown_as_that_in_the_list() -> None:
    node = {"status": "ready", "is_cordoned": True, "liveness": "live", "is_foreign": False}
    full = {"disk_pressure": "the disk of /data takes no writes"}
    assert object_kinds.node_status_text({**node, "facts": full}) == "ready, cordoned, DiskPressure"
    assert object_kinds.node_status_text({**node, "facts": {"disk_pressure": ""}}) == "ready, cordoned"


def test_a_node_is_described_with_what_it_enforces_and_why_not_more() -> None:
    enforcement = NodeEnforcement(
        Isolation.USER_NAMESPACE,
        Limits(memory=LimitMeans.WATCHED),
        ContainerNetwork.SLIRP4NETNS,
        reasons=("limits are weaker: no cgroup",),
    )
    rows = objects.enforcement_rows(msgspec.to_builtins(enforcement))
    assert rows == [
        ("isolation", "user-namespace"),
        ("limits", "cpu none, memory watched, processes none, disk none"),
        ("container network", "slirp4netns"),
        ("not enforced", "limits are weaker: no cgroup"),
    ]
    assert objects.enforcement_rows(None) == []
