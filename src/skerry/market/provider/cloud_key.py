"""The identity of this cloud on the market: its key, created at the first start, and the owner in the store.

The key is in one file that only this user can read, beside those of the CA. It is never logged and never
overwritten: contracts name the id that follows from it, so a cloud that loses it cannot prove that they are
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import files
from skerry.market.terms.keys import SigningKey
from skerry.model import errors
from skerry.store.protocol import ABSENT, Expect, Put, Store

log = structlog.get_logger(__name__)

FILE: Final = "market.key"
OWNER_KEY: Final = "market-provider"
_USE: Final = b"skerry.market-key.v1"


def load_or_create(folder: Path, derive: Callable[[bytes], bytes]) -> SigningKey:
    """The key in `folder`; a new one, readable by this user only, if it has none.

    A new one follows from the CA's key (`derive`): servers that share a CA are one cloud on the market too.
    The caller holds the folder for itself: of two that make a key at once, one would lose its own.
    """
    path = folder / FILE
    try:
        key = SigningKey.load(path)
    except FileNotFoundError:
        key = SigningKey.of(derive(_USE))
        files.private_folder(folder)
        files.write_atomically(path, key.pem(), files.PRIVATE)
        log.info("market.key_created", file=str(path), cloud=key.cloud)
        return key
    if path.stat().st_mode & 0o077:
        path.chmod(files.PRIVATE)
        log.warning("key.was_readable", file=str(path), now="0600", hint="others may have copied it")
    return key


async def claim(store: Store, key: SigningKey) -> None:
    """Write our id into a new store; `FailedPrecondition` for one that holds another's."""
    try:
        await store.commit([Put(OWNER_KEY, key.cloud.encode())], [Expect(OWNER_KEY, ABSENT)])
    except errors.Conflict:
        entry = await store.get(OWNER_KEY)
        theirs = entry.value.decode("ascii", "replace") if entry else ""
        if theirs != key.cloud:
            raise errors.FailedPrecondition(
                f"the market in this store belongs to {theirs}, and the key in this data folder is "
                f"{key.cloud}: copy {FILE} from the pki folder of a server that already runs on this store, "
                "or use another store"
            ) from None
