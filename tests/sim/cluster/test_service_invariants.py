"""What the witness of services objects to, and what it lets be."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.model.ids import InstanceId, NodeId
from skerry.model.services import Service, UpdatePolicy
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, ObservedState, OwnerKind
from skerry.sim.cluster.service_invariants import ServiceInvariants
from skerry.store.protocol import Batch, Change, Entry, Put
from tests.control.services.worlds import make_service, revision


class Witnessed:
    """A service of two with its copies, as transactions tell of them."""

    def __init__(self, service: Service | None = None) -> None:
        self.violations: list[str] = []
        self.checker = ServiceInvariants(self.violations.append, lambda node: True)
        self.revision = 0
        self.copies: dict[str, Instance] = {}
        self.service = service or make_service(2)
        self.write(self.service)
        for number in range(self.service.replicas):
            self.write(ready_copy(f"c{number}", number))

    def write(self, *records: Service | Instance, known: int | None = None) -> int:
        """A transaction, of one who knew of instances up to `known`."""
        self.revision += 1
        puts = []
        for record in records:
            if isinstance(record, Instance):
                self.copies[record.id] = record
                puts.append(Put(f"instance/{record.id}", json_codec.encode(record)))
            else:
                puts.append(Put("service/default/web", json_codec.encode(record)))
        self.checker.sent(puts, self.revision - 1 if known is None else known)
        self._see(*(Change(put.key, Entry(put.key, put.value, self.revision, self.revision)) for put in puts))
        return self.revision

    def remove(self, *keys: str) -> None:
        self.revision += 1
        self._see(*(Change(key, None) for key in keys))

    def _see(self, *changes: Change) -> None:
        self.checker.observe(Batch(self.revision, changes))

    def differences(self, explain: Callable[[Instance], bool] = lambda copy: True) -> list[str]:
        return list(self.checker.unfulfilled(explain))


def ready_copy(id: str, index: int = 0, number: int = 1, uri: str = "example.org/web:1") -> Instance:
    return Instance(
        InstanceId(id),
        replace(revision(number).template, uri=uri),
        0.0,
        ObservedState(InstanceStatus.RUNNING, 0.0),
        node=NodeId("n1"),
        owner=InstanceOwner(OwnerKind.SERVICE, "s1", "web", number, index),
    )


def retired(copy: Instance) -> Instance:
    return replace(copy, retiring_at=1.0)


def crashed(copy: Instance) -> Instance:
    return replace(copy, observed=ObservedState(InstanceStatus.CRASHED, 1.0, actor="node/n1"))


def test_a_service_with_its_copies_is_at_rest() -> None:
    seen = Witnessed()
    assert seen.differences() == []
    assert seen.violations == []


def test_more_copies_than_the_surge_allows_are_a_violation() -> None:
    seen = Witnessed()
    seen.write(ready_copy("c2", 0))
    assert seen.violations == []
    seen.write(ready_copy("c3", 1))
    assert seen.violations == ["service web has 4 copies, and 3 at most"]


def test_a_scale_down_leaves_too_many_for_a_while_and_is_none() -> None:
    seen = Witnessed(make_service(5))
    seen.write(replace(seen.service, replicas=1))
    assert seen.violations == []
    assert seen.differences() == ["service web has 5 copies, and should have 1"]


def test_a_ready_copy_that_leaves_too_few_is_a_violation() -> None:
    seen = Witnessed()
    seen.write(retired(seen.copies["c0"]))
    assert seen.violations == ["service web was left with 1 ready copies of 2, where 2 are the least"]


def test_so_is_one_that_is_destroyed_by_us_and_not_one_that_somebody_destroys() -> None:
    seen = Witnessed()
    destroyed = replace(
        seen.copies["c0"],
        desired=DesiredStatus.DESTROYED,
        observed=ObservedState(InstanceStatus.DESTROYING, 1.0, actor="ann"),
    )
    seen.write(destroyed)
    assert seen.violations == []
    seen = Witnessed()
    seen.write(replace(destroyed, observed=ObservedState(InstanceStatus.DESTROYING, 1.0, actor="skerry")))
    assert len(seen.violations) == 1


def test_a_copy_may_leave_when_another_is_ready_or_the_policy_allows_fewer() -> None:
    seen = Witnessed()
    seen.write(ready_copy("c2", 0))
    seen.write(retired(seen.copies["c0"]))
    assert seen.violations == []
    seen = Witnessed(make_service(2, update=UpdatePolicy(max_unavailable=1)))
    seen.write(retired(seen.copies["c0"]))
    assert seen.violations == []


def test_what_a_server_could_not_know_counts_against_nobody() -> None:
    seen = Witnessed()
    known = seen.write(ready_copy("c2", 0))
    seen.write(crashed(seen.copies["c1"]))
    seen.write(retired(seen.copies["c0"]), known=known)
    assert seen.violations == []
    seen = Witnessed()
    seen.write(ready_copy("c2", 0))
    known = seen.write(crashed(seen.copies["c1"]))
    seen.write(retired(seen.copies["c0"]), known=known)
    assert len(seen.violations) == 1


def test_a_copy_without_its_service_and_a_bad_revision_are_no_rest() -> None:
    seen = Witnessed()
    seen.write(replace(ready_copy("c0"), spec=replace(revision().template, uri="example.org/bad:crashes")))
    assert seen.differences() == ["service web still has a copy of a bad revision"]
    seen.remove("service/default/web")
    assert seen.differences() == ["c0 is a copy of service s1, which is gone"]
    seen.remove("instance/c0", "instance/c1")
    assert seen.differences() == []


def test_missing_copies_are_no_rest_unless_no_node_takes_them() -> None:
    seen = Witnessed()
    waiting = replace(
        seen.copies["c1"], node=None, observed=ObservedState(InstanceStatus.SCHEDULING, 1.0, "no node")
    )
    seen.write(waiting)
    assert seen.differences(lambda copy: True) == ["service web has 1 ready copies of 2"]
    assert seen.differences(lambda copy: False) == []


def test_an_acknowledged_number_of_replicas_that_is_not_there_is_no_rest() -> None:
    seen = Witnessed()
    seen.checker.replicas["web"] = 3
    assert seen.differences() == ["service web is to have 3 replicas, and is 2"]
    seen.checker.replicas["web"] = None
    assert seen.differences() == []
