"""Whatever people request of a service, in whatever order: its record stays one that can be kept."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from skerry.control.services import requests
from skerry.control.services.requests import ServiceChange, ServiceSpec
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, ServiceId
from skerry.model.services import (
    MAX_REVISIONS,
    AutoscalePolicy,
    RevisionOutcome,
    Service,
    ServiceRevision,
    ServiceStatus,
    UpdatePolicy,
)
from tests.control.worlds import spec

replicas = st.integers(0, 6)
policies = st.builds(UpdatePolicy, canary=st.integers(0, 4), max_surge=st.integers(1, 3))
scalings = st.none() | st.builds(
    lambda least, more: AutoscalePolicy(least, least + more), st.integers(1, 4), st.integers(0, 4)
)


class ServiceRequests(RuleBasedStateMachine):
    """One service, people who request things of it, and updates that end well or badly."""

    @initialize(replicas=replicas, update=policies)
    def create(self, replicas: int, update: UpdatePolicy) -> None:
        self.now = 1.0
        self.revisions: dict[int, ServiceRevision] = {}
        wanted = ServiceSpec(spec(), max(replicas, update.canary), update)
        self.service = requests.create(
            ServiceId("s"), wanted, namespace=DEFAULT_NAMESPACE, now=self.now, actor="me"
        )
        self.revisions[1] = self.service.target

    def apply(self, change: ServiceChange | None) -> None:
        if change is None:
            return
        assert change.service != self.service, "what changes nothing is not written"
        self.service = change.service
        if change.revision is not None:
            assert change.revision.number not in self.revisions
            self.revisions[change.revision.number] = change.revision
            for number in requests.superfluous(self.service, list(self.revisions.values())):
                del self.revisions[number]

    @rule(image=st.integers(1, 4), replicas=st.none() | replicas, update=policies, autoscale=scalings)
    def change(
        self, image: int, replicas: int | None, update: UpdatePolicy, autoscale: AutoscalePolicy | None
    ) -> None:
        before = ServiceSpec.of(self.service)
        wanted = replace(
            before,
            template=replace(before.template, uri=f"example.org/web:{image}"),
            replicas=before.replicas if replicas is None else replicas,
            update=update,
            autoscale=autoscale,
        )
        with suppress(errors.Invalid, errors.FailedPrecondition):
            self.apply(requests.change(self.service, wanted, now=self.now, actor="me"))
            assert (
                requests.change(self.service, ServiceSpec.of(self.service), now=self.now, actor="me") is None
            )
            assert requests.is_same(self.service, wanted) or self.service.autoscale is not None

    @rule(replicas=replicas)
    def scale(self, replicas: int) -> None:
        with suppress(errors.Invalid, errors.FailedPrecondition):
            self.apply(requests.scale(self.service, replicas))
            assert self.service.replicas == replicas

    @rule(number=st.none() | st.integers(1, 30))
    def roll_back(self, number: int | None) -> None:
        kept = list(self.revisions.values())
        with suppress(errors.NotFound, errors.FailedPrecondition):
            self.apply(requests.roll_back(self.service, kept, number, now=self.now))
            assert self.service.rollout is not None
            assert number in (None, self.service.target.number)

    @rule()
    def promote(self) -> None:
        with suppress(errors.FailedPrecondition):
            self.apply(requests.promote(self.service, now=self.now))
            assert self.service.status(0) is not ServiceStatus.CANARY

    @rule()
    def pause(self) -> None:
        self.apply(requests.pause(self.service))
        assert requests.pause(self.service) is None

    @rule()
    def resume(self) -> None:
        self.apply(requests.resume(self.service, now=self.now))
        assert not self.service.is_paused
        assert requests.resume(self.service, now=self.now) is None

    @rule(is_good=st.booleans())
    def end_update(self, is_good: bool) -> None:
        """Be the leader: the update under way has ended."""
        rollout = self.service.rollout
        if rollout is None or self.service.is_paused:
            return
        if is_good:
            target = replace(self.service.target, outcome=RevisionOutcome.GOOD)
            self.service = replace(self.service, target=target, stable=target, rollout=None)
            self.revisions[target.number] = target
        else:
            self.service = replace(self.service, rollout=replace(rollout, is_halted=True, reason="no"))

    @rule()
    def wait(self) -> None:
        self.now += 1.0

    @invariant()
    def the_services_own_revisions_are_kept_and_not_too_many_others(self) -> None:
        numbers = set(self.revisions)
        assert self.service.target.number in numbers
        assert self.service.stable is None or self.service.stable.number in numbers
        assert len(numbers) <= MAX_REVISIONS + 2
        assert max(numbers) <= self.service.latest

    @invariant()
    def its_record_can_be_read_again(self) -> None:
        assert json_codec.decode(json_codec.encode(self.service), Service) == self.service

    @invariant()
    def autoscaling_and_canaries_agree_with_the_replicas(self) -> None:
        scaling = self.service.autoscale
        if scaling is not None:
            assert scaling.min <= self.service.replicas <= scaling.max
            replace(self.service, replicas=scaling.min)  # must be possible at any time


TestServiceRequests = ServiceRequests.TestCase
TestServiceRequests.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
