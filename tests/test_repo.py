"""The repository's own rules, held by tests."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.cli import main
from skerry.model import errors
from skerry.wire import errors as tables

ROOT = Path(__file__).resolve().parent.parent
GENERATED = re.compile(r"_pb2\.pyi?$|_grpc\.py$")


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def sources() -> list[Path]:
    return [path for path in tracked("*.py") if not GENERATED.search(path.name)]


def modules() -> list[Path]:
    return [path for path in sources() if path.is_relative_to(ROOT / "src")]


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert lengths, "no source files were found"
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_every_module_opens_with_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules()
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_there_is_no_room_for_odds_and_ends() -> None:
    names = {path.stem for path in modules()} | {path.parent.name for path in modules()}
    assert names.isdisjoint({"utils", "util", "helpers", "helper", "common", "misc"})


# Written in parts, so that this file does not break its own rule.
MACHINE = re.compile(
    "|".join(
        [
            "/" + "work/",
            "/" + "root/",
            "/" + r"home/(?!function/|runtime/)\w+/",
            "/" + "Users/",
            "/" + "farm/",
        ]
    )
)
REGISTRY = re.compile(
    "|".join(
        [r"pypi\." + "org", r"pythonhosted\." + "org", r"registry\.npmjs\." + "org", r"deb\.debian\." + "org"]
    )
)


def test_no_file_names_a_path_of_a_machine_or_a_package_registry() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in REGISTRY.finditer(text)]
    assert found == []


def test_only_the_edge_reads_the_environment() -> None:
    # The last two set the environment of a function, in the function's own process.
    allowed = {"cli/settings.py", "cli/places.py", "cli/client.py"}
    allowed |= {"node/launcher/zygotes.py", "node/workers/python.py"}
    home = ROOT / "src" / "skerry"
    readers = {
        str(path.relative_to(home))
        for path in modules()
        if re.search(r"os\.environ|os\.getenv", path.read_text())
    }
    assert readers <= allowed


def error_classes() -> list[type[errors.SkerryError]]:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [c for c in classes if issubclass(c, errors.SkerryError) and c is not errors.SkerryError]


def test_every_error_has_a_row_in_the_http_and_in_the_grpc_table() -> None:
    assert set(error_classes()) == set(tables.HTTP) == set(tables.GRPC)


def test_every_error_has_a_slug_of_its_own_and_stands_in_the_drawn_tree() -> None:
    classes = error_classes()
    assert len({c.slug for c in classes}) == len(classes)
    drawing = inspect.getdoc(errors) or ""
    assert [c.__name__ for c in classes if f"── {c.__name__} " not in drawing] == []


def imported_by(code: str) -> set[str]:
    """Names in `sys.modules` after `code`, in a fresh interpreter."""
    script = f"import sys, json\n{code}\njson.dump(sorted(sys.modules), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout[done.stdout.rindex("[") :]))


def test_the_cli_imports_only_click_and_the_standard_library_before_the_verb_is_known() -> None:
    names = imported_by("import skerry.cli.main")
    foreign = {name.partition(".")[0] for name in names - imported_by("pass")}
    foreign -= set(sys.stdlib_module_names)
    assert foreign - {"click", "skerry"} == set()
    assert {name for name in names if name.startswith("skerry.")} == {"skerry.cli", "skerry.cli.main"}


SERVER_CODE = ("uvicorn", "starlette", "grpclib", "structlog", "uvloop", "sqlite3", "cryptography", "msgspec")
SERVER_CODE += ("joserfc", "lxml")
SERVER_ROOMS = (
    "skerry.daemon",
    "skerry.wire",
    "skerry.control",
    "skerry.node",
    "skerry.market",
    "skerry.store",
)


@pytest.mark.parametrize("verb", [name for name in main.VERBS if name not in ("up", "server", "node")])
def test_a_verb_that_only_talks_to_the_server_imports_no_server_code(verb: str) -> None:
    names = imported_by(f"import {main.VERBS[verb].module}")
    assert [name for name in names if name.partition(".")[0] in SERVER_CODE] == []
    assert [name for name in names if name.startswith(SERVER_ROOMS)] == []


def test_every_verb_in_the_table_exists_and_has_help() -> None:
    context = main.click.Context(main.cli)
    for name in main.VERBS:
        command = main.cli.get_command(context, name)
        assert command is not None
        assert command.help
