"""Every store says which version wrote it, and is refused by earlier ones."""

from __future__ import annotations

import json

import pytest

from skerry import __version__
from skerry.model import errors, versions
from skerry.store import stamp
from skerry.store.protocol import Put, Store


async def test_a_new_store_and_one_of_the_version_before_stamps_are_taken_and_stamped(store: Store) -> None:
    await stamp.check(store)  # it is empty
    await store.commit([Put("node/a", b"{}")])
    await stamp.check(store)  # 0.1 left no stamp
    await stamp.write(store)
    await stamp.check(store)
    entry = await store.get(stamp.KEY)
    assert entry is not None
    assert json.loads(entry.value) == {"version": __version__, "format": versions.CURRENT.format}
    before = await store.revision()
    await stamp.write(store)
    assert await store.revision() == before, "the same stamp is not written again"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"version":"0.99.0","format":2}', r"the store was written by Skerry 0\.99\.0"),
        (b'{"version":"0.2.0","format":99}', r"Install Skerry 0\.2\.0 or later"),
        (b"what?", "cannot be read"),
    ],
)
async def test_a_store_of_a_later_version_is_refused_and_not_written_to(
    store: Store, value: bytes, reason: str
) -> None:
    revision = await store.commit([Put(stamp.KEY, value)])
    for attempt in (stamp.check, stamp.write):
        with pytest.raises(errors.FailedPrecondition, match=reason):
            await attempt(store)
    assert await store.revision() == revision
