"""The router of calls: a call runs here, or where a policy decides.

It has the interface of `skerry.functions.invocation.invoker.Invoker`, which it wraps. A call that must run
here, or finds a warm worker here under a policy that then prefers it, goes straight to the invoker. For
others the policy is called, once, and `forwarding` carries out its decision. Other members are reached by
`MemberClient`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import structlog
from msgspec.structs import replace

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, Candidate, CandidateView
from skerry.functions.continuum.forwarding import CallForwarder, Refusals, RoutedCall
from skerry.functions.continuum.member_api import MAX_WARM, BeforeStart, MemberClient, MemberLoad
from skerry.functions.continuum.member_metrics import MemberMetrics
from skerry.functions.continuum.member_table import MemberTable
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.policies.default import DefaultPolicy
from skerry.functions.continuum.policies.edgecloud import EdgeCloud
from skerry.functions.continuum.policies.edgeonly import EdgeOnly
from skerry.functions.continuum.policies.localonly import LocalOnly
from skerry.functions.continuum.policy import Offload, RejectCall, RoutingDecision, RoutingPolicy
from skerry.functions.continuum.prober import MemberProber
from skerry.functions.coordinates import Vivaldi
from skerry.functions.invocation.direct_calls import CallDone, DirectCall
from skerry.functions.invocation.invoker import Invoker, PoolStatus
from skerry.functions.ports import FunctionLookup
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest
from skerry.model.functions import Function
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember, MemberStatus
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

_TRIED: Final = 5  # places, at most, by a member that runs nothing itself
_DROPPED_FOR_S: Final = 1.0
_FRESH_S: Final = 0.05  # the maximum age of the load that neighbours get
# Policies that always use a warm worker that is free here.
_CONTENT: Final = (DefaultPolicy, LocalOnly, EdgeOnly, EdgeCloud)


class _Entry:
    """What is known of a function beside itself, until it changes."""

    __slots__ = ("function", "is_content", "policy", "stays")

    def __init__(self, function: Function, policy: RoutingPolicy, *, runs_here: bool) -> None:
        self.function = function
        self.policy = policy
        self.stays = runs_here and isinstance(policy, DefaultPolicy)
        self.is_content = runs_here and isinstance(policy, _CONTENT)


class CallRouter:
    """All calls that come to this member. `run` for ever; `follow` whenever the members change."""

    def __init__(
        self,
        invoker: Invoker,
        registry: FunctionLookup,
        links: MemberClient,
        settings: FunctionSettings,
        clock: Clock,
        *,
        places: MemberTable,
        choose: Callable[[str], RoutingPolicy],
        chance: random.Random,
    ) -> None:
        """`choose` creates the policy of a name, and raises `Invalid` if there is none."""
        self._invoker = invoker
        self._get = registry.get
        self._settings = settings
        self._monotonic = clock.monotonic
        self._me = places.me
        self._choose = choose
        self._policies: dict[str, RoutingPolicy] = {}
        self._policy = self._policies[settings.policy] = choose(settings.policy)
        self._entries: dict[FunctionName, _Entry] = {}
        self._call_times = CallTimeModel()
        self._vivaldi = Vivaldi(chance)
        self._load: MemberLoad | None = None
        self._load_at = 0.0
        self.places = places
        self.measuring = MemberProber(links, places, self._vivaldi, self.load, settings, clock, chance)
        self._forwarder = CallForwarder(invoker, links, places, self.measuring, self._call_times, clock)
        self._counts = MemberMetrics(places)

    def follow(self, members: Iterable[ContinuumMember]) -> None:
        """These are all members now; this one among them or not."""
        self.places.follow(members)
        self.measuring.update_nearest()

    async def run(self) -> None:
        """Probe the neighbours, for ever."""
        await self.measuring.run()

    def close(self) -> None:
        self._counts.close()

    # Calls

    def invoke(
        self, request: CallRequest, *, begins: BeforeStart | None = None
    ) -> Coroutine[Any, Any, CallReport]:
        """Run one call to its end, here or elsewhere. To be awaited at once.

        `begins` is awaited once it has a worker, before that is handed the call. Raises `NotFound` if there
        is no such function, `Overloaded` if no member takes it now, `Unavailable` if none can be reached, and
        what `begins` raises. Whatever else goes wrong is in the report. If the caller is cancelled, so is the
        call.
        """
        function = self._get(request.function)
        if function is not None:
            entry = self._entry(function)
            if entry.stays or (entry.is_content and self._invoker.has_warm(function)):
                return self._invoker.invoke(request, begins=begins)
        return self.route(request, begins, self._settings.max_hops)

    def begin(self, request: CallRequest, done: CallDone) -> DirectCall | None:
        """The same without a task, if it runs here (`Invoker.begin`); None, with nothing done, if not."""
        function = self._get(request.function)
        if function is None:
            return None
        entry = self._entry(function)
        if entry.stays or (entry.is_content and self._invoker.has_warm(function)):
            return self._invoker.begin(request, done)
        return None

    async def route(self, request: CallRequest, begins: BeforeStart | None, hops_left: int) -> CallReport:
        """Decide where it runs, and have it run there."""
        arrived = self._monotonic()
        function = self._get(request.function)
        if function is None:
            raise errors.NotFound(f"there is no function {request.function!r}")
        call = RoutedCall(request, function, begins, arrived, hops_left)
        view = self.places.view(function.name, self._here(function), arrived)
        policy = self._entry(function).policy
        decision = policy.decide(call.demand, view, self._call_times)
        if isinstance(decision, RejectCall):
            raise errors.Overloaded(decision.reason, retry_after_s=_DROPPED_FOR_S)
        if isinstance(decision, Offload):
            return await self._forwarder.try_members(call, _candidates_of(decision, view))
        if not view.here.is_up:
            return await self._forward(call, view)
        try:
            return await self._forwarder.run_here(call, view.here)
        except Refusals as error:
            if call.is_start_forbidden:
                raise
            call.note_refusal_here(error)
            # Decide again without this node, which has no capacity.
            without = CandidateView(replace(view.here, is_up=False), view.neighbours, view.remote)
            decision = policy.decide(call.demand, without, self._call_times)
            elsewhere = [place for place in _candidates_of(decision, view) if not place.is_here]
            if not elsewhere:
                raise
            return await self._forwarder.try_members(call, elsewhere)

    async def run_here(self, request: CallRequest, begins: BeforeStart) -> CallReport:
        """Run it here or not at all, for a neighbour that has decided."""
        function = self._get(request.function)
        if function is None:
            raise errors.NotFound(f"there is no function {request.function!r}")
        if not self._me.memory:
            raise errors.ResourcesExhausted("this node runs no functions; send the call to another one")
        call = RoutedCall(request, function, begins, self._monotonic(), 0)
        return await self._forwarder.run_here(call, self._here(function))

    async def _forward(self, call: RoutedCall, view: CandidateView) -> CallReport:
        """From a member without workers, whatever the policy and the caller say: to the best candidate."""
        if not view.neighbours and not view.remote:
            await self.measuring.first_answer()  # this one has just started, or the others have
            view = self.places.view(call.function.name, view.here, self._monotonic())
        members = (*view.neighbours, *view.remote)
        places = ranking.with_capacity(members, call.demand)
        others = ranking.least_crowded(ranking.able(members, call.demand))
        places += [place for place in others if place not in places]
        if not places:
            raise errors.Unavailable(_no_member_reason(members, call.demand))
        return await self._forwarder.try_members(call, places[:_TRIED])

    # What is around

    def _here(self, function: Function) -> Candidate:
        me, capacity = self._me, self._invoker.capacity(function)
        return Candidate(
            me.node,
            me.area,
            True,
            me.memory,
            capacity.memory_free,
            me.cpus,
            capacity.cpus_free,
            capacity.warm,
            capacity.waiting,
            is_up=me.memory > 0,
            seats=capacity.seats,
        )

    def _entry(self, function: Function) -> _Entry:
        entry = self._entries.get(function.name)
        return entry if entry is not None and entry.function is function else self._enter(function)

    def _enter(self, function: Function) -> _Entry:
        if len(self._entries) >= self._settings.max_functions:
            self._entries.clear()  # also of those that were deleted since
        policy = self._policy_of(function)
        entry = self._entries[function.name] = _Entry(function, policy, runs_here=self._me.memory > 0)
        return entry

    def _policy_of(self, function: Function) -> RoutingPolicy:
        if not function.policy:
            return self._policy
        policy = self._policies.get(function.policy)
        if policy is None:
            try:
                policy = self._choose(function.policy)
            except errors.Invalid as error:
                # Whoever registered it has a package that this node has not.
                log.error("policy.missing", function=function.name, error=error.message)
                policy = self._policy
            self._policies[function.policy] = policy
        return policy

    # Like an invoker

    async def prewarm(self, name: str, instances: int, *, force: bool = False) -> int:
        """Have workers started here, ahead of calls; see `Invoker.prewarm`."""
        return await self._invoker.prewarm(name, instances, force=force)

    def status(self) -> PoolStatus:
        return replace(self._invoker.status(), coordinate=self._vivaldi.coordinate)

    def neighbours(self) -> list[MemberStatus]:
        """All other members, as known here; those that are used come first, nearest first."""
        return self.places.all_statuses(self._monotonic())

    def load(self) -> MemberLoad:
        """The load of this member, for its neighbours."""
        now = self._monotonic()
        if self._load is None or now - self._load_at >= _FRESH_S:
            status = self._invoker.status()
            warm = status.warm
            if len(warm) > MAX_WARM:
                warm = dict(list(warm.items())[:MAX_WARM])
            self._load = MemberLoad(
                self._vivaldi.coordinate,
                status.available_memory_mb,
                max(0.0, status.total_cpus - status.used_cpus),
                status.queue_length,
                warm,
            )
            self._load_at = now
        return self._load


def _candidates_of(decision: RoutingDecision, view: CandidateView) -> list[Candidate]:
    """The places that a decision names, in order."""
    if not isinstance(decision, Offload):
        return []
    places: dict[NodeId, Candidate] = {
        place.node: place for place in (view.here, *view.neighbours, *view.remote)
    }
    return [places[node] for node in (decision.node, *decision.or_else) if node in places]


def _no_member_reason(places: Iterable[Candidate], demand: CallDemand) -> str:
    if any(place.is_up for place in places):
        return (
            f"no node that can be reached is large enough for a worker of {demand.memory} MB and "
            f"{demand.cpu:g} cores; lower the resources of the function, or add a node"
        )
    return "no node that runs functions can be reached; start one, or check `skerry node list`"
