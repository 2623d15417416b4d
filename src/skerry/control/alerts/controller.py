"""The controller of alerts: on the leader, it evaluates every rule now and then, and notifies receivers.

What fires, and what a receiver was told, is stored under the leader's fence: the next leader goes on with it.
A notification counts as sent when that is written after the receiver took it. So a leader that dies between
the two is followed by one that sends it again, with the same id; none is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import structlog
from prometheus_client.metrics_core import Metric

from skerry.control.alerts import decisions
from skerry.control.alerts.decisions import AlertChange
from skerry.control.alerts.delivery import AlertSender
from skerry.control.alerts.notifications import Notification
from skerry.control.alerts.observations import AlertSources, observe
from skerry.control.alerts.tables import AlertTables
from skerry.control.controller_loop import ControllerLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.leadership.election import LeaderElection
from skerry.control.secrets.vault import SecretVault
from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.alerts import ActiveAlert, AlertRule, AlertState, AlertStatus
from skerry.store.protocol import Expect, Op
from skerry.store.tables.table import Record

log = structlog.get_logger(__name__)

SENT = metrics.counter(
    "skerry_alert_notifications_total",
    "Attempts to notify a receiver of alerts, by its kind and the outcome",
    ["receiver", "outcome"],
)
FIRING = metrics.gauge_family(
    "skerry_alerts_firing", "Alerts of a rule of `skerry alert` that fire", ["alert"]
)
_RETRY: Final = Backoff(first_s=5.0, cap_s=300.0)


class AlertDeps(NamedTuple):
    """What the controller works with."""

    tables: AlertTables
    vault: SecretVault
    events: EventLog
    clock: Clock
    sender: AlertSender
    sources: AlertSources


class AlertController:
    """Evaluates rules every `interval_s`; `url` is that of this server, for people."""

    def __init__(
        self,
        deps: AlertDeps,
        *,
        url: str,
        interval_s: float,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        retry: Backoff = _RETRY,
    ) -> None:
        """Nothing is evaluated before `settled` returns."""
        self._tables, self._vault, self._events, self._clock, self._sender, self._sources = deps
        self._url = url
        self._interval_s = interval_s
        self._settled = settled
        self._retry = retry
        self._loop = ControllerLoop("alerts", deps.clock, *deps.tables, settled=settled)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: evaluate while `leader` leads. The tables must be running."""
        await self._loop.ready()
        await leader.run_while_leading("alerts", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Evaluate for ever, as the leader."""
        await self._loop.refresh()
        await self._settled()
        await self._loop.run_each(partial(self._reconcile, fence))

    async def _reconcile(self, fence: Expect, name: str) -> float | None:
        record = self._tables.rules.get(name)
        if record is None:
            return None
        rule = record.value
        before = self._tables.status(rule)
        now = self._clock.now()
        change = decisions.evaluate(rule, before, observe(rule, self._sources, now), now)
        if change.status != before:
            await self._write(record, change, fence)
        status = change.status
        if alerts := decisions.to_notify(rule, status, now):
            status = await self._notify(rule, status, alerts)
            await self._write(record, AlertChange(status), fence)
        return decisions.next_at(rule, status, self._clock.now(), self._interval_s)

    async def _notify(
        self, rule: AlertRule, status: AlertStatus, alerts: tuple[ActiveAlert, ...]
    ) -> AlertStatus:
        """The status after an attempt to notify."""
        try:
            destination = (await self._vault.value(rule.ref)).decode()
            notification = Notification(rule, alerts, self._url, status.left_out, after=status.notified_at)
            await self._sender.send(destination, notification)
        except errors.SkerryError as error:
            SENT.labels(rule.receiver.value, "failed").inc()
            log.warning("alert.not_sent", alert=rule.name, error=error.message, attempts=status.attempts + 1)
            retry_at = self._clock.now() + self._retry.delay(status.attempts)
            return decisions.not_notified(status, error.message, retry_at)
        SENT.labels(rule.receiver.value, "sent").inc()
        log.info("alert.sent", alert=rule.name, alerts=len(alerts))
        return decisions.notified(status, alerts, self._clock.now())

    async def _write(self, rule: Record[AlertRule], change: AlertChange, fence: Expect) -> None:
        """Raises `Conflict` if the rule or its status was changed by somebody else."""
        rules, states = self._tables
        name = rule.value.name
        ops: list[Op] = [states.put(name, change.status)]
        ops += [self._event(rule.value, AlertState.FIRING, alert) for alert in change.fired]
        ops += [self._event(rule.value, AlertState.RESOLVED, alert) for alert in change.resolved]
        # `evaluate` changes no more than `MAX_ACTIVE` alerts, so that all of it is one transaction.
        await states.commit(ops, [rules.expect(name, rule), states.expect(name, states.get(name))], fence)

    def _event(self, rule: AlertRule, state: AlertState, alert: ActiveAlert) -> Op:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(alert.labels.items()))
        return self._events.put(
            f"alert.{state.value}",
            f"alert/{rule.name}",
            actor="skerry",
            reason=alert.summary,
            condition=rule.condition.value,
            labels=labels,
        )


class AlertMetrics(metrics.UndescribedCollector):
    """What fires, as every server knows it."""

    def __init__(self, tables: AlertTables) -> None:
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        family = FIRING()
        for rule in self._tables.rules.values():
            alerts = self._tables.status(rule).alerts
            family.add_metric([rule.name], sum(one.state is AlertState.FIRING for one in alerts))
        yield family
