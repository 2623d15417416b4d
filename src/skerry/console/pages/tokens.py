"""Tokens: who may use this cloud, with which role, where and until when. Never their secrets: that of a new
one is shown once, in the answer to its creation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Badge, Cell, EmptyState, Field, Table, Tone
from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Role, Token
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/tokens"
_SOON_S = 7 * 86400.0
_DAY_S = 86400.0
_ROLES = {
    Role.VIEWER: "viewer: reads",
    Role.INVOKER: "invoker: calls functions",
    Role.DEPLOYER: "deployer: runs things",
    Role.ADMIN: "admin: everything",
    Role.NODE: "node: lets one machine join",
}
_CHANGED = {"hx-trigger-after-swap": '{"live:identity": null}'}  # the list has one more


class TokenPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]


class CreateTokenForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Role
    days: Annotated[float, Meta(gt=0, le=3650)] | None = None
    note: Annotated[str, Meta(max_length=200)] = ""
    namespaces: Annotated[str, Meta(max_length=1000)] = ""  # with spaces or commas between
    offline: bool = False


class NewTokenView(msgspec.Struct, frozen=True):
    """The text of a new token, which cannot be had again."""

    title: str
    text: str
    use: str  # the line that uses it
    expires: str


@endpoint("GET", PATH, summary="Tokens", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """All tokens, the newest first."""
    now = context.plane.clock.now()
    tokens = sorted(context.plane.identity.tokens(), key=lambda one: -one.created_at)
    head = PageHead("Tokens", f"GET {PATH}", (Topic.IDENTITY,), "skerry token list")
    table = token_table(tokens, query, now)
    return context.renderer.page(
        call,
        "list.html",
        head,
        table=table,
        query=query,
        path=PATH,
        actions=(create_action(),),
        shows_answers=True,
    )


def token_table(tokens: Sequence[Token], query: ListQuery, now: float) -> Table:
    """The list of tokens."""
    columns = (
        TableColumn("Token", "id", lambda one: one.note or one.id),
        TableColumn("Role", "role", lambda one: one.role.value, minor=True),
        TableColumn("Status", "status", lambda one: token_badge(one, now).text),
        TableColumn("Expires in", "expires", lambda one: one.expires_at or float("inf"), number=True),
        TableColumn("Namespaces", "", lambda one: 0, minor=True),
        TableColumn("Kind", "kind", lambda one: one.kind, minor=True),
        TableColumn("Age", "age", lambda one: -one.created_at, number=True, minor=True),
        TableColumn("", "", lambda one: 0),
    )

    def cells(token: Token) -> tuple[Cell, ...]:
        ends = token.expires_at
        return (
            Cell(token.note or token.id, note=token.id if token.note else ""),
            Cell(token.role.value),
            Cell(badge=token_badge(token, now)),
            Cell("never") if ends is None else Cell(formats.duration(ends - now), until=ends),
            Cell("all" if token.namespaces is None else ", ".join(token.namespaces)),
            Cell(token.kind),
            Cell(formats.age(token.created_at, now), time=token.created_at),
            Cell(actions=() if token.revoked_at is not None else (_revoke_action(token),)),
        )

    shape = TableShape(
        "tokens",
        "Tokens",
        PATH,
        columns,
        lambda one: f"{one.id} {one.note} {one.role.value} {one.kind} {' '.join(one.namespaces or ())}",
        cells,
        EmptyState(
            "No tokens yet",
            "The user who runs Skerry needs none on this machine. Others, and other machines, do.",
            "skerry token create --role deployer --ttl 30d --note ci",
        ),
    )
    return build_table(shape, tokens, query)


def token_badge(token: Token, now: float) -> Badge:
    """Whether it can be used."""
    if token.revoked_at is not None:
        return Badge("REVOKED", Tone.QUIET)
    if token.used_at is not None:
        return Badge("USED", Tone.QUIET)
    if token.expires_at is not None and token.expires_at <= now:
        return Badge("EXPIRED", Tone.QUIET)
    if token.expires_at is not None and token.expires_at - now < _SOON_S and token.role is not Role.NODE:
        return Badge("EXPIRES SOON", Tone.WARNING)
    return Badge("VALID", Tone.GOOD)


def _revoke_action(token: Token) -> Action:
    name = f"{token.note} ({token.id})" if token.note else token.id
    return Action(
        f"revoke-{token.id}",
        "Revoke",
        f"{PATH}/{token.id}/revoke",
        f"Revoke the {token.role.value} token {name}? It is refused from the next request on.",
        cli("token", "revoke", token.id),
        is_destructive=True,
    )


def create_action() -> Action:
    """The form of a new token."""
    return Action(
        "create",
        "Create token",
        f"{PATH}/create",
        "Create a token",
        "skerry token create --role viewer --ttl 30d",
        fields=(
            Field(
                "role",
                "Role",
                Role.VIEWER.value,
                choices=tuple((one.value, text) for one, text in _ROLES.items()),
                flag="--role",
            ),
            Field(
                "days",
                "Valid for days (empty: for ever; of a node, an hour)",
                "30",
                "number",
                "0.01",
                "3650",
                flag="--ttl",
                unit="d",
            ),
            Field("note", "Note: who or what it is for", flag="--note"),
            Field("namespaces", "Only these namespaces (empty: all)", flag="--namespace"),
            Field(
                "offline",
                "Nodes verify it without a server (viewer and invoker)",
                kind="checkbox",
                flag="--offline",
            ),
        ),
        note="Its text is shown once, here.",
        target="#answer",
        stem="skerry token create",
    )


@endpoint(
    "POST",
    PATH + "/create",
    summary="Create a token",
    media=HTML,
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
)
async def create(context: ConsoleContext, call: RequestContext, body: CreateTokenForm) -> Response:
    """The answer has its text, which the server does not store."""
    token, text = await context.plane.identity.create_token(
        body.role,
        ttl_s=None if body.days is None else body.days * _DAY_S,
        note=body.note,
        actor=call.caller.name,
        namespaces=body.namespaces.replace(",", " ").split(),
        offline=body.offline,
    )
    invitation = context.identity.invitation(text) if token.role is Role.NODE else ""
    view = new_token_view(token, text, invitation, context.plane.clock.now())
    return context.renderer.fragment("new_token.html", _CHANGED, view=view)


def new_token_view(token: Token, text: str, invitation: str, now: float) -> NewTokenView:
    ends = (
        "never expires"
        if token.expires_at is None
        else f"expires in {formats.duration(token.expires_at - now)}"
    )
    if token.role is Role.NODE:
        shown = invitation or text
        return NewTokenView("Invitation for one machine", shown, f"skerry node --join {shown}", ends)
    title = f"New {token.role.value} token"
    return NewTokenView(title, text, "export SKERRY_TOKEN=" + text, ends)


@endpoint(
    "POST",
    PATH + "/{id}/revoke",
    summary="Revoke a token",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revoke(
    context: ConsoleContext, call: RequestContext, path: TokenPath, body: ActionForm
) -> Response:
    """It is refused from the next request on."""
    await context.plane.identity.revoke_token(path.id, actor=call.caller.name)
    return done(f"Token {path.id} is revoked.")


ENDPOINTS = (show_list, create, revoke)
