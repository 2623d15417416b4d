"""Tables of `skerry top`: the rows of a snapshot, sorted and filtered. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from skerry.cli.object_kinds import node_status_text
from skerry.cli.top.snapshots import CloudSnapshot

Cells = dict[str, Any]


class TopRow(NamedTuple):
    """A row: `id` and `namespace` identify its object."""

    id: str
    namespace: str | None
    cells: Cells  # values by column, for sorting
    is_wrong: bool = False  # it needs attention


class TopColumn(NamedTuple):
    """A column: how its values are shown, and how wide they are at most."""

    name: str
    title: str
    width: int
    show: Callable[[Any], str] = str
    is_number: bool = True
    rank: int = 0  # those of the highest rank are left out first on a narrow screen


class TopTable(NamedTuple):
    """A tab: its columns, the first of which takes the space that is left."""

    kind: str
    title: str
    columns: tuple[TopColumn, ...]
    rows: Callable[[CloudSnapshot], list[TopRow] | None]
    sort: str  # at first

    def column(self, name: str) -> TopColumn:
        return next(column for column in self.columns if column.name == name)


def percent(millicores: float) -> str:
    """Cpu: 100 % is one core."""
    return f"{millicores / 10:.1f}"


def cores(millicores: float) -> str:
    return f"{millicores / 1000:g}"


def memory(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f}G" if megabytes >= 10_000 else f"{megabytes:.0f}M"


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f}"


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


class NodeUsage(NamedTuple):
    """What the instances of a node use, and what it has."""

    name: str
    cpu: float
    cpu_total: float
    memory: float
    memory_total: float
    instances: int
    is_live: bool


def _node_names(snapshot: CloudSnapshot) -> dict[str, str]:
    return {node["id"]: node["name"] for node in snapshot.nodes or ()}


def _instances(snapshot: CloudSnapshot) -> list[TopRow]:
    names = _node_names(snapshot)
    rows = []
    for one in snapshot.instances:
        used, limit = one["resources"]["usage"], one["resources"]["memory"]
        is_unready = one["status"] == "RUNNING" and not one["ready"]
        status = "UNREADY" if is_unready else one["status"]
        cells = {
            "name": one["name"],
            "namespace": one["namespace"],
            "status": status,
            "node": names.get(one["node_id"], one["node_id"] or "-"),
            "cpu_millicores": used["cpu"],
            "memory_mb": used["memory"],
            "memory_share": used["memory"] / limit if limit else None,
            "restarts": one["restarts"],
            "age_s": snapshot.at - one["created_at"],
        }
        is_wrong = is_unready or status in ("CRASHED", "FAILED", "SCHEDULING") or one["retry_at"] is not None
        rows.append(TopRow(one["id"], one["namespace"], cells, is_wrong))
    return rows


def _services(snapshot: CloudSnapshot) -> list[TopRow]:
    cpu: dict[tuple[str, str], float] = {}
    used: dict[tuple[str, str], float] = {}
    for one in snapshot.instances:
        key = (one["namespace"], one["owner"])
        cpu[key] = cpu.get(key, 0) + one["resources"]["usage"]["cpu"]
        used[key] = used.get(key, 0) + one["resources"]["usage"]["memory"]
    rows = []
    for one in snapshot.services:
        key = (one["namespace"], f"service/{one['name']}")
        cells = {
            "name": one["name"],
            "namespace": one["namespace"],
            "status": one["status"],
            "ready": f"{one['ready']}/{one['replicas']}",
            "cpu_millicores": cpu.get(key, 0),
            "memory_mb": used.get(key, 0),
            "revision": one["revision"],
            "age_s": snapshot.at - one["created_at"],
        }
        rows.append(TopRow(one["name"], one["namespace"], cells, one["ready"] < one["replicas"]))
    return rows


def _functions(snapshot: CloudSnapshot) -> list[TopRow] | None:
    if snapshot.functions is None:
        return None
    rows = []
    for one in snapshot.functions:
        given, _, name = one.name.rpartition(":")
        namespace = given or "default"
        cells = {
            "name": name,
            "namespace": namespace,
            "calls_per_s": one.calls_per_s,
            "errors_per_s": one.failures_per_s,
            "cold_starts_per_s": one.cold_per_s,
            "run_ms": one.run_ms,
            "calls": one.calls,
        }
        rows.append(TopRow(name, namespace, cells, bool(one.failures_per_s)))
    return rows


def node_usage(snapshot: CloudSnapshot) -> list[NodeUsage] | None:
    """Of every node; None if the caller may not see nodes."""
    if snapshot.nodes is None:
        return None
    found = {
        node["id"]: NodeUsage(
            node["name"],
            0,
            node["resources"]["cpu"],
            0,
            node["resources"]["memory"],
            0,
            node["liveness"] == "live",
        )
        for node in snapshot.nodes
    }
    for one in snapshot.instances:
        if (node := found.get(one["node_id"])) is not None:
            used = one["resources"]["usage"]
            found[one["node_id"]] = node._replace(
                cpu=node.cpu + used["cpu"],
                memory=node.memory + used["memory"],
                instances=node.instances + 1,
            )
    return list(found.values())


def _nodes(snapshot: CloudSnapshot) -> list[TopRow] | None:
    usage = node_usage(snapshot)
    if usage is None or snapshot.nodes is None:
        return None
    rows = []
    for node, used in zip(snapshot.nodes, usage, strict=True):
        cells = {
            "name": node["name"],
            "status": node_status_text(node),
            "instances": used.instances,
            "cpu_millicores": used.cpu,
            "cpu_total_millicores": used.cpu_total,
            "memory_mb": used.memory,
            "memory_total_mb": used.memory_total,
            "age_s": snapshot.at - node["registered_at"],
        }
        rows.append(TopRow(node["id"], None, cells, not used.is_live))
    return rows


_NAME: Final = TopColumn("name", "NAME", 12, is_number=False)
_NAMESPACE: Final = TopColumn("namespace", "NAMESPACE", 10, is_number=False, rank=3)
_CPU: Final = TopColumn("cpu_millicores", "CPU%", 7, percent)
_MEMORY: Final = TopColumn("memory_mb", "MEM", 7, memory)
_AGE: Final = TopColumn("age_s", "AGE", 5, age, rank=1)

TABLES: Final = (
    TopTable(
        "instance",
        "Instances",
        (
            _NAME,
            _NAMESPACE,
            TopColumn("status", "STATUS", 11, is_number=False),
            TopColumn("node", "NODE", 12, is_number=False, rank=2),
            _CPU,
            _MEMORY,
            TopColumn("memory_share", "MEM%", 5, share, rank=4),
            TopColumn("restarts", "RESTARTS", 8, rank=4),
            _AGE,
        ),
        _instances,
        "cpu_millicores",
    ),
    TopTable(
        "service",
        "Services",
        (
            _NAME,
            _NAMESPACE,
            TopColumn("status", "STATUS", 12, is_number=False),
            TopColumn("ready", "READY", 7, is_number=False),
            _CPU,
            _MEMORY,
            TopColumn("revision", "REVISION", 8, rank=4),
            _AGE,
        ),
        _services,
        "cpu_millicores",
    ),
    TopTable(
        "function",
        "Functions",
        (
            _NAME,
            _NAMESPACE,
            TopColumn("calls_per_s", "CALLS/S", 9, rate),
            TopColumn("errors_per_s", "ERRORS/S", 9, rate),
            TopColumn("cold_starts_per_s", "COLD/S", 7, rate, rank=2),
            TopColumn("run_ms", "MS", 9, milliseconds),
            TopColumn("calls", "CALLS", 10, rank=1),
        ),
        _functions,
        "calls_per_s",
    ),
    TopTable(
        "node",
        "Nodes",
        (
            _NAME,
            TopColumn("status", "STATUS", 16, is_number=False),
            TopColumn("instances", "INST", 5),
            _CPU,
            TopColumn("cpu_total_millicores", "CORES", 6, cores, rank=2),
            _MEMORY,
            TopColumn("memory_total_mb", "TOTAL", 7, memory, rank=2),
            _AGE,
        ),
        _nodes,
        "cpu_millicores",
    ),
)


def arranged(table: TopTable, rows: list[TopRow], sort: str, text: str, *, is_reversed: bool) -> list[TopRow]:
    """The rows that contain `text`, sorted: numbers from the largest, words from A."""
    wanted = text.lower()
    found = [row for row in rows if wanted in _searched(row)]
    found.sort(key=lambda row: str(row.cells["name"]))
    descends = table.column(sort).is_number != is_reversed
    found.sort(key=lambda row: _order(row.cells[sort]), reverse=descends)
    return found


def _searched(row: TopRow) -> str:
    words = (row.cells.get(name, "") for name in ("name", "namespace", "status", "node"))
    return " ".join(map(str, words)).lower()


def _order(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)
