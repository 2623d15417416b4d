"""A backup that is taken under load, and restored when the machine of the server is gone; before that, the CA
of the same cloud is replaced."""

from __future__ import annotations

import http.client
import json
import shlex
import shutil
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from skerry.kit import pki
from skerry.model.invitations import Invitation
from tests.support import functions, imagery
from tests.support.lans import Lan, lan
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync
from tests.support.walkthrough import steps

pytestmark = pytest.mark.root

SMALL = {"cpu": 50, "memory": 32}
PASSPHRASE = "correct horse battery"


class Writer(threading.Thread):
    """Creates workloads one after the other, and notes when each was sent and acknowledged."""

    def __init__(self, cloud: Lan, name: str) -> None:
        super().__init__()
        self._cloud = cloud
        self._name = name
        self._is_over = threading.Event()
        self.sent: dict[str, float] = {}
        self.acknowledged: dict[str, float] = {}

    def run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            name = f"{self._name}-{number:05}"
            self.sent[name] = time.monotonic()
            body = {"name": name, "uri": "docker.io/library/none", "resources": SMALL}
            status, answer = self._cloud.server.call("PUT", "/workload/", body)
            if status >= 300:
                raise AssertionError(f"{status}: {answer}")
            self.acknowledged[name] = time.monotonic()

    def end(self) -> None:
        self._is_over.set()
        self.join()


def names_of_workloads(cloud: Lan) -> set[str]:
    return {one["name"] for one in cloud.call("GET", "/workload/")["workloads"]}


def until_called(cloud: Lan) -> None:
    """The function runs on the node, which the server has to reach first."""
    eventually_sync(lambda: functions.invoke(cloud.server, "echo", {"n": 1})[0] == 200)


def run(cloud: Lan, image: str, name: str) -> str:
    spec: dict[str, Any] = {"name": name, "uri": image, "arguments": ["sleep", "100000"], "resources": SMALL}
    id = cloud.create(**spec)
    cloud.until(id, "RUNNING")
    return id


class Caller(threading.Thread):
    """Requests one after the other, over TLS with the CA of the server's folder, and calls of a function."""

    def __init__(self, cloud: Lan) -> None:
        super().__init__()
        self._cloud = cloud
        self._is_over = threading.Event()
        self.done = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                answers = [
                    self._cloud.server.call("GET", "/node/"),
                    functions.invoke(self._cloud.server, "echo", {}),
                ]
            except (OSError, ssl.SSLError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            else:
                self.failures += [str(answer) for answer in answers if answer[0] != 200]
            self.done += 1

    def end(self) -> None:
        self._is_over.set()
        self.join()


def rotate(cloud: Lan, *flags: str) -> dict[str, Any]:
    done = cloud.server.cli("certificate", "rotate-ca", *flags, "--output", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trusted_by(node: Skerry) -> list[str]:
    return [pki.fingerprint(one) for one in pki.split_bundle((node.data / "node/ca.crt").read_bytes())]


def replace_the_ca(cloud: Lan, image: str) -> None:
    """While requests are made, of which none fails; the server is killed between the two steps, and after."""
    kept = run(cloud, image, "kept")
    ran = cloud.processes()
    offline = cloud.server.cli("token", "create", "--role", "viewer", "--offline").stdout.strip()
    invitation = cloud.server.cli("token", "create", "--role", "node").stdout.strip()
    old = rotate(cloud, "--status")["fingerprint"]
    caller = Caller(cloud)
    caller.start()
    try:
        new = rotate(cloud)["successor"]
        assert new != old
        refused = cloud.server.cli("certificate", "rotate-ca")
        assert "being replaced already" in refused.stderr
        eventually_sync(lambda: trusted_by(cloud.nodes["north"]) == [old, new])
        eventually_sync(lambda: not any("node " in one for one in rotate(cloud, "--status")["pending"]))
        assert (
            Invitation.parse(cloud.server.cli("token", "create", "--role", "node").stdout.strip()).fingerprint
            == new
        )
        refused = cloud.server.cli("certificate", "rotate-ca", "--finish")
        assert refused.returncode == 1
        assert "names the old CA" in refused.stderr
        cloud.server.cli("token", "revoke", Invitation.parse(invitation).token.split("_")[1])
    finally:
        caller.end()
    assert caller.failures == []

    cloud.server.kill()
    cloud.restart_server()
    cloud.until_ready("north")
    assert rotate(cloud, "--status")["successor"] == new
    cloud.join("south")  # by an invitation that names the new CA alone, at a server that shows the old one
    eventually_sync(lambda: trusted_by(cloud.nodes["south"]) == [old, new])

    until_called(cloud)
    caller = Caller(cloud)
    caller.start()
    try:
        eventually_sync(lambda: rotate(cloud, "--status")["pending"] == [])
        assert rotate(cloud, "--finish")["fingerprint"] == new
        eventually_sync(lambda: trusted_by(cloud.nodes["north"]) == trusted_by(cloud.nodes["south"]) == [new])
    finally:
        caller.end()
    assert caller.failures == []
    assert caller.done > 0
    shown = pki.read_certificate((cloud.server.data / "pki/server.crt").read_bytes())
    assert pki.is_issued_by(shown.pem, (cloud.server.data / "pki/ca.crt").read_bytes())
    assert not (cloud.server.data / "pki/ca-next.key").exists()

    cloud.server.kill()
    cloud.restart_server()
    cloud.until_ready("north", "south")
    cloud.until(kept, "RUNNING")
    assert cloud.processes() == ran
    headers = {"Authorization": f"Bearer {offline}"}
    assert cloud.server.call("GET", "/function", headers=headers)[0] == 200
    cloud.destroy(kept)


def follow(cloud: Lan, folder: Path, place: str) -> list[str]:
    """Type what docs/backup.md says for this place; what each command said."""
    paths = {name: str(folder / name) for name in ("cloud.backup", "passphrase.txt")}
    paths["/var/lib/skerry"] = str(cloud.server.data)
    said = []
    for step in steps("backup.md", "Commands"):
        if step.place == place:
            program, *words = shlex.split(step.command)
            assert program == "skerry"
            done = cloud.server.cli(*(paths.get(word, word) for word in words))
            assert done.returncode == 0, f"{step.command}\n{done.stderr}"
            said.append(done.stdout)
    assert said, f"docs/backup.md has no command for {place}"
    return said


def back_up_and_restore(cloud: Lan, image: str, folder: Path) -> None:
    """Under load, and after a replacement of the CA, whose files are in the backup as well."""
    passphrase = folder / "passphrase.txt"
    passphrase.write_text(f"{PASSPHRASE}\n")
    passphrase.chmod(0o600)
    before = run(cloud, image, "before")
    until_called(cloud)
    token = cloud.server.cli("token", "create", "--role", "viewer").stdout.strip()
    writers = [Writer(cloud, name) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    eventually_sync(lambda: all(len(writer.acknowledged) >= 20 for writer in writers))
    begun = time.monotonic()
    done = follow(cloud, folder, "the server's machine")
    ended = time.monotonic()
    eventually_sync(lambda: all(max(writer.sent.values()) > ended for writer in writers))
    for writer in writers:
        writer.end()
    assert [("encrypted, verified" in said) for said in done] == [True, True]
    after = run(cloud, image, "after")
    ran = cloud.processes()
    assert len(ran) == 2

    cloud.server.kill()  # and its machine is gone
    shutil.rmtree(cloud.server.data)
    follow(cloud, folder, "the new machine")
    cloud.restart_server()

    cloud.until_ready(*cloud.nodes)
    for id in (before, after):
        cloud.until(id, "RUNNING")
    assert cloud.processes() == ran
    assert sorted(cloud.instances()) == sorted([before, after])
    until_called(cloud)
    assert cloud.server.call("GET", "/node/", headers={"Authorization": f"Bearer {token}"})[0] == 200
    restored = names_of_workloads(cloud)
    for writer in writers:
        own = {name for name in restored if name in writer.sent}
        assert {name for name, at in writer.acknowledged.items() if at < begun} <= own
        assert {name for name in own if writer.sent[name] > ended} == set()
        assert own == set(sorted(writer.sent)[: len(own)]), "as of one moment"
    workloads = {name for writer in writers for name in writer.sent}
    assert restored - workloads == set(), "nothing but what was sent"


def test_the_ca_is_replaced_and_a_backup_under_load_brings_the_cloud_back_on_an_empty_machine(
    tmp_path: Path,
) -> None:
    """One cloud for both: most of the time is its start."""
    image = f"oci-archive:{imagery.write_oci_archive(imagery.busybox(), tmp_path / 'image.tar')}"
    with lan(tmp_path, "north") as cloud:
        cloud.let_in("north")
        functions.create(cloud.server, "echo", functions.ECHO)
        until_called(cloud)
        replace_the_ca(cloud, image)
        back_up_and_restore(cloud, image, tmp_path)
