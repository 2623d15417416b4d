"""Every test ends as it began: no file, thread or process more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import uvloop

from tests.support import leaks
from tests.support.drivers import Drivers
from tests.support.forking import fork_server

pytest_plugins = ["tests.support.selection"]

# Hundreds of programs are started here: whatever the machine is set to, what they import is compiled once. It
# is the programs' start that takes longest, and compiling is half of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The first loop of uvloop opens a pipe for signals that stays with the process: not a leak of the first test.
uvloop.new_event_loop().close()

# A busy machine makes single examples slow; that says nothing about the code. In CI a change gets the same
# examples at every try; whoever works on one searches anew each time.
hypothesis.settings.register_profile("skerry", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "skerry")


_LONG = Path(__file__).parent / "daemon"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no process is left alone with it at the end. Each of several
    processes begins with an equal part of the list, and so each part begins with modules that take long."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    modules: dict[Path, list[pytest.Item]] = {}
    short: list[pytest.Item] = []
    for item in items:
        (modules.setdefault(item.path, []) if item.path.parent == _LONG else short).append(item)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        ordered += (item for module in list(modules.values())[worker::workers] for item in module)
        size = len(items) * (worker + 1) // workers - len(ordered)
        ordered += short[: max(0, size)]
        del short[: max(0, size)]
    items[:] = ordered + short


@pytest.fixture(scope="session")
def drivers() -> Iterator[Drivers]:
    made = Drivers()
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def forked_skerrys() -> Iterator[None]:
    fork_server.open()
    yield
    fork_server.close()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = leaks.footprint()
    yield
    leaks.assert_nothing_leaked(before)
