"""Nodes: the list, and one of them with what runs on it, why it is full, and its events; cordon, drain and
remove."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, statuses
from skerry.console.actions import ActionForm, cli, done
from skerry.console.cell_trees import cell_tree
from skerry.console.components import Action, Badge, Bar, Cell, EmptyState, Fact, Field, Table, TreeItem
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView, chosen, is_part, tabs
from skerry.console.pages.event_rows import event_table
from skerry.console.pages.instances import copies_table, node_names
from skerry.console.pages.overview import ResourceUse, resource_bars
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import (
    ListQuery,
    ObjectQuery,
    TableColumn,
    TableContext,
    TableShape,
    build_table,
    natural,
)
from skerry.control.nodes.conditions import NodeCondition
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.nodes import Liveness, Node, NodeFacts
from skerry.model.resources import NO_AMOUNTS, NO_RESOURCES, Amounts, Resources, add_amounts
from skerry.model.workloads import Instance
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/nodes"
RULE = "GET /console/nodes"
_TABS = (
    ("instances", "Instances"),
    ("cells", "Cells"),
    ("tree", "By namespace"),
    ("events", "Events"),
)
_TREE_HEADS = ("Instance", "Status", "CPU", "Memory")
_CELL_HEADS = ("Cell", "CPU", "Memory", "Processes")
_NO_CELLS = EmptyState("No cells", "Nothing runs on this node.")
_CHANGE_ERRORS = (errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable)
_FULL = 0.9  # from this share on the page says what takes the most
_LARGEST = 3
_MAX_DRAIN_S = 30 * 86400


class NodePath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=256)]


class CordonForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=256)] = ""


class DrainForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    within_s: Annotated[float, Meta(ge=0, le=_MAX_DRAIN_S)] | None = None


class NodeLoad(msgspec.Struct, frozen=True):
    """What is on a node: its instances, what they reserve, and what they really use."""

    instances: tuple[Instance, ...] = ()
    reserved: Amounts = NO_AMOUNTS
    used: Amounts = NO_AMOUNTS


class NodeRow(msgspec.Struct, frozen=True):
    """A node with its condition and its load; None: it has just been removed."""

    node: Node
    condition: NodeCondition | None
    load: NodeLoad


@endpoint("GET", PATH, summary="Nodes", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Nodes with their resources."""
    loads = node_loads(context)
    rows = [
        NodeRow(node, context.nodes.condition(node.id), loads.get(node.id, NodeLoad()))
        for node in sorted(context.nodes.list(), key=lambda one: (natural(one.name), one.id))
    ]
    head = PageHead("Nodes", RULE, (Topic.NODES, Topic.INSTANCES), "skerry node list")
    table = node_table(rows, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint(
    "GET",
    PATH + "/{id}",
    summary="A node",
    media=HTML,
    raises=(errors.NotFound, errors.FailedPrecondition),
)
async def show(context: ConsoleContext, call: RequestContext, path: NodePath, query: ObjectQuery) -> Response:
    """One node."""
    node = context.nodes.get(path.id)
    now = context.plane.clock.now()
    base = f"{PATH}/{node.id}"
    tab = chosen(query.tab, _TABS)
    within = TableContext.of(base, query, tab)
    load = node_loads(context).get(node.id, NodeLoad())
    table: Table | None = None
    tree: tuple[TreeItem, ...] = ()
    cells = CellsPart()
    if tab == "events":
        events = await context.plane.events.of(f"node/{node.id}", reader=call.caller.scope)
        table = event_table(events, within, now)
    elif tab == "cells":
        cells = await _cells(context, call, node, load)
    elif tab == "tree":
        tree = namespace_tree(
            load.instances, {one.id: context.instances.usage(one.id) for one in load.instances}
        )
    else:
        table = copies_table(load.instances, node_names(context), within, now)
    view = node_view(NodeRow(node, context.nodes.condition(node.id), load), call.caller, now)
    view = msgspec.structs.replace(
        view,
        tab=tab,
        tabs=tabs(base, "", _TABS, tab),
        table=table,
        tree=tree or cells.tree,
        tree_heads=_CELL_HEADS if cells.tree else _TREE_HEADS if tree else (),
        waiting=cells.waiting,
        empty=cells.empty,
        ticks=tab == "cells",
    )
    command = cli("node", "cells", node.name) if tab == "cells" else cli("describe", "node", node.name)
    head = PageHead(node.name, RULE, (Topic.NODES, Topic.INSTANCES), command)
    return context.renderer.page(call, "object.html", head, view=view)


class CellsPart(msgspec.Struct, frozen=True):
    """The tab of cells: one of these is not empty."""

    tree: tuple[TreeItem, ...] = ()
    waiting: str = ""
    empty: EmptyState | None = None


async def _cells(context: ConsoleContext, call: RequestContext, node: Node, load: NodeLoad) -> CellsPart:
    """What the node says of its cells; the page itself does not wait for that."""
    if not is_part(call):
        return CellsPart(waiting="Asking the node for its cells…")
    try:
        found = await context.list_cells(node.id)
    except (errors.FailedPrecondition, errors.Unavailable, errors.TimedOut, errors.Overloaded) as error:
        return CellsPart(empty=EmptyState("Its cells are not known", f"{error.message}."))
    tree = cell_tree(found, {one.id: one for one in load.instances})
    return CellsPart(tree, empty=None if tree else _NO_CELLS)


def node_loads(context: ConsoleContext) -> Mapping[str, NodeLoad]:
    """What is on each node."""
    found: dict[str, list[Instance]] = defaultdict(list)
    for one in context.instances.list(limit=EVERYTHING).items:
        if one.node is not None:
            found[one.node].append(one)
    return {
        node: NodeLoad(
            tuple(instances),
            add_amounts(one.reserved_spec.resources for one in instances),
            add_amounts(context.instances.usage(one.id) for one in instances),
        )
        for node, instances in found.items()
    }


def node_table(rows: Sequence[NodeRow], query: ListQuery, now: float) -> Table:
    """The list of nodes."""
    columns = (
        TableColumn("Name", "name", lambda one: one.node.name),
        TableColumn("Status", "status", lambda one: _badge_text(one)),
        TableColumn("CPU", "cpu", lambda one: _share(one, 0), minor=True),
        TableColumn("Memory", "memory", lambda one: _share(one, 1)),
        TableColumn("Instances", "instances", lambda one: len(one.load.instances), number=True, minor=True),
        TableColumn("Area", "area", lambda one: _area(one.node), minor=True),
        TableColumn("Version", "version", lambda one: one.node.facts.version, minor=True),
        TableColumn("Joined", "joined", lambda one: -one.node.registered_at, number=True, minor=True),
    )

    def cells(row: NodeRow) -> tuple[Cell, ...]:
        node = row.node
        cpu, memory, _ = _bars(row)
        return (
            Cell(node.name, f"{PATH}/{node.id}", note=_kind(node)),
            Cell(badge=_badge(row), note="" if _is_away(row) else _why_closed(row)),
            _table_bar(cpu),
            _table_bar(memory),
            Cell(str(len(row.load.instances))),
            Cell(_area(node)),
            Cell(node.facts.version or "unknown"),
            Cell(formats.age(node.registered_at, now), time=node.registered_at),
        )

    shape = TableShape(
        "nodes",
        "Nodes",
        PATH,
        columns,
        lambda one: f"{one.node.name} {one.node.id} {_area(one.node)} {_kind(one.node)} {_badge_text(one)}",
        cells,
        EmptyState(
            "No nodes yet",
            "A node is a machine that runs instances and functions. This command prints an invitation, "
            "which `skerry node --join` takes on the other machine.",
            "skerry token create --role node",
        ),
    )
    return build_table(shape, rows, query)


def node_view(row: NodeRow, caller: Caller, now: float) -> ObjectView:
    """The page of one node, without its tab."""
    node, facts = row.node, row.node.facts
    shown = [
        Fact("Id", Cell(node.id, mono=True)),
        Fact("Kind", Cell(_kind(node) or "of this cloud")),
        Fact("Area", Cell(_area(node))),
        Fact(
            "System",
            Cell(formats.listed([one for one in (facts.system, facts.architecture) if one], none="unknown")),
        ),
        Fact("Kernel", Cell(facts.kernel or "unknown")),
        Fact("Container runtime", Cell(facts.runtime or "none: it runs no containers")),
        Fact("Skerry", Cell(facts.version or "unknown")),
        Fact("Subnet of containers", Cell(node.subnet or "none", mono=True)),
        Fact(
            "Labels", Cell(formats.listed([f"{key}={value}" for key, value in sorted(node.labels.items())]))
        ),
        Fact("Joined", Cell(formats.age(node.registered_at, now), time=node.registered_at)),
    ]
    if facts.devices:
        shown.append(Fact("Devices", Cell(formats.listed(facts.devices))))
    return ObjectView(
        name=node.name,
        kind="Nodes",
        list_path=PATH,
        namespace="",
        path=f"{PATH}/{node.id}",
        status=Cell(badge=_badge(row)),
        note=" ".join(filter(None, (_sentence(_why_closed(row)), describe_fullness(row), *_warnings(facts)))),
        facts=tuple(shown),
        bars=_bars(row),
        actions=tuple(one for one in node_actions(node) if may(caller, f"POST {PATH}/{{id}}/{one.id}")),
    )


def describe_fullness(row: NodeRow) -> str:
    """Which resources are nearly all reserved, and by what; empty if there is room."""
    sentences = []
    for index, name in enumerate(("CPU", "memory", "disk")):
        if (share := _share(row, index)) < _FULL:
            continue
        key = ("cpu", "memory", "disk")[index]
        largest = sorted(row.load.instances, key=lambda one: -getattr(one.reserved_spec.resources, key))
        names = [one.spec.name for one in largest[:_LARGEST] if getattr(one.reserved_spec.resources, key)]
        sentences.append(f"{share:.0%} of its {name} is reserved, most of it by {formats.listed(names)}.")
    if sentences:
        sentences.append("What does not fit is placed on other nodes, or waits.")
    return " ".join(sentences)


def namespace_tree(instances: Sequence[Instance], usage: Mapping[str, Resources]) -> tuple[TreeItem, ...]:
    """Instances below what made them, below their namespaces, with what each uses."""
    spaces: dict[str, dict[str, list[Instance]]] = defaultdict(lambda: defaultdict(list))
    for one in instances:
        owner = f"{one.owner.kind} {one.owner.name}" if one.owner is not None else "by itself"
        spaces[one.namespace][owner].append(one)
    return tuple(
        TreeItem(
            namespace,
            _sums([one for each in owners.values() for one in each], usage),
            tuple(
                TreeItem(
                    owner,
                    _sums(each, usage),
                    tuple(
                        TreeItem(
                            one.spec.name, (Cell(badge=statuses.instance_badge(one)), *_amounts([one], usage))
                        )
                        for one in sorted(each, key=lambda one: one.spec.name)
                    ),
                )
                for owner, each in sorted(owners.items())
            ),
        )
        for namespace, owners in sorted(spaces.items())
    )


def _sums(instances: Sequence[Instance], usage: Mapping[str, Resources]) -> tuple[Cell, ...]:
    """In the columns of single instances, which have a status first."""
    return Cell(), *_amounts(instances, usage)


def _amounts(instances: Sequence[Instance], usage: Mapping[str, Resources]) -> tuple[Cell, ...]:
    cpu, memory, _ = add_amounts(usage.get(one.id, NO_RESOURCES) for one in instances)
    return Cell(f"{formats.cores(cpu)} cores"), Cell(formats.megabytes(memory))


def _whole(row: NodeRow) -> Amounts:
    """What may be reserved on it."""
    return add_amounts([row.node.resources if row.condition is None else row.condition.view.resources])


def _bars(row: NodeRow) -> tuple[Bar, ...]:
    return resource_bars(ResourceUse(_whole(row), row.load.reserved, row.load.used))


def _table_bar(bar: Bar) -> Cell:
    """Without the name, which is that of the column."""
    return Cell(bar=msgspec.structs.replace(bar, label="", text=bar.text.partition(" reserved")[0]))


def _share(row: NodeRow, index: int) -> float:
    whole = _whole(row)[index]
    return row.load.reserved[index] / whole if whole else 0.0


def _badge(row: NodeRow) -> Badge:
    return Badge("REMOVED") if row.condition is None else statuses.node_badge(row.condition)


def _badge_text(row: NodeRow) -> str:
    return _badge(row).text


def _why_closed(row: NodeRow) -> str:
    """Why it takes nothing new; empty if it does."""
    condition = row.condition
    if condition is None or condition.view.is_schedulable:
        return ""
    return condition.view.unschedulable_reason


def _is_away(row: NodeRow) -> bool:
    """Its badge says why it takes nothing new."""
    return row.condition is not None and row.condition.liveness is not Liveness.LIVE


def _warnings(facts: NodeFacts) -> list[str]:
    enforced = facts.enforcement
    weaker = () if enforced is None or not enforced.is_weaker else (f"without root, {enforced.summary()}",)
    return [f"Warning: {text.rstrip('.')}." for text in (*weaker, *facts.warnings)]


def _sentence(reason: str) -> str:
    return f"It takes nothing new: it {reason}." if reason else ""


def _area(node: Node) -> str:
    return node.member.area if node.member is not None else node.labels.get("area", "none")


def _kind(node: Node) -> str:
    if node.is_borrowed:
        return "borrowed from another cloud"
    return "foreign: takes no orders" if node.is_foreign else ""


def node_actions(node: Node) -> list[Action]:
    """What can be done with it now."""

    def action(id: str, label: str, question: str, fields: tuple[Field, ...] = ()) -> Action:
        command = cli("node", id, node.name)
        path = f"{PATH}/{node.id}/{id}"
        return Action(
            id, label, path, question, command, id == "remove", fields, stem=command if fields else ""
        )

    found = []
    if node.is_cordoned or node.drain_by is not None:
        found.append(action("uncordon", "Uncordon", f"Let {node.name} take instances again?"))
    else:
        reason = Field("reason", "Reason, for people (optional)", flag="--reason")
        found.append(action("cordon", "Cordon", f"Let {node.name} take nothing new?", (reason,)))
    if node.drain_by is None:
        within = Field(
            "within_s",
            "Seconds until what is left is stopped (optional)",
            "",
            "number",
            "0",
            flag="--within",
            unit="s",
        )
        found.append(action("drain", "Drain", f"Move everything from {node.name} to other nodes?", (within,)))
    found.append(action("remove", "Remove", f"Remove {node.name} from this cloud? It must be drained first."))
    return found


@endpoint("POST", PATH + "/{id}/cordon", summary="Cordon a node", raises=_CHANGE_ERRORS)
async def cordon(context: ConsoleContext, call: RequestContext, path: NodePath, body: CordonForm) -> Response:
    """It takes nothing new."""
    node = await context.nodes.cordon(path.id, actor=call.caller.name, reason=body.reason)
    return done(f"{node.name} takes nothing new.")


@endpoint("POST", PATH + "/{id}/uncordon", summary="Uncordon a node", raises=_CHANGE_ERRORS)
async def uncordon(
    context: ConsoleContext, call: RequestContext, path: NodePath, body: ActionForm
) -> Response:
    """It takes instances again."""
    node = await context.nodes.uncordon(path.id, actor=call.caller.name)
    return done(f"{node.name} takes instances again.")


@endpoint("POST", PATH + "/{id}/drain", summary="Drain a node", raises=_CHANGE_ERRORS)
async def drain(context: ConsoleContext, call: RequestContext, path: NodePath, body: DrainForm) -> Response:
    """Everything moves to other nodes."""
    by = None if body.within_s is None else context.plane.clock.now() + body.within_s
    node = await context.nodes.drain(path.id, actor=call.caller.name, by=by)
    return done(f"Everything on {node.name} moves to other nodes.")


@endpoint("POST", PATH + "/{id}/remove", summary="Remove a node", raises=_CHANGE_ERRORS)
async def remove(context: ConsoleContext, call: RequestContext, path: NodePath, body: ActionForm) -> Response:
    """Refused while it has instances."""
    name = context.nodes.get(path.id).name
    await context.nodes.unregister(path.id, actor=call.caller.name)
    return done(f"{name} is removed.", leave_to=PATH)


ENDPOINTS = (show_list, show, cordon, uncordon, drain, remove)
