"""The records of alerts.

alert/NAME          a rule, without its destination
alert-state/NAME    what fires, and what its receiver was told
sealed/alert/...    the destination, sealed
"""

from __future__ import annotations

from typing import NamedTuple

from skerry.model.alerts import AlertRule, AlertStatus
from skerry.store.protocol import Store
from skerry.store.tables.table import Table, json_of


class AlertTables(NamedTuple):
    """Both tables of one cloud."""

    rules: Table[AlertRule]
    states: Table[AlertStatus]

    @classmethod
    def of(cls, store: Store) -> AlertTables:
        return cls(
            Table(store, "alert/", json_of(AlertRule)), Table(store, "alert-state/", json_of(AlertStatus))
        )

    def status(self, rule: AlertRule) -> AlertStatus:
        """The status of a rule, as far as it is known here."""
        status = self.states.value(rule.name)
        return status if status is not None and status.rule == rule.id else AlertStatus(rule.id)
