"""What the server keeps, as people name and see it: instances, workloads and nodes.

For each kind: how all of it are read, how one is found, and what its columns are. Used by every verb that
looks at them; what a verb does with them is its own matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from skerry.cli import client
from skerry.cli import output as printing

JsonObject = dict[str, Any]
TableRow = tuple[str, ...]

TERMINAL: Final = frozenset({"TERMINATED", "FAILED"})
_GOING: Final = frozenset({*TERMINAL, "DESTROYING"})
_ALL: Final = "0"  # as many to a page as the server gives
EVERY_NAMESPACE: Final = "*"

# Of every verb that is about instances or workloads.
namespace = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    envvar="SKERRY_NAMESPACE",
    help="Where it is; an id is also found without.  [default: default] [env: SKERRY_NAMESPACE]",
)


class NodeNames:
    """Names of nodes, of which instances tell only the id; asked for when one is needed that is not known."""

    def __init__(self, server: client.ApiClient) -> None:
        self._server = server
        self._known: dict[str, str] = {}

    def of(self, node: str | None) -> str:
        if node is None:
            return "-"
        if node not in self._known:
            self._known = {one["id"]: one["name"] for one in everything(self._server, NODE)}
            self._known.setdefault(node, node)  # it has left
        return self._known[node]


class ObjectKind(NamedTuple):
    """One kind of thing: its word is its place on the server, too."""

    word: str
    columns: TableRow
    row: Callable[[JsonObject, NodeNames], TableRow]

    @property
    def plural(self) -> str:
        return f"{self.word}s"

    def with_namespace(self) -> ObjectKind:
        """With the namespace before all else, for those of several."""
        return ObjectKind(
            self.word,
            ("namespace", *self.columns),
            lambda one, names: (one["namespace"], *self.row(one, names)),
        )

    def gone(self, one: JsonObject) -> TableRow:
        """A row of one that is no longer there."""
        known = self.columns.index("id") + 1
        names = [one[column] for column in self.columns[:known]]
        return (*names, "gone", *("-" for _ in self.columns[known + 1 :]))


def _instance(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["id"],
        one["status"],
        names.of(one["node_id"]),
        one["ip"] or "-",
        " ".join(one["ports"]) or "-",
        str(one["restarts"]),
        printing.age(one["created_at"]),
        _why(one),
    )


def _why(one: JsonObject) -> str:
    """The reason; of one that crashed also when it is started again. Of other tries the reason says it."""
    if one["status"] != "CRASHED" or one["retry_at"] is None:
        return str(one["reason"])
    return f"{one['reason']}; next try {printing.next_try(one['retry_at'])}"


def _workload(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["id"],
        str(one["version"]),
        one["uri"],
        *amounts(one["resources"]),
        " ".join(one["ports"]) or "-",
        one["restart"],
        printing.age(one["created_at"]),
    )


def _node(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["id"],
        node_status_text(one),
        *amounts(one["resources"]),
        one["facts"]["architecture"] or "-",
        labels(one) or "-",
        printing.age(one["registered_at"]),
        one["reason"],
    )


INSTANCE: Final = ObjectKind(
    "instance", ("name", "id", "status", "node", "address", "ports", "restarts", "age", "why"), _instance
)
WORKLOAD: Final = ObjectKind(
    "workload",
    ("name", "id", "version", "image", "cpu", "memory", "disk", "ports", "restart", "age"),
    _workload,
)
NODE: Final = ObjectKind(
    "node", ("name", "id", "status", "cpu", "memory", "disk", "machine", "labels", "age", "why"), _node
)
KINDS: Final = (INSTANCE, WORKLOAD, NODE)


class ObjectKindParam(click.ParamType[ObjectKind, str]):
    """`instance`, `workload` or `node`, or several of them."""

    name = "kind"

    def __init__(self, *kinds: ObjectKind) -> None:
        self._kinds = {word: kind for kind in kinds for word in (kind.word, kind.plural)}
        self._words = " or ".join(kind.word for kind in kinds)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "KIND"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ObjectKind:
        kind = self._kinds.get(str(value).lower())
        if kind is None:
            path = ctx.command_path if ctx else "skerry"
            hint = f"write {self._words} before a name, as in '{path} {next(iter(self._kinds))} {value}'"
            self.fail(f"'{value}' is no kind; {hint}", param, ctx)
        return kind


def everything(server: client.ApiClient, kind: ObjectKind, **filters: str | None) -> list[JsonObject]:
    """All that there are of a kind, page by page."""
    found: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = server.get(kind.word, limit=_ALL, cursor=cursor, **filters)
        found += page[kind.plural]
        cursor = page["cursor"]
        if cursor is None:
            return found


def find(server: client.ApiClient, kind: ObjectKind, text: str, namespace: str | None) -> JsonObject:
    """The one with that id, or else with that name; nodes are in no namespace."""
    try:
        found: JsonObject = server.get(kind.word, text, namespace=None if kind is NODE else namespace)
        return found
    except client.ApiError as error:
        if error.status != 404 or kind is not INSTANCE:
            raise  # the server knows the others by their names, too
    return _called(text, namespace, everything(server, INSTANCE, name=text, namespace=namespace))


def _called(name: str, namespace: str | None, called: list[JsonObject]) -> JsonObject:
    """Several instances may be called the same; those that are over only count if no other does."""
    live = [one for one in called if one["status"] not in _GOING]
    match live or called:
        case [one]:
            return one
        case []:
            within, option = (
                (f" in the namespace '{namespace}'", f" -n {namespace}") if namespace else ("", "")
            )
            raise client.ApiError(
                404,
                f"There is no instance '{name}'{within}. "
                f"'skerry get instances{option}' lists those there are.",
                "not-found",
            )
        case several:
            told = ", ".join(f"{one['id']} ({one['status']})" for one in several)
            raise client.ApiError(
                409, f"{len(several)} instances are called '{name}'; name one by its id: {told}", "conflict"
            )


def node_status_text(node: JsonObject) -> str:
    """What a node does, and what keeps it from taking more."""
    more = [
        *(["cordoned"] if node["is_cordoned"] else []),
        *([node["liveness"]] if node["liveness"] not in ("live", node["status"]) else []),
        *(["DiskPressure"] if node["facts"]["disk_pressure"] else []),
        *(["foreign"] if node["is_foreign"] else []),
    ]
    return ", ".join([node["status"], *more])


def labels(node: JsonObject) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(node["labels"].items()))


def amounts(resources: JsonObject) -> tuple[str, str, str]:
    """Room in a table: cpu, memory, disk; a dash where nothing is said."""
    units = (("cpu", "m"), ("memory", "MB"), ("disk", "GB"))
    cpu, memory, disk = (f"{resources[part]}{unit}" if resources[part] else "-" for part, unit in units)
    return cpu, memory, disk
