"""A Pi at home and a VM become a cloud by what docs/tutorial-home-and-cloud.md says, and nothing else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import imagery
from tests.support.machines import Machine, Service, machines
from tests.support.waiting import eventually_sync
from tests.support.walkthrough import Step, steps

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),  # many commands one after the other, on a machine that may be busy
]

PAGE = "tutorial-home-and-cloud.md"
REPOSITORY = Path(__file__).parents[2]
INSTALLED = "--assume-old=.venv/.setup-run"
PLACES = {"the VM": "vm", "the Pi": "pi", "your laptop": "laptop"}
# What people would wait longer for. Nothing else is told to any program but what the page says.
SOON = {
    "SKERRY_FLEET_REPORT_S": "0.5",
    "SKERRY_FLEET_SUSPECT_AFTER_S": "2.5",
    "SKERRY_NODE_STOP_GRACE_S": "0.5",
}
# In the place of whoami: a page with the name of the container.
WHOAMI = "echo Hostname: $(hostname) > /www/index.html; exec httpd -f -p 80 -h /www"


class Reader:
    """Somebody who does what the page says, at the machines that it names. Images are files here, as nothing
    is fetched."""

    def __init__(self, there: Mapping[str, Machine], folder: Path) -> None:
        self.machines = there
        self.vm, self.pi, self.laptop = there["vm"], there["pi"], there["laptop"]
        self._words = {
            "docker.io/traefik/whoami:v1.11": _image(folder / "whoami.tar", "sh", "-c", WHOAMI),
            "docker.io/library/busybox:1.37": _image(folder / "busybox.tar", "sh"),
            "--cacert ca.crt": f"--cacert {self.vm.disk}/skerry/pki/ca.crt",
        }

    def prepare(self) -> None:
        """Type the first section in the folder of the repository. What it installs is there."""
        for step in steps(PAGE, "Install Skerry"):
            assert step.place == "both machines"
            command = re.sub(r"^make ", f"make -C {shlex.quote(str(REPOSITORY))} {INSTALLED} ", step.command)
            for machine in (self.vm, self.pi):
                _run(machine, command)

    def follow(self, title: str) -> list[str]:
        """Type the commands of a section; returns what each printed."""
        return [self.type(step) for step in steps(PAGE, title)]

    def start_vm(self) -> None:
        """Once more, what the page began with."""
        self.type(steps(PAGE, "Start the VM")[0])

    def type(self, step: Step) -> str:
        command = self._local(step.command)
        machine = self.machines[PLACES[step.place]]
        match shlex.split(command)[:3]:
            case ["skerry", "up", *_] | ["skerry", "node", "--join"]:
                (machine.disk / "skerry" / "ready.json").unlink(missing_ok=True)
                _until_ready(machine, machine.start(command))
                return ""
            case ["skerry", "dns", "lookup"]:
                printed = _run(machine, command)
                address = re.search(r"10\.63\.\d+\.\d+", printed)
                assert address is not None, printed
                self._words["10.63.0.2"] = address[0]
                return printed
            case ["skerry", "token", "create"]:
                self._words["INVITATION"] = _run(machine, command).strip()
                return ""
            case ["curl", *_]:
                return _run_until_it_works(machine, command)
            case _:
                return _run(machine, command)

    def until_both_answer(self, step: Step) -> None:
        """Repeat a command until both copies have answered."""
        answers: set[str] = set()

        def have_both() -> bool:
            answers.add(self.type(step).strip())
            return len(answers) == 2

        eventually_sync(have_both, what=f"both answer {step.command}, not only {answers}")
        assert answers == {"Hostname: web-0", "Hostname: web-1"}

    def until_in_a_row(self, step: Step, expected: str, times: int) -> None:
        """Repeat a command until it has printed the same so many times, without a failure between."""
        count = 0

        def is_so() -> bool:
            nonlocal count
            done = self.machines[PLACES[step.place]].run(self._local(step.command))
            count = count + 1 if done.returncode == 0 and done.stdout == expected else 0
            return count == times

        eventually_sync(is_so, what=f"{times} times {expected!r}")

    def _local(self, command: str) -> str:
        for word, here in self._words.items():
            command = command.replace(word, here)
        return command


def _image(path: Path, *command: str) -> str:
    return f"oci-archive:{imagery.write_oci_archive(imagery.busybox(command=command), path)}"


def _run(machine: Machine, command: str) -> str:
    done = machine.run(command)
    assert done.returncode == 0, f"{machine.name}$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _run_until_it_works(machine: Machine, command: str) -> str:
    """As a reader does who was a second too early."""
    found: list[str] = []

    def works() -> bool:
        done = machine.run(command)
        found[:] = [done.stdout, done.stderr]
        return done.returncode == 0

    try:
        eventually_sync(works, what=f"{machine.name}$ {command}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None
    return found[0]


def _until_ready(machine: Machine, service: Service) -> None:
    def is_up() -> bool:
        assert service.is_running(), service.said()
        return (machine.disk / "skerry" / "ready.json").exists()

    eventually_sync(is_up, what=f"{machine.name} is up")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with machines(
        tmp_path,
        *("vm", "pi", "laptop"),
        behind_nat=["pi"],
        aliases={"shop.example.org": "vm", "web.default.skerry": "vm"},
        is_installed=False,
        **SOON,
    ) as there:
        yield Reader(there, tmp_path)


def test_a_pi_and_a_vm_become_a_cloud_as_the_page_says(reader: Reader) -> None:
    reader.prepare()
    reader.follow("Start the VM")
    _, _, nodes, _ = reader.follow("Join the Pi")
    assert "pi" in nodes
    status = steps(PAGE, "Join the Pi")[-1]
    eventually_sync(lambda: re.search(r"pi +vm +direct|vm +pi +direct", reader.type(status)))

    *_, described = reader.follow("Run a service on both machines")
    assert " vm " in described
    assert " pi " in described

    _, looked_up, _, first, second = reader.follow("Call it by its name")
    assert "10.63." in looked_up
    assert (first, second) == ("Hostname: web-0\n", "Hostname: web-1\n")

    reader.follow("Publish it")
    for step in steps(PAGE, "Publish it"):
        if step.place == "your laptop":
            reader.until_both_answer(step)

    reader.vm.power_off()
    lookup, call, visit = steps(PAGE, "When the VM is away")
    reader.type(lookup)
    own = reader.type(call)
    reader.until_in_a_row(call, own, 60)  # by chance once in a million tries
    reader.vm.boot()
    reader.start_vm()
    reader.until_both_answer(visit)
