"""How many instances are ready, by namespace, for `/metrics`; counted from changes of the instance table."""

from __future__ import annotations

from collections import Counter

from skerry.control.instance_index import InstanceRecord
from skerry.kit import metrics
from skerry.model.ids import Namespace

READY = metrics.gauge(
    "skerry_instances_ready", "Instances that run and have passed their health checks", ["namespace"]
)


class ReadyCount:
    """Listens to an instance table."""

    def __init__(self) -> None:
        self._counts: Counter[Namespace] = Counter()

    def update(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        was = before is not None and before.value.is_ready
        now = after is not None and after.value.is_ready
        if was is now:
            return
        record = after or before
        assert record is not None
        namespace = record.value.namespace
        self._counts[namespace] += 1 if now else -1
        if self._counts[namespace]:
            READY.labels(namespace).set(self._counts[namespace])
        else:  # namespaces come and go, and would otherwise stay here for ever
            del self._counts[namespace]
            READY.remove(namespace)
