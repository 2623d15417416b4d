"""The cells of a node as a tree, with what each uses of its limits. Pure.

At the top are the kinds of cells, as an operator knows them. A cell with many others in it shows the largest
and sums up the rest, so a page of 1,000 cells is as light as one of 50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from skerry.console import formats
from skerry.console.components import Bar, Cell, TreeItem
from skerry.console.rendering import url
from skerry.model import cell_reports
from skerry.model.cell_reports import CellReport
from skerry.model.cells import OWN_MARK, CellOwner
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.ids import CellName, InstanceId
from skerry.model.workloads import Instance

SHOWN = 50  # cells in one cell, or of one kind
_MEGABYTE = 1024 * 1024
_KINDS: tuple[tuple[CellOwner | None, str], ...] = (
    (CellOwner.CONTAINER, "Instances and containers"),
    (CellOwner.FUNCTIONS, "Function workers"),
    (CellOwner.CONTRACT, "Sold contracts"),
    (None, "Cells of clients"),
)


def cell_tree(
    reports: Iterable[CellReport], instances: Mapping[InstanceId, Instance]
) -> tuple[TreeItem, ...]:
    """The cells below their kinds; `instances` are those of the node."""
    top, inside = cell_reports.tree(reports)

    def item(report: CellReport) -> TreeItem:
        instance = instances.get(report.instance)
        return TreeItem(
            _label(report, instance),
            _usage(report),
            _listed(inside.get(report.name, ()), item),
            _href(report, instance),
            _note(report, instance),
        )

    groups = []
    for owner, title in _KINDS:
        own = [one for one in top if one.owner is owner]
        if own:
            groups.append(TreeItem(title, _sum(own), _listed(own, item), note=_count(own, inside)))
    return tuple(groups)


def _listed(reports: Sequence[CellReport], item: Callable[[CellReport], TreeItem]) -> tuple[TreeItem, ...]:
    """The largest, and the others in one line."""
    ordered = sorted(reports, key=lambda one: (-one.memory_bytes, one.name))
    shown = tuple(map(item, ordered[:SHOWN]))
    rest = ordered[SHOWN:]
    if not rest:
        return shown
    return *shown, TreeItem(f"and {formats.count(len(rest), 'smaller cell')}", _sum(rest))


def _usage(report: CellReport) -> tuple[Cell, ...]:
    return (
        _cpu(report.cpu, report.limits.cpu_quota),
        _memory(report.memory_bytes, report.limits.memory),
        Cell(formats.count(report.pids, "process", "processes")),
    )


def _sum(reports: Sequence[CellReport]) -> tuple[Cell, ...]:
    return (
        _cpu(sum(one.cpu for one in reports), None),
        _memory(sum(one.memory_bytes for one in reports), None),
        Cell(formats.count(sum(one.pids for one in reports), "process", "processes")),
    )


def _cpu(used: int, limit: int | None) -> Cell:
    if not limit:
        return Cell(f"{formats.cores(used)} cores")
    return Cell(bar=Bar("", f"{formats.cores(used)} of {formats.cores(limit)} cores", used / limit))


def _memory(used_bytes: int, limit: int | None) -> Cell:
    used = formats.data_size(used_bytes)
    if not limit:
        return Cell(used)
    share = used_bytes / _MEGABYTE / limit
    return Cell(bar=Bar("", f"{used} of {formats.megabytes(limit)}", share))


def _label(report: CellReport, instance: Instance | None) -> str:
    """What people call it: the name of what runs in it, or its own."""
    if instance is not None:
        return instance.spec.name
    return plain_name(report.function) if report.function else _own_name(report)


def _own_name(report: CellReport) -> str:
    return report.name.rpartition("/")[2].removeprefix(OWN_MARK)


def _href(report: CellReport, instance: Instance | None) -> str:
    if instance is not None:
        return url(f"/console/instances/{instance.id}", namespace=instance.namespace)
    if not report.function:
        return ""
    path = f"/console/functions/{plain_name(report.function)}"
    return url(path, namespace=namespace_of(report.function))


def _note(report: CellReport, instance: Instance | None) -> str:
    parts = []
    if instance is not None:
        owner = instance.owner
        parts.append(f"{owner.kind} {owner.name}" if owner is not None else f"instance {instance.id}")
        parts.append(f"in {instance.namespace}")
    elif report.function:
        parts += [f"worker {_own_name(report)}", f"in {namespace_of(report.function)}"]
    else:
        parts += report.executables[:3]
        if report.running > len(report.executables[:3]):
            parts.append(f"{report.running - len(report.executables[:3])} more")
    if report.is_freeing:
        parts.append("being freed")
    return ", ".join(parts)


def _count(top: Sequence[CellReport], inside: Mapping[CellName, Sequence[CellReport]]) -> str:
    def below(report: CellReport) -> int:
        return 1 + sum(below(one) for one in inside.get(report.name, ()))

    return formats.count(sum(map(below, top)), "cell")
