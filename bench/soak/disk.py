"""The disk fills up, things end, and there is room again: what is said of them is true, and all can be ended.

    python -m bench.soak disk [--rounds 5] [--seed N]

A whole Skerry has its data on a small file system of its own. In each round there is one of everything that
can end: containers, instances, executables in cells, calls of functions. The disk is filled to the last
block; each of them ends in its own way, by itself, by a signal, or by `stop` and `delete`, which must work
also then, of what runs and of what ended while the disk was full. After there is room, what is said of each
must be true within seconds: its status, and the code or the signal that it ended by. In every second round
Skerry is killed and started while the disk is full.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.network.machines import machine
from tests.support import functions, imagery
from tests.support.clusters import sweep
from tests.support.disks import SmallDisk, small_disk
from tests.support.gates import WAIT, gate_of
from tests.support.remains import left_of
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

ROUNDS = 5
_MEGABYTES = 96
_WITHIN_S = 10.0
_CODE = 3  # of what ends by itself, which it does when it is told by SIGTERM
_PROGRAM = f"trap 'exit {_CODE}' TERM; sleep 100000 & wait"
_JSON = {"Content-Type": "application/json"}
_FUNCTION = "waits"


class Untrue(Exception):
    """Something did not go as it must."""


@dataclass(frozen=True)
class Ending:
    """A way to end, and what must be said of it."""

    name: str
    sends: signal.Signals
    code: int | None = None
    signal: int | None = None

    @property
    def exit_code(self) -> int | None:
        """As instances have it."""
        return self.code if self.signal is None else 128 + self.signal

    def inflict(self, pid: int) -> None:
        os.kill(pid, self.sends)

    def differs(self, exit: Any) -> str:
        """What is wrong with an exit that is shown; empty if nothing is."""
        seen = (exit or {}).get("code"), (exit or {}).get("signal")
        return "" if seen == (self.code, self.signal) else f"its exit is {exit}, not {self}"


BY_ITSELF = Ending("ends", signal.SIGTERM, code=_CODE)
KILLED = Ending("killed", signal.SIGKILL, signal=9)


@dataclass(frozen=True)
class Subject:
    """Something that ends while the disk is full."""

    name: str
    end: Callable[[], object]  # while it is full; raises Untrue
    is_true: Callable[[], str]  # what is wrong with what is said of it; empty if nothing is


class Round:
    """One of everything, on a Skerry that may be another process by the time that it is asked."""

    def __init__(self, campaign: Campaign, number: int) -> None:
        self._campaign = campaign
        self._number = number

    def subjects(self) -> Iterator[Subject]:
        """Made while there is room."""
        for ending in (BY_ITSELF, KILLED):
            yield self._container(ending)
            yield self._executable(ending)
            yield self._instance(ending)
        yield self._stopped_container()
        yield self._removed_container()
        yield self._removed_container(BY_ITSELF)
        yield self._freed_cell()
        yield self._freed_cell(BY_ITSELF)
        yield self._stopped_instance()
        yield self._deleted_instance()
        yield self._deleted_instance(BY_ITSELF)

    # Containers

    def _container(self, ending: Ending) -> Subject:
        name = f"{ending.name}-{self._number}"
        pid = self._run_container(name)
        return Subject(
            f"container {name}", lambda: ending.inflict(pid), lambda: self._container_differs(name, ending)
        )

    def _stopped_container(self) -> Subject:
        name = f"stopped-{self._number}"
        self._run_container(name)
        return Subject(
            f"container {name}",
            lambda: self._cli("container", "stop", name),
            lambda: self._container_differs(name, BY_ITSELF),
        )

    def _removed_container(self, after: Ending | None = None) -> Subject:
        name = f"removed-{self._number}" if after is None else f"removed-ended-{self._number}"
        pid = self._run_container(name)

        def remove() -> None:
            if after is None:
                self._cli("container", "remove", "--force", name)
                return
            after.inflict(pid)
            self._until(lambda: self._container_differs(name, after))
            self._cli("container", "remove", name)

        def is_true() -> str:
            there = json.loads(self._cli("container", "list", "-o", "json"))["containers"]
            return next((f"it is {each['state']}" for each in there if each["spec"]["name"] == name), "")

        return Subject(f"container {name}", remove, is_true)

    def _container_differs(self, name: str, ending: Ending) -> str:
        seen = self._inspect(name)
        return ending.differs(seen["exit"]) if seen["state"] == "exited" else f"it is {seen['state']}"

    def _run_container(self, name: str) -> int:
        self._cli("container", "run", "-d", "--name", name, self._campaign.image, "sh", "-c", _PROGRAM)
        return int(self._inspect(name)["pid"])

    def _inspect(self, name: str) -> Any:
        return json.loads(self._cli("container", "inspect", name))

    # Cells

    def _executable(self, ending: Ending) -> Subject:
        cell = f"{ending.name}-cell-{self._number}"
        pid = self._start_in_cell(cell)
        return Subject(
            f"cell {cell}", lambda: ending.inflict(pid), lambda: self._executable_differs(cell, ending)
        )

    def _freed_cell(self, after: Ending | None = None) -> Subject:
        cell = f"freed-cell-{self._number}" if after is None else f"freed-ended-cell-{self._number}"
        pid = self._start_in_cell(cell)

        def free() -> None:
            if after is not None:
                after.inflict(pid)
                self._until(lambda: self._executable_differs(cell, after))
            self._cli("cell", "free", cell)

        def is_true() -> str:
            return "it is still there" if any(each["cell"] == cell for each in self._cells()) else ""

        return Subject(f"cell {cell}", free, is_true)

    def _executable_differs(self, cell: str, ending: Ending) -> str:
        (executable,) = self._cells(cell)[0]["executables"]
        return "it has not ended" if executable["exit"] is None else ending.differs(executable["exit"])

    def _start_in_cell(self, cell: str) -> int:
        self._cli("cell", "allocate", cell)
        self._cli("cell", "start", cell, "x", "-c", _PROGRAM)
        return int(self._cells(cell)[0]["executables"][0]["pid"])

    def _cells(self, *names: str) -> Any:
        return json.loads(self._cli("cell", "list", *names, "-o", "json"))["cells"]

    # Instances

    def _instance(self, ending: Ending) -> Subject:
        name = f"{ending.name}-instance-{self._number}"
        id = self._create(name)
        pid = self._pid_of(id)
        return Subject(
            f"instance {name}",
            lambda: ending.inflict(pid),
            lambda: self._instance_differs(id, "FAILED", ending),
        )

    def _stopped_instance(self) -> Subject:
        name = f"stopped-instance-{self._number}"
        id = self._create(name)
        return Subject(
            f"instance {name}",
            lambda: self._cli("stop", name),
            lambda: self._instance_differs(id, "STOPPED", BY_ITSELF),
        )

    def _deleted_instance(self, after: Ending | None = None) -> Subject:
        name = f"deleted-{'' if after is None else 'ended-'}instance-{self._number}"
        id = self._create(name)
        pid = self._pid_of(id)

        def delete() -> None:
            if after is not None:
                after.inflict(pid)
                self._until(lambda: self._instance_differs(id, "FAILED", after))
            status, answer = self._campaign.skerry.call("DELETE", f"/instance/{id}")
            if status >= 400:
                raise Untrue(f"{status} {answer}")

        def is_true() -> str:
            status, answer = self._campaign.skerry.call("GET", f"/instance/{id}")
            return "" if status == 404 else f"it is {answer}"

        return Subject(f"instance {name}", delete, is_true)

    def _instance_differs(self, id: str, status: str, ending: Ending) -> str:
        """An instance with `restart: never` that did not end well has FAILED."""
        _, answer = self._campaign.skerry.call("GET", f"/instance/{id}")
        seen = answer.get("status"), answer.get("exit_code")
        return "" if seen == (status, ending.exit_code) else f"it is {seen}, not {status} by {ending}"

    def _create(self, name: str) -> str:
        spec = {
            "name": name,
            "uri": self._campaign.image,
            "arguments": ["sh", "-c", _PROGRAM],
            "restart": "never",
        }
        status, answer = self._campaign.skerry.call("PUT", "/instance/", spec, _JSON)
        if status >= 400:
            raise Untrue(f"{name} cannot be created: {status} {answer}")
        eventually_sync(lambda: self._status(answer["id"]) == "RUNNING", within=30, what=f"{name} runs")
        return str(answer["id"])

    def _status(self, id: str) -> str:
        return str(self._campaign.skerry.call("GET", f"/instance/{id}")[1].get("status"))

    def _until(self, differs: Callable[[], str]) -> None:
        """What ends is seen to end also while the disk is full."""
        if wrong := _wait_until_true(differs, time.monotonic() + _WITHIN_S):
            raise Untrue(f"not seen within {_WITHIN_S:.0f} s: {wrong}")

    def _pid_of(self, id: str) -> int:
        return int(self._inspect(f"i-{id}")["pid"])

    def _cli(self, *arguments: str) -> str:
        """What a verb prints, which must go well."""
        done = self._campaign.skerry.cli(*arguments)
        if done.returncode:
            raise Untrue(
                f"`skerry {' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout


class Campaign:
    """A Skerry on a small disk."""

    def __init__(self, folder: Path, disk: SmallDisk, chance: random.Random) -> None:
        self._folder = folder
        self._disk = disk
        self._chance = chance
        self.violations: list[str] = []
        self.image = f"oci-archive:{imagery.write_oci_archive(imagery.busybox(), folder / 'image.tar')}"
        self.skerry = self._start()
        self.skerry.wait_ready(60)
        functions.create(self.skerry, _FUNCTION, WAIT + "handler = wait_at\n")

    def violate(self, text: str) -> None:
        self.violations.append(text)
        print(f"  VIOLATED: {text}", flush=True)

    def round(self, number: int) -> None:
        print(f"  round {number}", flush=True)
        subjects = list(Round(self, number).subjects())
        self._chance.shuffle(subjects)
        with gate_of(self.skerry) as gate:
            call = functions.begin(self.skerry, _FUNCTION, gate.params(f"call-{number}"))
            gate.wait_for(f"call-{number}")
            self._disk.fill()
            self._expect_unready(number)
            for subject in subjects:
                try:
                    subject.end()
                except (Untrue, OSError, subprocess.TimeoutExpired) as error:
                    self.violate(f"round {number}, disk full, {subject.name}: {error}")
            gate.open(f"call-{number}")
        if number % 2:
            self._restart(number)
        self._disk.empty()
        if number % 2:
            self._until_ready(number)
        deadline = time.monotonic() + _WITHIN_S
        for subject in subjects:
            self._expect(subject.is_true, f"round {number}, {subject.name}", deadline)
        self._expect(
            lambda: self._call_differs(call, is_restarted=bool(number % 2)),
            f"round {number}, call {call}",
            deadline,
        )
        self._clear()

    def stop(self) -> None:
        if code := self.skerry.stop(60):
            self.violate(f"it ended with {code} when it was stopped")
        if left := left_of(self.skerry):
            self.violate(f"{len(left)} things are left behind: {', '.join(left[:5])}")

    def _start(self) -> Skerry:
        # Its log is elsewhere, as that of a service is.
        made = Skerry(self._folder, "--data", str(self._disk.root / "data"), "--set", "node.stop_grace_s=2")
        made.data = self._disk.root / "data"
        return made

    def _restart(self, number: int) -> None:
        """Kill it and start it while the disk is full. It may refuse, in a sentence that says why."""
        self.skerry.kill()
        before = len(self.skerry.said())
        self.skerry = self._start()
        try:
            self.skerry.wait_ready(30)
        except AssertionError:
            said = self.skerry.said()[before:]
            if self.skerry.process.poll() is None:
                self.violate(f"round {number}: on a full disk it neither starts nor ends: {said[-500:]}")
            elif "Traceback" in said:
                self.violate(f"round {number}: on a full disk it ends with a traceback: {said[-500:]}")

    def _until_ready(self, number: int) -> None:
        if self.skerry.process.poll() is not None:
            self.skerry = self._start()
        try:
            self.skerry.wait_ready(30)
        except AssertionError as error:
            raise Untrue(f"round {number}: it does not start, though there is room: {error}") from error

    def _expect_unready(self, number: int) -> None:
        status, answer = self.skerry.call("GET", "/readyz")
        if status == 200:
            self.violate(f"round {number}: the disk is full, and /readyz says {answer}")

    def _call_differs(self, id: str, *, is_restarted: bool) -> str:
        """It was let go while the disk was full; its worker does not outlive a Skerry that is killed."""
        state = functions.poll(self.skerry, id)["State"]
        return "" if state == "done" or (is_restarted and state == "failed") else f"it is {state}"

    def _expect(self, wrong: Callable[[], str], what: str, deadline: float) -> None:
        if text := _wait_until_true(wrong, deadline):
            self.violate(f"{what}: not true {_WITHIN_S:.0f} s after there was room: {text}")

    def _clear(self) -> None:
        """Remove what a round has made: this too must work."""
        for verb, names in (
            (("container", "remove", "--force"), self._names("container", "containers")),
            (("cell", "free"), self._names("cell", "cells")),
        ):
            for name in names:
                done = self.skerry.cli(*verb, name)
                if done.returncode:
                    self.violate(f"`skerry {' '.join(verb)} {name}`: {done.stderr.strip()}")
        for each in self.skerry.call("GET", "/instance/?limit=0")[1]["instances"]:
            self.skerry.call("DELETE", f"/instance/{each['id']}")

        def is_true() -> str:
            left = self.skerry.call("GET", "/instance/?limit=0")[1]["instances"]
            return f"{len(left)} instances are left" if left else ""

        self._expect(is_true, "delete", time.monotonic() + _WITHIN_S)

    def _names(self, noun: str, field: str) -> list[str]:
        """Of what clients made, not of the agent's own."""
        listed = json.loads(self.skerry.cli(noun, "list", "-o", "json").stdout)[field]
        names = [each["cell"] if noun == "cell" else each["spec"]["name"] for each in listed]
        return [name for name in names if "-cell-" in name or (noun == "container" and name[:2] != "i-")]


def _wait_until_true(wrong: Callable[[], str], deadline: float) -> str:
    """What is still wrong at the deadline; empty as soon as nothing is."""
    while True:
        try:
            text = wrong()
        except (Untrue, OSError, AssertionError) as error:
            text = str(error)
        if not text or time.monotonic() > deadline:
            return text
        time.sleep(0.1)


def run(rounds: int = ROUNDS, seed: int | None = None) -> list[str]:
    """The whole campaign; what was violated."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"  seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as undo:
        folder = Path(name)
        undo.enter_context(machine(folder))
        disk = undo.enter_context(small_disk(folder, _MEGABYTES))
        campaign = Campaign(folder, disk, random.Random(seed))
        undo.callback(lambda: sweep(campaign.skerry))
        try:
            for number in range(1, rounds + 1):
                campaign.round(number)
            campaign.stop()
        except (Untrue, AssertionError) as error:
            campaign.violate(str(error))
        return campaign.violations
