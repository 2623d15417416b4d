"""Workloads: the list of templates, and one of them with its instances and events; add an instance,
delete."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, object_pages
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Badge, Cell, EmptyState, Fact, Field, Table, Tone
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView
from skerry.console.pages.event_rows import event_table
from skerry.console.pages.instances import copies_table, node_names
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.control.instances.registry import InstanceFilter
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.ids import WorkloadId
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, RestartPolicy, RolloutStrategy, Workload
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/workloads"
RULE = "GET /console/workloads"
_TABS = (("instances", "Instances"), ("events", "Events"))
_TOPICS = (Topic.WORKLOADS, Topic.INSTANCES)
_NO_INSTANCES = EmptyState(
    "No instances", "A workload is a template: nothing runs until an instance is made from it."
)


class WorkloadPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]  # or its id


class DeleteForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    keep_instances: bool = False


class WorkloadRow(msgspec.Struct, frozen=True):
    """A workload with the instances that were made from it."""

    workload: Workload
    instances: tuple[Instance, ...] = ()

    @property
    def staying(self) -> int:
        """Those that are not to be destroyed, and have not ended for good."""
        return sum(
            one.desired is not DesiredStatus.DESTROYED and one.observed.status not in TERMINAL
            for one in self.instances
        )

    @property
    def running(self) -> int:
        return sum(one.observed.status is InstanceStatus.RUNNING for one in self.instances)

    @property
    def outdated(self) -> int:
        """Those that stay with an older version of the template."""
        return sum(
            one.version < self.workload.version and one.desired is not DesiredStatus.DESTROYED
            for one in self.instances
        )


@endpoint("GET", PATH, summary="Workloads", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Workloads, the newest first."""
    found = context.workloads.list(namespace=query.listed, limit=EVERYTHING).items
    made: dict[WorkloadId, list[Instance]] = {}
    for one in context.instances.list(namespace=query.listed, limit=EVERYTHING).items:
        if one.workload is not None:
            made.setdefault(one.workload, []).append(one)
    rows = [WorkloadRow(one, tuple(made.get(one.id, ()))) for one in reversed(found)]
    head = PageHead("Workloads", RULE, _TOPICS, "skerry get workloads")
    table = workload_table(rows, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A workload", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: WorkloadPath, query: ObjectQuery
) -> Response:
    """One workload."""
    workload = (await context.workloads.read(path.name, query.named)).value
    now = context.plane.clock.now()
    tab = object_pages.chosen(query.tab, _TABS)
    base = f"{PATH}/{workload.spec.name}"
    within = TableContext.of(base, query, tab)
    made = context.instances.list(InstanceFilter(workload=workload.id), limit=EVERYTHING).items
    if tab == "events":
        events = await context.plane.events.of(f"workload/{workload.id}", reader=call.caller.scope)
        table = event_table(events, within, now)
    else:
        table = copies_table(made, node_names(context), within, now, _NO_INSTANCES)
    view = workload_view(WorkloadRow(workload, tuple(made)), call.caller, now)
    view = msgspec.structs.replace(
        view, tab=tab, tabs=object_pages.tabs(base, workload.namespace, _TABS, tab), table=table
    )
    command = cli("describe", "workload", workload.spec.name, namespace=workload.namespace)
    return context.renderer.page(
        call, "object.html", PageHead(workload.spec.name, RULE, _TOPICS, command), view=view
    )


def workload_table(rows: Sequence[WorkloadRow], query: ListQuery, now: float) -> Table:
    """The list of workloads."""
    columns = (
        TableColumn("Name", "name", lambda one: one.workload.spec.name),
        TableColumn("Instances", "instances", lambda one: len(one.instances), number=True),
        TableColumn("Version", "version", lambda one: one.workload.version, number=True),
        TableColumn("Image", "image", lambda one: one.workload.spec.uri, minor=True),
        TableColumn("Each reserves", "memory", lambda one: one.workload.spec.resources.memory, minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.workload.namespace, minor=True),
        TableColumn("Age", "age", lambda one: -one.workload.created_at, number=True, minor=True),
    )

    def cells(row: WorkloadRow) -> tuple[Cell, ...]:
        workload = row.workload
        return (
            Cell(workload.spec.name, _href(workload)),
            Cell(f"{row.running}/{len(row.instances)}", note=_outdated_text(row)),
            Cell(str(workload.version)),
            Cell(workload.spec.uri, mono=True),
            Cell(_reserves(workload)),
            Cell(workload.namespace),
            Cell(formats.age(workload.created_at, now), time=workload.created_at),
        )

    shape = TableShape(
        "workloads",
        "Workloads",
        PATH,
        columns,
        lambda one: (
            f"{one.workload.spec.name} {one.workload.id} {one.workload.spec.uri} {one.workload.namespace}"
        ),
        cells,
        EmptyState(
            "No workloads yet",
            "A workload is a template that instances are made from, written in a manifest.",
            "skerry apply -f shop.yaml",
        ),
    )
    return build_table(shape, rows, query)


def workload_view(row: WorkloadRow, caller: Caller, now: float) -> ObjectView:
    """The page of one workload, without its tab."""
    workload, spec = row.workload, row.workload.spec
    shown = [
        Fact("Running", Cell(f"{row.running} of {formats.count(len(row.instances), 'instance')}")),
        Fact("Image", Cell(spec.uri, mono=True)),
        Fact("Version", Cell(str(workload.version), note=_outdated_text(row))),
        Fact("Each instance reserves", Cell(_reserves(workload))),
        Fact("Ports", Cell(formats.ports(spec.ports))),
        Fact("Restart", Cell(_restart(spec.restart))),
        Fact("Checks", Cell(formats.checks(spec.checks))),
        Fact("Id", Cell(workload.id, mono=True)),
        Fact("Created", Cell(formats.age(workload.created_at, now), time=workload.created_at)),
    ]
    return ObjectView(
        name=spec.name,
        kind="Workloads",
        list_path=PATH,
        namespace=workload.namespace,
        path=f"{PATH}/{spec.name}",
        status=Cell(badge=_badge(row)),
        note=_note(row),
        facts=tuple(shown),
        actions=tuple(one for one in _actions(row) if may(caller, f"POST {PATH}/{{name}}/{one.id}")),
    )


def _badge(row: WorkloadRow) -> Badge:
    """How its instances are: a template itself has no status."""
    bad = Counter(one.observed.status for one in row.instances)
    if failed := bad[InstanceStatus.FAILED] + bad[InstanceStatus.CRASHED]:
        return Badge(f"{failed} NOT RUNNING", Tone.BAD)
    if not row.instances:
        return Badge("NO INSTANCES")
    if row.running < row.staying:
        return Badge("STARTING", Tone.BUSY)
    return Badge("RUNNING", Tone.GOOD) if row.running else Badge("STOPPED")


def _note(row: WorkloadRow) -> str:
    if not row.outdated:
        return ""
    if row.workload.rollout is RolloutStrategy.ROLLING:
        return f"{formats.count(row.outdated, 'instance')} of older versions are replaced one after another."
    return (
        f"{formats.count(row.outdated, 'instance')} of older versions stay as they are: the change was made "
        "without a rollout."
    )


def _outdated_text(row: WorkloadRow) -> str:
    return f"{row.outdated} of older versions" if row.outdated else ""


def _reserves(workload: Workload) -> str:
    resources = workload.spec.resources
    return f"{formats.cores(resources.cpu)} cores, {formats.megabytes(resources.memory)}"


def _restart(policy: RestartPolicy) -> str:
    return (
        policy.when.value if policy.budget is None else f"{policy.when.value}, at most {policy.budget} times"
    )


def _href(workload: Workload) -> str:
    return url(f"{PATH}/{workload.spec.name}", namespace=workload.namespace)


def _actions(row: WorkloadRow) -> list[Action]:
    name, namespace = row.workload.spec.name, row.workload.namespace
    base = f"{PATH}/{name}"
    manifest = json_codec.encode({"instances": [{"workload": name, "count": row.staying + 1}]}).decode()
    apply = cli("apply", "-f", "-", namespace=namespace)
    delete = cli("delete", "workload", name, namespace=namespace)
    return [
        Action(
            "add",
            "Add instance",
            url(f"{base}/add", namespace=namespace),
            f"Make another instance of {name}?",
            f"echo {shlex.quote(manifest)} | {apply}",
            note=f"It reserves {_reserves(row.workload)} on a node that has them free.",
        ),
        Action(
            "delete",
            "Delete",
            url(f"{base}/delete", namespace=namespace),
            f"Delete workload {name} and its {formats.count(row.staying, 'instance')}?",
            delete,
            is_destructive=True,
            fields=(
                Field(
                    "keep_instances", "Refuse if it has instances", kind="checkbox", flag="--keep-instances"
                ),
            ),
            stem=delete,
        ),
    ]


@endpoint(
    "POST",
    PATH + "/{name}/add",
    summary="Make an instance of a workload",
    raises=(
        errors.Invalid,
        errors.NotFound,
        errors.Unprocessable,
        errors.QuotaExceeded,
        errors.Unavailable,
    ),
)
async def add(
    context: ConsoleContext, call: RequestContext, path: WorkloadPath, query: ObjectQuery, body: ActionForm
) -> Response:
    """It waits for a node then."""
    workload = context.workloads.get(path.name, query.named)
    made, _ = await context.instances.create(
        workload.id, actor=call.caller.name, namespace=workload.namespace
    )
    return done(f"{made.id} is made from {workload.spec.name}, and waits for a node.")


@endpoint(
    "POST",
    PATH + "/{name}/delete",
    summary="Delete a workload",
    raises=(errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable),
)
async def delete(
    context: ConsoleContext, call: RequestContext, path: WorkloadPath, query: ObjectQuery, body: DeleteForm
) -> Response:
    """With its instances, or not at all while it has some."""
    await context.workloads.delete(
        path.name, actor=call.caller.name, namespace=query.named, cascade=not body.keep_instances
    )
    return done(f"Workload {path.name} is deleted with its instances.", leave_to=PATH)


ENDPOINTS = (show_list, show, add, delete)
