"""The page of workloads: what it says of their instances, and what can be done."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.console.components import Tone
from skerry.console.pages import instances, workloads
from skerry.console.pages.workloads import WorkloadRow
from skerry.console.tables import ListQuery
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import InstanceId, Namespace, WorkloadId
from skerry.model.resources import NO_RESOURCES, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState, RolloutStrategy, Workload

DEPLOYER = Caller(AuthMethod.TOKEN, "d", Role.DEPLOYER)
VIEWER = Caller(AuthMethod.TOKEN, "v", Role.VIEWER)
SPEC = InstanceSpec("web", "example.org/web:2", resources=Resources(Millicores(250), Megabytes(128)))
WEB = Workload(WorkloadId("w1"), SPEC, 10.0, version=2, namespace=Namespace("shop"))


def instance(
    name: str,
    *,
    version: int = 2,
    status: InstanceStatus = InstanceStatus.RUNNING,
    desired: DesiredStatus = DesiredStatus.RUNNING,
) -> Instance:
    return Instance(
        InstanceId(name),
        SPEC,
        20.0,
        ObservedState(status, 20.0),
        desired,
        WEB.id,
        version,
        namespace=WEB.namespace,
    )


def test_the_list_counts_what_runs_and_what_is_older() -> None:
    row = WorkloadRow(WEB, (instance("a"), instance("b", version=1, status=InstanceStatus.STARTING)))
    (shown,) = workloads.workload_table([row], ListQuery(q="web:2"), 30.0).rows
    assert shown.cells[0].href == "/console/workloads/web?namespace=shop"
    assert (shown.cells[1].text, shown.cells[1].note) == ("1/2", "1 of older versions")


def test_a_list_of_none_says_what_to_do_first() -> None:
    empty = workloads.workload_table([], ListQuery(), 30.0).empty
    assert empty is not None
    assert empty.command.startswith("skerry apply")


def test_actions_have_the_command_that_does_the_same() -> None:
    gone = instance("c", desired=DesiredStatus.DESTROYED)
    add, delete = workloads.workload_view(WorkloadRow(WEB, (instance("a"), gone)), DEPLOYER, 30.0).actions
    assert add.command == (
        """echo '{"instances":[{"workload":"web","count":2}]}' | skerry apply -f - --namespace shop"""
    )
    assert delete.is_destructive
    assert delete.question == "Delete workload web and its 1 instance?"
    assert delete.command == "skerry delete workload web --namespace shop"
    assert [field.flag for field in delete.fields] == ["--keep-instances"]


def test_a_viewer_has_no_actions() -> None:
    assert workloads.workload_view(WorkloadRow(WEB), VIEWER, 30.0).actions == ()


def test_the_status_is_that_of_its_instances() -> None:
    def badge(*made: Instance) -> tuple[str, Tone]:
        shown = workloads.workload_view(WorkloadRow(WEB, made), VIEWER, 30.0).status.badge
        assert shown is not None
        return shown.text, shown.tone

    assert badge() == ("NO INSTANCES", Tone.QUIET)
    assert badge(instance("a")) == ("RUNNING", Tone.GOOD)
    assert badge(instance("a"), instance("b", status=InstanceStatus.STARTING)) == ("STARTING", Tone.BUSY)
    assert badge(instance("a"), instance("b", status=InstanceStatus.CRASHED)) == ("1 NOT RUNNING", Tone.BAD)


def test_older_instances_are_replaced_only_by_a_rollout() -> None:
    row = WorkloadRow(WEB, (instance("a", version=1),))
    assert "stay as they are" in workloads.workload_view(row, VIEWER, 30.0).note
    rolling = WorkloadRow(replace(WEB, rollout=RolloutStrategy.ROLLING), row.instances)
    assert "replaced one after another" in workloads.workload_view(rolling, VIEWER, 30.0).note


def test_an_instance_leads_to_its_workload() -> None:
    view = instances.instance_view(instance("a"), "pi", NO_RESOURCES, VIEWER, 30.0, "web")
    made_by = next(one.value for one in view.facts if one.label == "Made by")
    assert (made_by.text, made_by.note) == ("workload web", "version 2")
    assert made_by.href == "/console/workloads/web?namespace=shop"
