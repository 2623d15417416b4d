"""How many copies a load calls for, and when that counts; and the loop that does it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given, strategies

from skerry.control.services import autoscaler
from skerry.control.services.autoscaler import ServiceAutoscaler
from skerry.control.services.autoscaling import NO_LOAD, ScalingHistory, ServiceLoad, recommend
from skerry.control.services.requests import ServiceSpec
from skerry.kit import tasks
from skerry.kit.clock import SystemClock
from skerry.model.ids import InstanceId
from skerry.model.resources import Resources
from skerry.model.services import AutoscalePolicy, ScalingMetric, Service
from skerry.store.local.memory import MemoryStore
from tests.control.services.test_controller import QUICK, ServiceServer, fleet
from tests.control.services.worlds import make_service, revision
from tests.control.worlds import resources, spec
from tests.support.waiting import eventually

POLICY = AutoscalePolicy(min=1, max=10, target=50.0, up_after_s=0.0, down_after_s=0.0)


def service(replicas: int, cpu: int = 1000) -> Service:
    return make_service(replicas, target=revision(1, resources=resources(cpu, 512)), autoscale=POLICY)


@pytest.mark.parametrize(
    ("replicas", "cpu", "wanted"),
    [
        (2, 1000, 2),  # 50 % each: on target
        (2, 1080, 2),  # near enough
        (2, 1200, 3),
        (2, 2000, 4),
        (4, 400, 1),
        (4, 0, 1),
        (4, 100_000, 10),
    ],
)
def test_as_many_copies_as_bring_the_load_of_each_to_the_target(replicas: int, cpu: int, wanted: int) -> None:
    assert recommend(service(replicas), POLICY, ServiceLoad(copies=replicas, cpu=cpu)) == wanted


def test_memory_and_metrics_of_the_copies_are_taken_the_same_way() -> None:
    memory = AutoscalePolicy(min=1, max=10, metric=ScalingMetric.MEMORY, target=50.0)
    assert recommend(service(2), memory, ServiceLoad(copies=2, memory=1024)) == 4
    custom = AutoscalePolicy(min=1, max=10, metric=ScalingMetric.CUSTOM, target=20.0)
    assert recommend(service(2), custom, ServiceLoad(copies=2, metered=2, metric=90.0)) == 5


def test_nothing_is_recommended_while_nothing_is_known() -> None:
    custom = AutoscalePolicy(min=1, max=10, metric=ScalingMetric.CUSTOM, target=20.0)
    assert recommend(service(2), POLICY, NO_LOAD) is None
    assert recommend(service(2), custom, ServiceLoad(copies=2, cpu=100)) is None
    assert recommend(service(2), custom, ServiceLoad(2, 0, 0, 2, float("nan"))) is None


def test_a_burst_and_a_lull_that_are_short_change_nothing() -> None:
    policy = AutoscalePolicy(min=1, max=10, up_after_s=30.0, down_after_s=300.0)
    history = ScalingHistory()
    steps = [(0, 2, 2), (10, 9, 2), (20, 2, 2), (40, 2, 2)]  # a burst of 10 s
    assert [history.add(policy, 2, wanted, at) for at, wanted, _ in steps] == [now for *_, now in steps]
    assert history.add(policy, 2, 5, 50) == 2
    assert history.add(policy, 2, 6, 65) == 2
    assert history.add(policy, 2, 7, 80) == 5, "all of the last 30 s called for at least 5"
    history = ScalingHistory()
    assert [history.add(policy, 5, 1, float(at)) for at in range(0, 300, 10)] == [5] * 30
    assert history.add(policy, 5, 1, 300.0) == 1


def test_a_load_that_was_not_known_for_a_while_is_watched_anew() -> None:
    policy = AutoscalePolicy(min=1, max=10, up_after_s=30.0, down_after_s=300.0)
    history = ScalingHistory()
    assert history.add(policy, 5, 5, 0.0) == 5
    # Its nodes were silent for six minutes; copies that have just been started have no load.
    assert history.add(policy, 5, 1, 360.0) == 5
    assert [history.add(policy, 5, 1, 360.0 + at) for at in range(10, 300, 10)] == [5] * 29
    assert history.add(policy, 5, 1, 660.0) == 1


def test_requests_scale_to_zero_when_idle_and_never_at_once_after_a_start() -> None:
    policy = AutoscalePolicy(
        min=0, max=10, metric=ScalingMetric.REQUESTS, target=10.0, up_after_s=0.0, idle_s=20.0
    )
    assert recommend(service(2), policy, NO_LOAD) is None, "no edge node counts them"
    assert recommend(service(2), policy, ServiceLoad(edges=1, requests=35.0)) == 4
    assert recommend(service(2), policy, ServiceLoad(edges=1, requests=0.01)) == 1
    assert recommend(service(2), policy, ServiceLoad(edges=1)) == 0
    history = ScalingHistory()
    assert [history.add(policy, 3, 0, float(at)) for at in (0, 5, 10, 15)] == [3] * 4
    assert history.add(policy, 3, 0, 20.0) == 0, "idle for 20 s, though fewer count after 300 s"
    assert history.add(policy, 0, 0, 25.0) == 0
    # A request has started a copy, and its load is not published yet.
    assert [history.add(policy, 1, 0, float(at)) for at in (30, 35, 40, 45)] == [1] * 4
    assert history.add(policy, 1, 1, 50.0) == 1
    assert [history.add(policy, 1, 0, float(at)) for at in (55, 60, 65, 70)] == [1] * 4
    assert history.add(policy, 1, 0, 75.0) == 0


def test_a_clock_that_is_set_back_does_not_stop_autoscaling() -> None:
    policy = AutoscalePolicy(min=1, max=10, up_after_s=30.0, down_after_s=300.0)
    history = ScalingHistory()
    assert history.add(policy, 2, 2, 86_400.0) == 2
    assert [history.add(policy, 2, 4, at) for at in (0.0, 10.0, 20.0, 30.0)] == [2, 2, 2, 4]


@given(
    strategies.lists(strategies.tuples(strategies.floats(0.1, 100), strategies.integers(0, 50)), max_size=60)
)
def test_the_bounds_are_never_left(steps: list[tuple[float, int]]) -> None:
    policy = AutoscalePolicy(min=2, max=9, up_after_s=20.0, down_after_s=60.0)
    history, replicas, now = ScalingHistory(), 4, 0.0
    for pause, wanted in steps:
        now += pause
        replicas = history.add(policy, replicas, min(9, max(2, wanted)), now)
        assert 2 <= replicas <= 9


async def test_a_service_is_scaled_by_what_two_servers_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.05)
    store = MemoryStore(SystemClock())
    used: dict[str, Resources] = {}
    try:
        async with ServiceServer(store, fleet(), "a").serving() as one:
            wanted = ServiceSpec(template=spec("web", cpu=1000), replicas=2, update=QUICK, autoscale=POLICY)
            await one.registry.create(wanted, actor="test")
            await one.is_well(1, 2)

            def load_of(server: int) -> autoscaler.InstanceLoad:
                def load(id: InstanceId) -> tuple[Resources | None, float | None]:
                    copies = sorted(copy.id for copy in one.copies())
                    is_heard = id in copies and copies.index(id) % 2 == server
                    return (used.get("each") if is_heard else None), None

                return load

            scalers = [
                ServiceAutoscaler(
                    store,
                    one.events,
                    one.clock,
                    tables=one.tables,
                    instance_table=one.instance_table,
                    load=load_of(number),
                    is_live_here=lambda node: True,
                    server=f"server-{number}",
                )
                for number in range(2)
            ]
            loops = [asyncio.ensure_future(scaler.run(one.leader)) for scaler in scalers]
            try:
                used["each"] = resources(900)
                await eventually(lambda: one.service().replicas == 10)
                used["each"] = resources(10)
                await eventually(lambda: one.service().replicas == 1)
            finally:
                await tasks.cancel_and_wait(loops)
            told = [stored.event for stored in await one.registry.events("web")]
            reasons = [event.reason for event in told if event.kind == "service.scaled"]
            assert any("cpu is 90 per copy, the target is 50" in reason for reason in reasons)
    finally:
        await store.close()


async def test_what_a_node_told_before_it_went_to_another_server_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.05)
    store = MemoryStore(SystemClock())
    is_here = {"a": True, "b": False}
    try:
        async with ServiceServer(store, fleet(), "a").serving() as one:
            steady = AutoscalePolicy(min=2, max=10, up_after_s=3600.0, down_after_s=3600.0)
            wanted = ServiceSpec(template=spec("web", cpu=1000), replicas=2, update=QUICK, autoscale=steady)
            service, _ = await one.registry.create(wanted, actor="test")
            await one.is_well(1, 2)
            scalers = [
                ServiceAutoscaler(
                    store,
                    one.events,
                    one.clock,
                    tables=one.tables,
                    instance_table=one.instance_table,
                    load=lambda id: (resources(500), None),  # both were told once
                    is_live_here=lambda node, name=name: is_here[name],
                    server=name,
                )
                for name in is_here
            ]
            loops = [asyncio.ensure_future(scaler.run(one.leader)) for scaler in scalers]
            try:
                for server in is_here:
                    await eventually(partial(store.get, f"{autoscaler.PREFIX}{server}"))
                await eventually(lambda: scalers[0].loads() == {service.id: ServiceLoad(2, 1000)})
            finally:
                await tasks.cancel_and_wait(loops)
    finally:
        await store.close()
