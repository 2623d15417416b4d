"""What the node knows of an instance: its order, its status, its pending reports.

A `LocalInstance` holds that for one generation of one instance, and is one file on disk (`records`). `steps`
decides changes and `apply` takes orders; both return a new value and have no effects.
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

# Pending reports of one instance. While the control plane is unreachable for long, only the first and last
# cycles of statuses are kept; `restarts` counts them all.
MAX_PENDING = 100
_MAX_REASON = 500


class LocalStatus(msgspec.Struct, frozen=True):
    """Status of an instance in this generation; SCHEDULED: nothing has happened yet."""

    status: InstanceStatus = InstanceStatus.SCHEDULED
    at: float = 0.0
    reason: str = ""
    exit_code: int | None = None
    ip: str = ""
    restarts: int = 0  # all of them
    streak: int = 0  # tries in a row that count against the restart budget
    retry_at: float | None = None  # not before this time; None in CRASHED: no further try
    last_run_at: float | None = msgspec.field(default=None, name="seen")  # start of the last reported run
    is_removed: bool = msgspec.field(default=False, name="is_gone")  # nothing of it is left on this node
    has_passed: bool = True  # the checks of the current run; True without checks
    has_started: bool = False  # its startup checks have passed
    checked_at: float = 0.0  # when `has_passed` last changed; never goes back
    check_message: str = ""  # why it has not passed
    failed_check: str = ""  # why the current run is being ended and restarted; empty: it is not
    ip6: str = ""
    previous_exit_code: int | None = None  # of the run before the last one

    def become(
        self,
        status: InstanceStatus,
        at: float,
        reason: str,
        *,
        exit_code: int | None = None,
        retry_at: float | None = None,
    ) -> LocalStatus:
        """This with another status; fields that are not given are cleared.

        The time never goes back, even if the clock was set back: the control plane orders reports by it. An
        exit code that is cleared is from then on that of the previous run.
        """
        is_cleared = exit_code is None and self.exit_code is not None
        return replace(
            self,
            status=status,
            at=self.at if status is self.status else max(self.at, at),
            reason=reason[:_MAX_REASON],
            exit_code=exit_code,
            ip="",
            ip6="",
            retry_at=retry_at,
            has_passed=True,
            has_started=False,
            check_message="",
            failed_check="",
            previous_exit_code=self.exit_code if is_cleared else self.previous_exit_code,
        )

    def check(self, *, has_passed: bool, has_started: bool, at: float, message: str) -> LocalStatus:
        """This with a new result of its checks."""
        return replace(
            self,
            has_passed=has_passed,
            has_started=has_started,
            checked_at=self.checked_at if has_passed is self.has_passed else max(self.checked_at, at),
            check_message=message[:_MAX_REASON],
        )


class PendingReport(msgspec.Struct, frozen=True):
    """A report that has not been acknowledged. Numbers increase over all instances of the node."""

    number: int
    report: InstanceReport


class LocalInstance(msgspec.Struct, frozen=True):
    """An instance on this node."""

    order: InstanceOrder
    history: LocalStatus = LocalStatus()
    # A container of its name belongs to this instance if it has this spec.
    created_spec: ContainerSpec | None = msgspec.field(default=None, name="made")
    pending: tuple[PendingReport, ...] = ()  # not acknowledged, the oldest first
    is_stale: bool = False  # no longer this node's: it is removed without reports

    @property
    def instance(self) -> InstanceId:
        return self.order.instance

    def report(self, usage: Resources = NO_RESOURCES, metric: float | None = None) -> InstanceReport:
        """The report of its current status."""
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
            ip6=history.ip6,
            previous_exit_code=history.previous_exit_code,
        )

    def with_status(self, history: LocalStatus, number: int) -> LocalInstance:
        """This with `history`, which is to be reported."""
        copy = replace(self, history=history)
        if self.is_stale:
            return copy
        return replace(copy, pending=_add(self.pending, PendingReport(number, copy.report())))

    def acknowledge(self, number: int) -> LocalInstance:
        """This without the reports up to `number`."""
        return replace(self, pending=tuple(report for report in self.pending if report.number > number))


def apply(copy: LocalInstance | None, order: InstanceOrder) -> LocalInstance | None:
    """`copy` after `order`; None if the order is older than `copy`, and refused."""
    if copy is None:
        return LocalInstance(order)
    if order.generation < copy.order.generation:
        return None
    if order.generation > copy.order.generation or copy.is_stale:
        # A new generation: the status of the one before no longer matters. Its container may be reused.
        return LocalInstance(order, created_spec=copy.created_spec)
    if copy.order.receipt and replace(order, receipt=copy.order.receipt) == copy.order:
        return copy  # the same order again
    return replace(copy, order=order)


def rejection_report(order: InstanceOrder, at: float, reason: str) -> InstanceReport:
    """The report of an instance that was rejected: FAILED, or TERMINATED if it should not run anyway."""
    status = InstanceStatus.TERMINATED if order.desired is DesiredStatus.DESTROYED else InstanceStatus.FAILED
    return InstanceReport(order.instance, order.generation, status, at, reason)


def disown(copy: LocalInstance) -> LocalInstance:
    """`copy` when it is no longer this node's: to be removed, without reports."""
    order = replace(copy.order, desired=DesiredStatus.DESTROYED)
    return replace(copy, order=order, pending=(), is_stale=True)


def _add(pending: Sequence[PendingReport], report: PendingReport) -> tuple[PendingReport, ...]:
    """`pending` and `report`. Of the same status twice the last counts, and the number is limited."""
    reports = list(pending)
    if reports and reports[-1].report.status is report.report.status:
        reports.pop()
    reports.append(report)
    while len(reports) > MAX_PENDING:
        _remove_cycle(reports)
    return tuple(reports)


def _remove_cycle(pending: list[PendingReport]) -> None:
    """Remove the oldest cycle of statuses: what is left is still a valid sequence of transitions."""
    first: dict[InstanceStatus, int] = {}
    for position, report in enumerate(pending):
        begin = first.setdefault(report.report.status, position)
        if begin != position:
            del pending[begin + 1 : position + 1]
            return
    raise AssertionError("more reports than statuses, but no status twice")
