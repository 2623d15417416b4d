"""What a guest may have: names that nobody else has, specs that stay in the cell, times that cost little."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.containers import ContainerSpec
from skerry.model.ids import InstanceId
from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.workloads import UserNamespaceMode, WorkloadKind
from skerry.node.agent.instances.container_specs import container_name
from skerry.node.guests import policy
from tests.node.agent.instances.worlds import TERMS, spec
from tests.node.guests.ground import BOUGHT, CELL, OWN

IDS = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
CELLS = IDS.map(lambda id: container_name(InstanceId(id)))


class TestTheCell:
    def test_is_held_to_exactly_what_was_bought(self) -> None:
        cell = policy.parent_cell(ContainerSpec(CELL, "contract:1", resources=BOUGHT), pids=100)
        assert (cell.name, cell.limits) == (
            OWN,
            CellLimits(cpu_weight=50, cpu_quota=500, memory=64, pids=100),
        )

    @pytest.mark.parametrize("resources", [Resources(memory=Megabytes(64)), Resources(cpu=Millicores(500))])
    def test_without_a_limit_cannot_be(self, resources: Resources) -> None:
        with pytest.raises(errors.Invalid, match="some cpu and some memory"):
            policy.parent_cell(ContainerSpec(CELL, "contract:1", resources=resources), pids=100)


class TestNames:
    @given(CELLS, IDS, CELLS, IDS)
    def test_are_never_another_s(self, cell: str, id: str, other_cell: str, other: str) -> None:
        name = policy.guest_name(cell, InstanceId(id))
        assert name != container_name(InstanceId(other))
        is_same = (cell, id) == (other_cell, other)
        assert (name == policy.guest_name(other_cell, InstanceId(other))) is is_same

    def test_do_not_run_into_each_other_where_ids_do(self) -> None:
        one = policy.guest_name("i-a", InstanceId("b-c"))
        assert one != policy.guest_name("i-a-b", InstanceId("c"))


class TestSpecs:
    def test_are_inside_of_the_cell_and_apart(self) -> None:
        made = policy.guest_spec(CELL, BOUGHT, InstanceId("web"), spec(environment=("A=1",)))
        assert (made.inside, made.is_apart, made.read_only) == (CELL, True, False)
        assert (made.image, made.environment, made.host_name) == ("web:1", ("A=1",), "web")

    def test_without_a_disk_of_their_own_have_that_of_the_cell(self) -> None:
        resources = Resources(Millicores(100), Megabytes(16))
        made = policy.guest_spec(CELL, BOUGHT, InstanceId("web"), spec(resources=resources))
        assert made.resources == replace(resources, disk=BOUGHT.disk)
        assert made.shared_disk == BOUGHT.disk
        assert policy.guest_spec(CELL, BOUGHT, InstanceId("web"), spec(resources=BOUGHT)).resources == BOUGHT

    def test_can_write_nothing_where_no_disk_was_bought(self) -> None:
        assert policy.guest_spec(CELL, replace(BOUGHT, disk=0), InstanceId("web"), spec()).read_only

    def test_have_no_more_cpu_than_the_cell(self) -> None:
        def limit(asked: int | None) -> int | None:
            wanted = spec(cpu_limit=None if asked is None else Millicores(asked))
            return policy.guest_spec(CELL, BOUGHT, InstanceId("web"), wanted).cpu_limit

        assert [limit(asked) for asked in (None, 0, 400, 9000)] == [None, 0, 400, BOUGHT.cpu]

    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (spec(ports=(PortMapping(8080, 80),)), "publishes no ports"),
            (spec(kind=WorkloadKind.CELL), "cannot be lent on"),
            (spec(userns=UserNamespaceMode.HOST), "a user namespace of its own"),
            (spec(resources=replace(BOUGHT, cpu=Millicores(501))), "lacks 1 milli-cores of cpu"),
            (spec(resources=replace(BOUGHT, memory=Megabytes(65))), "lacks 1 MB of memory"),
            (spec(resources=replace(BOUGHT, disk=Gigabytes(3))), "lacks 1 GB of disk"),
        ],
    )
    def test_that_reach_out_of_the_cell_are_refused(self, wanted: object, why: str) -> None:
        with pytest.raises(errors.Invalid, match=why):
            policy.guest_spec(CELL, BOUGHT, InstanceId("web"), wanted)  # type: ignore[arg-type]


class TestTerms:
    def test_that_are_usual_stay_as_they_are(self) -> None:
        assert policy.clamp_session_config(TERMS) == TERMS

    @given(st.lists(st.floats(), min_size=5, max_size=5))
    def test_of_a_stranger_cost_no_more_than_others(self, times: list[float]) -> None:
        names = ("report_s", "restart_base_s", "restart_cap_s", "restart_reset_s", "silence_s")
        terms = policy.clamp_session_config(replace(TERMS, **dict(zip(names, times, strict=True))))
        assert all(math.isfinite(getattr(terms, name)) for name in names)
        assert terms.report_s >= 0.5
        assert 0.1 <= terms.restart_base_s <= terms.restart_cap_s
        assert terms.silence_s == 0 or terms.silence_s >= 1
