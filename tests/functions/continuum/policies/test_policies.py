"""Each policy by examples, and all of them by what none may ever do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from skerry.functions.continuum.call_time_model import CallObservation, CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import loading
from skerry.functions.continuum.policies.checked import decision_fault
from skerry.functions.continuum.policies.qosaware import QosAware, chance_in_time
from skerry.functions.continuum.policy import (
    RUN,
    Offload,
    RejectCall,
    RoutingDecision,
    RoutingPolicy,
    RunHere,
)
from skerry.functions.qos import DEFAULT_CLASSES, parse_classes
from skerry.model.ids import NodeId
from tests.functions.continuum import making
from tests.functions.continuum.making import HERE, demand, full, full_here, here, place

ALL = list(loading.OWN)


def policy(name: str) -> RoutingPolicy:
    return loading.load_policy(name, DEFAULT_CLASSES)


def decide(name: str, view: CandidateView, **fields: Any) -> RoutingDecision:
    return policy(name).decide(demand(**fields), view, CallTimeModel())


def to(*nodes: str) -> Offload:
    return Offload(NodeId(nodes[0]), tuple(map(NodeId, nodes[1:])))


# What no policy may do


@given(making.demands, making.views(), making.experiences())
def test_no_policy_ever_decides_what_it_may_not(
    ask: CallDemand, view: CandidateView, call_times: CallTimeModel
) -> None:
    for name in ALL:
        decision = policy(name).decide(ask, view, call_times)
        assert decision_fault(decision, ask, view) == "", name
        if isinstance(decision, Offload):
            tried = (decision.node, *decision.or_else)
            assert len(set(tried)) == len(tried), f"{name} tries a place twice"
        elif isinstance(decision, RejectCall):
            others = (*view.neighbours, *view.remote) if ask.may_leave and name == "qosaware" else ()
            for one in (view.here, *others):
                assert not (one.could_ever_run(ask) and one.has_room(ask)), f"{name} drops beside {one.node}"


@given(making.views())
def test_only_those_that_say_so_drop_calls(view: CandidateView) -> None:
    for name in ("default", "cloudonly", "edgeonly", "edgecloud"):
        assert not isinstance(decide(name, view), RejectCall)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fields", [{"may_offload": False}, {"hops_left": 0}], ids=["asked to", "last hop"])
def test_a_call_that_must_stay_stays(name: str, fields: dict[str, Any]) -> None:
    view = CandidateView(full_here(), (place("near"),), (place("cloud"),))
    assert not isinstance(decide(name, view, **fields), Offload)


@pytest.mark.parametrize("name", ALL)
def test_alone_with_room_every_policy_runs_the_call_here(name: str) -> None:
    assert decide(name, CandidateView(here())) == RUN


@pytest.mark.parametrize("name", ALL)
def test_what_is_too_large_for_all_is_left_to_the_queue_which_says_so(name: str) -> None:
    view = CandidateView(here(), (place("near"),), (place("cloud"),))
    assert decide(name, view, memory=100_000) == RUN


# Each policy


def test_default_runs_here_whatever_there_is_elsewhere() -> None:
    assert decide("default", CandidateView(full_here(), (place("near"),), (place("cloud"),))) == RUN


def test_localonly_lets_nobody_wait() -> None:
    view = CandidateView(full_here(), (place("near"),), (place("cloud"),))
    decision = decide("localonly", view)
    assert isinstance(decision, RejectCall)
    assert "no capacity" in decision.reason


def test_localonly_uses_a_seat_in_a_busy_worker() -> None:
    assert decide("localonly", CandidateView(full_here(seats=1))) == RUN


@pytest.mark.parametrize(
    ("remote", "decision"),
    [
        ((place("a"), place("b")), to("a", "b", HERE)),
        ((full("a"), place("b")), to("b", HERE)),
        ((place("a"), place("b", warm=1)), to("b", "a", HERE)),
        ((full("a", waiting=9), full("b", waiting=3)), to("b", "a", HERE)),
        ((place("a", is_up=False), place("b")), to("b", HERE)),
        ((place("a", memory_total=64, memory_free=64), place("b")), to("b", HERE)),
        ((place("a", is_up=False),), RUN),
        ((), RUN),
    ],
    ids=["nearest", "room", "warm", "fewest wait", "one down", "one too small", "all down", "none"],
)
def test_cloudonly_goes_to_the_remote_area_and_stays_only_if_it_must(
    remote: Any, decision: RoutingDecision
) -> None:
    assert decide("cloudonly", CandidateView(here(), (place("near"),), remote)) == decision


@pytest.mark.parametrize(
    ("own", "neighbours", "decision"),
    [
        (here(), (place("a"),), RUN),
        (full_here(), (place("a"),), to("a", HERE)),
        (full_here(), (place("a"), place("b"), place("c")), to("a", "b", "c", HERE)),
        (full_here(), (full("a"), place("b")), to("b", HERE)),
        (full_here(), (place("a", is_up=False), full("b"), place("c", warm=1)), to("c", HERE)),
        (full_here(), (full("a"), full("b")), RUN),
        (full_here(), (), RUN),
    ],
    ids=["room here", "one", "many", "room", "warm", "all full", "none"],
)
def test_edgeonly_asks_neighbours_when_it_is_full(
    own: Any, neighbours: Any, decision: RoutingDecision
) -> None:
    assert decide("edgeonly", CandidateView(own, neighbours, (place("cloud"),))) == decision


def test_edgeonly_works_with_any_number_of_neighbours_and_tries_only_a_few() -> None:
    neighbours = tuple(place(f"n{number:02}", rtt_s=0.001 * (number + 1)) for number in range(40))
    assert decide("edgeonly", CandidateView(full_here(), neighbours)) == to("n00", "n01", "n02", "n03", HERE)


@pytest.mark.parametrize(
    ("own", "remote", "decision"),
    [
        (here(), (place("a"),), RUN),
        (full_here(), (place("a"), place("b", rtt_s=0.2)), to("a", "b", HERE)),
        (full_here(), (full("a"), place("b", rtt_s=0.2)), to("b", HERE)),
        (full_here(waiting=1), (full("a", waiting=8),), RUN),
        (full_here(waiting=8), (full("a", waiting=1),), to("a", HERE)),
        (full_here(waiting=8), (full("a", waiting=12, cpus_total=64.0),), to("a", HERE)),
        (full_here(), (place("a", is_up=False),), RUN),
        (full_here(), (), RUN),
    ],
    ids=["room here", "nearest", "room", "shorter here", "shorter there", "wider there", "down", "none"],
)
def test_edgecloud_is_here_then_in_the_remote_area(own: Any, remote: Any, decision: RoutingDecision) -> None:
    assert decide("edgecloud", CandidateView(own, (place("near"),), remote)) == decision


# qosaware

CLASSES = parse_classes(("background:1:60:1", "urgent:16:0.5:10"))
BACKGROUND, URGENT = 0, 1
CLOUD = place("cloud", rtt_s=0.45, cpus_total=32.0, cpus_free=32.0)


def taught(run_s: float, *where: Any, start_s: float | None = None) -> CallTimeModel:
    call_times = CallTimeModel()
    for _ in range(50):
        for one in where:
            call_times.record(
                demand(), one, CallObservation(run_s=run_s, start_s=start_s, network_s=one.rtt_s)
            )
    return call_times


def test_an_urgent_call_goes_to_a_neighbour_and_not_to_a_cloud_that_is_too_far() -> None:
    near = place("near", warm=1)
    view = CandidateView(full_here(waiting=50), (near,), (CLOUD,))
    call_times = taught(0.1, near, CLOUD, full_here())
    decision = QosAware(CLASSES).decide(demand(qos_class=URGENT), view, call_times)
    assert isinstance(decision, Offload)
    assert decision.node == "near"


def test_a_call_that_leaves_itself_less_time_than_its_class_is_held_to_that() -> None:
    """Both places would do for the class; only the near one does for this call."""
    near = full("near", waiting=0)
    view = CandidateView(full_here(waiting=500), (near,), (place("cloud", rtt_s=0.45, warm=1),))
    call_times = taught(0.05, near, CLOUD)
    decider = QosAware(CLASSES)
    in_a_hurry = decider.decide(demand(qos_class=BACKGROUND, deadline_s=0.4), view, call_times)
    assert isinstance(in_a_hurry, Offload)
    assert in_a_hurry.node == "near"


def test_where_all_is_well_a_call_stays() -> None:
    own = here(warm=1)
    view = CandidateView(own, (place("near", warm=1),), (CLOUD,))
    call_times = taught(0.1, own, place("near", warm=1), CLOUD)
    assert QosAware(CLASSES).decide(demand(qos_class=URGENT), view, call_times) == RUN


def test_a_place_that_refused_of_late_is_tried_after_one_that_did_not() -> None:
    fickle, steady = place("fickle", warm=1), place("steady", warm=1, rtt_s=0.012)
    call_times = taught(0.1, fickle, steady)
    view = CandidateView(full_here(waiting=50), (fickle, steady))
    for _ in range(5):
        call_times.record_refusal(fickle)
    decision = QosAware(CLASSES).decide(demand(qos_class=URGENT), view, call_times)
    assert decision == to("steady", "fickle", HERE)


def test_where_all_is_crowded_long_work_of_little_worth_gives_way_and_urgent_calls_do_not() -> None:
    crowded = CandidateView(full_here(waiting=2), (full("near", waiting=2),))
    call_times = taught(0.02, full_here(), full("near"))
    for _ in range(50):
        call_times.record(demand(function="long"), full_here(), CallObservation(run_s=20.0))
    decider = QosAware(CLASSES)
    for _ in range(200):
        assert not isinstance(decider.decide(demand(qos_class=URGENT), crowded, call_times), RejectCall)
    long = demand(function="long", qos_class=BACKGROUND)
    decision = decider.decide(long, crowded, call_times)
    assert isinstance(decision, RejectCall)
    assert "call again later" in decision.reason
    with_room = CandidateView(full_here(waiting=2), (place("near"),))
    assert not isinstance(decider.decide(long, with_room, call_times), RejectCall)


def test_a_call_that_would_come_too_late_everywhere_is_dropped_unless_there_is_room() -> None:
    call_times = taught(5.0, full_here(), full("near"))
    hopeless = demand(qos_class=URGENT)
    assert isinstance(
        QosAware(CLASSES).decide(hopeless, CandidateView(full_here(), (full("near"),)), call_times),
        RejectCall,
    )
    assert isinstance(
        QosAware(CLASSES).decide(hopeless, CandidateView(here(), (full("near"),)), call_times), RunHere
    )


def test_here_is_the_last_to_be_tried_if_it_is_any_good() -> None:
    neighbours = tuple(place(f"n{number}", warm=1) for number in range(8))
    own = full_here(waiting=40)
    decision = QosAware(CLASSES).decide(
        demand(qos_class=BACKGROUND), CandidateView(own, neighbours), taught(0.1, *neighbours, own)
    )
    assert isinstance(decision, Offload)
    assert decision.or_else[-1] == HERE
    assert len(decision.or_else) == 4


def test_now_and_then_a_call_that_can_afford_it_goes_where_the_least_is_known() -> None:
    own = here(warm=1)
    view = CandidateView(own, (place("unknown", warm=1),))
    call_times = taught(0.01, own)

    def tried() -> list[RoutingDecision]:
        decider = QosAware(CLASSES)
        return [decider.decide(demand(qos_class=BACKGROUND), view, call_times) for _ in range(200)]

    first = tried()
    assert 1 <= sum(isinstance(decision, Offload) for decision in first) <= 5
    assert tried() == first, "and there is no chance in it"


def test_exploring_never_goes_where_the_call_would_be_late() -> None:
    own = here(warm=1)
    view = CandidateView(own, (), (place("unknown", rtt_s=3.0),))
    decider = QosAware(CLASSES)
    call_times = taught(0.01, own)
    assert {type(decider.decide(demand(qos_class=URGENT), view, call_times)) for _ in range(300)} == {RunHere}


@pytest.mark.parametrize(
    ("mean_s", "spread_s", "deadline_s", "least", "most"),
    [
        (0.0, 0.0, 0.1, 1.0, 1.0),
        (1.0, 0.0, 1.1, 1.0, 1.0),
        (1.0, 0.0, 0.9, 0.0, 0.0),
        (1.0, 1.0, 1.0, 0.5, 0.75),
        (1.0, 0.1, 2.0, 0.99, 1.0),
        (1.0, 0.1, 0.5, 0.0, 0.01),
        (1.0, 5.0, 1000.0, 0.99, 1.0),
    ],
)
def test_the_chance_to_be_in_time(
    mean_s: float, spread_s: float, deadline_s: float, least: float, most: float
) -> None:
    assert least <= chance_in_time(mean_s, spread_s, deadline_s) <= most
