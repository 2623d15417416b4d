"""What receivers get: JSON as Alertmanager's webhooks have it (version 4), or a mail in plain text. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from email.message import EmailMessage
from typing import Any, Final

import msgspec

from skerry.kit.clock import iso
from skerry.model.alerts import ActiveAlert, AlertRule, AlertState

_NEVER: Final = "0001-01-01T00:00:00Z"  # as Alertmanager writes the end of what fires


class Notification(msgspec.Struct, frozen=True):
    """A message about a rule."""

    rule: AlertRule
    alerts: tuple[ActiveAlert, ...]
    url: str  # of this cloud, for people
    left_out: int = 0
    is_test: bool = False
    after: float | None = None  # when the receiver took the notification before this one

    @property
    def state(self) -> AlertState:
        """Firing while one of its alerts is."""
        is_firing = any(alert.state is AlertState.FIRING for alert in self.alerts)
        return AlertState.FIRING if is_firing else AlertState.RESOLVED

    @property
    def id(self) -> str:
        """The same for a message that is sent again because its first delivery may have failed, and another
        for a repetition, which receivers are to take."""
        parts = [self.rule.id, str(self.after)]
        parts += [f"{one.fingerprint(self.rule.id)} {one.state} {one.fired_at}" for one in self.alerts]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def labels_of(rule: AlertRule, alert: ActiveAlert) -> dict[str, str]:
    return {"alertname": rule.name, "condition": rule.condition.value, **alert.labels}


def payload(notification: Notification) -> dict[str, Any]:
    """The body of a webhook."""
    rule, alerts = notification.rule, notification.alerts
    documents = [_document(notification, alert) for alert in alerts]
    return {
        "version": "4",
        "groupKey": f'{{}}:{{alertname="{rule.name}"}}',
        "truncatedAlerts": notification.left_out,
        "status": notification.state.value,
        "receiver": rule.name,
        "groupLabels": {"alertname": rule.name},
        "commonLabels": _common([one["labels"] for one in documents]),
        "commonAnnotations": _common([one["annotations"] for one in documents]),
        "externalURL": notification.url,
        "alerts": documents,
    }


def _document(notification: Notification, alert: ActiveAlert) -> dict[str, Any]:
    rule = notification.rule
    started_at = alert.since if alert.fired_at is None else alert.fired_at
    ends_at = _NEVER if alert.resolved_at is None else iso(alert.resolved_at)
    summary = f"[test] {alert.summary}" if notification.is_test else alert.summary
    return {
        "status": alert.state.value,
        "labels": labels_of(rule, alert),
        "annotations": {"summary": summary, "description": summary},
        "startsAt": iso(started_at),
        "endsAt": ends_at,
        "generatorURL": notification.url,
        "fingerprint": alert.fingerprint(rule.id),
    }


def mail(notification: Notification, *, sender: str, to: Sequence[str]) -> EmailMessage:
    """The same as a mail."""
    rule, alerts = notification.rule, notification.alerts
    count = sum(alert.state is notification.state for alert in alerts)
    state = "TEST" if notification.is_test else f"{notification.state.value.upper()}:{count}"
    message = EmailMessage()
    message["Subject"] = f"[{state}] {rule.name} ({rule.condition})"
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Message-ID"] = f"<{notification.id}@skerry.alerts>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Skerry-Notification"] = notification.id
    lines = []
    for alert in alerts:
        at = alert.resolved_at if alert.state is AlertState.RESOLVED else alert.fired_at
        lines.append(f"{alert.state.value.upper()}  {alert.summary}")
        lines.append(f"    since {iso(alert.since)}, {alert.state} at {iso(at or alert.since)}")
        lines += [f"    {key}: {value}" for key, value in sorted(alert.labels.items())]
        lines.append("")
    if notification.left_out:
        lines += [f"and {notification.left_out} more", ""]
    lines.append(f"Sent by Skerry at {notification.url}; 'skerry alert describe {rule.name}' shows the rule.")
    message.set_content("\n".join(lines) + "\n")
    return message


def _common(each: Sequence[dict[str, str]]) -> dict[str, str]:
    first, *others = each or [{}]
    return {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
