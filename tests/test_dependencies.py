"""What is imported is declared; what is locked has hashes, and tells of no place it came from."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
import tomllib

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


def test_tests_and_tools_import_only_what_is_declared() -> None:
    packages, known = importlib.metadata.packages_distributions(), declared()
    undeclared = set()
    for path in sources():
        if path.is_relative_to(ROOT / "src"):
            continue  # `make check` asks deptry about those
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            for module in {name.partition(".")[0] for name in modules} - OURS - set(sys.stdlib_module_names):
                if module.endswith(("_pb2", "_pb2_grpc")):
                    continue  # compiled by the test itself
                if not {normal(name) for name in packages.get(module, [])} & known:
                    undeclared.add(f"{path.relative_to(ROOT)}: {module}")
    assert undeclared == set()


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
