"""Certificates: of the cloud's CA, those that it issued to servers, nodes and clients, and those of routes,
with the days that are left. What ends first is first.

Readers see the certificates of routes in their namespaces; admins see all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Badge, Cell, EmptyState, Table, Tone
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.pages.instances import node_names
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Certificate
from skerry.model.tls_certificates import TlsCertificate
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/certificates"
REVOKE = f"POST {PATH}/{{serial}}/revoke"
_SOON_S = 14 * 86400.0
# Skerry renews these by itself: they need attention only if that has failed for most of their time.
_RENEWED = ("server", "node", "edge")
_LAST_PART = 0.15


class IssuedCertificatePath(msgspec.Struct, frozen=True):
    serial: Annotated[str, Meta(min_length=1, max_length=64)]


class CertificateRow(msgspec.Struct, frozen=True):
    """A certificate of any kind."""

    name: str
    kind: str
    subject: str  # whom it is for
    not_after: float  # 0: there is none yet
    status: Badge
    note: str = ""
    serial: str = ""
    can_revoke: bool = False


@endpoint("GET", PATH, summary="Certificates", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """What ends first is first."""
    now = context.plane.clock.now()
    listed = context.identity.route_certificates.list(namespace=query.listed, limit=EVERYTHING).items
    rows = [route_row(one, now) for one in listed]
    # What the CA issued is of the whole cloud: it has no namespace.
    if query.listed is None and may(call.caller, REVOKE):
        authority = context.plane.authority
        rows.append(authority_row(authority.fingerprint, authority.not_after, now))
        rows += issued_rows(context.plane.identity.certificates(), node_names(context), now)
    head = PageHead(
        "Certificates", f"GET {PATH}", (Topic.IDENTITY,), "skerry certificate list && skerry tls list"
    )
    table = certificate_table(rows, query, now)
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


def route_row(one: TlsCertificate, now: float) -> CertificateRow:
    """A certificate of routes."""
    note = one.error
    if not one.version:
        status = Badge("FAILED", Tone.BAD) if one.error else Badge("PENDING", Tone.BUSY)
    else:
        status = _status(one.not_before, one.not_after, now, is_renewed=one.renew_at > 0)
    return CertificateRow(
        one.name,
        "route",
        ", ".join(one.domains),
        one.not_after,
        status,
        note or f"from {one.source.value}, namespace {one.namespace}",
        one.serial,
    )


def authority_row(fingerprint: str, not_after: float, now: float) -> CertificateRow:
    """The CA of this cloud, which cannot be revoked."""
    return CertificateRow(
        "CA of this cloud",
        "ca",
        f"SHA-256 {fingerprint[:16]}…",
        not_after,
        _status(0.0, not_after, now, is_renewed=False),
    )


def issued_rows(
    certificates: Iterable[Certificate], names: Mapping[str, str], now: float
) -> list[CertificateRow]:
    """Those that the CA issued; one that was renewed counts no more, and is left out. `names` are those of
    nodes, by id."""
    return [
        CertificateRow(
            names.get(one.name, one.name),
            "client" if one.role not in _RENEWED else one.role,
            _subject(one),
            one.not_after,
            Badge("REVOKED", Tone.QUIET)
            if one.revoked_at is not None
            else _status(one.not_before, one.not_after, now, is_renewed=one.role in _RENEWED),
            "" if one.namespaces is None else f"namespaces {', '.join(one.namespaces)}",
            one.serial,
            can_revoke=one.revoked_at is None,
        )
        for one in certificates
        if not one.renewed_by or one.revoked_at is not None
    ]


def _subject(one: Certificate) -> str:
    if one.role == "node":
        return f"node {one.node or one.name}"
    return ", ".join(one.hosts[:3]) if one.role in _RENEWED else f"role {one.role}"


def _status(not_before: float, not_after: float, now: float, *, is_renewed: bool) -> Badge:
    left = not_after - now
    if left <= 0:
        return Badge("EXPIRED", Tone.BAD)
    soon = (not_after - not_before) * _LAST_PART if is_renewed else _SOON_S
    return Badge("EXPIRES SOON", Tone.WARNING) if left < soon else Badge("VALID", Tone.GOOD)


def certificate_table(rows: Sequence[CertificateRow], query: ListQuery, now: float) -> Table:
    """The list, what ends first at the top."""
    columns = (
        TableColumn("Name", "name", lambda one: one.name),
        TableColumn("Kind", "kind", lambda one: one.kind, minor=True),
        TableColumn("For", "for", lambda one: one.subject, minor=True),
        TableColumn("Status", "status", lambda one: one.status.text),
        TableColumn("Ends in", "ends", lambda one: one.not_after or float("inf"), number=True),
        TableColumn("Serial", "", lambda one: one.serial, minor=True),
        TableColumn("", "", lambda one: 0),
    )

    def cells(one: CertificateRow) -> tuple[Cell, ...]:
        left = formats.duration(one.not_after - now)
        return (
            Cell(one.name, note=one.note),
            Cell(one.kind),
            Cell(one.subject),
            Cell(badge=one.status),
            Cell(left, until=one.not_after) if one.not_after else Cell("–"),
            Cell(one.serial[:16], mono=True),
            Cell(actions=(_revoke_action(one),) if one.can_revoke else ()),
        )

    shape = TableShape(
        "certificates",
        "Certificates",
        PATH,
        columns,
        lambda one: f"{one.name} {one.kind} {one.subject} {one.serial} {one.status.text} {one.note}",
        cells,
        EmptyState(
            "No certificates of routes",
            "A route of a host name gets one by itself. You can also import one.",
            "skerry tls import shop.example.org --cert fullchain.pem --key key.pem",
        ),
    )
    ordered = sorted(rows, key=lambda one: (one.status.tone is Tone.QUIET, one.not_after or 0.0))
    return build_table(shape, ordered, query)


def _revoke_action(one: CertificateRow) -> Action:
    whole = (
        " All certificates of that node are refused, and it cannot renew them." if one.kind == "node" else ""
    )
    return Action(
        f"revoke-{one.serial}",
        "Revoke",
        f"{PATH}/{one.serial}/revoke",
        f"Revoke the {one.kind} certificate of {one.name}?{whole}",
        cli("certificate", "revoke", one.serial),
        is_destructive=True,
    )


@endpoint(
    "POST",
    PATH + "/{serial}/revoke",
    summary="Revoke a certificate",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revoke(
    context: ConsoleContext, call: RequestContext, path: IssuedCertificatePath, body: ActionForm
) -> Response:
    """If it is a node's, all of that node's."""
    await context.plane.identity.revoke_certificate(path.serial, actor=call.caller.name)
    return done(f"Certificate {path.serial} is revoked.")


ENDPOINTS = (show_list, revoke)
