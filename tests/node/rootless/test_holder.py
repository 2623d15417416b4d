"""The user namespace of a node, made for real by whoever runs this test, root or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry.node.rootless import holder

PROGRAM = Path(__file__).parent / "agent_program.py"
CAN = subprocess.run(("unshare", "-Urmn", "true"), stderr=subprocess.DEVNULL, check=False).returncode == 0
pytestmark = pytest.mark.skipif(not CAN, reason="needs user namespaces")


def agent(folder: Path, action: str) -> dict[str, Any]:
    done = subprocess.run(
        (sys.executable, PROGRAM, folder, action), capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / holder.RECORD).exists():
        agent(tmp_path, "end")


def test_an_agent_is_root_in_its_namespace_and_known_as_its_user(folder: Path) -> None:
    answer = agent(folder, "enter")
    assert answer["inside"] == 0
    assert answer["uid"] == answer["own"] == os.getuid()
    assert answer["namespace"] != os.readlink("/proc/self/ns/user")
    assert answer["network"] != os.stat("/proc/self/ns/net").st_ino
    assert not answer["is_machine_root"]
    assert answer["here"] == str(folder)
    assert answer["others"] == []


def test_the_next_agent_enters_the_same_namespace_also_after_a_kill(folder: Path) -> None:
    with subprocess.Popen((sys.executable, PROGRAM, folder, "stay"), stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        before = json.loads(first.stdout.readline())
        beside = agent(folder, "end")
        assert (beside["others"], beside["ended"]) == ([first.pid], False)
        first.send_signal(signal.SIGKILL)
    after = agent(folder, "enter")
    assert (after["holder"], after["namespace"]) == (before["holder"], before["namespace"])


def test_the_last_agent_ends_the_namespace_and_leaves_no_record(folder: Path) -> None:
    pidfd = os.pidfd_open(agent(folder, "enter")["holder"])
    try:
        assert agent(folder, "end")["ended"]
    finally:
        os.close(pidfd)
    assert not (folder / holder.RECORD).exists()


def test_a_record_of_a_process_that_is_gone_or_another_one_gives_a_new_namespace(folder: Path) -> None:
    first = agent(folder, "enter")
    record = json.loads((folder / holder.RECORD).read_text())
    assert agent(folder, "end")["ended"]
    (folder / holder.RECORD).write_text(json.dumps(record | {"pid": os.getpid()}))
    assert agent(folder, "enter")["holder"] not in (first["holder"], os.getpid())


def test_what_is_left_without_its_holder_is_ended(folder: Path) -> None:
    with subprocess.Popen((sys.executable, PROGRAM, folder, "stay"), stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        before = json.loads(left.stdout.readline())
        assert holder.end_orphans(folder) == 0
        os.kill(before["holder"], signal.SIGKILL)
        while holder.is_held(folder):
            pass
        assert holder.end_orphans(folder) == 1
        assert left.wait(10) == -signal.SIGKILL
    assert agent(folder, "enter")["namespace"] != before["namespace"]


def test_two_folders_have_two_namespaces(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for each in (one, two):
        each.mkdir()
    try:
        assert agent(one, "enter")["namespace"] != agent(two, "enter")["namespace"]
    finally:
        for each in (one, two):
            agent(each, "end")


def test_trials_leave_nothing_in_the_data_folder(folder: Path) -> None:
    before = agent(folder, "enter")
    answer = agent(folder, "observe")
    assert answer["holder"] == before["holder"]
    assert answer["user_ids"] >= 1
    assert answer["files"] == [holder.RECORD, "namespace.lock"]


def test_users_without_assigned_ids_get_their_own_alone_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("someone-else:100000:65536\n")
    users, groups, reasons = holder.plan_ids(1234567, 1234568, tmp_path)
    assert (users.rows, groups.rows) == (((0, 1234567, 1),), ((0, 1234568, 1),))
    (reason,) = reasons
    assert reason.startswith("cells have one user: ")
