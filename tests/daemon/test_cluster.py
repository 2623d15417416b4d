"""A cluster of a server and three nodes on machines of their own, with real containers, and what befalls it.

Whatever happens: no instance is lost, doubled or orphaned. Each test makes what it needs and takes it away.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from tests.support import imagery
from tests.support.lans import Lan
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

SMALL = {"cpu": 50, "memory": 32}
# Ends with code 5 whenever somebody puts /go there.
ENDS_WHEN_TOLD = ["sh", "-c", "while [ ! -e /go ]; do sleep 0.05; done; rm /go; exit 5"]
FIRST_RUNS = ["SCHEDULING", "SCHEDULED", "STARTING", "RUNNING"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """busybox that serves a page with its host name, as a file that every node can read. One process from its
    start on, so that who looks at its processes never sees a passing one."""
    script = (
        "read -r name < /proc/sys/kernel/hostname; echo $name > /www/index.html; echo serving; "
        "exec httpd -f -p 80 -h /www"
    )
    made = imagery.busybox(command=("sh", "-c", script))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


def test_an_instance_is_reached_at_its_published_port_from_another_machine(cloud: Lan, image: str) -> None:
    id = cloud.create(name="web", uri=image, ports=["8080:80"], resources=SMALL)
    here = cloud.node_of(cloud.until(id, "RUNNING"))
    for other in cloud.nodes.keys() - {here}:
        assert cloud.page(other, here, 8080) == "web\n"
    assert cloud.copies() == [(id, here)]
    cloud.destroy(id)
    assert cloud.copies() == []


def test_what_crashes_is_started_again_after_longer_and_longer_pauses(cloud: Lan, image: str) -> None:
    script = "echo x >> /runs; [ $(wc -l < /runs) -gt 3 ] && exec sleep 100000; exit 3"
    id = cloud.create(name="shaky", uri=image, arguments=["sh", "-c", script], resources=SMALL)
    instance = cloud.until(id, "RUNNING", restarts=3)
    assert instance["generation"] == 1
    history = cloud.history(id)
    statuses = [happened.status for happened in history]
    assert statuses == FIRST_RUNS + ["CRASHED", "STARTING", "RUNNING"] * 3
    crashes = [pair for pair in itertools.pairwise(history) if pair[0].status == "CRASHED"]
    assert {crash.reason for crash, _ in crashes} == {"ended with code 3"}
    pauses = [start.at - crash.at for crash, start in crashes]
    # Each is twice the one before, give or take what chance makes of it; a busy machine makes them longer.
    assert all(pause >= least for pause, least in zip(pauses, (0.15, 0.3, 0.6), strict=True)), pauses
    assert cloud.copies() == cloud.places(id)


def test_what_ends_well_stays_ended_and_what_cannot_be_helped_fails(cloud: Lan, image: str) -> None:
    common = {"uri": image, "resources": SMALL, "restart": "on-failure"}
    done = cloud.create(name="done", arguments=["true"], **common)
    hopeless = cloud.create(name="hopeless", arguments=["false"], restart_budget=1, **common)
    ended = cloud.until(done, "TERMINATED")
    assert (ended["exit_code"], ended["restarts"]) == (0, 0)
    given_up = cloud.until(hopeless, "FAILED")
    assert (given_up["exit_code"], given_up["restarts"]) == (1, 1)
    assert cloud.instance(done) == ended
    assert [happened.status for happened in cloud.history(done)] == [*FIRST_RUNS, "TERMINATED"]
    assert cloud.copies() == []


def test_output_and_programs_of_an_instance_are_reached_through_the_server(cloud: Lan, image: str) -> None:
    id = cloud.create(name="web", uri=image, resources=SMALL)
    cloud.until(id, "RUNNING")
    eventually_sync(lambda: cloud.call("GET", f"/instance/{id}/logs") == "serving\n")
    done = cloud.server.cli("exec", id, "sh", "-c", "hostname; exit 4")
    assert (done.stdout, done.returncode) == ("web\n", 4), done.stderr


def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing_new(cloud: Lan, image: str) -> None:
    first = cloud.create(name="first", uri=image, resources=SMALL)
    here = cloud.node_of(cloud.until(first, "RUNNING"))
    others = sorted(cloud.nodes.keys() - {here})
    for name in (here, others[0]):
        assert cloud.call("POST", f"/node/{name}/cordon")["is_cordoned"]
    more = [cloud.create(name=f"more-{number}", uri=image, resources=SMALL) for number in range(2)]
    for id in more:
        assert cloud.node_of(cloud.until(id, "RUNNING")) == others[1]
    told = cloud.call("GET", f"/instance/{more[0]}/explain")
    refusing = {node["node_id"] for node in told["nodes"] if "cordon" in node["text"]}
    assert refusing == {cloud.nodes[name].ready["node"] for name in (here, others[0])}
    assert cloud.copies() == sorted([(first, here), *((id, others[1]) for id in more)])


def test_a_drained_node_gives_up_what_it_has(cloud: Lan, image: str) -> None:
    ids = [cloud.create(name=f"web-{number}", uri=image, resources=SMALL) for number in range(3)]
    before = {id: cloud.node_of(cloud.until(id, "RUNNING")) for id in ids}
    assert sorted(before.values()) == sorted(cloud.nodes), "they are not spread"
    moving = ids[0]
    cloud.call("POST", f"/node/{before[moving]}/drain")
    cloud.until_node(before[moving], status="drained")
    assert cloud.until(moving, "RUNNING")["generation"] > 1
    after = {id: cloud.node_of(cloud.instance(id)) for id in ids}
    assert after[moving] != before[moving]
    assert {id: after[id] for id in ids[1:]} == {id: before[id] for id in ids[1:]}
    assert cloud.copies() == sorted(after.items())


def test_a_node_that_is_cut_off_is_replaced_and_stops_what_is_stale_when_it_is_back(
    cloud: Lan, image: str
) -> None:
    ids = [cloud.create(name=f"web-{number}", uri=image, resources=SMALL) for number in range(3)]
    before = {id: cloud.node_of(cloud.until(id, "RUNNING")) for id in ids}
    moving = ids[0]
    lost = before[moving]
    # One that can be nowhere else.
    cloud.call("PATCH", f"/node/{lost}", {"labels": {"only": "here"}})
    pinned = cloud.create(name="pinned", uri=image, resources=SMALL, constraints=["only=here"])
    cloud.until(pinned, "RUNNING")
    processes = cloud.processes()
    cloud.cut(lost)
    try:
        there = cloud.node_of(cloud.until(moving, "RUNNING", generation=2))
        assert there != lost
        waiting = cloud.until(pinned, "SCHEDULING")
        assert waiting["reason"]
        # Nobody can tell it to stop what it has.
        assert cloud.copies(moving) == sorted([(moving, lost), (moving, there)])
    finally:
        cloud.mend(lost)
    cloud.until_ready(lost)
    cloud.until(pinned, "RUNNING", generation=2)
    eventually_sync(lambda: cloud.copies(moving) == [(moving, there)])
    assert cloud.copies() == cloud.places(*ids, pinned)
    # Those that were not concerned did not notice.
    for id in ids[1:]:
        assert cloud.processes()[(id, before[id])] == processes[(id, before[id])]
        assert cloud.instance(id)["generation"] == 1


@dataclass(frozen=True)
class Kill:
    """What there was when the server was killed, and what was done before it was started again."""

    steady: str
    processes: set[int]  # of the steady one
    crashed: str  # ended while no server was there
    created: str  # just before
    destroyed: str  # just before


@pytest.fixture(scope="module")
def kill(machines: Lan, image: str) -> Kill:
    """A server that was killed, and is there again."""
    steady, destroyed = (
        machines.create(name=name, uri=image, resources=SMALL) for name in ("steady", "destroyed")
    )
    crashed = machines.create(name="crashed", uri=image, resources=SMALL, arguments=ENDS_WHEN_TOLD)
    here, there, _ = (machines.node_of(machines.until(id, "RUNNING")) for id in (steady, crashed, destroyed))
    processes = machines.processes()
    machines.call("DELETE", f"/instance/{destroyed}")
    created = machines.create(name="created", uri=image, resources=SMALL)
    machines.server.kill()
    done = machines.nodes[there].cli("container", "exec", f"i-{crashed}", "touch", "/go")
    assert done.returncode == 0, done.stderr

    def has_restarted() -> bool:
        now = machines.processes().get((crashed, there), set())
        return bool(now) and not now & processes[(crashed, there)]

    eventually_sync(has_restarted)
    machines.restart_server()
    machines.until_ready(*machines.nodes)
    return Kill(steady, processes[(steady, here)], crashed, created, destroyed)


def test_a_server_that_was_killed_loses_doubles_and_orphans_nothing(cloud: Lan, kill: Kill) -> None:
    alive = [kill.steady, kill.crashed, kill.created]
    steady = cloud.until(kill.steady, "RUNNING")
    assert (steady["generation"], steady["restarts"]) == (1, 0)
    assert cloud.processes()[(kill.steady, cloud.node_of(steady))] == kill.processes
    # What happened while nobody listened is told.
    crashed = cloud.until(kill.crashed, "RUNNING", restarts=1)
    assert crashed["generation"] == 1
    history = cloud.history(kill.crashed)
    assert [happened.status for happened in history] == [*FIRST_RUNS, "CRASHED", "STARTING", "RUNNING"]
    assert history[len(FIRST_RUNS)].reason == "ended with code 5"
    assert cloud.until(kill.created, "RUNNING")["generation"] == 1
    cloud.until_gone(kill.destroyed)
    assert sorted(cloud.instances()) == sorted(alive)
    assert cloud.copies() == cloud.places(*alive)
