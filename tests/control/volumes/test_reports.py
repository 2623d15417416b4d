"""Reports of nodes about volumes: what they change, and what a restored store takes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.named_table import key_of
from skerry.control.recovery.store_history import StoreHistory, StoreStamp
from skerry.control.volumes.reports import (
    CREATING,
    VolumeReceipt,
    VolumeReports,
    decide_recovery,
    decide_report,
)
from skerry.control.volumes.table import VolumeTable
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import DEFAULT_NAMESPACE, NodeId, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.settings import EventSettings
from skerry.model.volumes import Volume, VolumeOrder, VolumeReport, VolumeStatus
from skerry.store.local.memory import MemoryStore

NODE, OTHER = NodeId("n1"), NodeId("n2")
ID = VolumeId("01v")
VOLUME = Volume(ID, "db", Gigabytes(1), 1.0, node=NODE, status=VolumeStatus.CREATING)
READY = replace(VOLUME, status=VolumeStatus.READY, has_been_ready=True)
DELETING = replace(READY, status=VolumeStatus.DELETING, generation=2)
STAMP = StoreStamp("run", 7)


def test_a_volume_that_its_node_has_is_ready_and_may_not_be_created_again() -> None:
    outcome = decide_report(VOLUME, NODE, VolumeReport(ID, 1), 9.0)
    assert outcome is not None
    assert (outcome.volume.status, outcome.volume.has_been_ready, outcome.volume.since) == (
        VolumeStatus.READY,
        True,
        9.0,
    )
    assert decide_report(outcome.volume, NODE, VolumeReport(ID, 1), 10.0) is None


def test_one_that_cannot_be_created_or_is_lost_has_failed_with_the_reason() -> None:
    assert decide_report(VOLUME, NODE, VolumeReport(ID, 1, is_ready=False, reason=CREATING), 9.0) is None
    for volume in (VOLUME, READY):
        outcome = decide_report(volume, NODE, VolumeReport(ID, 1, is_ready=False, reason="no disk"), 9.0)
        assert outcome is not None
        assert (outcome.volume.status, outcome.volume.reason) == (VolumeStatus.FAILED, "no disk")


def test_a_record_goes_only_when_it_is_being_deleted_and_its_node_has_removed_it() -> None:
    gone = VolumeReport(ID, 2, is_ready=False, is_gone=True)
    outcome = decide_report(DELETING, NODE, gone, 9.0)
    assert outcome is not None
    assert outcome.is_removed
    assert decide_report(DELETING, NODE, replace(gone, generation=1), 9.0) is None
    assert decide_report(READY, NODE, gone, 9.0) is None


@given(
    st.builds(
        VolumeReport,
        id=st.just(ID),
        generation=st.integers(0, 4),
        is_ready=st.booleans(),
        is_gone=st.booleans(),
        reason=st.sampled_from(("", "no disk", CREATING)),
    ),
    st.sampled_from((VOLUME, READY, DELETING, replace(VOLUME, node=None, status=VolumeStatus.UNBOUND))),
)
def test_a_node_changes_only_its_own_volumes_and_removes_none_that_is_wanted(
    report: VolumeReport, volume: Volume
) -> None:
    assert decide_report(volume, OTHER, report, 9.0) is None
    outcome = decide_report(volume, NODE, report, 9.0)
    if outcome is not None:
        assert outcome.volume.node == volume.node
        assert not outcome.is_removed or volume.is_deleting


@pytest.mark.parametrize(
    ("known", "is_taken"),
    [
        (None, True),
        (replace(VOLUME, node=None, status=VolumeStatus.UNBOUND), True),  # from before it was bound
        (replace(VOLUME, node=OTHER, generation=3), False),  # moved or deleted since
        (replace(VOLUME, node=OTHER), False),
        (READY, False),
    ],
)
def test_a_restored_store_takes_back_what_it_has_forgotten_and_nothing_else(
    known: Volume | None, is_taken: bool
) -> None:
    receipt = VolumeReceipt(NODE, STAMP, VOLUME)
    found = decide_recovery(known, NODE, receipt, VolumeReport(ID, 1), 9.0)
    assert (found is not None) is is_taken
    if found is not None:
        assert (found.node, found.status, found.has_been_ready) == (NODE, VolumeStatus.READY, True)


def test_a_volume_that_is_taken_back_is_not_held_by_an_operation_that_nobody_knows() -> None:
    receipt = VolumeReceipt(NODE, STAMP, replace(VOLUME, operation="gone", is_held=True))
    found = decide_recovery(None, NODE, receipt, VolumeReport(ID, 1), 9.0)
    assert found is not None
    assert (found.operation, found.is_held, found.is_usable) == ("", False, True)
    known = replace(VOLUME, node=None, operation="here", is_held=True)
    found = decide_recovery(known, NODE, receipt, VolumeReport(ID, 1), 9.0)
    assert found is not None
    assert (found.operation, found.is_held) == ("here", True)


def test_a_restored_store_continues_with_the_generation_that_the_node_has() -> None:
    """Else its orders, and the next restore, would be refused as older ones."""
    outcome = decide_report(READY, NODE, VolumeReport(ID, 4), 9.0)
    assert outcome is not None
    assert (outcome.volume.generation, outcome.volume.status) == (4, VolumeStatus.READY)
    running = replace(READY, operation="o")  # its copy may be installed, and is not in the store yet
    assert decide_report(running, NODE, VolumeReport(ID, 4), 9.0) is None


class RestoredHistory(StoreHistory):
    """Of a store that was restored to before every receipt."""

    def __init__(self) -> None:
        self.restored: list[str] = []

    def stamp(self, revision: int) -> StoreStamp:
        return STAMP

    async def forgotten(self) -> Callable[[StoreStamp], bool]:
        return lambda stamp: True

    async def note_restored(self, reason: str) -> None:
        self.restored.append(reason)


async def test_data_of_a_volume_that_a_restored_store_has_bound_elsewhere_are_reported_once() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    events, table = EventLog(store, clock, EventSettings()), VolumeTable(store)
    following = asyncio.ensure_future(table.run())
    try:
        await table.ready()
        reports = VolumeReports(events, clock, table, history=RestoredHistory(), key=b"key")
        await table.commit([table.put(key_of(READY), READY)])
        order = reports.with_receipt(NODE, VolumeOrder(ID, "db", DEFAULT_NAMESPACE, Gigabytes(1), 1))
        await table.commit([table.put(key_of(READY), replace(READY, node=OTHER))])
        for _ in range(2):
            await reports.take(NODE, [VolumeReport(ID, 1, receipt=order.receipt)])
        known = table.by_id(ID)
        assert known is not None
        assert known.value.node == OTHER, "which data are the right ones is for a user to decide"
        stored = [one.event for one in await events.of(table.subject(READY))]
        assert [(one.kind, one.actor, one.data["name"]) for one in stored] == [
            ("volume.second_copy", "node/n1", "db")
        ]
        assert "volumes/01v" in stored[0].reason
    finally:
        await cancel_and_wait([following])
        await store.close()
