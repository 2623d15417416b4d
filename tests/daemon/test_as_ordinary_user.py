"""Run by root, the tests of a node without root run as an ordinary user, too: what only the kernel can
refuse, it refuses to a process without privileges.

The user has a uid of its own and assigned ids, by files of /etc that only its processes see, and is gone
afterwards. The last lines of a run have the number of its tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.ordinary import processes_of
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, IDS, ordinary_user

ROOT = Path(__file__).parents[2]
# What is of a node without root and needs none to be tested.
ROOTLESS = (
    "tests/node/rootless",
    "tests/node/watched",
    "tests/daemon/test_ordinary_user.py",
    "tests/daemon/test_ordinary_user_containers.py",
    "tests/daemon/test_without_isolation.py",
)
_WITHIN_S = 280

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not CAN_HAVE_NAMESPACES, reason="needs user namespaces of ordinary users"),
]


def test_the_tests_of_a_node_without_root_pass_as_an_ordinary_user(
    record_property: Callable[[str, object], None],
) -> None:
    with ordinary_user(ids=IDS) as user:
        try:
            done = user.run(
                *(*user.python, "-m", "pytest", "-q", "-rfE", "-n", "1", "--color=no"),
                *("--rootdir", ROOT, "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider"),
                *("--basetemp", user.home / "tests"),
                *(ROOT / place for place in ROOTLESS),
                timeout=_WITHIN_S,
            )
        finally:
            left = processes_of(user)
            for pid, _ in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
        assert left == []
        record_property("as an ordinary user", done.stdout.splitlines()[-1].strip("= "))
