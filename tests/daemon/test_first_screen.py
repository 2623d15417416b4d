"""A newcomer does what the first screen of README.md says, and nothing else: from `git clone` to a container
that is seen in the console.

The machine has no network but loopback, so nothing outside can be reached. `make up` runs as it is, with
`scripts/setup` and pip. Only what pip would fetch is there already: the Python packages of the virtual
environment that runs this test, and the third-party files of the console. That set-up fetches them in a clean
clone is what continuous integration begins with.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.machines import Machine, Service, lone_machine
from tests.support.waiting import eventually_sync
from tests.support.walkthrough import steps
from tests.test_repo import ROOT, tracked

pytestmark = [
    pytest.mark.skipif(not browser.CHROMIUM.exists(), reason="chromium is not installed"),
    pytest.mark.root,
    pytest.mark.timeout(300),  # a set-up and a first start, on a machine that may be busy
]

FIRST_SCREEN = 40  # lines of a terminal or a window
ASSETS = Path("src/skerry/console/assets/third_party")
UP_S = 120.0  # nothing is compiled yet in a new clone


class Newcomer:
    """Somebody with two terminals, who types the commands of README.md."""

    def __init__(self, machine: Machine, home: Path, origin: Path) -> None:
        self._machine = machine
        self._home = home
        self._words = {"REPOSITORY": shlex.quote(str(origin))}
        self._folder = home
        self.first: Service | None = None  # what runs in the first terminal

    def type(self, command: str) -> str:
        """Type a command in the terminal that is free; what it printed. `make up` goes on in the first."""
        for word, here in self._words.items():
            command = re.sub(rf"\b{word}\b(?! is)", here, command)
        if command.startswith("cd "):
            self._folder /= command.removeprefix("cd ")
            return ""
        there = f"cd {shlex.quote(str(self._folder))} && {command}"
        if command.startswith("make up"):
            furnish(self._folder)
            self.first = self._machine.start_at_terminal(there)
            self._until_first_printed("Ctrl-C stops Skerry")
            return self.first.said()
        done = self._machine.run(there)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{self._machine.said()}"
        return done.stdout

    def _until_first_printed(self, text: str) -> None:
        first = self.first
        assert first is not None

        def is_printed() -> bool:
            assert first.is_running(), first.said()
            return text in first.said()

        eventually_sync(is_printed, within=UP_S, what=f"{text!r} in {first.said()}")

    def interrupt(self) -> int:
        """Type Ctrl-C in the first terminal; the exit code."""
        assert self.first is not None
        self.first.type(b"\x03")
        return self.first.wait()


def publish(folder: Path) -> Path:
    """A repository with one commit: the files of this one as they are now, committed or not."""
    for file in tracked():
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target, follow_symlinks=False)
    git = ["git", "-C", str(folder), "-c", "user.name=Skerry", "-c", "user.email=skerry@localhost"]
    for command in (["init"], ["add", "--all"], ["commit", "--message", "everything"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return folder


def furnish(clone: Path) -> None:
    """Give a clone what its set-up would fetch: a virtual environment that finds the packages of ours, and
    the files of the console."""
    environment = clone / ".venv"
    base = Path(sys.base_prefix, "bin", Path(sys.executable).resolve().name)
    subprocess.run([base, "-m", "venv", "--without-pip", environment], check=True, capture_output=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "fetched.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    shutil.copytree(ROOT / ASSETS, clone / ASSETS)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with lone_machine(tmp_path, "fresh", GIT_CONFIG_GLOBAL="/dev/null") as made:
        yield made


def links(machine: Machine) -> list[str]:
    done = machine.run("ip -brief link")
    assert done.returncode == 0, done.stderr
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_the_first_screen_leads_from_a_clone_to_the_console_with_something_running(
    machine: Machine, tmp_path: Path
) -> None:
    assert links(machine) == ["lo"], "something outside could be reached"
    home = tmp_path / "home"
    home.mkdir()
    newcomer = Newcomer(machine, home, publish(tmp_path / "origin"))
    *before, last = [step.command for step in steps("../README.md", "Try it")]
    printed = {command.split("  #")[0].strip(): newcomer.type(command) for command in before}
    assert f"alias skerry={home}/skerry/.venv/bin/skerry" in printed["make up"]
    assert "<title>Skerry</title>" in printed["curl http://127.0.0.1:8080"]
    link = re.search(r"http://\S+", printed[".venv/bin/skerry console"])
    assert link is not None, printed
    with (
        browser.launched(machine.network) as chromium,
        browser.tab_at(chromium, "http://127.0.0.1:1323", link[0]) as tab,
    ):
        tab.open("/console/instances")
        row = tab.page.locator("main tr", has_text="web")
        assert "RUNNING" in row.inner_text()
    newcomer.type(last)
    assert newcomer.interrupt() == 130, machine.said()  # as make ends whose command was interrupted
    assert "process.stopped" in machine.said()
    assert machine.processes() == []
    assert machine.mounts() == []
    assert machine.groups() == []
    assert links(machine) == ["lo"]
    assert machine.run("nft list ruleset").stdout == ""


def test_the_first_screen_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines.index("## A tour") < FIRST_SCREEN
