"""What is imported is declared; what is locked has hashes, and tells of no place it came from."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import audit

from tests.test_repo import ROOT, sources

OURS = {"skerry", "tests", "bench", "scripts"}
LOCKS = ("run", "etcd", "dev")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """Packages that pyproject.toml and dev.in name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["etcd"]]
    lines += (ROOT / "requirements" / "dev.in").read_text().splitlines()
    names = [re.match(r"[\w.-]+", line) for line in lines if line and not line.startswith("#")]
    return {normal(name[0]) for name in names if name}


def locked(name: str) -> dict[str, str]:
    """The packages of a lock file, with their versions."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))


def imports_of(text: str) -> Iterator[str]:
    """The first names of the modules that a module imports."""
    for node in ast.walk(ast.parse(text)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        yield from (name.partition(".")[0] for name in modules)


_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^\n;#]+))", re.MULTILINE)


def may_import(text: str) -> set[str]:
    """At least these names. The parser knows exactly, and takes long for a thousand files."""
    found = (one or several for one, several in _IMPORT.findall(text))
    return {re.split(r"\W", name.strip())[0] for names in found for name in names.split(",")}


def test_tests_and_tools_import_only_what_is_declared() -> None:
    packages, known = importlib.metadata.packages_distributions(), declared()
    fine = {name for name, found in packages.items() if {normal(one) for one in found} & known}
    fine |= OURS | set(sys.stdlib_module_names)
    undeclared = set()
    for path in sources():
        if path.is_relative_to(ROOT / "src"):
            continue  # `make check` asks deptry about those
        text = path.read_text()
        for module in set(imports_of(text)) - fine if may_import(text) - fine else ():
            if not module.endswith(("_pb2", "_pb2_grpc")):  # compiled by the test itself
                undeclared.add(f"{path.relative_to(ROOT)}: {module}")
    assert undeclared == set()


def test_imports_are_found_in_whatever_form_they_are_written() -> None:
    text = (
        "import a.b as c, d\nif c:\n    from e.f import (\n        g,\n    )\nfrom . import h\nx=1; import i"
    )
    assert set(imports_of(text)) == {"a", "d", "e", "i"}
    assert may_import(text) >= {"a", "d", "e", "i"}


def test_starting_skerry_does_not_need_etcd_but_the_locks_have_it() -> None:
    assert {"aetcd", "grpcio"}.isdisjoint(locked("run"))
    assert locked("etcd").items() > locked("run").items()
    assert locked("dev").items() > locked("etcd").items()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_has_hashes_and_names_no_place(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    packages = re.findall(r"^[\w.-]+==.*\n.*", text, re.MULTILINE)
    assert len(packages) >= len(locked(name)) > 0
    assert [found for found in packages if "\n    --hash=sha256:" not in found] == []
    assert "://" not in text


def package(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": [], **more}


def test_an_audit_tells_what_is_known_and_what_could_not_be_asked() -> None:
    flaw = {"id": "X-1", "fix_versions": ["1.1"]}
    sound, bad = package("sound"), package("bad", vulns=[flaw])
    unknown = {"name": "far", "version": "1.0", "skip_reason": "not found"}

    def told(*packages: dict[str, object]) -> tuple[int, str]:
        return audit.verdict(json.dumps({"dependencies": packages}), "")

    assert told(sound) == (0, "audit: 1 of 1 packages asked about, 0 with known flaws")
    assert told(sound, bad)[0] == 1
    assert "bad 1.0: X-1, mended in 1.1" in told(sound, bad)[1]
    assert told(sound, unknown)[0] == 2
    assert "no vulnerability service" in told(sound, unknown)[1]
    status, text = audit.verdict("", "warning\nname resolution failed\n")
    assert status == 2
    assert text.endswith("so nothing is known: name resolution failed")


# What a start may not import, since few use it: memory and processor time of every start depend on it.
ON_DEMAND = {
    "acme",
    "aetcd",
    "greenlet",
    "grpc",
    "jinja2",
    "lxml",
    "numpy",
    "requests",
    "rich",
    "skerry.daemon.log_forwarders",
    "skerry.sim",
    "tomllib",
    "yaml",
}
OF_SERVERS = {
    "joserfc",
    "skerry.console",
    "skerry.control.backup.service",
    "skerry.control.identity.authenticator",
    "skerry.control.nodes",
    "skerry.control.placement",
    "skerry.control.services",
    "skerry.control.sessions",
    "skerry.daemon.http",
    "skerry.daemon.node_app",
    "skerry.daemon.server_base",
    "skerry.daemon.server_role",
    "skerry.market",
    "skerry.store.sqlite.store",
    "skerry.wire.kudo",
    "skerry.wire.rear",
}
OF_DAEMONS = {"asyncio", "cryptography", "google", "msgspec", "skerry.daemon", "skerry.model", "structlog"}
START = """
from skerry.cli.commands.daemon import import_daemon
import_daemon({role!r})
"""
COMMAND = """
import sys
from skerry.cli.commands import daemon
from skerry.cli.main import main
import_daemon = daemon.import_daemon
daemon.import_daemon = lambda role: sys.exit(import_daemon(role) and 0)
sys.argv = ["skerry", *{command!r}]
try:
    main()
except SystemExit:
    pass
"""
CALL = """
import sys
from skerry.cli.main import main
sys.argv = ["skerry", "status"]
try:
    main()
except SystemExit:
    pass
"""


def imported(code: str, **environment: str) -> set[str]:
    """The modules that a new interpreter has after `code`, and the packages that they are in."""
    shown = code + "\nimport sys\nprint(*sys.modules, file=sys.stderr)"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
    run = [sys.executable, "-c", shown]
    ended = subprocess.run(run, env={**kept, **environment}, check=True, capture_output=True, text=True)
    return set(ended.stderr.splitlines()[-1].split())


def test_a_server_imports_nothing_that_few_use() -> None:
    loaded = imported(START.format(role="up"))
    assert {"skerry.daemon.server_role", "skerry.console"} <= loaded, "or else this shows nothing"
    assert ON_DEMAND & loaded == set()


def test_a_node_imports_nothing_that_only_servers_have() -> None:
    loaded = imported(START.format(role="node"))
    assert {"skerry.daemon.node_role", "skerry.node.containers.containers"} <= loaded
    assert (ON_DEMAND | OF_SERVERS) & loaded == set()


@pytest.mark.parametrize("command", [["up"], ["node", "--join", "https://127.0.0.1:1"]])
def test_a_command_imports_no_more_before_the_daemon(tmp_path: Path, command: list[str]) -> None:
    """Its settings and what the service manager passes come first."""
    loaded = imported(COMMAND.format(command=command), SKERRY_DATA=str(tmp_path), HOME=str(tmp_path))
    assert "skerry.daemon.process" in loaded
    assert (ON_DEMAND | (OF_SERVERS if command[0] == "node" else set())) & loaded == set()


def test_status_imports_the_client_and_nothing_of_the_daemon(tmp_path: Path) -> None:
    loaded = imported(CALL, SKERRY_DATA=str(tmp_path), HOME=str(tmp_path))
    assert {"skerry.cli.commands.status", "skerry.client.api"} <= loaded
    assert (ON_DEMAND | OF_DAEMONS) & loaded == set()
