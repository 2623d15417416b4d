"""The stamp of a store: the record `version`, which version of Skerry wrote to it last.

Servers check it when they have opened the store, before they write to it. In a store that several servers
share, the first one of a new version stamps it; servers of the previous one go on, and are refused only when
they start again. The rules are in `skerry.model.versions`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.model import errors, versions
from skerry.model.versions import DataStamp
from skerry.store.protocol import ABSENT, Entry, Expect, Put, Store

KEY: Final = "version"
_decode = msgspec.json.Decoder(DataStamp).decode


async def check(store: Store) -> None:
    """Refuse a store of a version that ours does not take over from. Writes nothing."""
    _check(await store.get(KEY), is_new=not (await store.range("", limit=1)).entries)


async def write(store: Store) -> None:
    """Stamp the store with this version, if another one has, and check it again: another server may have
    stamped it meanwhile."""
    stamp = versions.stamp_of()
    while True:
        entry = await store.get(KEY)
        if entry is not None and _check(entry) == stamp:
            return
        try:
            await store.commit(
                [Put(KEY, json_codec.encode(stamp))],
                [Expect(KEY, ABSENT if entry is None else entry.revision)],
            )
            return
        except errors.Conflict:
            continue


def _check(entry: Entry | None, *, is_new: bool = False) -> DataStamp | None:
    if entry is None:
        stamp = None if is_new else versions.UNSTAMPED
    else:
        try:
            stamp = _decode(entry.value)
        except msgspec.DecodeError as error:
            raise errors.FailedPrecondition(
                f"the record {KEY!r} of the store, which says what version wrote it, cannot be read: {error};"
                " restore a backup of the store"
            ) from error
    if stamp is not None:
        versions.check_data(stamp, "the store")
    return stamp
