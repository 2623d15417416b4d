"""Promised room: for who is to have it and nobody else, and counted once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.statuses import DesiredStatus, InstanceStatus
from tests.control.placement.test_planner import NOW, Desk, where
from tests.control.worlds import alone, condition, held, instance, resources, spec

N, M = NodeId("n"), NodeId("m")
OURS = InstanceId("ours")


def waiting(id: str, cpu: int) -> InstanceRecord:
    return held(instance(id, what=spec(cpu=cpu)))


def desk(*known: InstanceRecord, nodes: dict[str, int] | None = None) -> Desk:
    one = Desk(*known)
    for name, cpu in (nodes or {"n": 1000}).items():
        one.planner.node_changed(NodeId(name), condition(name, cpu))
    one.planner.begin()
    return one


def test_what_is_promised_is_not_given_to_others() -> None:
    one = desk(waiting("theirs", 500))
    one.planner.reserve(N, {OURS: resources(600)})
    assert one.plan().bindings == []
    one.planner.reserve(N, {OURS: resources(500)})
    assert where(one.plan().bindings) == {"theirs": "n"}


def test_what_is_taken_back_wakes_who_waited_for_it() -> None:
    one = desk(waiting("theirs", 500))
    one.planner.reserve(N, {OURS: resources(600)})
    assert one.plan().wake_at is None
    one.planner.reserve(N, {})
    assert where(one.plan().bindings) == {"theirs": "n"}


def test_who_it_is_promised_to_gets_it_and_then_it_is_counted_once() -> None:
    one = desk(nodes={"m": 600, "n": 1000})  # the fuller node would be the other one
    one.planner.reserve(N, {OURS: resources(600)})
    one.change(None, waiting("ours", 600))
    assert where(one.plan().bindings) == {"ours": "n"}
    one.change(None, waiting("theirs", 400))
    one.change(None, waiting("more", 600))
    assert where(one.plan().bindings) == {"theirs": "n", "more": "m"}


def test_what_is_there_already_takes_no_more() -> None:
    one = desk(
        held(instance("ours", InstanceStatus.RUNNING, node="n", what=spec(cpu=600))), waiting("theirs", 400)
    )
    one.planner.reserve(N, {OURS: resources(600)})
    assert where(one.plan().bindings) == {"theirs": "n"}


def test_who_is_gone_leaves_its_promise_behind() -> None:
    ours = held(instance("ours", InstanceStatus.RUNNING, node="n", what=spec(cpu=600)))
    one = desk(ours)
    one.planner.reserve(N, {OURS: resources(600)})
    one.change(ours, None)
    one.change(None, waiting("theirs", 500))
    assert one.plan().bindings == []


def test_who_finds_its_node_shut_goes_elsewhere_and_else_waits_for_it() -> None:
    one = desk(nodes={"n": 1000})
    one.planner.reserve(N, {OURS: resources(600)})
    one.planner.node_changed(N, condition("n", 1000, unschedulable_reason="is cordoned"))
    one.change(None, waiting("ours", 600))
    one.change(None, waiting("theirs", 600))
    assert one.plan().bindings == []
    one.planner.node_changed(N, condition("n", 1000))
    assert where(one.plan().bindings) == {"ours": "n"}


def test_two_alike_do_not_wait_for_each_others_nodes() -> None:
    one = desk(nodes={"n": 600, "m": 600})
    one.planner.reserve(N, {OURS: resources(600)})
    one.planner.reserve(M, {InstanceId("other"): resources(600)})
    one.planner.node_changed(N, condition("n", 600, unschedulable_reason="is cordoned"))
    for id in ("ours", "other"):
        one.change(None, waiting(id, 600))
    assert where(one.plan().bindings) == {"other": "m"}


def test_who_is_on_a_node_that_is_lost_moves_and_its_promise_follows_it() -> None:
    ours = held(instance("ours", InstanceStatus.RUNNING, node="n", what=spec(cpu=600)))
    one = desk(ours, nodes={"n": 1000, "m": 600})
    one.planner.reserve(N, {OURS: resources(600)})
    one.planner.node_changed(N, condition("n", 1000, liveness=Liveness.LOST))
    one.plan()
    assert where(one.plan(NOW + 1).bindings) == {"ours": "m"}
    one.planner.node_changed(N, condition("n", 1000))
    one.change(None, waiting("theirs", 1000))
    assert where(one.plan(NOW + 2).bindings) == {"theirs": "n"}


def test_who_is_drained_has_one_place_kept_and_not_two() -> None:
    ours = held(instance("ours", InstanceStatus.RUNNING, node="n", what=spec(cpu=600)))
    one = desk(ours, nodes={"n": 1000, "m": 1000})
    one.planner.reserve(N, {OURS: resources(600)})
    one.planner.node_changed(N, condition("n", 1000, drain_by=NOW + 60))
    ((before, step),) = one.plan().evictions
    leaving = one.index.get("ours")
    gone = held(replace(step.after, node=None, leaving=None), 9)
    one.change(leaving, held(replace(gone.value, observed=instance("x").observed), 9))
    one.change(None, waiting("theirs", 400))
    assert before.value.id == "ours"
    assert where(one.plan().bindings) == {"ours": "m", "theirs": "m"}


def test_an_explanation_does_not_count_what_is_kept_for_who_asks() -> None:
    one = desk()
    one.planner.reserve(N, {OURS: resources(600)})
    (verdict,) = one.planner.explain(instance("ours", what=spec(cpu=900)))
    assert verdict.fits
    (verdict,) = one.planner.explain(instance("theirs", what=spec(cpu=900)))
    assert not verdict.fits


names = st.sampled_from(["a", "b", "c"])
deeds = st.one_of(
    st.tuples(st.just("keep"), st.sampled_from(["n", "m"]), st.dictionaries(names, st.integers(0, 400))),
    st.tuples(st.just("make"), names, st.integers(0, 400)),
    st.tuples(st.just("destroy"), names, st.none()),
    st.tuples(st.just("shut"), st.sampled_from(["n", "m"]), st.booleans()),
)


@given(st.lists(deeds, max_size=20))
def test_no_node_is_ever_overfull_of_what_is_placed_and_promised(
    steps: list[tuple[str, str, object]],
) -> None:
    """Of one's own promises at least: whoever makes them never promises more than there is."""
    one = desk(nodes={"n": 1200, "m": 1200})
    for verb, name, value in steps:
        match verb, value:
            case "keep", dict():
                one.planner.reserve(
                    NodeId(name), {InstanceId(f"{name}-{id}"): resources(cpu) for id, cpu in value.items()}
                )
            case "make", int():
                if one.index.get(f"n-{name}") is None:
                    one.change(None, waiting(f"n-{name}", value))
            case "destroy", None:
                if (there := one.index.get(f"n-{name}")) is not None:
                    one.change(there, None)
            case "shut", bool():
                one.planner.node_changed(
                    NodeId(name), condition(name, 1200, unschedulable_reason="is cordoned" if value else "")
                )
        one.plan()
    fleet = one.planner._scheduler
    for node in (N, M):
        asks = fleet._allocations[node].requests.values() if node in fleet._allocations else []
        bound = {ask.instance for ask in asks}
        assert not any(f"{id}++" in bound for id in bound), "nobody is there and promised room as well"
        assert fleet.free(node).cpu == max(0, 1200 - sum(ask.resources.cpu for ask in asks))


async def test_a_reconciler_keeps_what_is_promised() -> None:
    async with alone(condition("n", 1000)) as (server, _):
        server.reconciler.reserve(N, {OURS: resources(600)})
        theirs, _ = await server.instances.create(spec(cpu=500), actor="test")
        ours, _ = await server.instances.create(spec(cpu=600), actor="test", id="ours")
        await server.becomes(ours.id, InstanceStatus.SCHEDULED)
        assert server.status(theirs.id) is InstanceStatus.SCHEDULING
        await server.instances.destroy(ours.id, actor="test")
        server.reconciler.reserve(N, {})
        await server.obey("n")
        await server.becomes(theirs.id, InstanceStatus.SCHEDULED)
        assert server.instance_table.index.get(theirs.id).value.desired is DesiredStatus.RUNNING
