"""docs/operations.md: its commands are typed on one running Skerry, with the faults that it is about."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import functions, imagery
from tests.support.clusters import Cluster, sweep
from tests.support.forking import fork_server
from tests.support.skerry import Skerry, environment
from tests.support.waiting import PATIENCE_S, eventually_sync
from tests.support.walkthrough import DOCS, steps

pytestmark = pytest.mark.root

PAGE = "operations.md"
SECTIONS = ("Ports and firewall", "Backup", "Monitoring", "Disaster recovery")
FLAGS = ("--set", "node.name=hub", "--set", "node.stop_grace_s=0.5")
TAKEOVER = "skerry up --takeover"
_ROW = re.compile(r"^\| `([^`]+)` \| `(skerry [^`]+)` \| (.*) \|$", re.MULTILINE)
_COMMAND = re.compile(r"`(skerry [^`]+)`")


class Symptom(NamedTuple):
    """A row of the table: the words of an error, the command that shows them, and the commands that help."""

    words: str
    command: str
    cures: tuple[str, ...]


def symptoms() -> list[Symptom]:
    section = (DOCS / PAGE).read_text().split("\n## Troubleshooting\n")[1].split("\n## ")[0]
    return [
        Symptom(words, command, tuple(_COMMAND.findall(cure)))
        for words, command, cure in _ROW.findall(section)
    ]


class Operator:
    """Somebody who types what the page says, in a folder with a few files. Nothing is fetched: the image is a
    file here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        image = imagery.write_oci_archive(imagery.busybox(command=("sleep", "9999")), folder / "image.tar")
        self.image = f"oci-archive:{image}"
        (folder / "password.txt").write_text("open sesame\n")
        (folder / "passphrase.txt").write_text("correct horse battery staple\n")
        (folder / "passphrase.txt").chmod(0o600)
        (folder / "copied").mkdir()
        (folder / "copied" / "version.json").write_text('{"version":"0.99.0"}')
        self.skerry = self._start()

    def _start(self, *flags: str) -> Skerry:
        made = Skerry(self.folder, *FLAGS, *flags)
        made.wait_ready()
        return made

    def break_things(self) -> None:
        """The faults of the table."""
        cluster = Cluster(self.skerry, {"hub": self.skerry})
        cluster.until_ready("hub")
        small = {"cpu": 50, "memory": 32}
        idle = cluster.create(name="idle", uri=self.image, resources=small)
        cluster.until(idle, "RUNNING")
        cluster.call("PATCH", f"/instance/{idle}", {"status": "STOPPED"})
        cluster.create(name="big", uri=self.image, resources={"cpu": 900_000, "memory": 32})
        cluster.create(
            name="crash", uri=self.image, arguments=["sh", "-c", "echo no config; exit 3"], resources=small
        )
        cluster.create(name="lost", uri="oci-archive:/nowhere/image.tar", resources=small)
        functions.create(self.skerry, "broken", "def handler(params, context):\n    return params['x']\n")
        assert self.type("skerry namespace quota tiny --instances 0").returncode == 0
        cluster.until(idle, "STOPPED")
        cluster.call("POST", "/node/hub/cordon")
        cluster.create(name="later", uri=self.image, resources=small)

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run one command of the page, to its end."""
        port = self.skerry.ready["http"].rpartition(":")[2]
        local = command.replace("docker.io/library/busybox", self.image).replace(
            "127.0.0.1:1323", f"127.0.0.1:{port}"
        )
        words = [
            str(self.folder / each) if each in ("second", "copied") else each for each in shlex.split(local)
        ]
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            return fork_server.run(words[1:], environment(SKERRY_DATA=str(self.skerry.data)))
        finally:
            os.chdir(before)

    def follow(self, title: str) -> None:
        """Type the commands of a section, which must work."""
        for step in steps(PAGE, title):
            if step.command == TAKEOVER:
                former = self.skerry
                self.skerry = self._start("--takeover")
                assert former.process.wait(PATIENCE_S) == 0, former.said()
                continue
            done = self.type(step.command)
            assert done.returncode == 0 or step.command == "skerry doctor", f"{step.command}\n{done.stderr}"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    made = Operator(tmp_path_factory.mktemp("operations"))
    try:
        made.follow("Upgrade")  # in the end there is another process, so this is part of the beginning
        made.break_things()
        yield made
        instances = [each["name"] for each in made.skerry.call("GET", "/instance/")[1]["instances"]]
        assert made.type(f"skerry delete instance {' '.join(instances)}").returncode == 0
        assert made.skerry.stop() == 0, made.skerry.said()
    finally:
        sweep(made.skerry)


def test_there_are_at_least_fifteen_symptoms() -> None:
    assert len(symptoms()) >= 15


@pytest.mark.parametrize("symptom", symptoms(), ids=lambda symptom: symptom.words)
def test_a_symptom_is_shown_by_its_command_and_the_commands_of_its_cure_work(
    operator: Operator, symptom: Symptom
) -> None:
    def shows() -> bool:
        done = operator.type(symptom.command)
        return symptom.words in done.stdout + done.stderr

    eventually_sync(shows, what=f"{symptom.command} shows {symptom.words}")
    for cure in symptom.cures:
        done = operator.type(cure)
        assert done.returncode == 0 or cure == "skerry doctor", f"{cure}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("title", SECTIONS)
def test_the_commands_of_a_section_work(operator: Operator, title: str) -> None:
    operator.follow(title)
