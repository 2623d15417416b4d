"""Places, views and calls for policies, with only what a test is about; and any of them, for properties."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from skerry.functions.continuum.call_time_model import CallObservation, CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, Candidate, CandidateView
from skerry.model.ids import FunctionName, NodeId

F = FunctionName("f")
HERE = NodeId("here")


def demand(**fields: Any) -> CallDemand:
    return CallDemand(**{"function": F, "memory": 128, "cpu": 1.0, **fields})


def place(node: str, **fields: Any) -> Candidate:
    """With 1024 MB and 4 cores, all free; 10 ms away unless it is here."""
    is_here = node == HERE
    usual = {
        "memory_total": 1024,
        "memory_free": 1024,
        "cpus_total": 4.0,
        "cpus_free": 4.0,
        "rtt_s": 0.0 if is_here else 0.01,
    }
    return Candidate(node=NodeId(node), area="edge", is_here=is_here, **{**usual, **fields})


def full(node: str, **fields: Any) -> Candidate:
    return place(node, **{"memory_free": 0, "cpus_free": 0.0, "waiting": 4, **fields})


def here(**fields: Any) -> Candidate:
    return place(HERE, **fields)


def full_here(**fields: Any) -> Candidate:
    return full(HERE, **fields)


memories = st.sampled_from([1, 64, 128, 1024, 4096])  # MB
cores = st.sampled_from([0.0, 0.25, 1.0, 2.0, 8.0])
moments = st.sampled_from([0.0, 1e-6, 0.01, 0.5, 3.0, 1e6])  # seconds
demands = st.builds(
    CallDemand,
    st.sampled_from([F, FunctionName("g")]),
    memories,
    cores,
    st.sampled_from([0, 100, 2**24]),
    st.sampled_from([0, 1, 2, 17, 255]),
    st.none() | st.floats(-1, 100),
    st.booleans(),
    st.integers(0, 2),
)
seens = st.builds(CallObservation, moments, st.none() | moments, st.none() | moments, moments)


@st.composite
def places(draw: st.DrawFn, node: str) -> Candidate:
    """A place as a node would tell of it, or one that is gone."""
    memory_total, cpus_total = draw(memories), draw(cores)
    is_here = node == HERE
    warm, seats, waiting = draw(st.sampled_from([(0, 0, 0), (1, 0, 0), (0, 1, 3), (0, 0, 50)]))
    return Candidate(
        NodeId(node),
        "edge",
        is_here,
        memory_total,
        min(memory_total, draw(memories)),
        cpus_total,
        min(cpus_total, draw(cores)),
        warm,
        waiting,
        0.0 if is_here else draw(moments),
        is_here or draw(st.booleans()),
        seats=seats,
    )


@st.composite
def views(draw: st.DrawFn) -> CandidateView:
    return CandidateView(
        draw(places(HERE)),
        tuple(draw(places(f"neighbour-{number}")) for number in range(draw(st.integers(0, 3)))),
        tuple(draw(places(f"cloud-{number}")) for number in range(draw(st.integers(0, 2)))),
    )


@st.composite
def experiences(draw: st.DrawFn) -> CallTimeModel:
    """Measured call times, at members of the views above."""
    call_times = CallTimeModel()
    for node in draw(st.lists(st.sampled_from([HERE, "neighbour-0", "cloud-0"]), max_size=4)):
        where = draw(places(node))
        if draw(st.booleans()):
            call_times.record(draw(demands), where, draw(seens))
        else:
            call_times.record_refusal(where)
    return call_times
