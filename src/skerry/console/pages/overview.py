"""The overview: nodes and their resources, services and their health, functions and their calls, money in and
out, and what needs attention and why.

A caller sees the parts that it may read by the API. Findings are a pure function of what is known; each says
why, and what to do.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from skerry.console import formats, statuses
from skerry.console.actions import cli
from skerry.console.components import (
    Bar,
    Cell,
    Chart,
    Column,
    EmptyState,
    Figure,
    Finding,
    FindingKind,
    Row,
    Table,
    Tone,
    sparkline,
)
from skerry.console.context import EVERYTHING, ConsoleContext, MarketView
from skerry.console.hub import Topic
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.statistics import CallRates, CallStatistics
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.services.registry import ServiceState
from skerry.market.buyer.quotes import BorrowedContractState
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.functions import Function
from skerry.model.nodes import Liveness
from skerry.model.resources import Resources, add_amounts
from skerry.model.services import ServiceStatus
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance
from skerry.transport.access.rules import HTTP_RULES, authorize
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

MAX_FINDINGS = 8
_OF_A_KIND = 2  # findings that are shown one by one, if there are more than one more of their kind
_ROWS = 5  # of services and of functions
_STUCK_S = 30.0  # an instance that waits longer for a node needs attention
_EXPIRY_S = 7 * 86400.0
_GOOD = (ServiceStatus.HEALTHY,)
_BUSY = (ServiceStatus.STARTING, ServiceStatus.UPDATING, ServiceStatus.CANARY, ServiceStatus.DELETING)
_ADJECTIVES = {ServiceStatus.FAILED: "not updated: its rollout failed", ServiceStatus.DEGRADED: "degraded"}
FIRST_STEPS = EmptyState(
    "Nothing runs here yet",
    "Run an image, deploy a function, or apply a file; it appears here by itself.",
    "skerry run -p 8080:80 docker.io/library/nginx",
)

NOTHING_TO_SEE = EmptyState(
    "Your role sees nothing of this cloud",
    "It may call functions. To see what runs here, ask an admin for a token with the role viewer.",
    "skerry fn invoke FUNCTION",
)


class ResourceUse(msgspec.Struct, frozen=True):
    """What all nodes have, what is reserved of it, and what is really used."""

    whole: tuple[int, int, int]
    reserved: tuple[int, int, int]
    used: tuple[int, int, int]


class OverviewView(msgspec.Struct, frozen=True):
    """Everything on the page; a part that the caller may not see is None."""

    findings: tuple[Finding, ...]
    more_findings: int
    nodes: tuple[Figure, ...] | None
    bars: tuple[Bar, ...]
    charts: tuple[Chart, ...]
    services: tuple[Figure, ...] | None
    functions: tuple[Figure, ...] | None
    market: tuple[Figure, ...] | None
    empty: EmptyState | None
    service_rows: Table | None = None  # None: there are no services
    function_rows: Table | None = None

    @property
    def sees_any(self) -> bool:
        """False: what needs attention is not known to the caller."""
        return self.nodes is not None or self.services is not None


@endpoint("GET", "/console", summary="Overview", media=HTML)
async def show(context: ConsoleContext, call: RequestContext) -> Response:
    """The first page."""
    head = PageHead(
        "Overview",
        "GET /console",
        (Topic.NODES, Topic.INSTANCES, Topic.SERVICES, Topic.FUNCTIONS, Topic.MARKET),
        "skerry status",
    )
    view = context.overviews.get(call.caller, lambda: _view(context, call.caller))
    return context.renderer.page(call, "overview.html", head, view=view)


def _view(context: ConsoleContext, caller: Caller) -> OverviewView:
    now = context.plane.clock.now()
    scope = caller.scope
    sees_nodes, sees_objects = _reads(caller, "GET /node/"), _reads(caller, "GET /service/")
    conditions = list(context.nodes.conditions()) if sees_nodes else []
    instances: Sequence[Instance] = ()
    services: Sequence[ServiceState] = ()
    functions: Sequence[Function] = ()
    if sees_objects:
        listed = scope if scope.is_bound else None
        instances = context.instances.list(namespace=listed, limit=EVERYTHING).items
        services = context.services.list(namespace=listed, limit=EVERYTHING).items
        functions = [one for one in context.functions.all() if scope.admits(namespace_of(one.name))]
    use = resource_use(conditions, instances, [context.instances.usage(one.id) for one in instances])
    found = findings(conditions, services, instances, now)
    warnings = (
        [*context.plane.warnings, *context.plane.lacking, *context.plane.unreachable()] if sees_nodes else []
    )
    found += [Finding(Tone.WARNING, "This server", text) for text in warnings]
    shown = grouped(found)
    empty = None if instances or services or functions else FIRST_STEPS
    if not sees_objects:
        empty = None if sees_nodes else NOTHING_TO_SEE
    return OverviewView(
        findings=tuple(shown[:MAX_FINDINGS]),
        more_findings=max(0, len(shown) - MAX_FINDINGS),
        nodes=node_figures(conditions) if sees_nodes else None,
        bars=resource_bars(use) if sees_nodes else (),
        charts=context.history.cloud_charts() if sees_nodes else (),
        services=service_figures(services, instances) if sees_objects else None,
        service_rows=service_rows(services),
        functions=function_figures(functions, _rates(context, caller, functions)) if sees_objects else None,
        function_rows=function_rows(functions, context.calls),
        market=market_figures(context.market, now) if _reads(caller, "GET /market/ledger") else None,
        empty=empty,
    )


def _rates(context: ConsoleContext, caller: Caller, functions: Sequence[Function]) -> CallRates:
    """Of all calls; of those of its namespaces for a caller that is bound to some."""
    return context.calls.rates(among=[one.name for one in functions] if caller.scope.is_bound else None)


def _reads(caller: Caller, route: str) -> bool:
    """Whether the API would answer `caller` at this route."""
    try:
        authorize(HTTP_RULES[route], caller)
    except errors.SkerryError:
        return False
    return True


def resource_use(
    conditions: Iterable[NodeCondition], instances: Iterable[Instance], used: Iterable[Resources]
) -> ResourceUse:
    """Of nodes that are live, and of instances that are on a node."""
    whole = add_amounts(one.view.resources for one in conditions if one.liveness is not Liveness.LOST)
    reserved = add_amounts(one.reserved_spec.resources for one in instances if one.node is not None)
    return ResourceUse(whole, reserved, add_amounts(used))


def resource_bars(use: ResourceUse) -> tuple[Bar, ...]:
    """Reserved, used and free, of each resource."""
    formats_of = (formats.cores, formats.megabytes, formats.gigabytes)
    names = ("CPU", "Memory", "Disk")
    units = (" cores", "", "")
    bars = []
    for name, write, unit, whole, reserved, used in zip(
        names, formats_of, units, use.whole, use.reserved, use.used, strict=True
    ):
        text = f"{write(reserved)} of {write(whole)}{unit} reserved"
        if whole:
            text += f", {write(used)} used, {write(max(0, whole - reserved))} free"
        bars.append(Bar(name, text, reserved / whole if whole else 0.0, used / whole if whole else None))
    return tuple(bars)


def node_figures(conditions: Sequence[NodeCondition]) -> tuple[Figure, ...]:
    live = sum(one.liveness is Liveness.LIVE for one in conditions)
    borrowed = sum(one.view.is_borrowed for one in conditions)
    closed = sum(one.liveness is Liveness.LIVE and not one.view.is_schedulable for one in conditions)
    tone = Tone.GOOD if live == len(conditions) else Tone.BAD
    notes = [
        f"{len(conditions) - live} silent" if live < len(conditions) else "",
        f"{closed} closed to new work" if closed else "",
        f"{borrowed} borrowed" if borrowed else "",
    ]
    return (
        Figure(
            "Nodes live",
            f"{live:,}/{len(conditions):,}",
            ", ".join(filter(None, notes)),
            "/console/nodes",
            tone,
        ),
    )


def service_figures(services: Sequence[ServiceState], instances: Sequence[Instance]) -> tuple[Figure, ...]:
    counted = Counter(one.service.status(one.ready) for one in services)
    healthy = sum(counted[status] for status in _GOOD)
    busy = sum(counted[status] for status in _BUSY)
    bad = len(services) - healthy - busy
    running = sum(one.observed.status is InstanceStatus.RUNNING for one in instances)
    waiting = sum(one.observed.status is InstanceStatus.SCHEDULING for one in instances)
    return (
        Figure(
            "Services healthy",
            f"{healthy:,}/{len(services):,}",
            ", ".join(
                filter(None, [f"{busy} changing" if busy else "", f"{bad} need attention" if bad else ""])
            ),
            "/console/services",
            Tone.BAD if bad else Tone.GOOD if services else Tone.QUIET,
        ),
        Figure(
            "Instances running",
            f"{running:,}",
            f"{waiting} wait for a node" if waiting else f"of {len(instances):,}",
            "/console/instances",
            Tone.WARNING if waiting else Tone.GOOD if running else Tone.QUIET,
        ),
    )


def service_rows(states: Sequence[ServiceState]) -> Table | None:
    """Some services with their health, those first that lack the most."""

    def order(state: ServiceState) -> tuple[int, float, str]:
        status = state.service.status(state.ready)
        rank = 2 if status in _GOOD else 1 if status in _BUSY else 0
        return rank, state.ready / max(state.service.replicas, 1), state.service.name

    if not states:
        return None
    columns = (Column("Service"), Column("Status"), Column("Ready", number=True))
    rows = []
    for state in heapq.nsmallest(_ROWS, states, key=order):
        service = state.service
        rows.append(
            Row(
                (
                    Cell(service.name, url(f"/console/services/{service.name}", namespace=service.namespace)),
                    Cell(badge=statuses.service_badge(service.status(state.ready))),
                    Cell(f"{state.ready}/{service.replicas}"),
                )
            )
        )
    return Table("some-services", "Services, those first that lack copies", columns, tuple(rows), len(states))


def function_rows(functions: Sequence[Function], calls: CallStatistics) -> Table | None:
    """The functions that are called the most."""
    if not functions:
        return None
    busiest = heapq.nsmallest(_ROWS, functions, key=lambda one: (-calls.per_second(one.name), one.name))
    columns = (
        Column("Function"),
        Column("Calls/s", number=True),
        Column("p50 / p99", number=True),
        Column("Cold starts", number=True, minor=True),
    )
    rows = []
    for one in busiest:
        name, rates = plain_name(one.name), calls.rates(one.name)
        rows.append(
            Row(
                (
                    Cell(name, url(f"/console/functions/{name}", namespace=namespace_of(one.name))),
                    Cell(formats.rate(rates.per_second)),
                    Cell(formats.latencies(rates.p50_s, rates.p99_s)),
                    Cell(f"{rates.cold:,}"),
                )
            )
        )
    return Table("busiest-functions", "Functions, the busiest first", columns, tuple(rows), len(functions))


def function_figures(functions: Sequence[Function], rates: CallRates) -> tuple[Figure, ...]:
    failed = rates.failed_per_second
    return (
        Figure("Functions", f"{len(functions):,}", href="/console/functions"),
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
            "in handlers, last five minutes",
        ),
        Figure("Cold starts", f"{rates.cold:,}", "last five minutes"),
    )


def market_figures(market: MarketView, now: float) -> tuple[Figure, ...]:
    sold = [one.contract for one in market.ledger.contracts() if one.contract.is_live(now)]
    bought = [one for one in market.buyer.borrowed() if one.state is not BorrowedContractState.ENDED]
    return (
        Figure(
            "Money in",
            _sum((one.total, one.price.currency) for one in sold),
            formats.count(len(sold), "live contract sold", "live contracts sold"),
            "/console/market/contracts",
        ),
        Figure(
            "Money out",
            _sum((one.total, one.price.currency) for one in bought),
            formats.count(len(bought), "live contract bought", "live contracts bought"),
            "/console/market/contracts",
        ),
    )


def _sum(amounts: Iterable[tuple[Decimal, str]]) -> str:
    """Each currency by itself: they have no common one."""
    totals: dict[str, Decimal] = {}
    for amount, currency in amounts:
        totals[currency] = totals.get(currency, Decimal(0)) + amount
    return " + ".join(formats.money(total, currency) for currency, total in sorted(totals.items())) or "0"


def findings(
    conditions: Iterable[NodeCondition],
    services: Iterable[ServiceState],
    instances: Iterable[Instance],
    now: float,
) -> list[Finding]:
    """What needs attention, the worst first."""
    found: list[Finding] = []
    for condition in conditions:
        if condition.liveness is not Liveness.LIVE:
            name, lost = condition.view.name or condition.view.id, condition.liveness is Liveness.LOST
            silent = formats.duration(condition.silent_s or 0)
            found.append(
                Finding(
                    Tone.BAD if lost else Tone.WARNING,
                    f"Node {name} is {'lost' if lost else 'silent'}",
                    f"No heartbeat for {silent}; "
                    + ("what it ran is placed elsewhere." if lost else "it gets no new work."),
                    f"/console/nodes/{condition.view.id}",
                    f"skerry describe node {name}",
                    _kind_of_node(condition, f"nodes are {'lost' if lost else 'silent'}"),
                )
            )
        elif not condition.view.is_schedulable and condition.drain_by is None:
            name = condition.view.name or condition.view.id
            found.append(
                Finding(
                    Tone.WARNING,
                    f"Node {name} takes no new work",
                    f"It {condition.view.unschedulable_reason}.",
                    f"/console/nodes/{condition.view.id}",
                    f"skerry describe node {name}",
                    _kind_of_node(condition, "nodes take no new work"),
                )
            )
    found += filter(None, map(_service_finding, services))
    found += filter(None, (_instance_finding(one, now) for one in instances))
    order = {Tone.BAD: 0, Tone.WARNING: 1}
    return sorted(found, key=lambda one: order.get(one.tone, 2))


def grouped(found: Sequence[Finding]) -> list[Finding]:
    """Two of each kind, and the others of it as one that leads to their list: none hides other kinds."""
    numbers = Counter(one.kind for one in found if one.kind is not None)
    seen: Counter[FindingKind] = Counter()
    shown = []
    for one in found:
        kind = one.kind
        if kind is None or numbers[kind] <= _OF_A_KIND + 1 or seen[kind] < _OF_A_KIND:
            shown.append(one)
        elif seen[kind] == _OF_A_KIND:
            title = f"{numbers[kind] - _OF_A_KIND:,} other {kind.text}"
            shown.append(Finding(one.tone, title, "The list has them all.", kind.href, kind.command))
        if kind is not None:
            seen[kind] += 1
    return shown


def _kind_of_node(condition: NodeCondition, text: str) -> FindingKind:
    status = statuses.node_badge(condition).text.lower()
    return FindingKind(text, url("/console/nodes", q=status), "skerry node list")


def _kind_of_instance(status: InstanceStatus, text: str) -> FindingKind:
    return FindingKind(text, url("/console/instances", q=status.value.lower()), "skerry get instances")


def _service_finding(state: ServiceState) -> Finding | None:
    service = state.service
    status = service.status(state.ready)
    if status in _GOOD or status in _BUSY:
        return None
    reasons = [
        service.rollout.reason if service.rollout is not None else "",
        service.quota_message,
        f"{state.ready} of {service.replicas} copies are ready." if state.ready < service.replicas else "",
    ]
    adjective = _ADJECTIVES.get(status, status.value.lower())
    return Finding(
        Tone.BAD if status in (ServiceStatus.FAILED, ServiceStatus.DEGRADED) else Tone.WARNING,
        f"Service {service.name} is {adjective}",
        " ".join(f"{reason.rstrip('.')}." for reason in reasons if reason)
        or "Its update waits for somebody to decide.",
        url(f"/console/services/{service.name}", namespace=service.namespace),
        cli("describe", "service", service.name, namespace=service.namespace),
        FindingKind(
            f"services are {adjective.replace('its rollout', 'their rollouts')}",
            url("/console/services", q=status.value.lower()),
            "skerry service list",
        ),
    )


def _instance_finding(instance: Instance, now: float) -> Finding | None:
    observed = instance.observed
    if observed.status is InstanceStatus.SCHEDULING and now - observed.since > _STUCK_S:
        return Finding(
            Tone.WARNING,
            f"{instance.spec.name} waits for a node",
            observed.reason or "No node has the resources that it requests.",
            _instance_href(instance),
            f"skerry explain {instance.id}",
            _kind_of_instance(observed.status, "instances wait for a node"),
        )
    # The owner of others replaces them, and is found itself if it cannot.
    if instance.owner is None and observed.status in (InstanceStatus.CRASHED, InstanceStatus.FAILED):
        has_failed = observed.status is InstanceStatus.FAILED
        return Finding(
            Tone.BAD,
            f"{instance.spec.name} {'failed' if has_failed else 'has crashed'}",
            observed.reason or f"It ended with exit code {observed.exit_code}.",
            _instance_href(instance),
            f"skerry logs {instance.id}",
            _kind_of_instance(
                observed.status, "instances failed" if has_failed else "instances have crashed"
            ),
        )
    return None


def _instance_href(instance: Instance) -> str:
    return url(f"/console/instances/{instance.id}", namespace=instance.namespace)


ENDPOINTS = (show,)
