"""Calls of functions by schedules: each is made once, by the server that its run names.

The leader writes that a run has started, with the id of its call, which names the leader's own server
(`skerry.control.schedules.controller`). Every server, whether it leads or not, makes the calls of its own
that have not been made: acceptance is idempotent by id, so a server that was killed continues. The result of
a call is written into the run when it has ended. No other server ever makes that call: if the server does not
come back, it is not known whether it was made, and the run fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.control.schedules import decisions
from skerry.control.schedules.table import ScheduleRecord, ScheduleTable
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import FunctionName
from skerry.model.schedules import FunctionTarget, RunStatus, Schedule, ScheduledRun
from skerry.store.tables.table import RecordChange, Write

log = structlog.get_logger(__name__)

_UNKNOWN = "the result of its call is no longer known"


class CallOutcome(NamedTuple):
    """How a call ended."""

    is_success: bool
    message: str = ""  # why it failed


class FunctionCaller(Protocol):
    """The async calls of this server."""

    @property
    def mark(self) -> str:
        """What the ids of its calls end in."""
        ...

    @property
    def known_for_s(self) -> float:
        """How long after its acceptance a call is surely known, so that it is not made again."""
        ...

    async def accept(self, id: str, function: FunctionName, parameters: bytes) -> None:
        """Make the call, durably; if it was made before, nothing happens."""
        ...

    async def outcome(self, id: str) -> CallOutcome | None:
        """Wait for its end; None if it is not known, or no longer."""
        ...


class ScheduledCalls:
    """Makes and follows the calls that are this server's; `run` for ever, on every server."""

    def __init__(
        self, schedules: ScheduleTable, caller: FunctionCaller, events: EventLog, clock: Clock
    ) -> None:
        self._schedules = schedules
        self._caller = caller
        self._events = events
        self._clock = clock
        self._backoff = Backoff(first_s=1.0, cap_s=30.0)
        self._followed: dict[str, asyncio.Task[None]] = {}  # by the id of the call

    async def run(self) -> None:
        """Make and follow calls until cancelled."""
        await self._schedules.ready()
        end = self._schedules.subscribe(self._records_changed)
        try:
            for key, record in self._schedules.items():
                self._follow_calls(key, record.value)
            await asyncio.get_running_loop().create_future()
        finally:
            end()
            await cancel_and_wait(list(self._followed.values()))

    def _records_changed(self, changes: Sequence[RecordChange[Schedule]]) -> None:
        for key, _, after in changes:
            if after is not None:
                self._follow_calls(key, after.value)

    def _follow_calls(self, key: str, schedule: Schedule) -> None:
        target = schedule.target
        if not isinstance(target, FunctionTarget):
            return
        for run in schedule.active:
            if run.target.endswith(f"-{self._caller.mark}") and run.target not in self._followed:
                self._followed[run.target] = asyncio.create_task(self._follow_to_end(key, run, target))

    async def _follow_to_end(self, key: str, run: ScheduledRun, target: FunctionTarget) -> None:
        try:
            await self._follow(key, run, target)
        except Exception as error:
            log.error("schedule.call_lost", call=run.target, error=repr(error), exc_info=error)
        finally:
            self._followed.pop(run.target, None)

    async def _follow(self, key: str, run: ScheduledRun, target: FunctionTarget) -> None:
        """Make the call if that is not done, wait for its end, and write that down."""
        failures = 0
        while True:
            try:
                outcome = await self._call(run, target)
                await self._end(key, run, outcome)
                return
            except (errors.Unavailable, errors.Overloaded) as error:
                log.warning("schedule.call_waits", call=run.target, error=error.message)
            except errors.SkerryError as error:
                await self._end(key, run, CallOutcome(False, error.message))
                return
            await asyncio.sleep(self._backoff.delay(failures))
            failures += 1

    async def _call(self, run: ScheduledRun, target: FunctionTarget) -> CallOutcome:
        began_at = run.started_at or run.due_at
        # Later, a call that is not known may have been made and removed.
        if self._clock.now() - began_at < self._caller.known_for_s:
            parameters = msgspec.json.encode(target.parameters)
            await self._caller.accept(run.target, target.function, parameters)
        return await self._caller.outcome(run.target) or CallOutcome(False, _UNKNOWN)

    async def _end(self, key: str, run: ScheduledRun, outcome: CallOutcome) -> None:
        def decide(record: ScheduleRecord) -> Write[Schedule] | None:
            schedule = record.value
            for present in schedule.runs:
                if present.target == run.target and present.status is RunStatus.RUNNING:
                    break
            else:
                return None
            status = RunStatus.SUCCEEDED if outcome.is_success else RunStatus.FAILED
            ended = decisions.end_run(present, status, self._clock.now(), outcome.message[:500])
            event = decisions.run_event(schedule, ended)
            put = self._events.put(
                f"schedule.{event.kind}",
                self._schedules.key(key),
                actor="skerry",
                reason=event.reason,
                **event.data,
            )
            return Write(decisions.replace_run(schedule, present, ended), [put])

        try:
            await self._schedules.update(key, decide, missing=errors.NotFound("the schedule was deleted"))
        except errors.NotFound:
            log.info("schedule.gone", call=run.target)
