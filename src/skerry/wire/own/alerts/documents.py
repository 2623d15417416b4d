"""Documents of alert rules. The destination of a webhook is in requests alone: its URL may hold a token."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.alerts.registry import AlertRequest, AlertView
from skerry.model import errors
from skerry.model.alerts import (
    MAX_DESTINATION,
    THRESHOLDS,
    ActiveAlert,
    AlertCondition,
    AlertRule,
    ReceiverKind,
)
from skerry.model.ids import Namespace, check_namespace


class AlertInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule. Fields that are left out get their defaults."""

    on: Annotated[AlertCondition, Meta(description="The condition")]
    webhook: Annotated[
        str,
        Meta(max_length=MAX_DESTINATION, description="URL that notifications are posted to; never shown"),
    ] = ""
    mail: Annotated[
        str, Meta(max_length=MAX_DESTINATION, description="Mail addresses, separated by commas")
    ] = ""
    for_s: Annotated[float, Meta(description="So long must the condition hold before it fires")] = 0.0
    resolve_after_s: Annotated[float, Meta(description="And so long not hold before it is resolved")] = 60.0
    repeat_s: Annotated[float, Meta(description="While it fires, it is notified of again after so long")] = (
        4 * 3600.0
    )
    threshold: Annotated[
        float | None,
        Meta(
            description="; ".join(
                f"`{condition}`: {known.unit}"
                + ("" if known.default is None else f" (default {known.default:g})")
                for condition, known in THRESHOLDS.items()
            )
        ),
    ] = None
    namespace: Annotated[
        str, Meta(max_length=128, description="Only objects of this namespace; empty: of all")
    ] = ""

    def request(self, name: str) -> AlertRequest:
        """Raises `Invalid` unless it names one receiver."""
        if bool(self.webhook) is bool(self.mail):
            raise errors.Invalid("an alert has one receiver: `webhook` or `mail`", field="webhook")
        return AlertRequest(
            name=name,
            condition=self.on,
            receiver=ReceiverKind.WEBHOOK if self.webhook else ReceiverKind.MAIL,
            destination=self.webhook or self.mail,
            for_s=self.for_s,
            resolve_after_s=self.resolve_after_s,
            repeat_s=self.repeat_s,
            threshold=self.threshold,
            namespace=Namespace(check_namespace(self.namespace)) if self.namespace else None,
        )


class ActiveAlertDocument(msgspec.Struct, frozen=True):
    """A subject of a rule for which its condition holds, or held until lately."""

    state: Annotated[str, Meta(description="`pending`, `firing`, or `resolved` until the receiver knows")]
    labels: dict[str, str]
    summary: str
    since: float
    fired_at: float | None
    resolved_at: float | None


class AlertDocument(msgspec.Struct, frozen=True):
    """A rule, without its destination, and what it found."""

    name: str
    id: str
    on: str
    receiver: Annotated[str, Meta(description="`webhook` or `mail`")]
    destination: Annotated[
        str, Meta(description="Scheme and host of a webhook, without the rest; addresses of mail")
    ]
    destination_digest: Annotated[
        str, Meta(description="SHA-256 of `id`, a line feed and the destination, in hex, cut to 32 digits")
    ]
    for_s: float
    resolve_after_s: float
    repeat_s: float
    threshold: Annotated[float | None, Meta(description="That counts; null: the condition has none")]
    namespace: Annotated[str, Meta(description="Empty: all")]
    created_at: float
    state: Annotated[str, Meta(description="`ok`, `pending` or `firing`")]
    alerts: tuple[ActiveAlertDocument, ...]
    left_out: Annotated[int, Meta(description="Subjects beyond the limit of alerts of one rule")]
    notified_at: Annotated[float | None, Meta(description="When the receiver last took a notification")]
    attempts: Annotated[int, Meta(description="To notify that failed since")]
    error: Annotated[str, Meta(description="Of the last attempt; empty: it was taken")]


class AlertList(msgspec.Struct, frozen=True):
    """All rules, by name."""

    count: int
    alerts: tuple[AlertDocument, ...]


class AlertTestResult(msgspec.Struct, frozen=True):
    """The receiver took the notification."""

    delivered: bool
    destination: str


def alert_document(view: AlertView) -> AlertDocument:
    rule, status = view
    return AlertDocument(
        name=rule.name,
        id=rule.id,
        on=rule.condition.value,
        receiver=rule.receiver.value,
        destination=rule.shown,
        destination_digest=rule.digest,
        for_s=rule.for_s,
        resolve_after_s=rule.resolve_after_s,
        repeat_s=rule.repeat_s,
        threshold=_threshold(rule),
        namespace=rule.namespace or "",
        created_at=rule.created_at,
        state=status.state,
        alerts=tuple(map(_active, status.alerts)),
        left_out=status.left_out,
        notified_at=status.notified_at,
        attempts=status.attempts,
        error=status.error,
    )


def _active(alert: ActiveAlert) -> ActiveAlertDocument:
    return ActiveAlertDocument(
        alert.state.value, alert.labels, alert.summary, alert.since, alert.fired_at, alert.resolved_at
    )


def _threshold(rule: AlertRule) -> float | None:
    return rule.limit if rule.condition in THRESHOLDS else None
