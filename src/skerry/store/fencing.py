"""Transactions of a leader, which must not be written once another leads.

A fence is what a leader's transactions expect beside everything else: the key of the lead, at the revision at
which it was won (`skerry.control.leadership.election`). A transaction that the fence refuses ends in
`LeadershipLost` and not in `Conflict`, so that a retry after a conflict does not loop for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.model import errors
from skerry.store.protocol import Expect, Op, Store


class LeadershipLost(Exception):
    """Another leads now, or may."""


async def commit(
    store: Store, ops: Sequence[Op], expect: Sequence[Expect] = (), fence: Expect | None = None
) -> int:
    """As `Store.commit`, if the leader of `fence` still leads; None: without a fence."""
    if fence is None:
        return await store.commit(ops, expect)
    try:
        return await store.commit(ops, [*expect, fence])
    except errors.Conflict:
        await check(store, fence)
        raise


async def check(store: Store, fence: Expect) -> None:
    """Raise `LeadershipLost` if another has led since."""
    entry = await store.get(fence.key)
    if entry is None or entry.revision != fence.revision:
        raise LeadershipLost("another server leads")
