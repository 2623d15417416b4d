"""Two clouds in two network namespaces: one is short of room, buys from the other, and runs things there.

What the buyer sees is told by its own routes; where things really run, by the processes and cgroups of the
machine. One story, in steps that build on each other, and then the ways in which it may end badly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skerry.daemon.node_runtime import group_root
from tests.support import imagery
from tests.support.groups import pids_from
from tests.support.neighbours import Neighbour, Street, neighbours
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

BOUGHT_MB = 256
SMALL = {"cpu": 100, "memory": 32}
SERVE = "echo serving; exec httpd -f -p 80 -h /"
# As much memory as it can get, in pieces, each touched.
HOG = "echo eating; x=0123456789abcdef; while :; do x=$x$x; done"


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    devices = tmp_path_factory.mktemp("cdi")
    settings = {
        "market__notice_s": "4",
        "market__peer_silence_s": "15",
        "market__drain_s": "3",
        "node__device_folders": str(devices),
    }
    node = {"deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/fuse"}]}
    content = {
        "cdiVersion": "0.6.0",
        "kind": "example.com/gpu",
        "devices": [{"name": "0", "containerEdits": node}],
    }
    (devices / "gpu.json").write_text(json.dumps(content))
    with neighbours(tmp_path_factory.mktemp("street"), **settings) as made:
        made.north.done(
            "market", "peers", "add", "south", made.south.address,
            "--cloud", made.south.cloud, "--ca", made.south.authority,
        )  # fmt: skip
        made.south.done("market", "buyers", "add", made.north.cloud, "--note", "north")
        yield made


@pytest.fixture(scope="module")
def image(street: Street) -> str:
    return street.push(imagery.busybox(command=("sh", "-c", SERVE)), "web:1")


def nodes_of(cloud: Neighbour, *, borrowed: bool) -> list[dict[str, Any]]:
    nodes = cloud.call("GET", "/node/")["nodes"]
    return [node for node in nodes if ("skerry.borrowed" in node["labels"]) is borrowed]


def own_node(cloud: Neighbour) -> str:
    (node,) = nodes_of(cloud, borrowed=False)
    return str(node["id"])


def borrowed_node(cloud: Neighbour) -> str:
    (node,) = nodes_of(cloud, borrowed=True)
    return str(node["id"])


def filled(cloud: Neighbour, image: str) -> str:
    """An instance that leaves no room on the cloud's own node."""
    (node,) = nodes_of(cloud, borrowed=False)
    memory = node["resources"]["memory"] - SMALL["memory"] // 2
    filler = cloud.create(name="filler", uri=image, resources={"cpu": 100, "memory": memory})
    cloud.until(filler, "RUNNING")
    return filler


def lent_groups(cloud: Neighbour) -> list[Path]:
    """The memory cgroups of the cells that a cloud has lent."""
    root = Path("/sys/fs/cgroup/memory") / group_root("skerry", cloud.server.data)
    if not root.parent.is_dir():
        root = Path("/sys/fs/cgroup") / root.name
    return sorted(group for group in root.glob("@i-contract-*") if group.is_dir())


def bought(street: Street) -> dict[str, Any]:
    """A contract of the north for a part of what the south sells."""
    street.south.done(
        "market", "sell", "--cpu", "2", "--memory", "1024", "--price", "0.10", "--currency", "EUR",
        "--period", "PT1H", "--cpu-min", "1", "--cpu-step", "1",
        "--memory-min", "128", "--memory-step", "128",
    )  # fmt: skip
    made = street.north.done("market", "buy", "--cpu", "1", "--memory", str(BOUGHT_MB), "--for", "1h")
    assert made["peer"] == "south"
    return dict(made)


def test_a_cloud_that_is_short_of_room_buys_some_and_runs_there_until_it_is_taken_back(
    street: Street, image: str
) -> None:
    north, south = street.north, street.south
    filler = filled(north, image)
    web = north.create(name="web", uri=image, resources=SMALL)
    eventually_sync(lambda: "memory" in north.instance(web)["reason"], what="no room at home")

    contract = bought(street)
    node = borrowed_node(north)
    running = north.until(web, "RUNNING")
    assert running["node_id"] == node

    # It is the other machine's kernel that holds it to what was bought.
    (group,) = lent_groups(south)
    limit = (group / "memory.limit_in_bytes").read_text()
    assert int(limit) == BOUGHT_MB * 1024 * 1024
    (inner,) = [each for each in group.iterdir() if each.is_dir() and pids_from(each)]
    assert lent_groups(north) == []

    # Output and programs come through the provider.
    assert north.server.cli("logs", web).stdout == "serving\n"
    done = north.server.cli("exec", web, "hostname")
    assert (done.returncode, done.stdout) == (0, "web\n"), done.stderr

    # A glutton gets no more than the contract has, and harms nobody outside of it.
    hog = north.create(
        name="hog",
        uri=image,
        arguments=["sh", "-c", HOG],
        restart="never",
        constraints=["skerry.borrowed=south"],
    )
    over = north.until(hog, "FAILED")
    assert over["node_id"] == node
    assert "memory" in over["reason"]
    assert int((group / "memory.max_usage_in_bytes").read_text()) <= BOUGHT_MB * 1024 * 1024
    north.destroy(hog)
    north.until(web, "RUNNING")

    # The provider needs it back, and says so before: what runs there goes home, where there is room by now.
    north.destroy(filler)
    south.done("market", "withdraw", contract["flavor"], "--reclaim", "--reason", "we need it ourselves")
    moved = north.until(web, "RUNNING", node_id=own_node(north))
    assert moved["generation"] > running["generation"]
    eventually_sync(lambda: lent_groups(south) == [], what="the cell to be freed")
    assert not inner.exists()
    north.until_node(node, code="not-found")
    (ended,) = [one for one in north.done("market", "contracts")["contracts"] if one["id"] == contract["id"]]
    assert ended["state"] == "ended"
    assert [one["free"] for one in south.done("market", "ledger")["flavors"] if one["sold"]["cpu"]] == []
    north.destroy(web)
    assert re.search("we need it ourselves", str(north.call("GET", "/market/borrowed")))


class Seen(NamedTuple):
    """A borrowed instance at one moment."""

    generation: int
    processes: set[int]


@pytest.fixture(scope="module")
def stories(street: Street, image: str) -> list[Seen]:
    """A borrowed instance at first, after its provider was killed, and after its buyer was."""
    north, south = street.north, street.south
    filler = filled(north, image)
    contract = bought(street)
    web = north.create(name="web", uri=image, resources=SMALL)
    north.until(web, "RUNNING")
    (group,) = lent_groups(south)

    def look() -> Seen:
        north.until_node(borrowed_node(north), status="ready", liveness="live")
        return Seen(north.until(web, "RUNNING")["generation"], pids_from(group))

    seen = [look()]
    for cloud in (south, north):
        cloud.server.kill()
        cloud.start_again()
        seen.append(look())
    north.done("market", "release", contract["id"])
    eventually_sync(lambda: lent_groups(south) == [], what="the cell to be freed")
    north.destroy(web, filler)
    return seen


def test_what_runs_at_a_provider_goes_on_while_either_is_away(stories: list[Seen]) -> None:
    first, after_provider, after_buyer = stories
    assert first.processes
    assert after_provider == first
    assert after_buyer == first


def test_a_gpu_that_is_bought_is_in_the_container_of_the_buyer_and_nobody_else_gets_it(
    street: Street, image: str
) -> None:
    north, south = street.north, street.south
    south.done(
        "market", "sell", "--id", "with-gpu", "--cpu", "1", "--memory", "128", "--gpus", "1", "--stock", "2",
        "--price", "0.10", "--currency", "EUR",
    )  # fmt: skip
    bought = north.done("market", "buy", "--cpu", "1", "--memory", "128", "--gpus", "1", "--for", "1h")
    [node] = [one for one in nodes_of(north, borrowed=True) if one["id"] == bought["node"]]
    assert node["facts"]["devices"] == ["example.com/gpu=0"]
    one = north.create(
        name="train", uri=image, node=bought["node"], devices=["gpu"], resources=SMALL,
        arguments=["sh", "-c", "exec 3<>/dev/gpu && echo opened; exec sleep 1000"],
    )  # fmt: skip
    north.until(one, "RUNNING")
    assert north.call("GET", f"/instance/{one}")["assigned_devices"] == ["example.com/gpu=0"]
    eventually_sync(lambda: north.server.cli("logs", one).stdout == "opened\n")
    # The provider's own instances, and the next buyer, do not get what was sold.
    waits = south.create(name="own", uri=image, devices=["example.com/gpu"], resources=SMALL)
    eventually_sync(
        lambda: (
            south.call("GET", f"/instance/{waits}")["reason"] == "0 of 1 nodes have a free example.com/gpu"
        )
    )
    refused = north.server.cli("market", "buy", "--cpu", "1", "--memory", "128", "--gpus", "1", "--for", "1h")
    assert refused.returncode != 0
    assert "1 GPU free now" in refused.stderr
    north.done("market", "release", bought["id"])
    south.until(waits, "RUNNING")
    south.destroy(waits)
    north.destroy(one)
    south.done("market", "withdraw", "with-gpu")


def test_a_provider_that_is_gone_is_given_up_and_its_work_runs_elsewhere(street: Street, image: str) -> None:
    north, south = street.north, street.south
    filler = filled(north, image)
    contract = bought(street)
    web = north.create(name="web", uri=image, resources=SMALL)
    north.until(web, "RUNNING")
    node = borrowed_node(north)
    street.cut()
    try:
        north.until_node(node, code="not-found")
        assert north.until(web, "SCHEDULING")["reason"]
        # Room at home will do as well.
        north.destroy(filler)
    finally:
        street.mend()
    north.until(web, "RUNNING")
    # Nobody pays for what is of no use: it is given back when the other can be told.
    eventually_sync(lambda: lent_groups(south) == [], what="the cell to be freed")
    (sold,) = [one for one in south.done("market", "contracts")["contracts"] if one["id"] == contract["id"]]
    assert sold["state"] in {"released", "ended"}
    north.destroy(web)
