"""`/alert/`: rules that notify somebody. Translation only: `skerry.control.alerts` evaluates and sends."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.alerts.registry import AlertRegistry, AlertView
from skerry.model import errors
from skerry.model.alerts import AlertStatus
from skerry.transport.http.endpoints import Endpoint, RequestContext, Response, endpoint
from skerry.wire import rest_conventions
from skerry.wire.own.alerts import documents
from skerry.wire.own.alerts.documents import AlertDocument, AlertInput, AlertList, AlertTestResult


class AlertContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    alerts: AlertRegistry


class AlertPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=63)]


@endpoint("GET", "/alert/", summary="List alerts")
async def list_alerts(context: AlertContext, call: RequestContext) -> AlertList:
    """Every rule, and what fires."""
    found = tuple(documents.alert_document(view) for view in context.alerts.list())
    return AlertList(len(found), found)


@endpoint("GET", "/alert/{name}", summary="Show an alert", raises=(errors.NotFound,))
async def show_alert(context: AlertContext, call: RequestContext, path: AlertPath) -> AlertDocument:
    """A rule, what it found, and whether its receiver could be notified."""
    return documents.alert_document(context.alerts.get(path.name))


@endpoint(
    "PUT",
    "/alert/{name}",
    summary="Set an alert",
    status=201,
    extra_statuses={200: "There was one of this name, which was changed if it was different."},
    raises=(
        errors.Invalid,
        errors.Unprocessable,
        errors.FailedPrecondition,
        errors.TooLarge,
        errors.Unavailable,
    ),
)
async def set_alert(
    context: AlertContext, call: RequestContext, path: AlertPath, body: AlertInput
) -> AlertDocument | Response:
    """Make a rule, or change the one of this name. The leader evaluates it from now on."""
    view, is_new = await context.alerts.set(body.request(path.name), actor=call.caller.name)
    return rest_conventions.respond(documents.alert_document(view), 201 if is_new else 200)


@endpoint(
    "DELETE",
    "/alert/{name}",
    summary="Remove an alert",
    raises=(errors.NotFound, errors.Unavailable),
)
async def delete_alert(context: AlertContext, call: RequestContext, path: AlertPath) -> AlertDocument:
    """Its receiver is told nothing more."""
    rule = await context.alerts.delete(path.name, actor=call.caller.name)
    return documents.alert_document(AlertView(rule, AlertStatus(rule.id)))


@endpoint(
    "POST",
    "/alert/{name}/test",
    summary="Test an alert",
    raises=(errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
)
async def test_alert(context: AlertContext, call: RequestContext, path: AlertPath) -> AlertTestResult:
    """Send a notification with an example now, from this server."""
    await context.alerts.test(path.name)
    return AlertTestResult(True, context.alerts.get(path.name).rule.shown)


ENDPOINTS: tuple[Endpoint, ...] = (list_alerts, show_alert, set_alert, delete_alert, test_alert)
