"""The volumes of this node as its agent sees them: orders in, reports out, work in threads.

The session passes orders (`skerry.node.agent.session`) and sends the reports; containers wait here until a
volume of theirs is created. An order that fails is tried again, with pauses that grow, until another one
comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import VolumeId
from skerry.model.node_messages import VolumeUpdate
from skerry.model.volumes import VolumeOrder, VolumeReport, VolumeUsage
from skerry.node.volumes.store import VolumeStore

log = structlog.get_logger(__name__)

_AGAIN: Final = Backoff(first_s=1.0, cap_s=60.0)
_MEASURE_S: Final = 30.0  # between two measurements of all volumes
_AT_ONCE: Final = 4  # volumes that are created at the same time

USED = metrics.gauge("skerry_volume_used_bytes", "Bytes in use of a volume of this node", ["volume", "name"])
SIZE = metrics.gauge(
    "skerry_volume_size_bytes", "Bytes that a volume of this node can hold", ["volume", "name"]
)


@dataclass(slots=True)
class _Work:
    """The last order for a volume, and what became of it."""

    order: VolumeOrder
    done: asyncio.Event
    failure: str = ""


class NodeVolumes:
    """The volumes of this node."""

    def __init__(
        self,
        store: VolumeStore,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.store = store
        self._sleep = sleep
        self._work: dict[VolumeId, _Work] = {}
        self._tasks: dict[VolumeId, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._usage: dict[VolumeId, VolumeUsage] = {}
        self._losses: dict[VolumeId, str] = {}
        self._changed: dict[VolumeId, None] = {}  # to be reported
        self._has_reports = asyncio.Event()
        self._disk_bytes = store.disk_bytes()

    @property
    def disk_bytes(self) -> int:
        """What all volumes occupy on the disk of the node."""
        return self._disk_bytes

    def apply(self, update: VolumeUpdate) -> None:
        """Carry out these orders, concurrently."""
        for order in update.orders:
            work = self._work.get(order.id)
            if work is not None and order == work.order:
                self._report(order.id)  # it may have been lost with the last session
                continue
            if work is not None and order.generation < work.order.generation:
                log.warning("volume.order_outdated", volume=order.id, generation=order.generation)
                continue
            if work is not None and (task := self._tasks.pop(order.id, None)) is not None:
                task.cancel()  # what it does in a thread is finished first, under the lock of the volume
                work.done.set()  # who waits for it waits for the next
            self._work[order.id] = work = _Work(order, asyncio.Event())
            self._tasks[order.id] = asyncio.create_task(self._carry_out(work), name=f"volume {order.id}")

    async def _carry_out(self, work: _Work) -> None:
        order, failures = work.order, 0
        while True:
            try:
                async with self._slots:
                    await asyncio.to_thread(self.store.apply, order)
                    self._disk_bytes = await asyncio.to_thread(self.store.disk_bytes)
            except errors.Conflict as error:  # a newer order was carried out before
                work.failure = error.message
                work.done.set()
                log.warning("volume.order_outdated", volume=order.id, reason=error.message)
                return
            except (errors.SkerryError, OSError) as error:
                failure = error.message if isinstance(error, errors.SkerryError) else str(error)
                if failure != work.failure:
                    log.warning("volume.failed", volume=order.id, name=order.name, reason=failure)
                work.failure = failure
                work.done.set()
                self._report(order.id)
                await self._sleep(_AGAIN.delay(failures))
                failures += 1
                continue
            work.failure = ""
            if order.is_deleted:
                self._forget(order)
            else:
                await self._measure(order.id)
            work.done.set()
            self._report(order.id)
            return

    def _forget(self, order: VolumeOrder) -> None:
        self._usage.pop(order.id, None)
        self._losses.pop(order.id, None)
        for gauge in (USED, SIZE):
            with contextlib.suppress(KeyError):  # it was never measured
                gauge.remove(order.id, order.name)

    async def ready(self, id: VolumeId) -> None:
        """Wait while the volume is being created. Raises Unavailable if there is none."""
        while not self.store.has(id) and (work := self._work.get(id)) is not None:
            await work.done.wait()
            if self._work.get(id) is not work:
                continue
            if work.failure:
                raise errors.Unavailable(f"volume {work.order.name}: {work.failure}")
            break
        if not self.store.has(id):
            raise errors.Unavailable(f"volume {id} is not on this node yet")

    def mount(self, id: VolumeId, *, read_only: bool, exclusive: bool) -> int:
        """A descriptor of a detached mount. Blocks. Raises Unavailable, NotFound."""
        return self.store.mount(id, read_only=read_only, exclusive=exclusive)

    # Reports

    def inventory(self) -> list[VolumeReport]:
        """All volumes, and those that were ordered; for a new session. They need not be reported again."""
        self._changed.clear()
        self._has_reports.clear()
        return [self._report_of(id) for id in sorted({*self.store.ids(), *self._work})]

    def take_reports(self) -> list[VolumeReport]:
        """Volumes that changed since the last call."""
        changed, self._changed = self._changed, {}
        self._has_reports.clear()
        return [self._report_of(id) for id in changed]

    async def wait_for_reports(self) -> None:
        await self._has_reports.wait()

    def _report(self, id: VolumeId) -> None:
        self._changed[id] = None
        self._has_reports.set()

    def _report_of(self, id: VolumeId) -> VolumeReport:
        work, usage = self._work.get(id), self._usage.get(id, VolumeUsage())
        if not self.store.has(id):
            order = work.order if work is not None else None
            is_gone = order is not None and order.is_deleted and not (work and work.failure)
            return VolumeReport(
                id,
                order.generation if order is not None else 0,
                is_ready=False,
                is_gone=is_gone,
                reason=(work.failure if work is not None else "")
                or ("" if is_gone else "it is being created"),
                receipt=order.receipt if order is not None else b"",
            )
        record = self.store.record(id)
        failure = work.failure if work is not None and work.order.is_deleted else self.store.loss(id)
        return VolumeReport(
            id,
            record.generation,
            is_ready=not failure,
            reason=failure,
            used_bytes=usage.used_bytes,
            capacity_bytes=usage.capacity_bytes,
            receipt=record.receipt,
        )

    async def run(self) -> None:
        """Measure how full volumes are, for ever."""
        while True:
            for id in self.store.ids():
                before = self._usage.get(id), self._losses.get(id, "")
                await self._measure(id)
                self._losses[id] = self.store.loss(id)
                if (self._usage.get(id), self._losses[id]) != before:
                    self._report(id)
            await self._sleep(_MEASURE_S)

    async def _measure(self, id: VolumeId) -> None:
        try:
            usage = await asyncio.to_thread(self.store.usage, id)
            record = self.store.record(id)
        except (errors.SkerryError, OSError) as error:
            log.debug("volume.not_measured", volume=id, error=str(error))
            return
        self._usage[id] = usage
        USED.labels(id, record.name).set(usage.used_bytes)
        SIZE.labels(id, record.name).set(usage.capacity_bytes)

    async def close(self) -> None:
        """Stop; volumes stay as they are, mounted where they are."""
        await cancel_and_wait(self._tasks.values())
