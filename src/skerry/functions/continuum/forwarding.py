"""Forwarding of one call: tried at one member after the other, and never run twice unless it is idempotent.

    result at another member            what comes next
    a report                                that is the answer
    not started: refused, or not reached    the next place
    may have run, and is idempotent         the next place
    may have run, and is not                nothing: the answer says that nobody knows
    its deadline is over                    nothing: the answer says so

`router` chose the members before. The result at each is recorded in the call time model.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from skerry.functions.continuum.call_time_model import CallTimeModel, observation_of
from skerry.functions.continuum.candidates import CallDemand, Candidate
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CallNotStarted,
    CallOutcomeUnknown,
    ForwardedCall,
    MemberClient,
)
from skerry.functions.continuum.member_table import MemberState, MemberTable
from skerry.functions.continuum.prober import MemberProber
from skerry.functions.invocation.call_history import FunctionHistory
from skerry.functions.invocation.invoker import Invoker
from skerry.kit import traces
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult
from skerry.model.function_names import plain_name
from skerry.model.functions import Function
from skerry.model.web_calls import WebCallRequest

OFFLOADED: Final = "O"  # as Serverledge has it

# With these a place refuses a call that another one may take.
Refusals: Final = (errors.Overloaded, errors.Unavailable)

_RETRY_AFTER_S: Final = 1.0
_FULL: Final = frozenset({errors.Overloaded.slug, errors.ResourcesExhausted.slug})
_WORKER_STAYS: Final = (None, CallFailure.HANDLER, CallFailure.RESULT)


class RoutedCall:
    """A call, and its attempts so far."""

    __slots__ = ("arrived", "begins", "demand", "function", "reasons", "request", "tried_full", "until")

    def __init__(
        self,
        request: CallRequest,
        function: Function,
        begins: BeforeStart | None,
        arrived: float,
        hops_left: int,
    ) -> None:
        self.request = request
        self.function = function
        self.begins = None if begins is None else StartOnce(begins)
        self.arrived = arrived
        self.until = None if request.max_response_s is None else arrived + request.max_response_s
        self.demand = CallDemand(
            function.name,
            function.memory,
            (function.cpu or 0) / 1000,
            len(request.params),
            request.qos_class,
            request.max_response_s,
            request.can_offload,
            hops_left,
            function.is_idempotent,
        )
        self.reasons: list[str] = []  # why each place did not take it
        self.tried_full = False  # one of them for lack of capacity

    @property
    def is_start_forbidden(self) -> bool:
        """True if the caller forbids its start: then no other member is tried."""
        return self.begins is not None and self.begins.has_failed

    @property
    def has_begun(self) -> bool:
        """True if the caller has a part of the response already, which cannot be taken back."""
        return isinstance(self.request, WebCallRequest) and self.request.response.has_begun

    def left_s(self, now: float) -> float | None:
        """Until its deadline; it may be over."""
        return None if self.until is None else self.until - now

    def with_remaining_time(self, now: float) -> CallRequest:
        """Its request with the remaining time; there must be some."""
        return self.request if self.until is None else replace(self.request, max_response_s=self.until - now)

    def note(self, reason: str, *, is_full: bool) -> None:
        self.reasons.append(reason)
        self.tried_full = self.tried_full or is_full

    def note_refusal_here(self, error: errors.SkerryError) -> None:
        self.note(f"here: {error.message}", is_full=isinstance(error, errors.Overloaded))

    def refusal(self) -> errors.SkerryError:
        """The error for the caller if no member took it."""
        tried = "; ".join(dict.fromkeys(self.reasons)) or "there is no node that could be tried"
        if self.tried_full:
            return errors.Overloaded(
                f"no node took the call: {tried}; call again in {_RETRY_AFTER_S:g} s",
                retry_after_s=_RETRY_AFTER_S,
            )
        return errors.Unavailable(f"no node took the call: {tried}; call again in a moment")

    def late(self, now: float) -> CallReport:
        """The report if its time is over before any member has answered."""
        spent_s = now - self.arrived
        tried = f": {'; '.join(dict.fromkeys(self.reasons))}" if self.reasons else ""
        error = f"the call was ended after {spent_s:.3f} s; its caller waits no longer{tried}"
        return CallReport(
            CallResult(0.0, failure=CallFailure.TIMEOUT, error=error), spent_s, queueing_s=spent_s
        )

    def lost(self, peer: MemberState, reason: str, now: float) -> CallReport:
        """The report if it may have run, and must not run again."""
        member = peer.member
        is_late = self.until is not None and now >= self.until
        answer = CallResult(
            0.0,
            failure=CallFailure.TIMEOUT if is_late else CallFailure.INTERRUPTED,
            error=f"node {member.name} was lost after it had got the call, and it is not known how far that "
            f"came: {reason}; call again if that does no harm, or deploy the function as idempotent",
        )
        return CallReport(answer, now - self.arrived, action=OFFLOADED, area=member.area, node=member.name)


class StartOnce:
    """Awaits what begins a call once, at however many places it is tried."""

    __slots__ = ("_begins", "has_failed", "is_done")

    def __init__(self, begins: BeforeStart) -> None:
        self._begins = begins
        self.is_done = False
        self.has_failed = False

    async def __call__(self) -> None:
        if not self.is_done:
            try:
                await self._begins()
            except BaseException:
                self.has_failed = True
                raise
            self.is_done = True


class CallForwarder:
    """What a call needs to get about."""

    def __init__(
        self,
        invoker: Invoker,
        links: MemberClient,
        places: MemberTable,
        measuring: MemberProber,
        call_times: CallTimeModel,
        clock: Clock,
    ) -> None:
        self._invoker = invoker
        self._links = links
        self._places = places
        self._measuring = measuring
        self._call_times = call_times
        self._monotonic = clock.monotonic

    async def try_members(self, call: RoutedCall, places: list[Candidate]) -> CallReport:
        """Try these in order. If none takes it, raises `RoutedCall.refusal`."""
        for place in places:
            now = self._monotonic()
            if call.until is not None and now >= call.until:
                return call.late(now)
            if place.is_here:
                try:
                    return await self.run_here(call, place)
                except Refusals as error:
                    if call.is_start_forbidden:
                        raise
                    call.note_refusal_here(error)
                    continue
            report = await self._forward(call, place, now)
            if report is not None:
                return report
        now = self._monotonic()
        if call.until is not None and now >= call.until:
            return call.late(now)
        raise call.refusal()

    async def run_here(self, call: RoutedCall, here: Candidate) -> CallReport:
        """Run it here, at once or from the queue. Raises one of `Refusals` if that is not possible."""
        began = self._monotonic()
        if call.until is not None and began >= call.until:
            return call.late(began)
        try:
            report = await self._invoker.invoke(call.with_remaining_time(began), begins=call.begins)
        except Refusals:
            self._call_times.record_refusal(here)
            raise
        now = self._monotonic()
        self._call_times.record(call.demand, here, observation_of(report, now - began))
        return replace(report, response_s=now - call.arrived)

    async def _forward(self, call: RoutedCall, place: Candidate, sent: float) -> CallReport | None:
        """Have it run there; None if it may be tried elsewhere."""
        peer = self._places.peers.get(place.node)
        if peer is None or not peer.is_up:
            return None  # since the decision
        demand = call.demand
        history = self._invoker.history.of(call.function.name)
        forwarded = ForwardedCall(
            call.request, call.function.version, max(0, demand.hops_left - 1), call.left_s(sent)
        )
        # Where no warm worker is expected, `CallReady` costs little, and a member that is lost before has not
        # begun.
        at_once = call.begins is None and (demand.is_idempotent or place.warm > 0)
        self._places.take(peer, demand)
        try:
            report = await self._invoke_at(peer, forwarded, at_once, call.begins)
        except CallNotStarted as error:
            self._call_times.record_refusal(place)
            call.note(f"{peer.member.name}: {error.reason}", is_full=error.kind in _FULL)
            if error.kind:
                peer.refused += 1
            else:
                peer.lost += 1
                self._measuring.lost(peer, error.reason)
            return None
        except CallOutcomeUnknown as error:
            peer.lost += 1
            self._call_times.record_refusal(place)
            self._measuring.lost(peer, error.reason)
            if demand.is_idempotent and not call.has_begun:
                call.note(f"{peer.member.name}: {error.reason}", is_full=False)
                return None
            return call.lost(peer, error.reason, self._monotonic())
        except BaseException:  # the caller has left, or forbade the start: the capacity is free again
            self._places.give_back(peer, demand, leaves_worker=False)
            raise
        peer.done += 1
        self._places.give_back(peer, demand, leaves_worker=report.answer.failure in _WORKER_STAYS)
        now = self._monotonic()
        self._call_times.record(demand, place, observation_of(report, now - sent))
        _add_to_history(history, report, call.arrived, sent, now)
        return replace(
            report,
            response_s=now - call.arrived,
            offload_s=max(0.0, now - sent - report.answer.duration_s - report.init_s),
            action=OFFLOADED,
        )

    async def _invoke_at(
        self, peer: MemberState, forwarded: ForwardedCall, at_once: bool, begins: BeforeStart | None
    ) -> CallReport:
        """Have it run there, as a span of its trace if it has one."""
        invoke, recorder = self._links.invoke, traces.recorder
        parent = traces.parse_traceparent(forwarded.request.traceparent)
        if recorder is None or parent is None:
            return await invoke(peer.member, forwarded, at_once=at_once, begins=begins)
        span = recorder.begin(parent)
        request = replace(forwarded.request, traceparent=span.traceparent)
        sent, error = self._monotonic(), "it was cancelled"
        try:
            report = await invoke(
                peer.member, replace(forwarded, request=request), at_once=at_once, begins=begins
            )
            error = report.answer.failure or ""
            return report
        except (CallNotStarted, CallOutcomeUnknown) as failed:
            error = failed.reason
            raise
        finally:
            recorder.end(
                span,
                parent,
                f"offload {request.function}",
                self._monotonic() - sent,
                kind=traces.CLIENT,
                attributes={
                    "faas.invoked_name": plain_name(request.function),
                    "server.address": peer.member.name,
                    "skerry.area": peer.member.area,
                },
                error=error or None,
            )


def _add_to_history(
    history: FunctionHistory, report: CallReport, arrived: float, sent: float, now: float
) -> None:
    """A call that another member has run: what its phases there do not account for was spent on the way."""
    answer = report.answer
    queue_s = sent - arrived + report.queueing_s
    history.add((now, queue_s, report.init_s, answer.duration_s, now - arrived, answer.failure, report.node))
    history.failed += answer.failure is not None
    history.cold += report.init_s > 0
