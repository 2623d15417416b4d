"""A small cloud in memory: a store, its events, a CA in a folder, and an identity that follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from skerry.control.events.log import EventLog
from skerry.control.identity.authenticator import Authenticator
from skerry.kit import json_codec, pki
from skerry.kit.clock import Clock
from skerry.model.events import Event
from skerry.model.identity_settings import IdentitySettings
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore


@dataclass(frozen=True)
class Cloud:
    """What a test of identity needs at hand."""

    store: MemoryStore
    authority: pki.CertificateAuthority
    identity: Authenticator
    clock: Clock

    async def events(self, kind: str) -> list[Event]:
        entries = (await self.store.range("event/")).entries
        return [e for e in (json_codec.decode(entry.value, Event) for entry in entries) if e.kind == kind]


@asynccontextmanager
async def cloud_in(
    folder: Path, clock: Clock, settings: IdentitySettings | None = None
) -> AsyncIterator[Cloud]:
    store = MemoryStore(clock)
    authority = pki.CertificateAuthority.load_or_create(folder / "pki", clock)
    events = EventLog(store, clock, EventSettings())
    identity = Authenticator(store, events, authority, clock, settings or IdentitySettings())
    async with following(identity):
        yield Cloud(store, authority, identity, clock)
    await store.close()


@asynccontextmanager
async def following(identity: Authenticator) -> AsyncIterator[None]:
    """The identity ready, with its loop beside it."""
    loop = asyncio.ensure_future(identity.run())
    try:
        await identity.ready()
        yield
    finally:
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop


def new_request(folder: Path, name: str = "some") -> bytes:
    """A signing request for the key `<name>.key`, made if there is none."""
    return pki.make_request(pki.load_or_create_key(folder / f"{name}.key"))
