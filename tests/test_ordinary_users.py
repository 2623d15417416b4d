"""What `tests/support/ordinary_users.py` promises to other tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ordinary_users import ordinary_user


def test_a_program_runs_as_a_user_that_can_import_skerry_and_has_nothing_of_ours() -> None:
    with ordinary_user() as user:
        done = user.run(
            *user.python,
            *("-c", "import os, skerry, msgspec; print(os.getuid(), os.getcwd(), sorted(os.environ))"),
        )
        assert done.stdout == f"{user.uid} {user.home} ['HOME', 'LANG', 'PATH']\n", done.stderr
        assert user.uid != 0
        status = user.run("grep", "-E", "^Cap(Eff|Inh|Amb)", "/proc/self/status").stdout
        assert {line.split()[1] for line in status.splitlines()} == {"0" * 16}
    assert not user.home.exists()


@pytest.mark.root(tries=1)
def test_assigned_ids_and_devices_are_seen_by_its_processes_alone() -> None:
    before = os.stat("/dev/null").st_mode
    with ordinary_user(ids=1000, devices=("/dev/null",)) as user:
        done = user.run("unshare", "-U", "--map-auto", "cat", "/proc/self/uid_map")
        assert done.stdout.split()[2] == "1000", done.stderr
        assert user.run("test", "-w", "/dev/null").returncode == 0
        assert f":{user.uid}:" not in Path("/etc/passwd").read_text()
    assert os.stat("/dev/null").st_mode == before
