"""What a test needs, told from its place, marks and fixtures: which are fast, come first or get a second try.

**Whole systems** start the program itself, or are marked `root`; some other tests start programs of somebody
else (HAProxy, a browser, etcd). A loaded machine may fail one of these once for no reason in the code, so
they get a second try, and every rerun is listed when a run ends. All other tests have no such excuse. A test
that fails twice has failed. Each try has the whole time limit.

**Root**: tests marked `root` are skipped for other users, by one rule and with one line at the end that has
their number. Most are tests of whole systems; `root(tries=1)` marks those that are not, and get one try.

**Fast** tests (`--fast`, which `make test-fast` uses) are the others, less those that start a server of
somebody else or take long.

**First** come the whole programs of `tests/daemon`, then the other modules that take long: no process is left
alone with them at the end.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

WHOLE_SYSTEMS = ("tests/daemon", "tests/cli")
LONGEST = ("tests/daemon",)
# Fixtures that start etcd, a registry or an ACME server.
SERVERS = frozenset({"etcd_server", "own_server", "pebble", "registry"})
# They start HAProxy or a browser.
OTHER_PROGRAMS = ("tests/console/test_pages_in_browser.py", "tests/node/routes")
# They start programs or serve over real connections, or search at length.
SLOW = (
    "tests/console/test_pages_in_browser.py",
    "tests/control/test_convergence.py",
    "tests/functions/asynchronous/test_kills.py",
    "tests/functions/asynchronous/test_machine.py",
    "tests/market/buyer/test_borrowed_node_controller.py",
    "tests/market/provider/ledger/test_linearizability.py",
    "tests/market/provider/ledger/test_machine.py",
    "tests/node/cells",
    "tests/node/containers",
    "tests/node/guests",
    "tests/node/images",
    "tests/node/kernel",
    "tests/node/launcher",
    "tests/node/layers",
    "tests/node/network",
    "tests/node/volumes",
    "tests/node/workers",
    "tests/schedule/test_large_clusters.py",
    "tests/schedule/test_machine.py",
    "tests/sim",
    "tests/store/etcd/test_store.py",
    "tests/store/sqlite/test_crash.py",
    "tests/store/test_factory.py",
    "tests/store/test_machine.py",
    "tests/test_dependencies.py",
    "tests/test_repo.py",
    "tests/test_selection.py",
    "tests/transport/grpc",
    "tests/transport/http/test_hostile.py",
    "tests/transport/http/test_schema.py",
    "tests/transport/http/test_websocket.py",
    "tests/transport/links/members",
    "tests/transport/links/nodes/test_code_transfer.py",
    "tests/transport/links/nodes/test_hostile.py",
    "tests/transport/links/nodes/test_session.py",
    "tests/transport/links/nodes/test_tunnel_routing.py",
    "tests/transport/links/nodes/test_tunnels.py",
    "tests/transport/links/nodes/test_whole.py",
    "tests/wire/aurae",
    "tests/wire/kudo/test_grpc_documents.py",
    "tests/wire/own/cells",
    "tests/wire/own/containers",
    "tests/wire/rear",
)


_TIME_LIMIT = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests without root, servers or long searches")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules without a fast test need not be imported. None: others decide."""
    if not config.getoption("fast"):
        return None
    path = collection_path.relative_to(config.rootpath)
    return any(path.is_relative_to(place) for place in (*WHOLE_SYSTEMS, *SLOW)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("usepdb"):  # a debugger is to stop at the first failure
        for item in filter(may_fail_once, items):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if config.getoption("fast"):
        config.hook.pytest_deselected(items=[item for item in items if not is_fast(item)])
        items[:] = filter(is_fast, items)
    items[:] = in_order(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Remember the limit of a test, whose timer is started by the plugin: once, for all tries."""
    item.stash[_TIME_LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Root is asked for before anything else. Each try has the whole time, also after one that the limit has
    ended. The alarm is repeated, because something may catch what it raises."""
    if os.geteuid() != 0 and _needs_root(item):
        pytest.skip("marked root, and this user is not root")
    if settings := item.stash.get(_TIME_LIMIT, None):
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What a test has recorded of tests that it ran itself."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{name}: {value}")


def in_order(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each of several processes begins with an equal part of the list, and so each part begins with modules
    that take long."""
    modules: dict[Path, list[pytest.Item]] = {}
    short: list[pytest.Item] = []
    for place in (LONGEST, SLOW):
        for item in items:
            if item.path not in modules and _is_in(item, place):
                modules[item.path] = []
    for item in items:
        modules.get(item.path, short).append(item)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        ordered += (item for module in list(modules.values())[worker::workers] for item in module)
        size = max(0, len(items) * (worker + 1) // workers - len(ordered))
        ordered += short[:size]
        del short[:size]
    return ordered + short


def is_whole_system(item: pytest.Item) -> bool:
    marks = item.iter_markers("root")
    return any(mark.kwargs.get("tries") != 1 for mark in marks) or _is_in(item, WHOLE_SYSTEMS)


def may_fail_once(item: pytest.Item) -> bool:
    return is_whole_system(item) or _uses_servers(item) or _is_in(item, OTHER_PROGRAMS)


def is_fast(item: pytest.Item) -> bool:
    return not (
        is_whole_system(item)
        or _needs_root(item)
        or _uses_servers(item)
        or _parameters(item).get("backend") == "etcd"
    )


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return _is_below(item.path, item.config.rootpath, places)


@cache  # there are thousands of tests, and hundreds of modules
def _is_below(path: Path, root: Path, places: tuple[str, ...]) -> bool:
    return any(path.relative_to(root).is_relative_to(place) for place in places)


def _uses_servers(item: pytest.Item) -> bool:
    return bool(SERVERS.intersection(getattr(item, "fixturenames", ())))


def _needs_root(item: pytest.Item) -> bool:
    return item.get_closest_marker("root") is not None


def _parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})
