"""What needs attention, and why; figures of resources, services and money."""

from __future__ import annotations

import msgspec
import pytest

from skerry.console.components import Tone
from skerry.console.pages import overview
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.services.registry import ServiceState
from skerry.model.ids import InstanceId, NodeId, ServiceId
from skerry.model.nodes import Liveness
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.services import Service, ServiceRevision, ServiceRollout
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, ObservedState, OwnerKind
from skerry.schedule.requests import NodeView

NOW = 1_000_000.0
WHOLE = Resources(Millicores(4000), Megabytes(8192), Gigabytes(100))
SPEC = InstanceSpec("web", "example.org/web:1", resources=Resources(Millicores(1000), Megabytes(1024)))


def node(name: str = "north", liveness: Liveness = Liveness.LIVE, **view: object) -> NodeCondition:
    shown = NodeView(NodeId(name), WHOLE, name=name, **view)  # type: ignore[arg-type]
    return NodeCondition(shown, liveness, silent_s=None if liveness is Liveness.LIVE else 90)


def instance(status: InstanceStatus, *, since: float = NOW, owner: InstanceOwner | None = None) -> Instance:
    observed = ObservedState(status, since, "the reason")
    return Instance(InstanceId("i1"), SPEC, NOW, observed, node=NodeId("north"), owner=owner)


def service(ready: int, replicas: int = 2, rollout: ServiceRollout | None = None) -> ServiceState:
    revision = ServiceRevision(1, SPEC, NOW)
    made = Service(ServiceId("s1"), "web", revision, NOW, replicas, stable=revision, rollout=rollout)
    return ServiceState(made, (), ready, ready, 1)


def titles(*parts: list[object]) -> list[str]:
    return [one.title for one in overview.findings(*parts, NOW)]  # type: ignore[arg-type]


def test_nothing_is_found_where_all_is_well() -> None:
    assert titles([node()], [service(2)], [instance(InstanceStatus.RUNNING)]) == []


def test_a_lost_node_is_worse_than_a_silent_one_and_both_say_for_how_long() -> None:
    found = overview.findings([node("a", Liveness.SUSPECT), node("b", Liveness.LOST)], [], [], NOW)
    assert [(one.tone, one.title) for one in found] == [
        (Tone.BAD, "Node b is lost"),
        (Tone.WARNING, "Node a is silent"),
    ]
    assert all("1m" in one.reason for one in found)


def test_a_node_that_takes_nothing_says_why() -> None:
    closed = node("a", is_schedulable=False, unschedulable_reason="is cordoned")
    (found,) = overview.findings([closed], [], [], NOW)
    assert (found.title, found.reason) == ("Node a takes no new work", "It is cordoned.")


def test_a_service_with_too_few_copies_is_found_with_its_reasons() -> None:
    halted = ServiceRollout(NOW, NOW, is_halted=True, reason="copy web-0 failed 3 times")
    (found,) = overview.findings([], [service(1, rollout=halted)], [], NOW)
    assert found.tone is Tone.BAD
    assert found.reason == "copy web-0 failed 3 times. 1 of 2 copies are ready."
    assert found.href == "/console/services/web?namespace=default"


def test_many_findings_of_a_kind_are_one_that_leads_to_their_list_and_hide_no_other() -> None:
    states = [
        one._replace(service=msgspec.structs.replace(one.service, name=f"web-{number}"))
        for number, one in enumerate([service(1)] * 50)
    ]
    found = overview.findings([node("a", Liveness.SUSPECT)], states, [], NOW)
    shown = overview.grouped(found)
    assert [one.title for one in shown] == [
        "Service web-0 is degraded",
        "Service web-1 is degraded",
        "48 other services are degraded",
        "Node a is silent",
    ]
    assert (shown[2].href, shown[2].tone) == ("/console/services?q=degraded", Tone.BAD)
    assert overview.grouped(found[-4:]) == found[-4:], "what is as short is shown one by one"


def test_services_that_lack_copies_are_first_and_few_are_shown() -> None:
    states = [
        one._replace(service=msgspec.structs.replace(one.service, name=name))
        for name, one in [*((f"good-{number}", service(2)) for number in range(5)), ("bad", service(1))]
    ]
    table = overview.service_rows(states)
    assert table is not None
    assert [row.cells[0].text for row in table.rows] == ["bad", "good-0", "good-1", "good-2", "good-3"]
    assert [cell.text for cell in table.rows[0].cells] == ["bad", "", "1/2"]
    assert overview.service_rows([]) is None


def test_an_update_under_way_needs_no_attention() -> None:
    assert titles([], [service(1, rollout=ServiceRollout(NOW, NOW))], []) == []


@pytest.mark.parametrize(("waited_s", "count"), [(5, 0), (60, 1)])
def test_an_instance_that_waits_for_a_node_is_found_after_a_while(waited_s: float, count: int) -> None:
    waiting = instance(InstanceStatus.SCHEDULING, since=NOW - waited_s)
    assert len(titles([], [], [waiting])) == count


def test_a_crashed_copy_is_left_to_its_owner() -> None:
    crashed = instance(InstanceStatus.CRASHED)
    owned = instance(InstanceStatus.CRASHED, owner=InstanceOwner(OwnerKind.SERVICE, "s1", "web"))
    assert titles([], [], [crashed, owned]) == ["web has crashed"]


def test_bars_show_what_is_reserved_of_live_nodes_and_what_is_used() -> None:
    use = overview.resource_use(
        [node("a"), node("b", Liveness.LOST)],
        [
            instance(InstanceStatus.RUNNING),
            msgspec.structs.replace(instance(InstanceStatus.SCHEDULING), node=None),
        ],
        [Resources(Millicores(400))],
    )
    cpu, memory, _ = overview.resource_bars(use)
    assert (cpu.text, cpu.share, cpu.actual) == (
        "1 of 4 cores reserved, 0.4 used, 3 free",
        0.25,
        0.1,
    )
    assert memory.text == "1 GB of 8 GB reserved, 0 MB used, 7 GB free"


def test_bars_without_nodes_are_empty() -> None:
    assert [bar.share for bar in overview.resource_bars(overview.resource_use([], [], []))] == [0, 0, 0]
