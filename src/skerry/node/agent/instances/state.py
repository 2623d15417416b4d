"""What the node remembers of an instance: the order, what became of it, and what is still to be told.

A `LocalInstance` is all of that for one generation of one instance, and one file on disk (`records`). Changes
are made by `steps`, which decides, and by `apply`, which takes orders; both return a new copy and touch
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from skerry.model.containers import ContainerSpec
from skerry.model.ids import InstanceId
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus

# Reports of one instance that wait. What goes round and round while the control plane is away for long is
# told by its first and last rounds; `restarts` counts them all.
MAX_PENDING = 100
_MAX_REASON = 500


class LocalStatus(msgspec.Struct, frozen=True):
    """What became of an instance in this generation; SCHEDULED: nothing yet."""

    status: InstanceStatus = InstanceStatus.SCHEDULED
    at: float = 0.0
    reason: str = ""
    exit_code: int | None = None
    ip: str = ""
    restarts: int = 0  # all of them
    streak: int = 0  # tries in a row that count against the budget
    retry_at: float | None = None  # the next try is not before this; None in CRASHED: there is none
    last_run_at: float | None = msgspec.field(default=None, name="seen")  # start of the last reported run
    is_removed: bool = msgspec.field(default=False, name="is_gone")  # nothing of it is left on this node
    has_passed: bool = True  # the checks of the run that goes on; without checks always
    has_started: bool = False  # its startup checks have passed
    checked_at: float = 0.0  # when `has_passed` last changed; never goes back
    check_message: str = ""  # why it has not passed
    failed_check: str = ""  # why the run that goes on is being ended, to be restarted; empty: it is not

    def become(
        self,
        status: InstanceStatus,
        at: float,
        reason: str,
        *,
        exit_code: int | None = None,
        retry_at: float | None = None,
    ) -> LocalStatus:
        """This, seen to be `status`; what is not given is over with the status before.

        Never earlier than that: by their times the control plane tells reports that came out of order, so a
        clock that was set back must not turn them around.
        """
        return replace(
            self,
            status=status,
            at=self.at if status is self.status else max(self.at, at),
            reason=reason[:_MAX_REASON],
            exit_code=exit_code,
            ip="",
            retry_at=retry_at,
            has_passed=True,
            has_started=False,
            check_message="",
            failed_check="",
        )

    def check(self, *, has_passed: bool, has_started: bool, at: float, message: str) -> LocalStatus:
        """This with another result of its checks."""
        return replace(
            self,
            has_passed=has_passed,
            has_started=has_started,
            checked_at=self.checked_at if has_passed is self.has_passed else max(self.checked_at, at),
            check_message=message[:_MAX_REASON],
        )


class PendingReport(msgspec.Struct, frozen=True):
    """A report that is to be acknowledged. Numbers go up over all instances of the node."""

    number: int
    report: InstanceReport


class LocalInstance(msgspec.Struct, frozen=True):
    """An instance on this node."""

    order: InstanceOrder
    history: LocalStatus = LocalStatus()
    # A container of its name is this instance's if it has this spec.
    created_spec: ContainerSpec | None = msgspec.field(default=None, name="made")
    pending: tuple[PendingReport, ...] = ()  # not acknowledged, the oldest first
    is_stale: bool = False  # no longer this node's: it is removed, and nobody asks about it

    @property
    def instance(self) -> InstanceId:
        return self.order.instance

    def report(self, usage: Resources = NO_RESOURCES, metric: float | None = None) -> InstanceReport:
        """What there is to say of it now."""
        history = self.history
        return InstanceReport(
            instance=self.instance,
            generation=self.order.generation,
            status=history.status,
            at=history.at,
            reason=history.reason,
            exit_code=history.exit_code,
            restarts=history.restarts,
            ip=history.ip,
            usage=usage,
            retry_at=history.retry_at,
            has_passed=history.has_passed,
            checked_at=history.checked_at,
            check_message=history.check_message,
            metric=metric,
        )

    def with_status(self, history: LocalStatus, number: int) -> LocalInstance:
        """This with `history`, which is to be told."""
        copy = replace(self, history=history)
        if self.is_stale:
            return copy
        return replace(copy, pending=_add(self.pending, PendingReport(number, copy.report())))

    def acknowledge(self, number: int) -> LocalInstance:
        """This without the reports up to `number`."""
        return replace(self, pending=tuple(report for report in self.pending if report.number > number))


def apply(copy: LocalInstance | None, order: InstanceOrder) -> LocalInstance | None:
    """What `order` makes of what is here; None if it is older than that, and refused."""
    if copy is None:
        return LocalInstance(order)
    if order.generation < copy.order.generation:
        return None
    if order.generation > copy.order.generation or copy.is_stale:
        # Another copy: what became of the one before it concerns nobody any more. Its container may serve.
        return LocalInstance(order, created_spec=copy.created_spec)
    if copy.order.receipt and replace(order, receipt=copy.order.receipt) == copy.order:
        return copy  # the receipt of the same order is as good
    return replace(copy, order=order)


def rejection_report(order: InstanceOrder, at: float, reason: str) -> InstanceReport:
    """What is told of an instance that there is no place for: it failed, or is as gone as it should be."""
    status = InstanceStatus.TERMINATED if order.desired is DesiredStatus.DESTROYED else InstanceStatus.FAILED
    return InstanceReport(order.instance, order.generation, status, at, reason)


def disown(copy: LocalInstance) -> LocalInstance:
    """`copy` when it is no longer this node's: to be removed, and not to be told of."""
    order = replace(copy.order, desired=DesiredStatus.DESTROYED)
    return replace(copy, order=order, pending=(), is_stale=True)


def _add(pending: Sequence[PendingReport], report: PendingReport) -> tuple[PendingReport, ...]:
    """`pending` and `report`. Of the same status twice the last word counts, and there are never too many."""
    reports = list(pending)
    if reports and reports[-1].report.status is report.report.status:
        reports.pop()
    reports.append(report)
    while len(reports) > MAX_PENDING:
        _remove_cycle(reports)
    return tuple(reports)


def _remove_cycle(pending: list[PendingReport]) -> None:
    """Take out the oldest way from a status back to itself: what is left is still a way through statuses."""
    first: dict[InstanceStatus, int] = {}
    for position, report in enumerate(pending):
        begin = first.setdefault(report.report.status, position)
        if begin != position:
            del pending[begin + 1 : position + 1]
            return
    raise AssertionError("more reports than statuses, and none comes twice")
