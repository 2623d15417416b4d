"""Kinds of objects of a server: instances, workloads, services, volumes and nodes.

For each kind: how all objects are listed, how one is found by id or name, and the columns of its table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from skerry.cli import output as printing
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

TableRow = tuple[str, ...]

TERMINAL: Final = frozenset({"TERMINATED", "FAILED"})
_ENDING: Final = frozenset({*TERMINAL, "DESTROYING"})
_ALL: Final = "0"  # as many to a page as the server gives
_FORBIDDEN: Final = 403
EVERY_NAMESPACE: Final = "*"

# Of every command about instances or workloads.
namespace = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    envvar="SKERRY_NAMESPACE",
    help="Namespace; an id needs none.  [default: that of your token, or default] [env: SKERRY_NAMESPACE]",
)


class NodeNames:
    """Names of nodes by id, read from the server when an unknown id comes; ids for callers that may not see
    nodes."""

    def __init__(self, server: ApiClient) -> None:
        self._server = server
        self._known: dict[str, str] = {}

    def of(self, node: str | None) -> str:
        if node is None:
            return "-"
        if node not in self._known:
            try:
                self._known = {one["id"]: one["name"] for one in everything(self._server, NODE)}
            except ApiError as error:
                if error.status != _FORBIDDEN:
                    raise
            self._known.setdefault(node, node)  # it has left
        return self._known[node]


class ObjectKind(NamedTuple):
    """One kind of object; `word` is also its path on the server."""

    word: str
    columns: TableRow
    row: Callable[[JsonObject, NodeNames], TableRow]

    @property
    def plural(self) -> str:
        return f"{self.word}s"

    def with_namespace(self) -> ObjectKind:
        """With a namespace column in front, for lists of several namespaces."""
        return ObjectKind(
            self.word,
            ("namespace", *self.columns),
            lambda one, names: (one["namespace"], *self.row(one, names)),
        )

    def deleted_row(self, one: JsonObject) -> TableRow:
        """The row of an object that was deleted."""
        known = self.columns.index("id") + 1
        names = [one[column] for column in self.columns[:known]]
        return (*names, "DELETED", *("-" for _ in self.columns[known + 1 :]))


def _instance(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["id"],
        one["status"],
        readiness(one),
        names.of(one["node_id"]),
        one["ip"] or "-",
        " ".join(one["ports"]) or "-",
        str(one["restarts"]),
        printing.age(one["created_at"]),
        _reason(one),
    )


def readiness(one: JsonObject) -> str:
    """Whether an instance that runs is ready: yes or no."""
    if one["status"] != "RUNNING":
        return "-"
    return "yes" if one["ready"] else "no"


def _reason(one: JsonObject) -> str:
    """The reason; of a crashed instance also the next restart, which other reasons contain, and of one that
    runs why it is not ready."""
    if one["status"] == "RUNNING" and not one["ready"]:
        return str(one["reason"] or one["check_message"])
    if one["status"] != "CRASHED" or one["retry_at"] is None:
        return str(one["reason"])
    return f"{one['reason']}; next restart {printing.next_try(one['retry_at'])}"


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


def _service(one: JsonObject, names: NodeNames) -> TableRow:
    rollout = one["rollout"]
    return (
        one["name"],
        one["id"],
        one["status"],
        f"{one['ready']}/{one['replicas']}",
        str(one["revision"]),
        one["image"],
        one["address"] or "-",
        " ".join(one["ports"]) or "-",
        printing.age(one["created_at"]),
        (rollout and rollout["reason"]) or one["quota_message"],
    )


def _volume(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["id"],
        one["status"],
        f"{one['size']}GB",
        _percent(one["used_bytes"], one["capacity_bytes"]),
        names.of(one["node_id"]),
        printing.age(one["created_at"]),
        one["reason"],
    )


def _percent(used: int | None, capacity: int | None) -> str:
    return "-" if used is None or not capacity else f"{100 * used // capacity}%"


INSTANCE: Final = ObjectKind(
    "instance",
    ("name", "id", "status", "ready", "node", "ip", "ports", "restarts", "age", "reason"),
    _instance,
)
WORKLOAD: Final = ObjectKind(
    "workload",
    ("name", "id", "version", "image", "cpu", "memory", "disk", "ports", "restart", "age"),
    _workload,
)
NODE: Final = ObjectKind(
    "node", ("name", "id", "status", "cpu", "memory", "disk", "arch", "labels", "age", "reason"), _node
)
SERVICE: Final = ObjectKind(
    "service",
    ("name", "id", "status", "ready", "revision", "image", "address", "ports", "age", "reason"),
    _service,
)
VOLUME: Final = ObjectKind(
    "volume", ("name", "id", "status", "size", "used", "node", "age", "reason"), _volume
)
KINDS: Final = (INSTANCE, WORKLOAD, SERVICE, VOLUME, NODE)


class ObjectKindParam(click.ParamType[ObjectKind, str]):
    """`instance`, `workload`, `service`, `volume` or `node`, singular or plural."""

    name = "kind"

    def __init__(self, *kinds: ObjectKind) -> None:
        self._kinds = {word: kind for kind in kinds for word in (kind.word, kind.plural)}
        self._words = " or ".join(kind.word for kind in kinds)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "KIND"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ObjectKind:
        kind = self._kinds.get(str(value).lower())
        if kind is None:
            from skerry.cli import suggestions

            path = ctx.command_path if ctx else "skerry"
            hint = suggestions.suggest_kind(str(value), self._kinds, path)
            hint = (
                hint or f"write {self._words} before a name, as in '{path} {next(iter(self._kinds))} {value}'"
            )
            self.fail(f"unknown kind '{value}'; {hint}", param, ctx)
        return kind


def everything(server: ApiClient, kind: ObjectKind, **filters: str | None) -> list[JsonObject]:
    """All objects of a kind, page by page."""
    found: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = server.get(kind.word, limit=_ALL, cursor=cursor, **filters)
        found += page[kind.plural]
        cursor = page["cursor"]
        if cursor is None:
            return found


def print_list(
    server: ApiClient,
    kind: ObjectKind,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    **filters: str | None,
) -> None:
    """Print the objects of a kind, of one namespace or of all."""
    namespace = EVERY_NAMESPACE if all_namespaces else namespace
    found = everything(server, kind, namespace=namespace, **filters)
    listed = kind.with_namespace() if all_namespaces else kind
    names = NodeNames(server)
    printing.show(
        {"count": len(found), kind.plural: found},
        output,
        columns=listed.columns,
        rows=lambda value: [listed.row(one, names) for one in value[kind.plural]],
    )


def find(server: ApiClient, kind: ObjectKind, text: str, namespace: str | None) -> JsonObject:
    """The object with that id, or else with that name; nodes have no namespace."""
    try:
        return server.get(kind.word, text, namespace=None if kind is NODE else namespace)
    except ApiError as error:
        if error.status != 404 or kind is not INSTANCE:
            raise  # the server knows the others by their names, too
    return _called(text, namespace, everything(server, INSTANCE, name=text, namespace=namespace))


def _called(name: str, namespace: str | None, called: list[JsonObject]) -> JsonObject:
    """Several instances may have one name; ended ones count only if no live one has it."""
    live = [one for one in called if one["status"] not in _ENDING]
    match live or called:
        case [one]:
            return one
        case []:
            within, option = (
                (f" in the namespace '{namespace}'", f" -n {namespace}") if namespace else ("", "")
            )
            raise ApiError(
                404,
                f"There is no instance '{name}'{within}. 'skerry get instances{option}' lists them.",
                "not-found",
            )
        case several:
            names = ", ".join(f"{one['id']} ({one['status']})" for one in several)
            raise ApiError(
                409, f"{len(several)} instances are named '{name}'; use an id: {names}", "conflict"
            )


def node_status_text(node: JsonObject) -> str:
    """The status of a node, and what keeps it from taking instances."""
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
    """Resources in a table: cpu, memory, disk; a dash where there is no value."""
    units = (("cpu", "m"), ("memory", "MB"), ("disk", "GB"))
    cpu, memory, disk = (f"{resources[part]}{unit}" if resources[part] else "-" for part, unit in units)
    return cpu, memory, disk
