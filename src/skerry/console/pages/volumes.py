"""Volumes: the list, and one of them with how full it is, what uses it, and its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, statuses
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Bar, Cell, EmptyState, Fact, Table
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView, tabs
from skerry.console.pages.event_rows import event_table
from skerry.console.pages.instances import node_names
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.volumes import Volume, VolumeUsage
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/volumes"
RULE = "GET /console/volumes"
_TABS = (("events", "Events"),)
_MEGABYTE = 1024 * 1024


class VolumePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint("GET", PATH, summary="Volumes", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Volumes, the oldest first."""
    volumes = context.volumes.list(namespace=query.listed, limit=EVERYTHING).items
    head = PageHead("Volumes", RULE, (Topic.VOLUMES,), "skerry volume list")
    table = volume_table(
        volumes, context.volumes.usage, node_names(context), query, context.plane.clock.now()
    )
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A volume", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: VolumePath, query: ObjectQuery
) -> Response:
    """One volume."""
    volume = (await context.volumes.read(path.name, query.named)).value
    now = context.plane.clock.now()
    base = f"{PATH}/{volume.name}"
    events = await context.plane.events.of(
        f"volume/{volume.namespace}/{volume.name}", reader=call.caller.scope
    )
    view = volume_view(volume, context.volumes.usage(volume), context.volumes.users(volume), call.caller, now)
    node = node_names(context).get(volume.node or "", "none yet: its first user decides")
    view = msgspec.structs.replace(
        view,
        facts=(Fact("Node", Cell(node)), *view.facts),
        tabs=tabs(base, volume.namespace, _TABS, "events"),
        table=event_table(events, TableContext.of(base, query, "events"), now),
    )
    head = PageHead(
        volume.name,
        RULE,
        (Topic.VOLUMES,),
        cli("volume", "describe", volume.name, namespace=volume.namespace),
    )
    return context.renderer.page(call, "object.html", head, view=view)


def volume_table(
    volumes: Sequence[Volume],
    usage_of: Callable[[Volume], VolumeUsage | None],
    nodes: Mapping[str, str],
    query: ListQuery,
    now: float,
) -> Table:
    """The list of volumes."""
    columns = (
        TableColumn("Name", "name", lambda one: one.name),
        TableColumn("Status", "status", lambda one: one.status.value),
        TableColumn("Used", "used", lambda one: _share(usage_of(one))),
        TableColumn("Size", "size", lambda one: one.size, number=True, minor=True),
        TableColumn("Node", "node", lambda one: nodes.get(one.node or "", ""), minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.namespace, minor=True),
        TableColumn("Age", "age", lambda one: -one.created_at, number=True, minor=True),
    )

    def cells(volume: Volume) -> tuple[Cell, ...]:
        bar = usage_bar(usage_of(volume))
        return (
            Cell(volume.name, url(f"{PATH}/{volume.name}", namespace=volume.namespace)),
            Cell(badge=statuses.volume_badge(volume.status), note=volume.reason),
            Cell("not known") if bar is None else Cell(bar=msgspec.structs.replace(bar, label="")),
            Cell(formats.gigabytes(volume.size)),
            Cell(nodes.get(volume.node or "", "none yet")),
            Cell(volume.namespace),
            Cell(formats.age(volume.created_at, now), time=volume.created_at),
        )

    shape = TableShape(
        "volumes",
        "Volumes",
        PATH,
        columns,
        lambda one: f"{one.name} {one.namespace} {one.status.value} {nodes.get(one.node or '', '')}",
        cells,
        EmptyState(
            "No volumes yet",
            "A volume keeps data when the instance that wrote it is gone.",
            "skerry volume create data --size 1",
        ),
    )
    return build_table(shape, volumes, query)


def volume_view(
    volume: Volume, usage: VolumeUsage | None, users: Sequence[str], caller: Caller, now: float
) -> ObjectView:
    """The page of one volume, without its node and its events."""
    base = f"{PATH}/{volume.name}"
    facts = [
        Fact("Size", Cell(formats.gigabytes(volume.size))),
        Fact("Used by", Cell(formats.listed(users, none="nothing"))),
        Fact("Id", Cell(volume.id, mono=True)),
        Fact("Created", Cell(formats.age(volume.created_at, now), time=volume.created_at)),
    ]
    if volume.owner is not None:
        owner = volume.owner
        href = url(f"/console/services/{owner.service}", namespace=volume.namespace)
        facts.append(Fact("Made for", Cell(f"service {owner.service}", href, note=f"copy {owner.index}")))
    bar = usage_bar(usage)
    delete = Action(
        "delete",
        "Delete",
        url(f"{base}/delete", namespace=volume.namespace),
        f"Delete volume {volume.name} with all its data?",
        cli("volume", "delete", volume.name, namespace=volume.namespace),
        is_destructive=True,
    )
    is_shown = not volume.is_deleting and may(caller, f"POST {PATH}/{{name}}/delete")
    return ObjectView(
        name=volume.name,
        kind="Volumes",
        list_path=PATH,
        path=base,
        namespace=volume.namespace,
        status=Cell(badge=statuses.volume_badge(volume.status)),
        note=volume.reason,
        facts=tuple(facts),
        bars=() if bar is None else (bar,),
        actions=(delete,) if is_shown else (),
    )


def usage_bar(usage: VolumeUsage | None) -> Bar | None:
    """How full it is; None: not known."""
    if usage is None or not usage.capacity_bytes:
        return None
    used, whole = (amount // _MEGABYTE for amount in (usage.used_bytes, usage.capacity_bytes))
    return Bar("Used", f"{formats.megabytes(used)} of {formats.megabytes(whole)}", _share(usage))


def _share(usage: VolumeUsage | None) -> float:
    return 0.0 if usage is None or not usage.capacity_bytes else usage.used_bytes / usage.capacity_bytes


@endpoint(
    "POST",
    PATH + "/{name}/delete",
    summary="Delete a volume",
    raises=(errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
)
async def delete(
    context: ConsoleContext, call: RequestContext, path: VolumePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """With its data."""
    await context.volumes.delete(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"Volume {path.name} is being deleted with its data.", leave_to=PATH)


ENDPOINTS = (show_list, show, delete)
