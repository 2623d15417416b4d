"""What a test needs, told from its place, marks and fixtures: which are fast, and which get a second try.

**Whole systems** start the program itself, or need root. A loaded machine may fail one of them once for no
reason in the code, so they get a second try, and every rerun is listed when a run ends. All other tests have
no such excuse. A test that fails twice has failed.

**Fast** tests (`--fast`, which `make test-fast` uses) are the others, less those that start a server of
somebody else or take long.
"""

from __future__ import annotations

from pathlib import Path

import pytest

WHOLE_SYSTEMS = ("tests/daemon", "tests/cli")
# Fixtures that start etcd, a registry or an ACME server.
SERVERS = frozenset({"etcd_server", "own_server", "pebble", "registry"})
# They start programs or serve over real connections, or search at length.
SLOW = (
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
        for item in filter(is_whole_system, items):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if config.getoption("fast"):
        config.hook.pytest_deselected(items=[item for item in items if not is_fast(item)])
        items[:] = filter(is_fast, items)


def is_whole_system(item: pytest.Item) -> bool:
    return item.get_closest_marker("root") is not None or _is_in(item, WHOLE_SYSTEMS)


def is_fast(item: pytest.Item) -> bool:
    return not (
        is_whole_system(item)
        or _needs_root(item)
        or SERVERS.intersection(getattr(item, "fixturenames", ()))
        or _parameters(item).get("backend") == "etcd"
    )


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    path = item.path.relative_to(item.config.rootpath)
    return any(path.is_relative_to(place) for place in places)


def _needs_root(item: pytest.Item) -> bool:
    return any("root" in mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif"))


def _parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})
