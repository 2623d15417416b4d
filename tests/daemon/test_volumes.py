"""Volumes on three machines with real containers: a service of 3 with a volume each keeps its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import imagery
from tests.support.lans import Lan
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# Each start adds a line to what is in the volume, and shows all of it.
COUNTS = "echo $HOSTNAME >> /data/starts; cp /data/starts /www/index.html; exec httpd -f -p 80 -h /www"
CHECK = {"role": "readiness", "method": "http", "port": 80, "interval_s": 0.3, "timeout_s": 2}
SERVICE: dict[str, Any] = {
    "name": "db",
    "replicas": 3,
    "ports": ["8080:80"],
    "resources": {"cpu": 50, "memory": 32},
    "checks": [CHECK],
    "arguments": ["sh", "-c", COUNTS],
    "max_per_node": 1,
    "volume_templates": ["data:/data:1"],
    "update": {"min_ready_s": 0.2, "drain_s": 0, "deadline_s": 60},
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", COUNTS))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'db.tar')}"


def copies(cloud: Lan) -> dict[int, dict[str, Any]]:
    """Copies of the service, by index."""
    return {copy["index"]: copy for copy in cloud.call("GET", "/service/db")["copies"]}


def until_healthy(cloud: Lan, revision: int = 1) -> dict[int, dict[str, Any]]:
    def is_so() -> bool:
        seen = cloud.call("GET", "/service/db")
        return (seen["status"], seen["revision"], seen["ready"]) == ("HEALTHY", revision, 3)

    eventually_sync(is_so, what=f"revision {revision} is healthy")
    return copies(cloud)


def starts(cloud: Lan, node: str) -> list[str]:
    """What is in the volume of the copy there: a line for each start."""
    return cloud.page(node, node, 8080).split()


@dataclass
class Story:
    """What was seen of the service, step by step."""

    places: dict[int, str]  # the node of each copy
    volumes: dict[str, str]  # the node of each volume
    starts: dict[str, dict[int, int]]  # lines in each volume, by step
    lost_copies: dict[int, str]  # ids, while a node was lost
    before_loss: dict[int, str]
    after: dict[str, dict[int, str]]  # nodes of the copies, by step


@pytest.fixture(scope="module")
def story(machines: Lan, image: str) -> Iterator[Story]:
    """A service through an update, the loss of a node, the death of an agent, and its own end."""
    cloud = machines
    cloud.call("PUT", "/service/", {**SERVICE, "image": image})
    first = until_healthy(cloud)
    places = {index: cloud.node_of(copy) for index, copy in first.items()}
    volumes = {one["name"]: one for one in cloud.call("GET", "/volume/")["volumes"]}
    told = Story(places, {name: cloud.node_of(one) for name, one in volumes.items()}, {}, {}, {}, {})

    def note(step: str, revision: int) -> dict[int, dict[str, Any]]:
        seen = until_healthy(cloud, revision)
        told.after[step] = {index: cloud.node_of(copy) for index, copy in seen.items()}
        told.starts[step] = {index: len(starts(cloud, node)) for index, node in places.items()}
        return seen

    note("created", 1)
    cloud.call("PATCH", "/service/db", {"environment": ["VERSION=2"]})
    updated = note("updated", 2)
    victim = places[1]
    cloud.cut(victim)

    def waits() -> bool:
        reason = copies(cloud)[1]["reason"]
        return f"waits for volume data-1 on {victim}, which has been silent for" in reason

    eventually_sync(waits, what="the copy waits for its volume")
    cloud.until_node(victim, status="lost")
    told.before_loss = {index: copy["instance_id"] for index, copy in updated.items()}
    told.lost_copies = {index: copy["instance_id"] for index, copy in copies(cloud).items()}
    cloud.mend(victim)
    cloud.until_ready(victim)
    note("returned", 2)
    cloud.kill_and_restart(victim)
    note("agent killed", 2)
    cloud.call("POST", "/service/db/scale", {"replicas": 1})
    eventually_sync(lambda: len(copies(cloud)) == 1)
    cloud.call("POST", "/service/db/scale", {"replicas": 3})
    note("scaled", 2)
    cloud.call("DELETE", "/service/db")
    eventually_sync(lambda: cloud.server.call("GET", "/service/db")[0] == 404)
    cloud.call("PUT", "/service/", {**SERVICE, "image": image})
    note("made again", 1)
    yield told
    cloud.tidy_up()
    for one in cloud.call("GET", "/volume/")["volumes"]:
        cloud.call("DELETE", f"/volume/{one['name']}")
    eventually_sync(lambda: cloud.call("GET", "/volume/")["count"] == 0)


def test_each_copy_has_a_volume_of_its_own_on_its_node(story: Story) -> None:
    assert len(set(story.places.values())) == 3
    assert story.volumes == {f"data-{index}": node for index, node in story.places.items()}


def test_a_copy_of_a_lost_node_waits_and_none_is_made_elsewhere(story: Story) -> None:
    assert story.lost_copies == story.before_loss


def test_all_data_are_there_after_an_update_and_the_loss_and_return_of_a_node(story: Story) -> None:
    assert story.starts["created"] == {0: 1, 1: 1, 2: 1}
    assert story.starts["updated"] == {0: 2, 1: 2, 2: 2}
    assert story.starts["returned"] == {0: 2, 1: 2, 2: 2}, "the copy of the lost node ran on meanwhile"
    assert story.starts["agent killed"] == {0: 2, 1: 2, 2: 2}


def test_copies_keep_their_volumes_by_index_over_scaling_and_deletion(story: Story) -> None:
    assert all(nodes == story.places for nodes in story.after.values())
    assert sum(story.starts["scaled"].values()) == 8
    assert sum(story.starts["made again"].values()) == 11
