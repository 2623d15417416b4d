"""The demo as people run it: every assertion holds, and whatever happens to it, nothing is left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.demo import cleaning
from skerry.demo.machines import groups_prefix
from tests.support.skerry import environment
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),  # five Skerrys, on a machine that may be busy
]

COMMAND = [sys.executable, "-m", "skerry", "demo"]


class Demo:
    """`skerry demo` in a process of its own."""

    def __init__(self, output: Path) -> None:
        # Where people have it, and where each machine of the demo has a folder of its own.
        self.folder = Path(f"/var/lib/skerry-demo-test-{secrets.token_hex(4)}")
        self._output = output
        self._links = _links()

    def start(self, *options: str) -> None:
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, *options, "--folder", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
            )

    def printed(self) -> str:
        return self._output.read_text()

    def until_printed(self, text: str) -> None:
        def is_printed() -> bool:
            assert self.process.poll() is None, self.printed()
            return text in self.printed()

        eventually_sync(is_printed, within=300.0, what=f"{text!r} is printed")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of the demo."""
        verb, *rest = arguments
        command = [*COMMAND, verb, "--folder", str(self.folder), *rest]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment())

    def left(self) -> list[str]:
        """What is on this machine of it."""
        processes = [
            line.replace(b"\0", b" ").decode(errors="replace")
            for line in map(_command_line, Path("/proc").glob("[0-9]*"))
            if os.fsencode(self.folder) in line
        ]
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [
            *processes,
            *(path for path in mounts if path.startswith(str(self.folder))),
            *map(str, cleaning.groups_of(groups_prefix(self.folder))),
            *([str(self.folder)] if self.folder.exists() else []),
            *(link for link in _links() - self._links if link.startswith(("near-", "far-", "to-", "switch"))),
        ]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def _links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path / "output")
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    cleaning.clean(made.folder)  # if a test has failed


def test_every_assertion_holds_and_nothing_is_left(demo: Demo) -> None:
    demo.start("--fast")
    code = demo.process.wait()
    assert code == 0, demo.printed()
    for title in ("edge site is flooded", "loses its power", "bad version", "bought from a neighbour"):
        assert title in demo.printed()
    assert "All 17 assertions held." in demo.printed()
    assert "✗" not in demo.printed()
    eventually_sync(lambda: demo.left() == [], what=f"nothing is left of it: {demo.left()}")


def test_a_demo_that_is_killed_is_removed_by_its_record(demo: Demo) -> None:
    demo.start("--fast", "--step", "flood")
    demo.until_printed("skerry node --join")  # the cloud runs, and the edge sites are starting
    inside = demo.run("exec", "oslo", "skerry", "status", "--help")
    assert inside.returncode == 0, inside.stderr
    assert "demo is running" in demo.run("clean").stderr
    demo.process.kill()
    demo.process.wait()
    assert "skerry demo clean" in demo.run("run", "--fast").stderr, "a second one began"
    assert len(demo.left()) > 3, "what it had created ended by itself"
    cleaned = demo.run("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert cleaned.stdout.startswith("Removed the demo: ")
    eventually_sync(lambda: demo.left() == [], what=f"nothing is left of it: {demo.left()}")
    assert demo.run("clean").stdout.startswith("There is no demo")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_removes_everything(demo: Demo, number: signal.Signals) -> None:
    demo.start("--fast")
    demo.until_printed("Packets are delayed by")
    demo.process.send_signal(number)
    assert demo.process.wait() == 130, demo.printed()
    eventually_sync(lambda: demo.left() == [], what=f"nothing is left of it: {demo.left()}")
