"""What is to be done about a borrowed contract: pure, on its record, what was seen of it, and the time.

`decide` says what the record is to be and what the world is to look like: a door that is kept open, a node
that drains, one that is unregistered, a provider that is to be told. Asking again after doing all of that
changes nothing, so a server that takes over goes on wherever the last one was. Who acts on it is
`skerry.market.buyer.borrowed_node_controller`.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from skerry.market.buyer.contract_table import BorrowedContractRecord
from skerry.market.buyer.provider_client import RemoteContractStatus
from skerry.market.buyer.quotes import BorrowedContract, BorrowedContractState
from skerry.model.market_settings import MarketSettings

_MAX_REASON = 256


class ObservedBorrowedNode(msgspec.Struct, frozen=True):
    """What is known beside the record."""

    is_heard: bool = False  # its node speaks with us
    is_registered: bool = False
    is_drained: bool = False  # its node has nothing left, or its time to drain is up
    silent_s: float = 0.0  # since the provider was last heard; 0 while the door is open
    contract_state: RemoteContractStatus | None = None  # what the provider said last
    trouble: str = ""  # why its door did not open last time


class BorrowedNodePlan(msgspec.Struct, frozen=True):
    """The record as it is to be, and the world with it."""

    loan: BorrowedContractRecord
    wants_door: bool = False
    drain_by: float | None = None  # its node gives up what it has until then
    is_reopened: bool = False  # its node was drained by us, and takes work again
    unregisters: bool = False
    releases: bool = False  # the provider is to be told that it is over


def decide(
    loan: BorrowedContractRecord, seen: ObservedBorrowedNode, settings: MarketSettings, now: float
) -> BorrowedNodePlan:
    """What is to be done now."""
    loan = _told(loan, seen.contract_state)
    if not loan.is_over:
        drain_by = _drain_by(loan, settings, now)
        if why := _why_over(loan, seen, settings, drain_by, now):
            is_told = seen.contract_state is not None and bool(seen.contract_state.ended)
            loan = _ended(loan, why, now, is_told=is_told)
        else:
            was, state = loan.borrowed.state, _state(loan, seen, drain_by)
            return BorrowedNodePlan(
                replace(loan, borrowed=replace(loan.borrowed, state=state)),
                wants_door=True,
                drain_by=drain_by if state is BorrowedContractState.DRAINING else None,
                is_reopened=was is BorrowedContractState.DRAINING and state is BorrowedContractState.OPEN,
            )
    if not loan.is_told and now >= loan.signed_until:
        loan = replace(loan, is_told=True)  # by its own clock the provider knows
    return BorrowedNodePlan(loan, unregisters=seen.is_registered, releases=not loan.is_told)


def next_due(loan: BorrowedContractRecord, settings: MarketSettings, since: float) -> float:
    """The next time after `since` at which `decide` may say something else, though it sees the same;
    infinite if there is none. `silent_s` is something that is seen, and not in it."""
    if loan.is_over:
        return math.inf if loan.is_told else loan.signed_until
    borrowed = loan.borrowed
    times = [borrowed.due_at, _drain_from(borrowed, settings)]
    if borrowed.state is BorrowedContractState.OPENING:
        times.append(loan.open_by)
    if loan.leave_by is not None:
        times.append(loan.leave_by)
    return min((at for at in times if at > since), default=math.inf)


def request_release(loan: BorrowedContractRecord, by: float) -> BorrowedContractRecord:
    """It is given back by our own wish, with its work gone by then; the first wish counts."""
    if loan.is_over or loan.leave_by is not None:
        return loan
    state = (
        BorrowedContractState.DRAINING
        if loan.borrowed.state is BorrowedContractState.OPEN
        else loan.borrowed.state
    )
    return replace(loan, leave_by=by, borrowed=replace(loan.borrowed, state=state, reason="given back"))


def _told(
    loan: BorrowedContractRecord, contract_state: RemoteContractStatus | None
) -> BorrowedContractRecord:
    """The record with what the provider says; it can shorten what was signed, and never lengthen it."""
    if contract_state is None or loan.is_over:
        return loan
    borrowed = replace(
        loan.borrowed,
        ends_at=min(loan.signed_until, contract_state.ends_at),
        reclaim_at=contract_state.reclaim_at,
        reason=loan.borrowed.reason if loan.leave_by is not None else contract_state.reason[:_MAX_REASON],
    )
    return replace(loan, borrowed=borrowed)


def _drain_by(loan: BorrowedContractRecord, settings: MarketSettings, now: float) -> float | None:
    """By when its node must be empty, if it is time to begin with that."""
    borrowed = loan.borrowed
    if loan.leave_by is not None:
        return min(loan.leave_by, borrowed.due_at)
    if borrowed.reclaim_at is not None:
        return borrowed.due_at
    return borrowed.ends_at if now >= _drain_from(borrowed, settings) else None


def _drain_from(borrowed: BorrowedContract, settings: MarketSettings) -> float:
    """When its node begins to drain, if it is neither given back nor taken back before."""
    # A contract that is shorter than the time to leave it is used for half of it.
    return borrowed.ends_at - min(settings.drain_s, (borrowed.ends_at - borrowed.starts_at) / 2)


def _why_over(
    loan: BorrowedContractRecord,
    seen: ObservedBorrowedNode,
    settings: MarketSettings,
    drain_by: float | None,
    now: float,
) -> str | None:
    """How it ended, if it has."""
    borrowed, contract_state = loan.borrowed, seen.contract_state
    taken_back = f"taken back: {borrowed.reason}" if borrowed.reason else "taken back"
    if contract_state is not None and contract_state.ended:
        return (
            taken_back if contract_state.ended == "withdrawn" else f"{contract_state.ended} at the provider"
        )
    if now >= borrowed.due_at:
        return "its time is over" if borrowed.reclaim_at is None else taken_back
    if borrowed.state is BorrowedContractState.OPENING and not seen.is_heard and now >= loan.open_by:
        said = contract_state.cell_reason if contract_state is not None else ""
        return f"it did not open in time: {said or seen.trouble or 'its node was not heard'}"
    if seen.silent_s >= settings.peer_silence_s:
        return f"nothing was heard of its provider for {settings.peer_silence_s:g} s"
    if drain_by is not None and (seen.is_drained or not seen.is_registered or now >= drain_by):
        if loan.leave_by is not None:
            return "given back"
        return "its time is over" if borrowed.reclaim_at is None else taken_back
    return None


def _state(
    loan: BorrowedContractRecord, seen: ObservedBorrowedNode, drain_by: float | None
) -> BorrowedContractState:
    if loan.borrowed.state is BorrowedContractState.OPENING and not seen.is_heard:
        return BorrowedContractState.OPENING
    return BorrowedContractState.OPEN if drain_by is None else BorrowedContractState.DRAINING


def _ended(loan: BorrowedContractRecord, why: str, now: float, *, is_told: bool) -> BorrowedContractRecord:
    over = replace(loan.borrowed, state=BorrowedContractState.ENDED, reason=why[:_MAX_REASON], ended_at=now)
    return replace(loan, borrowed=over, is_told=is_told)
