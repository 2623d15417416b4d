"""The repository's own rules, held by tests."""

from __future__ import annotations

import ast
import gc
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from skerry.cli import main
from skerry.model import errors
from skerry.transport import error_codes as tables

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "src" / "skerry"
GENERATED = re.compile(r"_pb2\.pyi?$|_grpc\.py$")


@cache
def tracked(*patterns: str) -> tuple[Path, ...]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return tuple(ROOT / name for name in names if name and (ROOT / name).is_file())


@cache
def sources() -> tuple[Path, ...]:
    return tuple(path for path in tracked("*.py") if not GENERATED.search(path.name))


@cache
def modules() -> tuple[Path, ...]:
    return tuple(path for path in sources() if path.is_relative_to(ROOT / "src"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a module, the module itself first; each file is parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(scope="module", autouse=True)
def trees_of_this_module() -> Iterator[None]:
    """They are large, and a collection of garbage would look at all of them again and again."""
    gc.disable()
    yield
    gc.enable()
    nodes_of.cache_clear()


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert lengths, "no source files were found"
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_every_module_opens_with_a_docstring() -> None:
    silent = [str(path.relative_to(ROOT)) for path in modules() if not ast.get_docstring(nodes_of(path)[0])]
    assert silent == []


def test_there_is_no_room_for_odds_and_ends() -> None:
    names = {path.stem for path in modules()} | {path.parent.name for path in modules()}
    assert names.isdisjoint({"utils", "util", "helpers", "helper", "common", "misc"})


# Metaphors that were replaced by words of the field: desired and request, event and report, index, tunnel.
RETIRED_WORDS = frozenset(
    {"agenda", "attendance", "belief", "book", "books", "bury", "census", "clerk", "crowd", "deaf"}
    | {"desk", "doorman", "doors", "dues", "errand", "errands", "estate", "fate", "giver", "glance"}
    | {"haste", "hire", "house", "hurry", "itinerary", "landlord", "lend", "lent", "litter", "loan"}
    | {"loans", "manners", "memos", "mending", "mischief", "mistakes", "openings", "owed", "peeks"}
    | {"porter", "promise", "promised", "promises", "pulse", "roster", "shelf", "shoppers", "sight"}
    | {"sighting", "sightings", "sights", "staff", "standing", "stranger", "tell", "tells", "told"}
    | {"trader", "unname", "untold", "upkeep", "visitor", "visits", "weather", "wish", "wished"}
    | {"wishes", "worn"}
)
RETIRED_WORDS_IN_NODE = frozenset(
    {"told", "tell", "tells", "ask", "asks", "asked", "say", "said", "hear", "heard", "shown", "wanted"}
    | {"apart", "door", "doors", "lent", "loan", "loans", "place", "places", "room", "rooms", "way", "ways"}
    | {"promise", "promised", "ours", "theirs", "seen", "kept", "held", "bury", "hurry", "judge", "crowd"}
    | {"settle", "settled", "stranger", "strangers", "terms", "what", "where", "who", "why"}
)
NODE_PACKAGES = (
    "agent",
    "cells",
    "cgroups",
    "containers",
    "guests",
    "images",
    "kernel",
    "launcher",
    "layers",
)
NODE_PACKAGES += ("health", "logs", "network", "signals", "workers")
# These have another meaning elsewhere.
RETIRED_WORDS_IN = {
    "cli": frozenset({"door", "ask", "asked"}),
    "control": frozenset({"door", "room", "rooms", "ask", "asked", "heard"}),
    "daemon": frozenset({"door", "ask", "asked", "heard", "room", "rooms"}),
    "functions": frozenset({"ask", "asked", "hear"}),
    "market": frozenset({"door", "ask", "asked", "hear", "heard", "kept"}),
    "model": frozenset({"ask", "asked", "asks"}),
    **dict.fromkeys((f"node/{package}" for package in NODE_PACKAGES), RETIRED_WORDS_IN_NODE),
    "sim": frozenset({"door", "ask", "asked"}),
    "transport": frozenset({"ask", "asked", "door", "ways"}),
    "wire": frozenset({"ask", "asked"}),
    "schedule": frozenset({"ask", "asks", "account", "accounts", "door", "kept", "held", "known", "room"}),
}


def defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Functions, classes, parameters, variables and attributes that a module defines."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def retired_words(folder: str) -> frozenset[str]:
    return RETIRED_WORDS.union(
        *(words for room, words in RETIRED_WORDS_IN.items() if f"{folder}/".startswith(f"{room}/"))
    )


def test_no_name_has_a_word_that_was_retired() -> None:
    found = sorted(
        f"{path.relative_to(HOME)}: {name}"
        for path in modules()
        if path.is_relative_to(HOME)
        for name in set(defined_names(nodes_of(path)))
        if retired_words(path.relative_to(HOME).parent.as_posix())
        & {word.lower() for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)}
    )
    assert found == []


def test_every_folder_of_tests_is_called_as_the_room_that_it_tests() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in tracked("tests/**/test_*.py")}
    assert folders, "no tests were found"
    assert {str(folder) for folder in folders if not (HOME / folder).is_dir()} == {"compat"}


def test_every_module_of_decisions_is_held_to_be_pure() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pure = {name for one in contracts if "pure" in one["name"] for name in one["source_modules"]}
    rooms = ("control", "functions", "market", "node")
    deciding = {
        "skerry." + path.relative_to(HOME).with_suffix("").as_posix().replace("/", ".")
        for room in rooms
        for path in (HOME / room).rglob("*.py")
        if re.search(r"(decisions|transitions|_rules|planner|rollouts?|\bpolicy)$", path.stem)
    }
    assert len(deciding) > 15, "modules of decisions are not found any more"
    assert deciding - pure == set()


def test_every_log_event_is_named_by_words_joined_with_dots_and_underscores() -> None:
    events = {name: str(path.relative_to(HOME)) for path in modules() for name in _log_events(path)}
    assert len(events) > 100, "log events are not found any more"
    form = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
    assert {name: path for name, path in events.items() if not form.fullmatch(name)} == {}


def _log_events(path: Path) -> Iterator[str]:
    """The first argument of calls such as `log.info("node.lost", ...)`."""
    for node in nodes_of(path):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name("log"), attr="debug" | "info" | "warning" | "error" | "exception"
                ),
                args=[ast.Constant(str(event)), *_],
            ):
                yield event


def test_no_function_takes_more_than_eight_parameters() -> None:
    crowded = [
        f"{path.relative_to(HOME)} {node.name}"
        for path in modules()
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(_parameters(node)) > 8
    ]
    assert crowded == []


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [each.arg for each in given if each.arg not in ("self", "cls")]


def test_no_public_class_name_stands_in_three_modules() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in modules():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(str(path.relative_to(HOME)))
    assert places, "no classes were found"
    assert {name: found for name, found in places.items() if len(found) > 2} == {}


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a module."""
    for node in nodes_of(path):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def is_there(dotted: str) -> bool:
    """Whether `skerry.room.module`, or a name in a module, exists."""
    place, names = HOME, dotted.split(".")[1:]
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").is_file():
        place /= f"{names.pop(0)}.py"
    elif names:
        place /= "__init__.py"
    text = place.read_text() if names else ""
    return all(re.search(rf"\b{name}\b", text) for name in names)


def is_in_a_protocol(dotted: str, protocols: str) -> bool:
    """Whether it is a package of gRPC, or a service in one."""
    package, _, service = dotted.rpartition(".")
    if f"package {dotted};" in protocols:
        return True
    return f"package {package};" in protocols and f"service {service} " in protocols


# A group of entry points and a subprotocol: they look like modules and are none.
NO_MODULES = {"skerry.policies", "skerry.door.v1"}


def test_every_module_that_a_docstring_or_comment_names_exists() -> None:
    protocols = "\n".join(path.read_text() for path in tracked("*.proto"))
    dotted, files = re.compile(r"`(skerry(?:\.\w+)+)"), re.compile(r"`([\w/]+\.py)`")
    seen, missing = 0, []
    for path in modules():
        text = "\n".join(prose(path))
        named = [name for name in dotted.findall(text) if name not in NO_MODULES]
        seen += len(named)
        wrong = [name for name in named if not is_there(name) and not is_in_a_protocol(name, protocols)]
        wrong += [
            name for name in files.findall(text) if not any((home / name).is_file() for home in (HOME, ROOT))
        ]
        missing += [f"{path.relative_to(HOME)}: {name}" for name in wrong]
    assert seen, "no names of modules were found"
    assert missing == []


def glossary_words(text: str) -> set[str]:
    """What the glossary defines: bold at the beginning of a line, or the first column of a table."""
    cells = re.findall(r"^(?:- )?\*\*(.+?)\*\*", text, re.MULTILINE)
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        is_heading = bool(re.match(r"\|[\s:|-]+$", after))
        if line.startswith("|") and not is_heading and not re.match(r"\|[\s:|-]+$", line):
            cells.append(line.split("|")[1])
    words = {word for cell in cells for word in re.split(r"[,/]", re.sub(r"\(.*?\)", "", cell))}
    return {word.strip(" *`:").lower() for word in words} - {""}


def test_every_word_of_the_glossary_is_used() -> None:
    words = glossary_words((ROOT / "docs" / "glossary.md").read_text())
    assert words, "the glossary defines nothing"
    # NodeSession, node_session and node-session are the words "node session".
    text = "\n".join(path.read_text() for path in modules())
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    text = re.sub(r"[\s_-]+", " ", text).lower()
    assert [word for word in sorted(words) if re.sub(r"[\s_-]+", " ", word) not in text] == []


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
    allowed = {"cli/settings.py", "client/discovery.py"}
    # These set the environment of a function, in the function's own process.
    allowed |= {"node/launcher/child/zygotes.py", "node/workers/python_worker.py"}
    # The first gives its own environment to the programs of a demo, the second runs in a container.
    allowed |= {"demo/machines.py", "demo/sample_server.py"}
    # A shell that requests completions says so, and for which line, in the environment.
    allowed |= {"cli/main.py", "cli/shells.py"}
    readers = {
        str(path.relative_to(HOME))
        for path in modules()
        if re.search(r"os\.environ|os\.getenv", path.read_text())
    }
    assert readers <= allowed


def error_classes() -> list[type[errors.SkerryError]]:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [c for c in classes if issubclass(c, errors.SkerryError) and c is not errors.SkerryError]


def test_every_error_has_a_row_in_the_http_and_in_the_grpc_table() -> None:
    assert set(error_classes()) == set(tables.HTTP_STATUS) == set(tables.GRPC_STATUS)


def test_every_error_has_a_slug_of_its_own_and_stands_in_the_drawn_tree() -> None:
    classes = error_classes()
    assert len({c.slug for c in classes}) == len(classes)
    drawing = inspect.getdoc(errors) or ""
    assert [c.__name__ for c in classes if f"── {c.__name__} " not in drawing] == []


@cache  # several verbs are in one module
def imported_by(code: str) -> frozenset[str]:
    """Names in `sys.modules` after `code`, in a fresh interpreter."""
    script = f"import sys, json\n{code}\njson.dump(sorted(sys.modules), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return frozenset(json.loads(done.stdout[done.stdout.rindex("[") :]))


def test_the_cli_imports_only_click_and_the_standard_library_before_the_verb_is_known() -> None:
    names = imported_by("import skerry.cli.main")
    foreign = {name.partition(".")[0] for name in names - imported_by("pass")}
    foreign -= set(sys.stdlib_module_names)
    assert foreign - {"click", "skerry"} == set()
    ours = {name for name in names if name.startswith("skerry.")}
    guard = {"skerry.kit", "skerry.kit.terminal_text", "skerry.cli.options"}
    assert ours == {"skerry.cli", "skerry.cli.main"} | guard


SERVER_CODE = ("uvicorn", "starlette", "grpclib", "structlog", "uvloop", "sqlite3", "cryptography", "msgspec")
SERVER_CODE += ("joserfc", "lxml")
SERVER_ROOMS = (
    "skerry.daemon",
    "skerry.wire",
    "skerry.transport",
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
