"""The registry of alert rules: set, tested and removed by admins. Destinations are sealed, and never shown.

`skerry.control.alerts.controller` evaluates them on the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from skerry.control.alerts.decisions import AlertSubject
from skerry.control.alerts.delivery import AlertSender
from skerry.control.alerts.notifications import Notification
from skerry.control.alerts.observations import AlertSources, observe
from skerry.control.alerts.tables import AlertTables
from skerry.control.events.log import EventLog
from skerry.control.secrets import vault as vaults
from skerry.control.secrets.vault import SecretVault
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.alerts import (
    MAX_RULES,
    ActiveAlert,
    AlertCondition,
    AlertRule,
    AlertState,
    AlertStatus,
    ReceiverKind,
    check_destination,
    digest_of,
)
from skerry.model.ids import Namespace
from skerry.store.protocol import Op
from skerry.store.tables.table import Record


class AlertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as an admin wants it."""

    name: str
    condition: AlertCondition
    receiver: ReceiverKind
    destination: str
    for_s: float = 0.0
    resolve_after_s: float = 60.0
    repeat_s: float = 4 * 3600.0
    threshold: float | None = None
    namespace: Namespace | None = None

    def __repr__(self) -> str:
        return f"AlertRequest({self.name!r}, {self.condition!r}, {self.receiver!r})"  # the rest holds tokens

    def rule(self, id: str, created_at: float, version: int) -> AlertRule:
        """The record; raises `Invalid`."""
        return AlertRule(
            id=id,
            name=self.name,
            condition=self.condition,
            receiver=self.receiver,
            shown=check_destination(self.receiver, self.destination),
            digest=digest_of(id, self.destination),
            created_at=created_at,
            for_s=self.for_s,
            resolve_after_s=self.resolve_after_s,
            repeat_s=self.repeat_s,
            threshold=self.threshold,
            namespace=self.namespace,
            version=version,
            request_id=logs.request_id(),
        )


class AlertView(NamedTuple):
    """A rule and what was found for it."""

    rule: AlertRule
    status: AlertStatus


class AlertRegistry:
    """The rules of one cloud."""

    def __init__(
        self,
        tables: AlertTables,
        vault: SecretVault,
        events: EventLog,
        clock: Clock,
        sender: AlertSender,
        sources: AlertSources,
        *,
        url: str,
    ) -> None:
        """`url` is that of this server, for people."""
        self._tables = tables
        self._vault = vault
        self._events = events
        self._clock = clock
        self._sender = sender
        self._sources = sources
        self._url = url
        self.new_id: Callable[[float], str] = ulid.new_id

    async def set(self, request: AlertRequest, *, actor: str) -> tuple[AlertView, bool]:
        """Make the rule, or change the one of this name; and whether it is new. Setting it again as it is
        changes nothing."""
        self._sources.check(request.condition)
        rules = self._tables.rules
        while True:
            record = await rules.read(request.name)
            after, is_changed = self._after(request, record)
            if record is not None and not is_changed:
                return self._view(record.value), False
            self._sender.check(request.receiver, request.destination)
            if record is None and len(rules) >= MAX_RULES:
                raise errors.TooLarge(f"there are {MAX_RULES} alerts, and no more are taken; remove some")
            kind = "created" if record is None else "changed"
            ops: list[Op] = [rules.put(after.name, after), self._event(kind, after, actor)]
            expect = [rules.expect(after.name, record)]
            if record is None or record.value.version != after.version:
                write = await self._vault.seal(after.ref, request.destination.encode())
                ops.append(write.put)
                expect.append(write.expect)
                if record is not None:
                    ops.append(vaults.delete_value(record.value.ref))
            try:
                await rules.commit(ops, expect)
            except errors.Conflict:
                continue  # somebody was quicker, or the key of secrets was rotated
            return self._view(after), record is None

    def _after(self, request: AlertRequest, record: Record[AlertRule] | None) -> tuple[AlertRule, bool]:
        now = self._clock.now()
        if record is None:
            return request.rule(self.new_id(now), now, 1), True
        before = record.value
        is_same = before.digest == digest_of(before.id, request.destination)
        after = request.rule(before.id, before.created_at, before.version if is_same else before.version + 1)
        return after, msgspec.structs.replace(after, request_id=before.request_id) != before

    def get(self, name: str) -> AlertView:
        """Raises `NotFound`."""
        rule = self._tables.rules.value(name)
        if rule is None:
            raise unknown(name)
        return self._view(rule)

    def list(self) -> list[AlertView]:
        """All, by name."""
        return [self._view(rule) for rule in self._tables.rules.values()]

    async def delete(self, name: str, *, actor: str) -> AlertRule:
        """With what it knows. Its receiver is told nothing."""
        rules, states = self._tables
        while True:
            record = await rules.read(name)
            if record is None:
                raise unknown(name)
            rule = record.value
            ops: list[Op] = [
                rules.delete(name),
                states.delete(name),
                vaults.delete_value(rule.ref),
                self._event("deleted", rule, actor),
            ]
            try:
                await rules.commit(ops, [rules.expect(name, record)])
            except errors.Conflict:
                continue
            return rule

    async def test(self, name: str) -> None:
        """Send a notification with an example now, from this server; raises why it was not taken."""
        rule = self.get(name).rule
        now = self._clock.now()
        subject = next(observe(rule, self._sources, now), AlertSubject({}, f"an example of {rule.condition}"))
        example = ActiveAlert(
            {**subject.labels, "test": "true"}, subject.summary, AlertState.FIRING, now, fired_at=now
        )
        destination = await self._vault.value(rule.ref)
        await self._sender.send(destination.decode(), Notification(rule, (example,), self._url, is_test=True))

    def _view(self, rule: AlertRule) -> AlertView:
        return AlertView(rule, self._tables.status(rule))

    def _event(self, kind: str, rule: AlertRule, actor: str) -> Op:
        return self._events.put(
            f"alert.{kind}",
            f"alert/{rule.name}",
            actor=actor,
            request_id=rule.request_id,
            condition=rule.condition.value,
            receiver=rule.receiver.value,
        )


def unknown(name: str) -> errors.NotFound:
    return errors.NotFound(f"there is no alert {name[:64]!r}; `skerry alert list` lists those there are")
