"""What becomes of the alerts of a rule, and when its receiver is notified. Pure.

    pending --for_s--> firing --not seen for resolve_after_s--> resolved --notified--> gone

A receiver is told of every alert that fires and of its end, also if that comes before the first could be
delivered. One notification has all alerts of the rule that fire, and those that have ended since the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from skerry.model.alerts import MAX_ACTIVE, ActiveAlert, AlertRule, AlertState, AlertStatus, fingerprint

# What could not be delivered for so long after its end is not delivered any more.
_FORGOTTEN_S: Final = 86_400.0


class AlertSubject(NamedTuple):
    """Something for which the condition of a rule holds."""

    labels: Mapping[str, str]
    summary: str


class AlertChange(NamedTuple):
    """The status after an evaluation, and the alerts that began to fire or ended by it."""

    status: AlertStatus
    fired: tuple[ActiveAlert, ...] = ()
    resolved: tuple[ActiveAlert, ...] = ()


def evaluate(
    rule: AlertRule, status: AlertStatus, observed: Iterable[AlertSubject], now: float
) -> AlertChange:
    """The alerts of `rule`, with what is `observed` now."""
    found = {fingerprint(rule.id, subject.labels): subject for subject in observed}
    alerts: list[ActiveAlert] = []
    fired: list[ActiveAlert] = []
    resolved: list[ActiveAlert] = []
    for alert in status.alerts:
        after = _step(rule, alert, found.pop(alert.fingerprint(rule.id), None), now)
        if after is None:
            continue
        alerts.append(after)
        if after.state is not alert.state:
            (fired if after.state is AlertState.FIRING else resolved).append(after)
    left_out = 0
    for key in sorted(found):
        if len(alerts) >= MAX_ACTIVE:
            left_out += 1
            continue
        subject = found[key]
        begun = ActiveAlert(dict(subject.labels), subject.summary, AlertState.PENDING, now)
        after = _begin(rule, begun, now)
        alerts.append(after)
        if after.state is AlertState.FIRING:
            fired.append(after)
    changed = replace(status, alerts=tuple(alerts), left_out=left_out)
    return AlertChange(changed, tuple(fired), tuple(resolved))


def _begin(rule: AlertRule, alert: ActiveAlert, now: float) -> ActiveAlert:
    if now - alert.since < rule.for_s:
        return alert
    return replace(alert, state=AlertState.FIRING, fired_at=now)


def _step(
    rule: AlertRule, alert: ActiveAlert, subject: AlertSubject | None, now: float
) -> ActiveAlert | None:
    """What an alert is now; None: it is gone."""
    match alert.state:
        case AlertState.PENDING:
            return None if subject is None else _begin(rule, replace(alert, summary=subject.summary), now)
        case AlertState.FIRING if subject is not None:
            return replace(alert, summary=subject.summary, absent_since=None)
        case AlertState.FIRING:
            absent_since = now if alert.absent_since is None else alert.absent_since
            alert = replace(alert, absent_since=absent_since)
            if now - absent_since < rule.resolve_after_s:
                return alert
            return replace(alert, state=AlertState.RESOLVED, resolved_at=absent_since)
        case _ if subject is not None:  # it is back before anybody was told of its end
            return replace(
                alert, state=AlertState.FIRING, summary=subject.summary, absent_since=None, resolved_at=None
            )
        case _:
            ended_at = alert.since if alert.resolved_at is None else alert.resolved_at
            return None if now - ended_at >= _FORGOTTEN_S else alert


def to_notify(rule: AlertRule, status: AlertStatus, now: float) -> tuple[ActiveAlert, ...]:
    """The alerts of the notification that is due now; none: there is none."""
    if now < status.retry_at:
        return ()
    active = tuple(alert for alert in status.alerts if alert.state is not AlertState.PENDING)
    if any(alert.is_due for alert in active):
        return active
    is_firing = any(alert.state is AlertState.FIRING for alert in active)
    notified_at = status.notified_at
    if is_firing and notified_at is not None and now - notified_at >= rule.repeat_s:
        return active
    return ()


def notified(status: AlertStatus, sent: Iterable[ActiveAlert], now: float) -> AlertStatus:
    """After the receiver took a notification with the alerts `sent`."""
    known = {(alert.fingerprint(status.rule), alert.fired_at): alert.state for alert in sent}
    alerts = []
    for alert in status.alerts:
        state = known.get((alert.fingerprint(status.rule), alert.fired_at))
        after = alert if state is None else replace(alert, notified_state=state)
        if after.state is not AlertState.RESOLVED or after.is_due:
            alerts.append(after)
    return replace(status, alerts=tuple(alerts), notified_at=now, attempts=0, retry_at=0.0, error="")


def not_notified(status: AlertStatus, error: str, retry_at: float) -> AlertStatus:
    """After an attempt that failed."""
    return replace(status, attempts=status.attempts + 1, retry_at=retry_at, error=error)


def next_at(rule: AlertRule, status: AlertStatus, now: float, interval_s: float) -> float:
    """When to evaluate the rule again: after the interval, or when something is due before."""
    times = [now + interval_s]
    if status.retry_at > now:
        times.append(status.retry_at)
    for alert in status.alerts:
        if alert.state is AlertState.PENDING:
            times.append(alert.since + rule.for_s)
        elif alert.state is AlertState.FIRING and alert.absent_since is not None:
            times.append(alert.absent_since + rule.resolve_after_s)
    return max(now, min(times))
