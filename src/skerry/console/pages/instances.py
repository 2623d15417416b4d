"""Instances: the list, and one of them with its state, checks, placement, logs and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, statuses
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import (
    Action,
    Badge,
    Bar,
    Cell,
    Chart,
    EmptyState,
    Fact,
    LogView,
    Tab,
    Table,
    TerminalView,
    Tone,
)
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.pages.event_rows import event_table
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Caller, Role
from skerry.model.ids import Namespace, check_namespace
from skerry.model.resources import Resources
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.streams import MAX_FRAME
from skerry.model.workloads import Instance
from skerry.schedule import explanations
from skerry.schedule.results import NodeFeasibility
from skerry.transport.access import sessions
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import (
    RequestContext,
    Response,
    StreamResponse,
    WebSocketResponse,
    endpoint,
)

PATH = "/console/instances"
LOG_LINES = 500
_TABS = (
    ("logs", "Logs"),
    ("terminal", "Terminal"),
    ("metrics", "Metrics"),
    ("events", "Events"),
    ("explain", "Placement"),
)
_PAGES_OF_OWNERS = {"service": "/console/services", "job": "/console/jobs"}
_MAX_CELLS = 1000  # of a terminal in one direction
_NO_CHARTS = EmptyState(
    "Nothing is measured yet", "A running instance is measured every ten seconds, and an hour is kept."
)
_NO_COPIES = EmptyState("No copies", "It is scaled to none, or its first copy is not placed yet.")
_CHANGE_ERRORS = (errors.Invalid, errors.NotFound, errors.Conflict, errors.FailedPrecondition)


class InstancePath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128)]


class TerminalQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The namespace of the instance, and the size of the terminal."""

    namespace: str = ""
    rows: Annotated[int, Meta(ge=1, le=_MAX_CELLS)] = 24
    columns: Annotated[int, Meta(ge=1, le=_MAX_CELLS)] = 80


class InstanceView(msgspec.Struct, frozen=True):
    """The page of one instance."""

    name: str
    id: str
    namespace: str
    status: Cell
    reason: str
    facts: tuple[Fact, ...]
    bars: tuple[Bar, ...]
    charts: tuple[Chart, ...]
    no_charts: EmptyState
    actions: tuple[Action, ...]
    tabs: tuple[Tab, ...]
    tab: str
    table: Table | None
    logs: LogView | None
    terminal: TerminalView | None


@endpoint("GET", PATH, summary="Instances", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Instances, the newest first."""
    found = context.instances.list(namespace=query.listed, limit=EVERYTHING).items
    head = PageHead("Instances", "GET /console/instances", (Topic.INSTANCES,), "skerry get instances")
    table = instance_table(tuple(reversed(found)), node_names(context), query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{id}", summary="An instance", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: InstancePath, query: ObjectQuery
) -> Response:
    """One instance."""
    await _check_namespace(context, path, query.named)
    instance = await context.instances.read(path.id)
    now = context.plane.clock.now()
    tabs = _tabs(instance, call.caller, query.tab)
    tab = next(key for key, one in tabs.items() if one.is_current)
    within = TableContext.of(f"{PATH}/{instance.id}", query, tab)
    table, log_view, terminal_view = None, None, None
    charts: tuple[Chart, ...] = ()
    if tab == "events":
        events = await context.instances.events(path.id, reader=call.caller.scope)
        table = event_table(events, within, now)
    elif tab == "explain":
        nodes = context.instances.explain(path.id)
        if call.caller.scope.is_bound:
            nodes = list(map(explanations.without_instances, nodes))
        table = placement_table(nodes, node_names(context), within)
    elif tab == "metrics":
        charts = context.history.instance_charts(instance.id)
    elif tab == "terminal":
        source = url(f"{PATH}/{instance.id}/terminal", namespace=instance.namespace)
        terminal_view = TerminalView(source, cli("exec", "-it", instance.id, "sh"))
    else:
        source = url(f"{PATH}/{instance.id}/logs", namespace=instance.namespace)
        log_view = LogView(source, cli("logs", "--follow", instance.id))
    head = PageHead(
        instance.spec.name,
        "GET /console/instances",
        (Topic.INSTANCES,),
        cli("describe", "instance", instance.id),
    )
    node = node_names(context).get(instance.node or "", "none yet")
    made_from = context.workloads.table.get(instance.workload) if instance.workload is not None else None
    view = instance_view(
        instance,
        node,
        context.instances.usage(path.id),
        call.caller,
        now,
        "" if made_from is None else made_from.value.spec.name,
    )
    view = msgspec.structs.replace(
        view,
        charts=charts,
        tabs=tuple(tabs.values()),
        tab=tab,
        table=table,
        logs=log_view,
        terminal=terminal_view,
    )
    return context.renderer.page(call, "instance.html", head, view=view)


@endpoint(
    "GET",
    PATH + "/{id}/logs",
    summary="Output of an instance",
    media="text/plain",
    streams=True,
    raises=(errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
)
async def logs(
    context: ConsoleContext, call: RequestContext, path: InstancePath, query: ObjectQuery
) -> StreamResponse:
    """The last lines, and what follows."""
    return await context.read_logs(call, path.id, query.named, LOG_LINES)


@endpoint(
    "GET",
    PATH + "/{id}/terminal",
    summary="A terminal in an instance",
    status=101,
    streams=True,
    raises=(errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
    max_message_bytes=MAX_FRAME,
)
async def terminal(
    context: ConsoleContext, call: RequestContext, path: InstancePath, query: TerminalQuery
) -> WebSocketResponse:
    """A shell, by the frames of the API's exec. No request of htmx, so it has no CSRF token; a browser always
    says the origin of a WebSocket, and it must be ours."""
    sessions.check_same_origin(call.headers)
    namespace = check_namespace(query.namespace) if query.namespace else None
    return await context.open_terminal(call, path.id, namespace, (query.rows, query.columns))


def node_names(context: ConsoleContext) -> Mapping[str, str]:
    """The names of nodes, by id."""
    return {one.id: one.name for one in context.nodes.list()}


def _columns(names: Mapping[str, str]) -> tuple[TableColumn, ...]:
    return (
        TableColumn("Name", "name", lambda one: one.spec.name),
        TableColumn("Status", "status", lambda one: one.observed.status.value),
        TableColumn("Node", "node", lambda one: names.get(one.node or "", ""), minor=True),
        TableColumn("Address", "address", lambda one: one.ip, minor=True),
        TableColumn("Restarts", "restarts", lambda one: one.restarts, number=True, minor=True),
        TableColumn("Age", "age", lambda one: -one.created_at, number=True),
    )


def _cells(instance: Instance, names: Mapping[str, str], now: float) -> tuple[Cell, ...]:
    href = url(f"{PATH}/{instance.id}", namespace=instance.namespace)
    return (
        Cell(instance.spec.name, href, note=instance.id),
        Cell(badge=statuses.instance_badge(instance), note=_trouble(instance)),
        Cell(names.get(instance.node or "", "none")),
        Cell(instance.ip or "none", mono=True),
        Cell(str(instance.restarts)),
        Cell(formats.age(instance.created_at, now), time=instance.created_at),
    )


def instance_table(
    instances: Sequence[Instance], names: Mapping[str, str], query: ListQuery, now: float
) -> Table:
    """The list of instances; `names` are those of nodes."""

    def cells(instance: Instance) -> tuple[Cell, ...]:
        return *_cells(instance, names, now), Cell(instance.namespace)

    shape = TableShape(
        "instances",
        "Instances",
        PATH,
        (*_columns(names), TableColumn("Namespace", "namespace", lambda one: one.namespace, minor=True)),
        lambda one: (
            f"{one.spec.name} {one.id} {one.spec.uri} {names.get(one.node or '', '')} {one.ip} "
            f"{one.namespace} {one.observed.status.value}"
        ),
        cells,
        EmptyState(
            "No instances yet",
            "An instance is a container on a node that has the resources for it.",
            "skerry run -p 8080:80 docker.io/library/nginx",
        ),
    )
    return build_table(shape, instances, query)


def copies_table(
    copies: Sequence[Instance],
    names: Mapping[str, str],
    within: TableContext,
    now: float,
    empty: EmptyState = _NO_COPIES,
) -> Table:
    """The copies of a service, by their index; or other instances, as part of a page."""
    shape = TableShape(
        "tab",
        "Copies",
        "",
        _columns(names),
        lambda one: one.spec.name,
        lambda one: _cells(one, names, now),
        empty,
        within.href,
    )
    return build_table(shape, copies, ListQuery(page=within.page))


def _trouble(instance: Instance) -> str:
    """Why it does not run, if it should; else nothing."""
    observed = instance.observed
    if not observed.has_passed and observed.check_message:
        return observed.check_message
    return observed.reason if statuses.instance_badge(instance).tone in (Tone.BAD, Tone.WARNING) else ""


def placement_table(
    nodes: Sequence[NodeFeasibility], names: Mapping[str, str], within: TableContext
) -> Table:
    """Why each node fits or does not."""
    columns = (
        TableColumn("Node", "", lambda one: one.node),
        TableColumn("Fits", "", lambda one: one.fits),
        TableColumn("Why", "", lambda one: one.fits),
    )

    def cells(one: NodeFeasibility) -> tuple[Cell, ...]:
        badge = Badge("yes", Tone.GOOD) if one.fits else Badge("no", Tone.WARNING)
        name = names.get(one.node, one.node)
        return Cell(name), Cell(badge=badge), Cell(explanations.describe_feasibility(one))

    empty = EmptyState("There are no nodes", "Join a machine.", "skerry token create --role node")
    shape = TableShape("tab", "Placement", "", columns, lambda one: one.node, cells, empty, within.href)
    return build_table(shape, nodes, ListQuery(page=within.page))


def instance_view(
    instance: Instance, node: str, usage: Resources, caller: Caller, now: float, workload: str = ""
) -> InstanceView:
    """The page of one instance, which is on the node and of the workload of these names; without its tab."""
    spec, observed = instance.spec, instance.observed
    facts = [
        Fact("Since", Cell(formats.age(observed.since, now), time=observed.since)),
        Fact("Image", Cell(spec.uri, mono=True)),
        Fact("Node", Cell(node, _node_href(instance, caller))),
        Fact("Address", Cell(instance.ip or "none", mono=True)),
        Fact("Ports", Cell(formats.ports(spec.ports))),
        Fact("Made by", _made_by(instance, workload)),
        Fact("Restarts", Cell(str(instance.restarts))),
        Fact("Checks", _checks(instance)),
    ]
    if observed.exit_code is not None:
        facts.append(Fact("Exit code", Cell(str(observed.exit_code))))
    return InstanceView(
        name=spec.name,
        id=instance.id,
        namespace=instance.namespace,
        status=Cell(badge=statuses.instance_badge(instance)),
        reason=observed.reason,
        facts=tuple(facts),
        bars=_bars(spec.resources, usage),
        charts=(),
        no_charts=_NO_CHARTS,
        actions=tuple(one for one in _actions(instance) if may(caller, f"POST {PATH}/{{id}}/{one.id}")),
        tabs=(),
        tab="",
        table=None,
        logs=None,
        terminal=None,
    )


def _node_href(instance: Instance, caller: Caller) -> str:
    is_shown = instance.node is not None and may(caller, "GET /console/nodes/{id}")
    return f"/console/nodes/{instance.node}" if is_shown else ""


def _made_by(instance: Instance, workload: str) -> Cell:
    """What it is a copy of: a service, a job or a workload."""
    owner = instance.owner
    if owner is not None:
        path = _PAGES_OF_OWNERS.get(owner.kind, "")
        href = url(f"{path}/{owner.name}", namespace=instance.namespace) if path else ""
        note = f"revision {owner.revision}" if owner.kind == "service" else ""
        return Cell(f"{owner.kind} {owner.name}", href, note=note)
    if workload:
        href = url(f"/console/workloads/{workload}", namespace=instance.namespace)
        return Cell(f"workload {workload}", href, note=f"version {instance.version}")
    return Cell("a person")


def _tabs(instance: Instance, caller: Caller, wanted: str) -> dict[str, Tab]:
    """By key. A terminal is for those who may run programs, in what runs."""
    has_terminal = instance.observed.status is InstanceStatus.RUNNING and may(caller, terminal.name)
    shown = {key: text for key, text in _TABS if key != "terminal" or has_terminal}
    current = wanted if wanted in shown else "logs"
    base = f"{PATH}/{instance.id}"
    return {
        key: Tab(text, url(base, namespace=instance.namespace, tab=key), key == current)
        for key, text in shown.items()
    }


def _checks(instance: Instance) -> Cell:
    if not instance.spec.checks:
        return Cell("none")
    if instance.observed.has_passed:
        return Cell(badge=Badge("passed", Tone.GOOD))
    return Cell(badge=Badge("not passed", Tone.WARNING), note=instance.observed.check_message)


def _bars(reserved: Resources, used: Resources) -> tuple[Bar, ...]:
    """Used, of what is reserved."""
    return tuple(
        Bar(label, f"{write(now)} of {write(whole)}{unit}", now / whole)
        for label, write, unit, now, whole in (
            ("CPU", formats.cores, " cores", used.cpu, reserved.cpu),
            ("Memory", formats.megabytes, "", used.memory, reserved.memory),
        )
        if whole
    )


def _actions(instance: Instance) -> list[Action]:
    """What can be done with it now. The copies of a service are its own: it would only make another."""
    if instance.observed.status in TERMINAL or instance.desired is DesiredStatus.DESTROYED:
        return []

    def action(id: str, label: str, question: str, *words: str) -> Action:
        path = url(f"{PATH}/{instance.id}/{id}", namespace=instance.namespace)
        return Action(id, label, path, question, cli(*words), id == "delete")

    name = instance.spec.name
    found = []
    if instance.owner is None and instance.desired is DesiredStatus.STOPPED:
        found.append(action("start", "Start", f"Start {name}?", "start", instance.id))
    elif instance.owner is None:
        found.append(action("stop", "Stop", f"Stop {name}?", "stop", instance.id))
    question = f"Delete instance {name} ({instance.id})?"
    if instance.owner is not None:
        question += f" Its {instance.owner.kind} {instance.owner.name} replaces it."
    found.append(action("delete", "Delete", question, "delete", "instance", instance.id))
    return found


async def _check_namespace(context: ConsoleContext, path: InstancePath, namespace: Namespace | None) -> None:
    """An instance of another namespace than the named one is not found."""
    if namespace is not None:
        await context.instances.check_in(namespace, path.id)


@endpoint("POST", PATH + "/{id}/start", summary="Start an instance", raises=_CHANGE_ERRORS)
async def start(
    context: ConsoleContext, call: RequestContext, path: InstancePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """It runs again."""
    await context.instances.start(path.id, actor=call.caller.name, namespace=query.named)
    return done(f"{path.id} is started.")


@endpoint("POST", PATH + "/{id}/stop", summary="Stop an instance", raises=_CHANGE_ERRORS)
async def stop(
    context: ConsoleContext, call: RequestContext, path: InstancePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """It can be started again."""
    await context.instances.stop(path.id, actor=call.caller.name, namespace=query.named)
    return done(f"{path.id} is stopped.")


@endpoint("POST", PATH + "/{id}/delete", summary="Delete an instance", raises=_CHANGE_ERRORS)
async def delete(
    context: ConsoleContext, call: RequestContext, path: InstancePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """For good."""
    await context.instances.destroy(
        path.id,
        actor=call.caller.name,
        namespace=query.named,
        by_admin=call.caller.role is Role.ADMIN,
    )
    return done(f"{path.id} is being deleted.", leave_to=PATH)


ENDPOINTS = (show_list, show, logs, terminal, start, stop, delete)
