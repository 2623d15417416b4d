"""Every test ends as it began: no file, thread or process more."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
import uvloop

from skerry.kit import metrics
from tests.support import leaks
from tests.support.drivers import Drivers
from tests.support.forking import fork_server

pytest_plugins = ["tests.support.selection", "tests.support.forked_workers"]

# Hundreds of programs are started here: whatever the machine is set to, what they import is compiled once. It
# is the programs' start that takes longest, and compiling is half of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Whatever flags `make test` was given, `make up` in a test has none of them.
for _name in ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(_name, None)
# Whatever contexts and settings the person at this machine has: tests have none.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no-such-folder")

# Started by nohup or in the background: programs of tests end by the signals of a terminal all the same.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

# The first loop of uvloop opens a pipe for signals that stays with the process: not a leak of the first test.
uvloop.new_event_loop().close()

# A busy machine makes single examples slow; that says nothing about the code. In CI a change gets the same
# examples at every try; whoever works on one searches anew each time: at length with HYPOTHESIS_PROFILE=long.
hypothesis.settings.register_profile("skerry", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "skerry")
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end: the collector of garbage need not look at it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
def no_metrics_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "EXPOSITIONS", metrics.ExpositionCache())  # texts are shared for seconds


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = leaks.footprint()
    logging = structlog.get_config()
    yield
    if structlog.get_config() != logging:  # by a command that ran in this process
        structlog.configure(**logging)
        for name, module in list(sys.modules.items()):
            if name.startswith("skerry.") and hasattr(module, "log"):
                getattr(module.log, "__dict__", {}).pop("bind", None)  # as it was when first used
    leaks.assert_nothing_leaked(before)
