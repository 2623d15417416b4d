"""The index of instances: by owner."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.control.instance_index import InstanceIndex
from skerry.model.ids import InstanceId
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, ObservedState, OwnerKind
from skerry.store.tables.table import Record

JOB = InstanceOwner(OwnerKind.JOB, "01JOB", "nightly")
SERVICE = InstanceOwner(OwnerKind.SERVICE, "01JOB", "web")  # ids of two kinds may be the same


def _record(id: str, owner: InstanceOwner | None) -> Record[Instance]:
    spec = InstanceSpec(name=id, uri="example.org/web:1")
    seen = ObservedState(InstanceStatus.SCHEDULING, 1.0)
    return Record(Instance(InstanceId(id), spec, 1.0, seen, owner=owner), 1)


def test_instances_are_found_by_the_kind_and_id_of_their_owner() -> None:
    first, second = _record("a", JOB), _record("b", JOB)
    other = _record("c", SERVICE)
    index = InstanceIndex([first, second, other, _record("d", None)])

    assert index.of_owner(OwnerKind.JOB, "01JOB") == [first, second]
    assert index.of_owner(OwnerKind.SERVICE, "01JOB") == [other]
    assert index.of_owner(OwnerKind.JOB, "01OTHER") == []


def test_an_instance_that_changes_or_goes_is_found_as_it_is() -> None:
    first, second = _record("a", JOB), _record("b", JOB)
    index = InstanceIndex([first, second])

    changed = Record(replace(first.value, restarts=1), 2)
    index.update(first, changed)
    index.update(second, None)

    assert index.of_owner(OwnerKind.JOB, "01JOB") == [changed]
