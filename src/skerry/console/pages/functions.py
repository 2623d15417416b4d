"""Functions: the list with their calls, and one of them with its recent calls, code, output and versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import (
    Action,
    Badge,
    Cell,
    EmptyState,
    Fact,
    Figure,
    LogView,
    Tab,
    Table,
    Tone,
    sparkline,
)
from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.phases import PhaseBar, phase_bars
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.source_files import SourceTree, read_source
from skerry.console.statistics import CallRates
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.control.events.log import StoredEvent
from skerry.functions.invocation.call_history import FinishedCall
from skerry.kit import tasks
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.function_names import function_key, namespace_of, plain_name
from skerry.model.functions import CUSTOM, Function
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, StreamResponse, endpoint

PATH = "/console/functions"
LOG_LINES = 500
_TABS = (("calls", "Calls"), ("code", "Code"), ("logs", "Logs"), ("versions", "Versions"))
_CODE_PAGE = f"GET {PATH}/{{name}}/code"
_CALL_ACTION = f"POST {PATH}/{{name}}/call"
EMPTY = EmptyState(
    "No functions yet",
    "A function is code with a handler. It is called by name, and runs where there is a free worker.",
    "skerry fn deploy hello.py",
)
NO_CALLS = EmptyState(
    "No calls yet",
    "The last calls that came to this server, or ran on it, appear here with the times of their phases.",
)


class FunctionPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class CallRow(msgspec.Struct, frozen=True):
    """A call that has ended."""

    ended_at: float
    age: str
    outcome: Badge
    where: str
    bar: PhaseBar


class FunctionView(msgspec.Struct, frozen=True):
    """The page of one function; what its tab does not show is None."""

    name: str
    namespace: str
    facts: tuple[Fact, ...]
    figures: tuple[Figure, ...]
    actions: tuple[Action, ...]
    tabs: tuple[Tab, ...]
    tab: str
    can_call: bool
    is_web: bool
    call_path: str
    command: str  # that calls it
    calls: tuple[CallRow, ...] = ()
    no_calls: EmptyState = NO_CALLS
    source: SourceTree | None = None
    no_source: str = ""  # why there is none
    table: Table | None = None
    logs: LogView | None = None


@endpoint("GET", PATH, summary="Functions", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Functions with their calls."""
    found = [one for one in context.functions.all() if query.lists(namespace_of(one.name))]
    head = PageHead("Functions", f"GET {PATH}", (Topic.FUNCTIONS, Topic.CALLS), "skerry fn list")
    table = function_table(
        found, context.calls.rates, context.calls.per_second, query, context.plane.clock.now()
    )
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A function", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: FunctionPath, query: ObjectQuery
) -> Response:
    """One function, without its code."""
    function = find_function(context, path.name, query)
    now = context.plane.clock.now()
    tab = query.tab if query.tab in ("logs", "versions") else "calls"
    view = _view(context, call.caller, function, tab)
    namespace = namespace_of(function.name)
    if tab == "versions":
        events = await context.plane.events.of(f"function/{function.name}", reader=call.caller.scope)
        within = TableContext.of(f"{PATH}/{path.name}", query, tab)
        view = msgspec.structs.replace(view, table=version_table(events, function, within, now))
    elif tab == "logs":
        source = url(f"{PATH}/{path.name}/logs", namespace=namespace)
        logs = LogView(source, cli("fn", "logs", "--follow", path.name, namespace=namespace))
        view = msgspec.structs.replace(view, logs=logs)
    return context.renderer.page(call, "function.html", _head(function), view=view)


@endpoint("GET", PATH + "/{name}/code", summary="Code of a function", media=HTML, raises=(errors.NotFound,))
async def code(
    context: ConsoleContext, call: RequestContext, path: FunctionPath, query: ObjectQuery
) -> Response:
    """For those who may deploy it: the API gives code to nobody else either."""
    function = find_function(context, path.name, query)
    source, reason = None, ""
    if function.code is None:
        reason = f"It is the image {function.image}."
    else:
        try:
            archive = await context.functions.archive(function.code)
            source = await tasks.in_thread(read_source, archive)
        except errors.SkerryError as error:
            reason = f"It cannot be read on this server: {error.message}."
    view = _view(context, call.caller, function, "code")
    view = msgspec.structs.replace(view, source=source, no_source=reason)
    return context.renderer.page(call, "function.html", _head(function), view=view)


@endpoint(
    "GET",
    PATH + "/{name}/logs",
    summary="Output of a function",
    media="text/plain",
    streams=True,
    raises=(errors.NotFound, errors.Unavailable),
)
async def logs(
    context: ConsoleContext, call: RequestContext, path: FunctionPath, query: ObjectQuery
) -> StreamResponse:
    """The last lines of all its workers, and what follows."""
    find_function(context, path.name, query)
    return await context.function_calls.read_logs(call, path.name, query.named, LOG_LINES)


@endpoint("POST", PATH + "/{name}/delete", summary="Delete a function", raises=(errors.NotFound,))
async def delete(
    context: ConsoleContext, call: RequestContext, path: FunctionPath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Running calls continue; later ones find nothing."""
    function = find_function(context, path.name, query)
    await context.function_calls.service.delete(function.name, actor=call.caller.name)
    return done(f"Function {path.name} is deleted.", leave_to=PATH)


def find_function(context: ConsoleContext, name: str, query: ObjectQuery) -> Function:
    """The function of that name in the namespace of the query. Raises `NotFound`."""
    function = context.functions.get(function_key(query.named or "", name))
    if function is None:
        raise errors.NotFound(f"there is no function {name[:128]!r}; the list has those there are")
    return function


def _head(function: Function) -> PageHead:
    name = plain_name(function.name)
    command = cli("fn", "describe", name, namespace=namespace_of(function.name))
    return PageHead(name, f"GET {PATH}", (Topic.FUNCTIONS, Topic.CALLS), command)


def _view(context: ConsoleContext, caller: Caller, function: Function, tab: str) -> FunctionView:
    now, monotonic = context.plane.clock.now(), context.plane.clock.monotonic()
    history = context.function_calls.history.functions.get(function.name)
    calls = history.latest() if history is not None and tab == "calls" else []
    view = function_view(
        function,
        context.calls.rates(function.name),
        context.function_calls.pool().warm.get(function.name, 0),
        tab,
        caller,
        now,
    )
    return msgspec.structs.replace(view, calls=call_rows(calls, now, now - monotonic))


def function_table(
    functions: Sequence[Function],
    rates: Callable[[str], CallRates],
    per_second: Callable[[str], float],
    query: ListQuery,
    now: float,
) -> Table:
    """The list; `rates` is called for the rows that are shown."""
    columns = (
        TableColumn("Name", "name", lambda one: plain_name(one.name)),
        TableColumn("Calls/s", "calls", lambda one: per_second(one.name), number=True),
        TableColumn("p50 / p99", "", lambda one: 0, number=True),
        TableColumn("Cold starts", "", lambda one: 0, number=True, minor=True),
        TableColumn("Memory", "memory", lambda one: one.memory, number=True, minor=True),
        TableColumn("Runtime", "runtime", lambda one: one.runtime, minor=True),
        TableColumn("Version", "version", lambda one: one.version, number=True, minor=True),
        TableColumn("Namespace", "namespace", lambda one: namespace_of(one.name), minor=True),
        TableColumn("Updated", "updated", lambda one: -one.updated_at, number=True, minor=True),
    )

    def cells(function: Function) -> tuple[Cell, ...]:
        name, namespace = plain_name(function.name), namespace_of(function.name)
        calls = rates(function.name)
        failed = f"{formats.rate(calls.failed_per_second)}/s fail" if calls.failed_per_second else ""
        return (
            Cell(name, url(f"{PATH}/{name}", namespace=namespace)),
            Cell(
                formats.rate(calls.per_second),
                note=failed,
                spark=sparkline("Calls per second", calls.course) if any(calls.course) else None,
            ),
            Cell(formats.latencies(calls.p50_s, calls.p99_s)),
            Cell(f"{calls.cold:,}"),
            Cell(formats.megabytes(function.memory)),
            Cell(function.runtime),
            Cell(str(function.version)),
            Cell(namespace),
            Cell(formats.age(function.updated_at, now), time=function.updated_at),
        )

    shape = TableShape(
        "functions",
        "Functions",
        PATH,
        columns,
        lambda one: (
            f"{plain_name(one.name)} {one.runtime} {one.handler} {one.image} {namespace_of(one.name)}"
        ),
        cells,
        EMPTY,
    )
    return build_table(shape, functions, query)


def function_view(
    function: Function, rates: CallRates, warm: int, tab: str, caller: Caller, now: float
) -> FunctionView:
    """The page of one function, without what its tab shows."""
    name, namespace = plain_name(function.name), namespace_of(function.name)
    base = f"{PATH}/{name}"
    code_of = function.image if function.runtime == CUSTOM else (function.code or "")[:19]
    # Names only: values may be secrets.
    variables = ", ".join(one.partition("=")[0] for one in function.environment)
    facts = [
        Fact("Runtime", Cell(function.runtime, note="web handler" if function.is_web else "")),
        Fact("Handler", Cell(function.handler or "none", mono=bool(function.handler))),
        Fact("Code", Cell(code_of, mono=True)),
        Fact("Version", Cell(str(function.version))),
        Fact("Each worker", Cell(formats.megabytes(function.memory), note=_cpu(function))),
        Fact("Calls at once", Cell(f"{function.max_concurrency} in a worker")),
        Fact("Time limit", Cell(f"{function.timeout_s:g} s" if function.timeout_s else "the node's")),
        Fact("Runs where", Cell(function.policy or "the node's policy")),
        Fact("Environment", Cell(variables or "none")),
        Fact("Updated", Cell(formats.age(function.updated_at, now), time=function.updated_at)),
    ]
    actions = [
        Action(
            "delete",
            "Delete",
            url(f"{base}/delete", namespace=namespace),
            f"Delete function {name}? Its code is removed; running calls continue.",
            cli("fn", "delete", name, namespace=namespace),
            is_destructive=True,
        )
    ]
    return FunctionView(
        name,
        namespace,
        tuple(facts),
        figures(rates, warm),
        tuple(one for one in actions if may(caller, f"POST {PATH}/{{name}}/{one.id}")),
        tuple(
            Tab(text, _tab_href(base, key, namespace), key == tab)
            for key, text in _TABS
            if key != "code" or may(caller, _CODE_PAGE)
        ),
        tab,
        may(caller, _CALL_ACTION),
        function.is_web,
        url(f"{base}/call", namespace=namespace),
        call_command(function, "{}"),
    )


def _tab_href(base: str, tab: str, namespace: str) -> str:
    if tab == "code":
        return url(f"{base}/code", namespace=namespace)
    return url(base, namespace=namespace, tab=tab)


def _cpu(function: Function) -> str:
    return f"{formats.cores(function.cpu)} cores" if function.cpu else "no limit of CPU"


def call_command(function: Function, parameters: str) -> str:
    """The line that calls it."""
    name, namespace = plain_name(function.name), namespace_of(function.name)
    if function.is_web:
        return f"curl http://SERVER/web/{name}/"
    return cli("fn", "invoke", name, "--json", parameters, namespace=namespace)


def figures(rates: CallRates, warm: int) -> tuple[Figure, ...]:
    failed = rates.failed_per_second
    return (
        Figure(
            "Calls per second",
            formats.rate(rates.per_second),
            f"{formats.rate(failed)}/s failed" if failed else "last minute, on this server",
            tone=Tone.WARNING if failed else Tone.QUIET,
            spark=sparkline("Calls per second in the last five minutes", rates.course),
        ),
        Figure(
            "Latency p50 / p99",
            formats.latencies(rates.p50_s, rates.p99_s),
            "last five minutes",
        ),
        Figure("Cold starts", f"{rates.cold:,}", "last five minutes"),
        Figure("Warm workers", f"{warm:,}", "idle, on this server"),
    )


def call_rows(calls: Sequence[FinishedCall], now: float, offset: float) -> tuple[CallRow, ...]:
    """Calls that have ended; `offset` turns the time of the monotonic clock into that of the wall."""
    return tuple(
        CallRow(
            one.ended + offset,
            formats.age(one.ended + offset, now),
            Badge("ok", Tone.GOOD) if one.failure is None else Badge(one.failure, Tone.BAD),
            one.node or "here",
            bar,
        )
        for one, bar in zip(calls, phase_bars(calls), strict=True)
    )


def version_table(
    events: Sequence[StoredEvent], function: Function, within: TableContext, now: float
) -> Table:
    """The versions that events tell of, the newest first. Only the present one can be called."""
    columns = (
        TableColumn("Version", "", lambda one: 0, number=True),
        TableColumn("What", "", lambda one: 0),
        TableColumn("By", "", lambda one: 0),
        TableColumn("Age", "", lambda one: 0, number=True),
    )
    known: dict[str, StoredEvent] = {}
    for one in events:
        # One of that name may have been deleted before.
        if one.event.at >= function.created_at - 1 and (version := one.event.data.get("version")):
            known[version] = one

    def cells(item: tuple[str, StoredEvent]) -> tuple[Cell, ...]:
        version, event = item[0], item[1].event
        is_current = version == str(function.version)
        return (
            Cell(version, note="serves calls" if is_current else ""),
            Cell(event.reason or ("created" if event.kind.endswith("created") else "updated")),
            Cell(event.actor),
            Cell(formats.age(event.at, now), time=event.at),
        )

    empty = EmptyState(
        f"Version {function.version} serves calls",
        "Events tell who deployed which version, and those of this function are no longer stored.",
    )
    shape = TableShape("tab", "Versions", "", columns, lambda item: item[0], cells, empty, within.href)
    return build_table(shape, list(reversed(known.items())), ListQuery(page=within.page))


ENDPOINTS = (show_list, show, code, logs, delete)
