"""Cells as a tree: kinds at the top, names that people know, and the largest of many."""

from __future__ import annotations

from skerry.console.cell_trees import SHOWN, cell_tree
from skerry.console.components import TreeItem
from skerry.model.cell_reports import CellReport
from skerry.model.cells import CellLimits, CellOwner
from skerry.model.ids import CellName, FunctionName, InstanceId, Namespace
from skerry.model.resources import Megabytes, Millicores
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, ObservedState, OwnerKind

WEB = Instance(
    InstanceId("web-1"),
    InstanceSpec("web", "rootfs:/x"),
    1.0,
    ObservedState(InstanceStatus.RUNNING, 1.0),
    owner=InstanceOwner(OwnerKind.SERVICE, "s", "shop"),
    namespace=Namespace("market-street"),
)


def labels(items: tuple[TreeItem, ...]) -> list[object]:
    return [[one.label, labels(one.children)] if one.children else one.label for one in items]


def test_kinds_are_at_the_top_and_cells_below_each_other() -> None:
    reports = [
        CellReport(CellName("@i-web-1"), CellOwner.CONTAINER, WEB.id, memory_bytes=2**20),
        CellReport(CellName("@functions"), CellOwner.FUNCTIONS),
        CellReport(CellName("@functions/w-1"), CellOwner.FUNCTIONS, executables=("worker",), running=1),
        CellReport(CellName("tools")),
    ]
    assert labels(cell_tree(reports, {WEB.id: WEB})) == [
        ["Instances and containers", ["web"]],
        ["Function workers", [["functions", ["w-1"]]]],
        ["Cells of clients", ["tools"]],
    ]


def test_an_instance_has_its_name_its_service_and_a_link() -> None:
    reports = [CellReport(CellName("@i-web-1"), CellOwner.CONTAINER, WEB.id)]
    (group,) = cell_tree(reports, {WEB.id: WEB})
    (item,) = group.children
    assert (item.label, item.note) == ("web", "service shop, in market-street")
    assert item.href == "/console/instances/web-1?namespace=market-street"


def test_a_worker_has_the_name_of_its_function_and_a_link() -> None:
    worker = CellReport(CellName("@functions/w7"), CellOwner.FUNCTIONS, function=FunctionName("shop:resize"))
    (group,) = cell_tree([worker], {})
    (item,) = group.children
    assert (item.label, item.note) == ("resize", "worker w7, in shop")
    assert item.href == "/console/functions/resize?namespace=shop"


def test_usage_is_a_bar_where_there_is_a_limit() -> None:
    limits = CellLimits(cpu_quota=Millicores(500), memory=Megabytes(64))
    report = CellReport(
        CellName("a"), limits=limits, cpu=Millicores(125), memory_bytes=32 * 2**20 + 2**19, pids=1
    )
    (group,) = cell_tree([report], {})
    cpu, memory, pids = group.children[0].cells
    assert cpu.bar is not None
    assert memory.bar is not None
    assert (cpu.bar.text, cpu.bar.percent) == ("0.12 of 0.5 cores", "25.0%")
    assert (memory.bar.text, memory.bar.percent) == ("32 MB of 64 MB", "50.8%")
    assert pids.text == "1 process"
    assert [cell.text for cell in group.cells] == ["0.12 cores", "32 MB", "1 process"]


def test_of_a_thousand_the_largest_are_shown_and_the_others_summed_up() -> None:
    reports = [
        CellReport(CellName(f"c-{number}"), memory_bytes=number * 2**20, pids=1) for number in range(1000)
    ]
    (group,) = cell_tree(reports, {})
    assert group.note == "1,000 cells"
    assert [one.label for one in group.children[:2]] == ["c-999", "c-998"]
    assert len(group.children) == SHOWN + 1
    assert group.children[-1].label == "and 950 smaller cells"
    assert group.children[-1].cells[2].text == "950 processes"
