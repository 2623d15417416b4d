"""What is to be done about a borrowed contract: each case by hand, and what must hold in all of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.market.buyer import node_decisions
from skerry.market.buyer.contract_table import BorrowedContractRecord
from skerry.market.buyer.node_decisions import BorrowedNodePlan, ObservedBorrowedNode
from skerry.market.buyer.provider_client import RemoteContractStatus
from skerry.market.buyer.quotes import BorrowedContract, BorrowedContractState
from skerry.model.ids import ContractId, HoldId, NodeId, OfferId
from skerry.model.market import Price
from skerry.model.market_settings import MarketSettings
from tests.market.markets import resources

NOW = 1_700_000_000.0
END = NOW + 3600.0
SETTINGS = MarketSettings(drain_s=60.0, peer_silence_s=120.0)
RECORD = BorrowedContractRecord(
    BorrowedContract(
        id=ContractId("c1"),
        peer="north",
        cloud="key.north",
        node=NodeId("borrowed-c1"),
        flavor=OfferId("f"),
        resources=resources(1, 1000),
        count=1,
        price=Price(Decimal("0.1"), "EUR", "PT1H"),
        total=Decimal("0.1"),
        starts_at=NOW,
        ends_at=END,
        state=BorrowedContractState.OPENING,
        reclaim_at=None,
        reason="",
        ended_at=None,
        document="signed",
        actor="ann",
    ),
    hold=HoldId("h1"),
    signed_until=END,
    open_by=NOW + 20.0,
)
HEARD = ObservedBorrowedNode(is_connected=True, is_registered=True)


def in_state(state: BorrowedContractState, **changes: Any) -> BorrowedContractRecord:
    return replace(RECORD, borrowed=replace(RECORD.borrowed, state=state, **changes))


def decide(
    record: BorrowedContractRecord, seen: ObservedBorrowedNode, now: float = NOW + 1
) -> BorrowedNodePlan:
    return node_decisions.decide(record, seen, SETTINGS, now)


def test_a_new_contract_has_its_door_opened_and_is_open_when_its_node_is_heard() -> None:
    plan = decide(RECORD, ObservedBorrowedNode())
    assert (plan.wants_tunnel, plan.record.borrowed.state) == (True, BorrowedContractState.OPENING)
    assert decide(RECORD, HEARD).record.borrowed.state is BorrowedContractState.OPEN


def test_one_that_does_not_open_in_time_is_given_back_with_the_providers_reason() -> None:
    told = RemoteContractStatus(END, cell="scheduling", cell_reason="no node has room")
    plan = decide(RECORD, ObservedBorrowedNode(contract_state=told), NOW + 20)
    assert plan.record.borrowed.reason == "it did not open in time: no node has room"
    assert (plan.wants_tunnel, plan.releases) == (False, True)
    plan = decide(RECORD, ObservedBorrowedNode(last_error="peer north: it is being made"), NOW + 20)
    assert plan.record.borrowed.reason == "it did not open in time: peer north: it is being made"


def test_a_node_is_drained_before_the_end_and_released_when_it_is_empty() -> None:
    record = in_state(BorrowedContractState.OPEN)
    assert decide(record, HEARD, END - 61).drain_by is None
    plan = decide(record, HEARD, END - 60)
    assert (plan.drain_by, plan.record.borrowed.state, plan.wants_tunnel) == (
        END,
        BorrowedContractState.DRAINING,
        True,
    )
    over = decide(plan.record, replace(HEARD, is_drained=True), END - 30)
    assert (over.record.borrowed.state, over.record.borrowed.reason) == (
        BorrowedContractState.ENDED,
        "its time is over",
    )
    assert (over.unregisters, over.releases, over.wants_tunnel) == (True, True, False)


def test_a_short_contract_is_used_for_half_of_it() -> None:
    short = replace(in_state(BorrowedContractState.OPEN, ends_at=NOW + 20), signed_until=NOW + 20)
    assert decide(short, HEARD, NOW + 9).drain_by is None
    assert decide(short, HEARD, NOW + 10).drain_by == NOW + 20


def test_what_is_taken_back_is_drained_at_once_until_its_notice_is_over() -> None:
    told = RemoteContractStatus(END, reclaim_at=NOW + 120, reason="repairs")
    plan = decide(in_state(BorrowedContractState.OPEN), replace(HEARD, contract_state=told))
    assert (plan.drain_by, plan.record.borrowed.reclaim_at) == (NOW + 120, NOW + 120)
    over = decide(plan.record, replace(HEARD, contract_state=told), NOW + 120)
    assert over.record.borrowed.reason == "taken back: repairs"


def test_what_we_give_back_is_drained_first() -> None:
    leaving = node_decisions.request_release(in_state(BorrowedContractState.OPEN), NOW + 60)
    assert leaving.borrowed.state is BorrowedContractState.DRAINING
    assert node_decisions.request_release(leaving, NOW + 900) == leaving
    assert decide(leaving, HEARD).drain_by == NOW + 60
    assert not decide(leaving, HEARD, NOW + 59).record.is_over
    assert decide(leaving, HEARD, NOW + 60).record.is_over  # also if its node is lost, and never drained
    assert decide(leaving, replace(HEARD, is_drained=True)).record.is_over
    assert (
        decide(
            node_decisions.request_release(RECORD, NOW + 60), ObservedBorrowedNode()
        ).record.borrowed.reason
        == "given back"
    )


def test_a_renewed_contract_takes_work_again() -> None:
    draining = in_state(BorrowedContractState.DRAINING)
    plan = decide(
        replace(draining, signed_until=END + 3600),
        replace(HEARD, contract_state=RemoteContractStatus(END + 3600)),
        END - 9,
    )
    assert (plan.is_reopened, plan.record.borrowed.state) == (True, BorrowedContractState.OPEN)
    assert plan.record.borrowed.ends_at == END + 3600


def test_a_provider_can_shorten_what_it_signed_and_not_lengthen_it() -> None:
    record = in_state(BorrowedContractState.OPEN)
    assert (
        decide(record, replace(HEARD, contract_state=RemoteContractStatus(END + 900))).record.borrowed.ends_at
        == END
    )
    assert (
        decide(record, replace(HEARD, contract_state=RemoteContractStatus(NOW + 9))).record.borrowed.ends_at
        == NOW + 9
    )


def test_a_silent_provider_is_given_up_and_told_until_the_end_of_the_contract() -> None:
    record = in_state(BorrowedContractState.OPEN)
    assert not decide(record, ObservedBorrowedNode(is_registered=True, silent_s=119)).record.is_over
    plan = decide(record, ObservedBorrowedNode(is_registered=True, silent_s=120))
    assert plan.record.borrowed.reason == "its provider was unreachable for 120 s"
    assert (plan.unregisters, plan.releases) == (True, True)
    assert decide(plan.record, ObservedBorrowedNode(), END - 1).releases
    late = decide(plan.record, ObservedBorrowedNode(), END)
    assert (late.releases, late.record.is_done) == (False, True)


def test_who_was_told_of_the_end_by_the_provider_need_not_tell_it() -> None:
    told = RemoteContractStatus(END, ended="withdrawn", reason="repairs")
    plan = decide(in_state(BorrowedContractState.OPEN), replace(HEARD, contract_state=told))
    assert (plan.record.is_done, plan.releases, plan.unregisters) == (True, False, True)
    assert plan.record.borrowed.reason == "taken back: repairs"


moments = st.floats(NOW - 100, END + 7200)
standings = st.none() | st.builds(
    RemoteContractStatus,
    moments,
    st.none() | moments,
    st.sampled_from(["", "repairs"]),
    st.sampled_from(["", "", "", "expired", "released", "withdrawn"]),
)
sights = st.builds(
    ObservedBorrowedNode,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.0, 1.0, 119.9, 120.0, 1e6]),
    standings,
)
contracts = st.builds(
    lambda state, ends_at, reclaim_at, leave_by, is_provider_notified: replace(
        in_state(state, ends_at=ends_at, reclaim_at=reclaim_at),
        signed_until=max(ends_at, END),
        leave_by=leave_by,
        is_provider_notified=is_provider_notified and state is BorrowedContractState.ENDED,
    ),
    st.sampled_from(BorrowedContractState),
    moments,
    st.none() | moments,
    st.none() | moments,
    st.booleans(),
)


@given(record=contracts, seen=sights, now=moments)
def test_whatever_was_seen_the_plan_is_safe_and_asking_again_changes_nothing(
    record: BorrowedContractRecord, seen: ObservedBorrowedNode, now: float
) -> None:
    plan = decide(record, seen, now)
    after = plan.record
    # What is over has no door and no node; what is not has both, and its provider is not told otherwise.
    assert plan.wants_tunnel == (not after.is_over)
    if after.is_over:
        assert plan.unregisters == seen.is_registered
        assert plan.releases == (not after.is_provider_notified)
        assert after.borrowed.reason or record.is_over
    else:
        assert not plan.unregisters
        assert not plan.releases
        assert now < after.borrowed.due_at
        assert seen.silent_s < SETTINGS.peer_silence_s
    # Nothing that is over comes back, and nothing drains for longer than there is.
    assert not record.is_over or after.is_over
    if plan.drain_by is not None:
        assert plan.drain_by <= after.borrowed.due_at
        assert after.borrowed.state is BorrowedContractState.DRAINING
    assert after.borrowed.ends_at <= max(after.signed_until, record.borrowed.ends_at)
    again = decide(after, seen, now)
    assert again.record == after
    assert (again.wants_tunnel, again.drain_by, again.unregisters, again.releases) == (
        plan.wants_tunnel,
        plan.drain_by,
        plan.unregisters,
        plan.releases,
    )


@given(record=contracts, seen=sights, now=moments, later=st.floats(0, 10_000))
def test_every_contract_ends_by_its_end_and_is_done_with(
    record: BorrowedContractRecord, seen: ObservedBorrowedNode, now: float, later: float
) -> None:
    plan = decide(record, seen, now)
    last = decide(plan.record, seen, max(now, plan.record.signed_until) + later)
    assert last.record.is_done


@given(record=contracts, seen=sights, now=moments, share=st.floats(0, 1, exclude_max=True))
def test_nothing_else_is_decided_before_the_next_time_that_is_due(
    record: BorrowedContractRecord, seen: ObservedBorrowedNode, now: float, share: float
) -> None:
    done = decide(record, seen, now).record
    plan = decide(done, seen, now)
    due = min(node_decisions.next_due(done, SETTINGS, now), END + 8000)
    between = now + (due - now) * share
    if between < due:  # and not rounded up to it
        assert decide(done, seen, between) == plan


def test_a_contract_that_is_done_with_is_never_due() -> None:
    over = replace(in_state(BorrowedContractState.ENDED, ended_at=NOW), is_provider_notified=True)
    assert node_decisions.next_due(over, SETTINGS, NOW) == float("inf")
    assert node_decisions.next_due(replace(over, is_provider_notified=False), SETTINGS, NOW) == END
