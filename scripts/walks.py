"""The walks of docs/walks.md: call chains of the system, checked against the code and drawn.

A walk is a file `docs/walks/NAME.toml`: steps in plain words, each with the functions that take it. `load`
reads one and finds in the syntax trees who calls whom, so that a walk with a function that is gone, or that
nobody before it calls, is an error. `scripts/generate.py` writes the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

# How a function is reached that no function before it names.
WAYS = {
    "client": "from outside",
    "route": "by the table of routes",
    "callback": "by a function that was handed in",
    "watch": "by the watch of the store",
    "queue": "by a queue or an event that a loop waits for",
    "stream": "by a message of a stream",
    "http": "by a request over HTTP",
    "process": "by a message to another process of the machine",
}

_OUTSIDE = "client"


class WalkError(Exception):
    """A walk that is not as the code is."""


class Call(NamedTuple):
    """A function on a walk. `caller` is the one before it that calls it; None if it is reached by `way`."""

    module: str
    function: str
    resources: str  # where it is drawn
    before: Call | None  # it on the walk
    caller: Call | None
    way: str = ""


class Step(NamedTuple):
    text: str
    calls: tuple[Call, ...]


class Walk(NamedTuple):
    title: str
    text: str
    steps: tuple[Step, ...]

    @property
    def calls(self) -> list[Call]:
        return [call for step in self.steps for call in step.calls]


def load(path: Path, sources: Path) -> Walk:
    """The walk in a file, over the modules below `sources`; raises `WalkError`."""
    data = tomllib.loads(path.read_text())
    walked: list[Call] = []
    steps = []
    for given in data["step"]:
        calls = tuple(_calls(given, walked, sources, f"{path.name}, {given['text']!r}"))
        steps.append(Step(given["text"], calls))
    return Walk(data["title"], data.get("text", ""), tuple(steps))


def _calls(step: dict[str, Any], walked: list[Call], sources: Path, where: str) -> Iterator[Call]:
    way, after = step.get("by", ""), step.get("after", "")
    if way and way not in WAYS:
        raise WalkError(f"{where}: `by` is one of {', '.join(WAYS)}, not {way!r}")
    last = walked[-1] if walked else None
    if after:
        last = next((call for call in reversed(walked) if call.function == after), None)
        if last is None:
            raise WalkError(f"{where}: `after` names {after}, which is not on the walk before")
    for text in step["calls"]:
        module, _, function = text.partition(" ")
        try:
            _body(sources / module, function)
        except (OSError, KeyError):
            raise WalkError(f"{where}: there is no function {function} in {module}") from None
        name = function.rpartition(".")[2]
        caller = None if way else last
        while caller is not None and name not in _names(sources / caller.module, caller.function):
            caller = caller.caller
        if caller is None and not way:
            raise WalkError(
                f"{where}: neither the function before {function} in {module} nor one that led there names "
                f"{name!r}; name what calls it, or say with `by` how it is reached"
            )
        resources = ": ".join(filter(None, (step.get("at", ""), module.partition("/")[0])))
        last = Call(module, function, resources, last, caller, way)
        walked.append(last)
        yield last
        way = ""


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_bytes())


def _body(module: Path, function: str) -> ast.AST:
    """The definition of `function`, or of `Class.method`; raises `KeyError`."""
    found: ast.AST = _tree(module)
    for name in function.split("."):
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        inside = {each.name: each for each in ast.iter_child_nodes(found) if isinstance(each, definitions)}
        found = inside[name]
    return found


@cache
def _names(module: Path, function: str) -> frozenset[str]:
    """All that the body of a function names."""
    nodes = list(ast.walk(_body(module, function)))
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name)) | frozenset(
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    )


def page(walks: list[Walk]) -> str:
    """Each walk as a picture and as a table."""
    return "\n\n".join(_section(walk) for walk in walks) + "\n"


def _section(walk: Walk) -> str:
    functions = {(call.module, call.function) for call in walk.calls}
    modules = {module for module, _ in functions}
    return "\n".join(
        [
            f"## {walk.title}",
            "",
            f"{len(functions)} functions in {len(modules)} modules. {walk.text}".rstrip(),
            "",
            "```mermaid",
            "sequenceDiagram",
            *(f"    {line}" for line in _picture(walk)),
            "```",
            "",
            "| step | reached | functions |",
            "|---|---|---|",
            *(f"| {step.text} | {_reached(step.calls[0])} | {_functions(step)} |" for step in walk.steps),
        ]
    )


def _reached(call: Call) -> str:
    return WAYS[call.way] if call.caller is None else f"called by `{call.caller.function}`"


def _functions(step: Step) -> str:
    lines = []
    for module, calls in groupby(step.calls, key=lambda call: call.module):
        lines.append(f"`{module}`: {', '.join(f'`{call.function}`' for call in calls)}")
    return "<br>".join(lines)


def _picture(walk: Walk) -> Iterator[str]:
    yield f"actor {_OUTSIDE}"
    for resources in dict.fromkeys(call.resources for call in walk.calls):
        yield f"participant {_id(resources)} as {resources}"
    for step in walk.steps:
        for call in step.calls:
            source = call.caller or call.before
            sender = _OUTSIDE if source is None or call.way == "client" else source.resources
            if call is step.calls[0]:
                arrow = "-)" if call.way else "->>"
                yield f"{_id(sender)}{arrow}{_id(call.resources)}: {_plain(step.text)}"
            elif sender != call.resources:
                yield f"{_id(sender)}->>{_id(call.resources)}: {call.function}"


def _id(resources: str) -> str:
    return resources.replace(": ", "_")


def _plain(text: str) -> str:
    """`text` without links, and without what means something to Mermaid."""
    return re.sub(r"[`*#]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)).replace(";", ",")
