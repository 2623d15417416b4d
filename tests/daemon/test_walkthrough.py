"""Three machines become a cloud by what docs/nodes.md says, and nothing else: join, drain, loss and leave."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.machines import Machine, Service, machines
from tests.support.waiting import eventually_sync
from tests.support.walkthrough import Step, steps

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(900),  # many commands one after the other, on a machine that may be busy
]

PAGE = "nodes.md"
REPOSITORY = Path(__file__).parents[2]
INSTALLED = "--assume-old=.venv/.setup-run"
# What people would wait longer for. Nothing else is told to any program but what the page says.
SOON = {
    "SKERRY_FLEET_REPORT_S": "0.5",
    "SKERRY_FLEET_SUSPECT_AFTER_S": "2.5",
    "SKERRY_FLEET_LOST_AFTER_S": "6",
    "SKERRY_NODE_STOP_GRACE_S": "0.5",
}


class Reader:
    """Somebody who does what the page says, at machines that are named as they are there."""

    def __init__(self, there: Mapping[str, Machine]) -> None:
        self.machines = there
        self.server = there["server"]
        self.services: dict[str, Service] = {}  # by the machine that they run on
        self._invitation = ""

    def follow(self, title: str, machine: Machine, but: str = "") -> None:
        """Type the commands of a section; those that are not for the server's machine at `machine`. What the
        reader has done before (`but`) is left out."""
        for step in steps(PAGE, title):
            if not but or not step.command.startswith(but):
                self._type(self.server if step.place == "the server's machine" else machine, step)

    def prepare(self) -> None:
        """Type the commands of the first section at every machine, in the folder of the repository. What that
        installs is there, since all of them have our files; nothing is fetched."""
        for step in steps(PAGE, "Before you start"):
            assert step.place == "every machine"
            command = re.sub(r"^make ", f"make -C {shlex.quote(str(REPOSITORY))} {INSTALLED} ", step.command)
            for machine in self.machines.values():
                self._run(machine, command)

    def _type(self, machine: Machine, step: Step) -> None:
        command = step.command.replace("INVITATION", self._invitation or "INVITATION")
        match shlex.split(command)[1:3]:
            case ["server", *_] | ["node", "--join"] | ["node"]:
                self.services[machine.name] = machine.start(command)
                self._until_answered(machine)
            case ["token", "create"]:
                self._invitation = self._run(machine, command).strip()
            case _:
                self._run(machine, command)

    def _until_answered(self, machine: Machine) -> None:
        """Until `skerry status` says that it runs: what the next command needs."""
        service = self.services[machine.name]

        def is_up() -> bool:
            assert service.is_running(), service.said()
            return (machine.disk / "skerry" / "ready.json").exists()

        eventually_sync(is_up, what=f"{machine.name} is up")

    def _run(self, machine: Machine, command: str) -> str:
        done = machine.run(command)
        assert done.returncode == 0, f"{machine.name}$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    # What is looked at

    def nodes(self) -> dict[str, str]:
        """The status of each node."""
        return {each["name"]: each["status"] for each in self._listed("node")}

    def places(self) -> list[str]:
        """The nodes of all instances that run."""
        names = {each["id"]: each["name"] for each in self._listed("node")}
        return sorted(names[i["node_id"]] for i in self._listed("instance") if i["status"] == "RUNNING")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        eventually_sync(condition, what=what)

    def _listed(self, noun: str) -> list[dict[str, Any]]:
        status, answer = self.server.call("GET", f"/{noun}/")
        assert status == 200, answer
        return list(answer[f"{noun}s"])


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with machines(tmp_path, "server", "edge-1", "edge-2", is_installed=False, **SOON) as there:
        yield Reader(there)


def left_on(machine: Machine) -> list[str]:
    """What there is of Skerry on a machine."""
    there = machine.run(
        "ls -d /var/lib/skerry /run/skerry-users/* /run/aurae/* /run/netns/* 2>/dev/null"
    ).stdout
    links = [link["ifname"] for link in json.loads(machine.run("ip -json link").stdout)]
    return [
        *machine.processes(),
        *map(str, machine.groups()),
        *machine.mounts(),
        *(link for link in links if link not in ("lo", "eth0")),
        *machine.run("nft list tables").stdout.splitlines(),
        *there.splitlines(),
    ]


def test_machines_join_are_drained_get_lost_and_leave_as_the_page_says(
    reader: Reader, tmp_path: Path
) -> None:
    first, second = reader.machines["edge-1"], reader.machines["edge-2"]
    assert left_on(first) == []
    assert first.run("skerry version").returncode == 127  # not found

    reader.prepare()
    reader.follow("Add a machine", first)
    archive = imagery.write_oci_archive(imagery.busybox(command=("sleep", "100000")), tmp_path / "box.tar")
    for name in ("one", "two"):
        done = reader.server.run(f"skerry run --name {name} oci-archive:{archive}")
        assert done.returncode == 0, done.stderr
    assert reader.places() == ["edge-1", "edge-1"]

    reader.follow("Add a machine", second, but="skerry server")
    reader.until(lambda: reader.nodes() == {"edge-1": "ready", "edge-2": "ready"}, "both nodes are ready")
    reader.follow("Drain a machine", first)
    reader.until(lambda: reader.places() == ["edge-2", "edge-2"], "what it ran runs elsewhere")
    assert reader.nodes() == {"edge-1": "ready", "edge-2": "ready"}  # it may take something again

    second.power_off()
    reader.until(lambda: reader.places() == ["edge-1", "edge-1"], "what was lost runs elsewhere")
    second.boot()
    reader.follow("Lose a machine", second)
    reader.until(lambda: reader.nodes() == {"edge-1": "ready", "edge-2": "ready"}, "it is back")
    assert reader.places() == ["edge-1", "edge-1"]

    reader.follow("Remove a machine", first)
    assert reader.nodes() == {"edge-2": "ready"}
    reader.until(lambda: reader.places() == ["edge-2", "edge-2"], "what it ran runs elsewhere")
    # The tunnel of the mesh ends by itself when its interface is gone.
    reader.until(lambda: left_on(first) == [], "nothing is left")
