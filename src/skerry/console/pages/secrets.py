"""Secrets and configs: names, versions and users. Values are on no page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Cell, EmptyState, Fact, Table
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView, chosen, tabs
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.control.secrets.users import SecretUser
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.ids import DEFAULT_NAMESPACE
from skerry.model.secrets import Secret, SecretKind, SecretVersion
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/secrets"
RULE = "GET /console/secrets"
_TABS = (("users", "Used by"), ("versions", "Versions"))
_KINDS = {"secret": SecretKind.SECRET, "config": SecretKind.CONFIG}
_DELETE_ERRORS = (errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable)


class SecretPath(msgspec.Struct, frozen=True):
    kind: Annotated[str, Meta(pattern="^(secret|config)$")]
    name: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint("GET", PATH, summary="Secrets and configs", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Secrets and configs, the oldest first."""
    found = [
        one
        for kind in _KINDS.values()
        for one in context.secrets.list(kind, namespace=query.listed, limit=EVERYTHING).items
    ]
    head = PageHead("Secrets and configs", RULE, (Topic.SECRETS,), "skerry secret list")
    table = secret_table(found, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{kind}/{name}", summary="A secret or config", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: SecretPath, query: ObjectQuery
) -> Response:
    """One of them, without its value."""
    secret = await context.secrets.find(_KINDS[path.kind], path.name, query.named)
    now = context.plane.clock.now()
    base = f"{PATH}/{path.kind}/{secret.name}"
    tab = chosen(query.tab, _TABS)
    within = TableContext.of(base, query, tab)
    table = (
        version_table(secret.versions, within, now)
        if tab == "versions"
        else user_table(context.secrets.users(secret), within)
    )
    view = msgspec.structs.replace(
        secret_view(secret, call.caller, now),
        tab=tab,
        tabs=tabs(base, secret.namespace, _TABS, tab),
        table=table,
    )
    command = cli(path.kind, "versions", secret.name, namespace=secret.namespace)
    head = PageHead(secret.name, RULE, (Topic.SECRETS,), command)
    return context.renderer.page(call, "object.html", head, view=view)


def secret_table(secrets: Sequence[Secret], query: ListQuery, now: float) -> Table:
    """Both kinds in one list."""
    columns = (
        TableColumn("Name", "name", lambda one: one.name),
        TableColumn("Kind", "kind", lambda one: one.kind.value),
        TableColumn("Version", "version", lambda one: one.current.number, number=True),
        TableColumn("Size", "size", lambda one: one.current.size, number=True, minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.namespace, minor=True),
        TableColumn("Changed", "changed", lambda one: -one.current.created_at, number=True),
    )

    def cells(secret: Secret) -> tuple[Cell, ...]:
        changed = secret.current.created_at
        return (
            Cell(secret.name, url(f"{PATH}/{secret.kind.value}/{secret.name}", namespace=secret.namespace)),
            Cell(secret.kind.value),
            Cell(str(secret.current.number)),
            Cell(f"{secret.current.size:,} B"),
            Cell(secret.namespace),
            Cell(formats.age(changed, now), time=changed),
        )

    shape = TableShape(
        "secrets",
        "Secrets and configs",
        PATH,
        columns,
        lambda one: f"{one.name} {one.namespace} {one.kind.value}",
        cells,
        EmptyState(
            "No secrets or configs yet",
            "A secret is a value that instances and functions get and nobody else sees; a config is a file "
            "that may be read.",
            "skerry secret set db-password password.txt",
        ),
    )
    return build_table(shape, secrets, query)


def user_table(users: Sequence[SecretUser], within: TableContext) -> Table:
    """What uses it."""
    columns = (
        TableColumn("Kind", "", lambda one: one.noun),
        TableColumn("Name", "", lambda one: one.name),
        TableColumn("Versions", "", lambda one: one.versions),
    )

    def cells(user: SecretUser) -> tuple[Cell, ...]:
        note = "earlier revisions only" if user.is_past else ""
        versions = ", ".join(map(str, user.versions)) or "the newest"
        return Cell(user.noun), Cell(user.name, note=note), Cell(versions)

    empty = EmptyState("Nothing uses it", "It can be deleted without harm.")
    shape = TableShape("tab", "Used by", "", columns, lambda one: one.name, cells, empty, within.href)
    return build_table(shape, users, ListQuery(page=within.page))


def version_table(versions: Sequence[SecretVersion], within: TableContext, now: float) -> Table:
    """Versions that are kept, the newest first."""
    columns = (
        TableColumn("Version", "", lambda one: one.number, number=True),
        TableColumn("Size", "", lambda one: one.size, number=True),
        TableColumn("By", "", lambda one: one.actor),
        TableColumn("Age", "", lambda one: one.created_at, number=True),
    )

    def cells(one: SecretVersion) -> tuple[Cell, ...]:
        age = Cell(formats.age(one.created_at, now), time=one.created_at)
        return Cell(str(one.number)), Cell(f"{one.size:,} B"), Cell(one.actor), age

    empty = EmptyState("No versions", "Each new value is one.")
    shape = TableShape("tab", "Versions", "", columns, lambda one: one.actor, cells, empty, within.href)
    return build_table(shape, list(reversed(versions)), ListQuery(page=within.page))


def secret_view(secret: Secret, caller: Caller, now: float) -> ObjectView:
    """The page of one of them, without its tab."""
    kind = secret.kind.value
    base = f"{PATH}/{kind}/{secret.name}"
    delete = Action(
        "delete",
        "Delete",
        url(f"{base}/delete", namespace=secret.namespace),
        f"Delete {kind} {secret.name} with all its versions?",
        cli(kind, "delete", secret.name, namespace=secret.namespace),
        is_destructive=True,
    )
    return ObjectView(
        name=secret.name,
        kind="Secrets and configs",
        list_path=PATH,
        path=base,
        namespace=secret.namespace,
        note="Its value is not shown here, nor by any other page." if kind == "secret" else "",
        facts=(
            Fact("Kind", Cell(kind)),
            Fact("Version", Cell(str(secret.current.number), note=f"{len(secret.versions)} kept")),
            Fact("Size", Cell(f"{secret.current.size:,} B")),
            Fact("Changed by", Cell(secret.current.actor)),
            Fact(
                "Changed", Cell(formats.age(secret.current.created_at, now), time=secret.current.created_at)
            ),
        ),
        actions=(delete,) if may(caller, f"POST {PATH}/{{kind}}/{{name}}/delete") else (),
    )


@endpoint("POST", PATH + "/{kind}/{name}/delete", summary="Delete a secret or config", raises=_DELETE_ERRORS)
async def delete(
    context: ConsoleContext, call: RequestContext, path: SecretPath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Refused while something uses it."""
    namespace = query.named or DEFAULT_NAMESPACE
    await context.secrets.delete(_KINDS[path.kind], path.name, actor=call.caller.name, namespace=namespace)
    return done(f"{path.kind.capitalize()} {path.name} is deleted.", leave_to=PATH)


ENDPOINTS = (show_list, show, delete)
