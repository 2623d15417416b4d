"""The records of a backup, written into a shared store that is empty, such as a new etcd.

Such a store numbers its revisions itself, so the runs of servers before the backup, whose order is that of
their revisions, are left out: what a node claims and the store does not know is then always adopted
(`skerry.control.recovery.store_history`). A key marks the store while it is incomplete: servers do not start
on it, and another restore begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from skerry.control.backup.restore_mark import UNFINISHED
from skerry.control.recovery.store_history import PREFIX as HISTORY
from skerry.model import errors
from skerry.store.protocol import MAX_OPS, MAX_TRANSACTION, Delete, Entry, Op, Put, Store


async def check_store(store: Store) -> None:
    """Raise `FailedPrecondition` unless the store is empty, or of a restore that was interrupted."""
    if await store.get(UNFINISHED) is not None:
        return
    found = (await store.range("", limit=1)).entries
    if found:
        raise errors.FailedPrecondition(
            f"the store is not empty (it has {found[0].key!r}): a backup is restored into an empty one; "
            f"give it "
            "another prefix (store.etcd_prefix), or remove what is there"
        )


async def check_complete(store: Store) -> None:
    """Raise `FailedPrecondition` if a restore into this store was interrupted."""
    if await store.get(UNFINISHED) is not None:
        raise errors.FailedPrecondition(
            "a restore into this store was interrupted, and it is incomplete: run `skerry restore` again"
        )


async def import_records(store: Store, entries: Iterator[Entry]) -> None:
    """Write `entries`, all of them durable when this returns. The store stays marked as incomplete: the files
    of the data folder are still to be written."""
    await check_store(store)
    await store.commit([Put(UNFINISHED, b"")])
    while stale := [
        one.key for one in (await store.range("", limit=MAX_OPS)).entries if one.key != UNFINISHED
    ]:
        await store.commit([Delete(key) for key in stale])
    ops: list[Op] = []
    size = 0
    for entry in entries:
        if entry.key.startswith(HISTORY):
            continue
        length = len(entry.key.encode()) + len(entry.value)
        if len(ops) == MAX_OPS or size + length > MAX_TRANSACTION:
            await store.commit(ops)
            ops, size = [], 0
        ops.append(Put(entry.key, entry.value))
        size += length
    if ops:
        await store.commit(ops)


async def finish(store: Store) -> None:
    """Servers may start on the store: everything is written, there and in the data folder."""
    await store.commit([Delete(UNFINISHED)])
