"""What would be placed where: found on the scheduler itself, which is as it was afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.control.placement.preview import PreviewStep, preview
from skerry.model.ids import InstanceId, NodeId
from skerry.model.workloads import Instance
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import Placement, PlacementFailure
from skerry.schedule.scheduler import Scheduler
from tests.control.worlds import instance, resources, spec

NODES = ("n1", "n2")


def scheduler(*bound: tuple[str, str, int]) -> Scheduler:
    """Two nodes of a core each, and on them what is `bound`: instance, node, cpu."""
    made = Scheduler()
    for node in NODES:
        made.set_node(NodeView(NodeId(node), resources(1000)))
    for id, node, cpu in bound:
        made.bind(NodeId(node), PlacementRequest.of(InstanceId(id), spec(cpu=cpu)))
    return made


def step(id: str, cpu: int, **more: object) -> tuple[PlacementRequest, PreviewStep]:
    one = new(id, cpu)
    return PlacementRequest.of(one.id, one.spec), PreviewStep(one, **more)  # type: ignore[arg-type]


def new(id: str, cpu: int) -> Instance:
    return instance(id, what=spec(cpu=cpu))


def nodes(found: list[Placement | PlacementFailure]) -> list[str | None]:
    return [one.node if isinstance(one, Placement) else None for one in found]


def test_each_finds_what_those_before_it_have_left() -> None:
    fleet = scheduler()
    found = preview(fleet, PlacementPolicy.BINPACK, [step(f"new-{n}", 600) for n in range(3)])
    assert sorted(nodes(found)[:2], key=str) == ["n1", "n2"]
    assert isinstance(found[2], PlacementFailure)


def test_stop_first_has_the_place_of_the_old_one_and_start_first_has_not() -> None:
    fleet = scheduler(("old", "n1", 800), ("other", "n2", 800))
    beside = preview(fleet, PlacementPolicy.BINPACK, [step("new", 800, replaces=InstanceId("old"))])
    assert nodes(beside) == [None]
    instead = preview(
        fleet, PlacementPolicy.BINPACK, [step("new", 800, replaces=InstanceId("old"), is_stop_first=True)]
    )
    assert nodes(instead) == ["n1"]


@given(
    bound=st.lists(st.tuples(st.sampled_from(NODES), st.integers(1, 600)), max_size=6),
    steps=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 7), st.booleans()), max_size=6),
)
def test_the_scheduler_is_as_it_was(bound: list[tuple[str, int]], steps: list[tuple[int, int, bool]]) -> None:
    fleet = scheduler(*((f"old-{n}", node, cpu) for n, (node, cpu) in enumerate(bound)))

    def state() -> list[object]:
        return [
            *(fleet.free(NodeId(node)) for node in NODES),
            *(fleet.node_of(InstanceId(f"old-{n}")) for n in range(len(bound))),
            *(fleet.node_of(InstanceId(f"new-{n}")) for n in range(len(steps))),
            fleet.explain(PlacementRequest.of(InstanceId("probe"), spec(cpu=500))),
        ]

    before = state()
    preview(
        fleet,
        PlacementPolicy.SPREAD,
        [
            step(f"new-{n}", cpu, replaces=InstanceId(f"old-{old}"), is_stop_first=is_stop_first)
            for n, (cpu, old, is_stop_first) in enumerate(steps)
        ],
    )
    assert state() == before
