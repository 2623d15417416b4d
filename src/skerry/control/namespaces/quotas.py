"""Quotas beside what is used: the records of namespaces, and what this server knows of their use.

For controllers, which do not begin what would be refused, and for people. Both may be a moment behind the
store: what holds is decided by `skerry.control.namespaces.admission`.
"""

from __future__ import annotations

from collections.abc import Callable

from skerry.control.namespaces.usage import NamespaceUsage
from skerry.kit.callbacks import CallbackList
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.namespaces import NO_QUOTA, NamespaceRecord, Quota, QuotaAmounts
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, Table, json_of

PREFIX = "namespace/"


class NamespaceQuotas:
    """The quotas of all namespaces, and what is used of them."""

    def __init__(self, store: Store) -> None:
        self.table: Table[NamespaceRecord] = Table(store, PREFIX, json_of(NamespaceRecord))
        self.usage = NamespaceUsage()
        self._listeners: CallbackList[[Namespace]] = CallbackList()
        self.table.listen(self._record_changed)
        self.usage.listen(self._shrank)

    def quota(self, namespace: Namespace) -> Quota:
        """Its quota; `NO_QUOTA` itself if nothing is limited."""
        record = self.table.value(namespace)
        return NO_QUOTA if record is None or record.quota == NO_QUOTA else record.quota

    def refusal(self, namespace: Namespace, more: QuotaAmounts, freed: QuotaAmounts | None = None) -> str:
        """Why `more` would be refused now, if `freed` is given up with it; empty if it would not be."""
        quota = self.quota(namespace)
        if quota is NO_QUOTA:
            return ""
        used = self.usage.of(namespace)
        return quota.message(namespace, used if freed is None else used - freed, more)

    def check(self, namespace: Namespace, more: QuotaAmounts) -> None:
        """Raise `QuotaExceeded` if `more` would be refused now. Nothing is reserved."""
        if message := self.refusal(namespace, more):
            raise quota_exceeded(namespace, message)

    def listen(self, changed: Callable[[Namespace], None]) -> Callable[[], None]:
        """Call `changed` with a namespace in which there may be room for more now: its quota is another, or
        less of it is used. The result ends that."""
        return self._listeners.add(changed)

    def _record_changed(
        self, before: Record[NamespaceRecord] | None, after: Record[NamespaceRecord] | None
    ) -> None:
        known = after or before
        if known is not None:
            self._listeners.notify(known.value.name)

    def _shrank(self, namespace: Namespace) -> None:
        if self.quota(namespace) is not NO_QUOTA:  # nobody waits for room where there is no limit
            self._listeners.notify(namespace)


def quota_exceeded(namespace: Namespace, message: str) -> errors.QuotaExceeded:
    """The error of a request that is refused, with what helps."""
    return errors.QuotaExceeded(
        f"{message}; delete something there, request less, or have an admin raise the quota "
        f"(`skerry namespace quota {namespace}`)"
    )
