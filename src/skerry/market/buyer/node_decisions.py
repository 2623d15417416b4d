"""Decisions about a borrowed contract: pure, by its record, what was observed, and the time.

`decide` returns the next record and its actions: keep the tunnel open, drain the node, unregister it, notify
the provider. Deciding again after all of that changes nothing, so a server that takes over continues where
the last one was. `skerry.market.buyer.borrowed_node_controller` carries the actions out.
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

    is_connected: bool = False  # its node has a session
    is_registered: bool = False
    is_drained: bool = False  # its node has nothing left, or its time to drain is up
    silent_s: float = 0.0  # since the last contact with the provider; 0 while the tunnel is open
    contract_state: RemoteContractStatus | None = None  # the last status of the provider
    last_error: str = ""  # why its tunnel did not open last time


class BorrowedNodePlan(msgspec.Struct, frozen=True):
    """The record as it is to be, and the world with it."""

    record: BorrowedContractRecord
    wants_tunnel: bool = False
    drain_by: float | None = None  # its node gives up what it has until then
    is_reopened: bool = False  # its node was drained by us, and takes work again
    unregisters: bool = False
    releases: bool = False  # the provider is to be notified that it is over


def decide(
    record: BorrowedContractRecord, seen: ObservedBorrowedNode, settings: MarketSettings, now: float
) -> BorrowedNodePlan:
    """What is to be done now."""
    record = _with_provider_status(record, seen.contract_state)
    if not record.is_over:
        drain_by = _drain_by(record, settings, now)
        if why := _end_reason(record, seen, settings, drain_by, now):
            is_provider_notified = seen.contract_state is not None and bool(seen.contract_state.ended)
            record = _ended(record, why, now, is_provider_notified=is_provider_notified)
        else:
            was, state = record.borrowed.state, _state(record, seen, drain_by)
            return BorrowedNodePlan(
                replace(record, borrowed=replace(record.borrowed, state=state)),
                wants_tunnel=True,
                drain_by=drain_by if state is BorrowedContractState.DRAINING else None,
                is_reopened=was is BorrowedContractState.DRAINING and state is BorrowedContractState.OPEN,
            )
    if not record.is_provider_notified and now >= record.signed_until:
        record = replace(record, is_provider_notified=True)  # by its own clock the provider knows
    return BorrowedNodePlan(record, unregisters=seen.is_registered, releases=not record.is_provider_notified)


def next_due(record: BorrowedContractRecord, settings: MarketSettings, since: float) -> float:
    """The next time after `since` at which `decide` may decide differently on the same observations; infinite
    if there is none. `silent_s` is an observation, and does not count."""
    if record.is_over:
        return math.inf if record.is_provider_notified else record.signed_until
    borrowed = record.borrowed
    times = [borrowed.due_at, _drain_from(borrowed, settings)]
    if borrowed.state is BorrowedContractState.OPENING:
        times.append(record.open_by)
    if record.leave_by is not None:
        times.append(record.leave_by)
    return min((at for at in times if at > since), default=math.inf)


def request_release(record: BorrowedContractRecord, by: float) -> BorrowedContractRecord:
    """The record with a release requested, its node empty at `by`; the first request counts."""
    if record.is_over or record.leave_by is not None:
        return record
    state = (
        BorrowedContractState.DRAINING
        if record.borrowed.state is BorrowedContractState.OPEN
        else record.borrowed.state
    )
    return replace(record, leave_by=by, borrowed=replace(record.borrowed, state=state, reason="given back"))


def _with_provider_status(
    record: BorrowedContractRecord, contract_state: RemoteContractStatus | None
) -> BorrowedContractRecord:
    """The record with the provider's status; it can shorten the signed term, and never lengthen it."""
    if contract_state is None or record.is_over:
        return record
    borrowed = replace(
        record.borrowed,
        ends_at=min(record.signed_until, contract_state.ends_at),
        reclaim_at=contract_state.reclaim_at,
        reason=record.borrowed.reason if record.leave_by is not None else contract_state.reason[:_MAX_REASON],
    )
    return replace(record, borrowed=borrowed)


def _drain_by(record: BorrowedContractRecord, settings: MarketSettings, now: float) -> float | None:
    """By when its node must be empty, if it is time to begin with that."""
    borrowed = record.borrowed
    if record.leave_by is not None:
        return min(record.leave_by, borrowed.due_at)
    if borrowed.reclaim_at is not None:
        return borrowed.due_at
    return borrowed.ends_at if now >= _drain_from(borrowed, settings) else None


def _drain_from(borrowed: BorrowedContract, settings: MarketSettings) -> float:
    """When its node begins to drain, if it is neither given back nor taken back before."""
    # A contract that is shorter than the time to leave it is used for half of it.
    return borrowed.ends_at - min(settings.drain_s, (borrowed.ends_at - borrowed.starts_at) / 2)


def _end_reason(
    record: BorrowedContractRecord,
    seen: ObservedBorrowedNode,
    settings: MarketSettings,
    drain_by: float | None,
    now: float,
) -> str | None:
    """How it ended, if it has."""
    borrowed, contract_state = record.borrowed, seen.contract_state
    taken_back = f"taken back: {borrowed.reason}" if borrowed.reason else "taken back"
    if contract_state is not None and contract_state.ended:
        return (
            taken_back if contract_state.ended == "withdrawn" else f"{contract_state.ended} at the provider"
        )
    if now >= borrowed.due_at:
        return "its time is over" if borrowed.reclaim_at is None else taken_back
    if borrowed.state is BorrowedContractState.OPENING and not seen.is_connected and now >= record.open_by:
        reason = contract_state.cell_reason if contract_state is not None else ""
        return f"it did not open in time: {reason or seen.last_error or 'its node did not connect'}"
    if seen.silent_s >= settings.peer_silence_s:
        return f"its provider was unreachable for {settings.peer_silence_s:g} s"
    if drain_by is not None and (seen.is_drained or not seen.is_registered or now >= drain_by):
        if record.leave_by is not None:
            return "given back"
        return "its time is over" if borrowed.reclaim_at is None else taken_back
    return None


def _state(
    record: BorrowedContractRecord, seen: ObservedBorrowedNode, drain_by: float | None
) -> BorrowedContractState:
    if record.borrowed.state is BorrowedContractState.OPENING and not seen.is_connected:
        return BorrowedContractState.OPENING
    return BorrowedContractState.OPEN if drain_by is None else BorrowedContractState.DRAINING


def _ended(
    record: BorrowedContractRecord, why: str, now: float, *, is_provider_notified: bool
) -> BorrowedContractRecord:
    over = replace(record.borrowed, state=BorrowedContractState.ENDED, reason=why[:_MAX_REASON], ended_at=now)
    return replace(record, borrowed=over, is_provider_notified=is_provider_notified)
