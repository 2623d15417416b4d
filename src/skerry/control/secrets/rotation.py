"""Rotation of the key that seals secrets: a new key, and every value sealed anew under it.

    1  a new key in the file           as yet it seals nothing
    2  `secret-key` names it           new values are sealed by it, the old key is one of `previous`
    3  every value is sealed anew      one transaction each, which expects the value as it was read
    4  `secret-key` has no previous    the old key is one of `dropped`
    5  the old key leaves the file

A crash after any step leaves every value readable, and the next start goes on from there: the old key is in
the file until no value needs it. Several servers may do step 3 at once; each value is sealed anew once.

Values whose key is lost, with a file that nobody has, or in a store that was restored to a time before a
rotation, cannot be opened any more: `discard_lost` removes them, so that there can be a new key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.secrets import vault as vaults
from skerry.control.secrets.vault import STATE_KEY, KeyState, SecretVault
from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.protocol import Delete, Expect, Op, Put, Store

log = structlog.get_logger(__name__)

_PAGE = 50
_MAX_DROPPED = 20  # keys that are remembered to be forgotten
_AGAIN_S = 30.0  # until a rotation that failed goes on


class RotationReport(msgspec.Struct, frozen=True):
    """What a rotation did."""

    key: str  # that seals now
    sealed: int  # values that were sealed anew
    is_prepared: bool = False  # the key was only made, and seals nothing yet


class KeyRotation:
    """Rotates the key of one cloud."""

    def __init__(
        self,
        store: Store,
        vault: SecretVault,
        events: EventLog,
        clock: Clock,
        *,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`failpoint` is called after each step, so that tests can end the process there."""
        self._store = store
        self._vault = vault
        self._events = events
        self._clock = clock
        self._failpoint = failpoint
        self._lock = asyncio.Lock()

    async def prepare(self, *, actor: str) -> RotationReport:
        """Make a key in the file of this server; `rotate` uses it when all servers have that file."""
        async with self._lock:
            key = await self._prepared_key(await self._required_state())
            await self._events.record("secret.key-prepared", STATE_KEY, actor=actor, key=key)
            return RotationReport(key, 0, is_prepared=True)

    async def rotate(self, *, actor: str) -> RotationReport:
        """Have a new key, and every value sealed by it on return."""
        async with self._lock:
            state = await self._required_state()
            if state.previous:  # one that did not end goes on first
                await self._finish()
            while True:
                state, revision = await self._vault.state()
                key = await self._prepared_key(state)
                after = KeyState(key, (*state.previous, state.current), state.dropped)
                event = self._events.put("secret.key-rotated", STATE_KEY, actor=actor, key=key)
                try:
                    await self._write(after, revision, [event])
                except errors.Conflict:
                    continue
                break
            self._failpoint("rotation.begun")
            return RotationReport(key, await self._finish())

    async def discard_lost(self, *, actor: str) -> int:
        """Remove the values whose keys are not in the file, and have another key in place of such a one.
        Returns how many values that were. Their secrets stay, and can be set anew."""
        async with self._lock:
            keys = self._vault.keys
            await asyncio.to_thread(keys.load)
            while True:
                state, revision = await self._vault.state()
                lost = [id for id in (state.current, *state.previous) if id not in keys.ids]
                if not lost:
                    break
                kept = tuple(id for id in (*state.previous, state.current) if id not in lost)
                key = await self._prepared_key(state)
                event = self._events.put("secret.key-replaced", STATE_KEY, actor=actor, key=key)
                try:
                    await self._write(
                        KeyState(key, kept, (*state.dropped, *lost)[-_MAX_DROPPED:]), revision, [event]
                    )
                except errors.Conflict:
                    continue
                self._failpoint("discard.replaced")
                break
            count = await self._remove_lost(frozenset(keys.ids))
            log.warning("secrets.discarded", values=count)
            return count

    async def _remove_lost(self, known: frozenset[str]) -> int:
        count, cursor = 0, None
        while True:
            page = await self._store.range(vaults.PREFIX, limit=_PAGE, cursor=cursor)
            for entry in page.entries:
                if vaults.sealed_of(entry).key in known:
                    continue
                try:
                    await self._store.commit([Delete(entry.key)], [Expect(entry.key, entry.revision)])
                except errors.Conflict:
                    continue  # it was set anew
                count += 1
                self._failpoint("discard.value")
            if page.cursor is None:
                return count
            cursor = page.cursor

    async def run(self) -> None:
        """Go on with a rotation that a crash interrupted; then for ever look whether another server's did."""
        while True:
            try:
                async with self._lock:
                    if await self._vault_state_previous():
                        await self._finish()
            except errors.SkerryError as error:
                log.warning("secrets.rotation_waits", error=error.message)
            await asyncio.sleep(_AGAIN_S)

    async def _vault_state_previous(self) -> bool:
        state, _ = await self._vault.state()
        await asyncio.to_thread(self._vault.keys.drop, state.dropped)
        return bool(state.previous)

    async def _required_state(self) -> KeyState:
        """The state, with all of its keys here: else values would be lost to this server."""
        state, _ = await self._vault.state()
        for id in (state.current, *state.previous):
            await asyncio.to_thread(self._vault.keys.get, id)
        return state

    async def _prepared_key(self, state: KeyState) -> str:
        """A key in the file that seals nothing yet; made if there is none."""
        keys = self._vault.keys
        await asyncio.to_thread(keys.load)
        used = {state.current, *state.previous, *state.dropped}
        spare = [id for id in keys.ids if id not in used]
        key = spare[-1] if spare else await asyncio.to_thread(keys.add, self._clock.now())
        self._failpoint("rotation.key_made")
        return key

    async def _finish(self) -> int:
        """Seal anew what previous keys sealed, and drop them. Returns how many values that were."""
        count = 0
        while True:
            state, revision = await self._vault.state()
            if not state.previous:
                return count
            # A value may be written while we read, but only by the current key: it is not ours to look at.
            count += await self._seal_all(state)
            self._failpoint("rotation.sealed")
            after = replace(state, previous=(), dropped=(*state.dropped, *state.previous)[-_MAX_DROPPED:])
            try:
                await self._write(after, revision)
            except errors.Conflict:
                continue
            self._failpoint("rotation.ended")
            await asyncio.to_thread(self._vault.keys.drop, after.dropped)
            self._failpoint("rotation.dropped")
            log.info("secrets.rotated", key=state.current, values=count)
            return count

    async def _seal_all(self, state: KeyState) -> int:
        count, cursor = 0, None
        while True:
            page = await self._store.range(vaults.PREFIX, limit=_PAGE, cursor=cursor)
            for entry in page.entries:
                if vaults.sealed_of(entry).key == state.current:
                    continue
                ref = vaults.ref_of(entry.key)
                write = await self._vault.seal(ref, await self._vault.unseal(ref, entry))
                try:
                    await self._store.commit([write.put], [Expect(entry.key, entry.revision), write.expect])
                except errors.Conflict:
                    continue  # deleted, or sealed anew by another server; else the next pass finds it
                count += 1
                self._failpoint("rotation.value")
            if page.cursor is None:
                break
            cursor = page.cursor
        if await self._has_old_values(state):
            return count + await self._seal_all(state)
        return count

    async def _has_old_values(self, state: KeyState) -> bool:
        cursor = None
        while True:
            page = await self._store.range(vaults.PREFIX, limit=_PAGE, cursor=cursor)
            if any(vaults.sealed_of(entry).key != state.current for entry in page.entries):
                return True
            if page.cursor is None:
                return False
            cursor = page.cursor

    async def _write(self, state: KeyState, revision: int, ops: list[Op] | None = None) -> None:
        await self._store.commit(
            [Put(STATE_KEY, json_codec.encode(state)), *(ops or [])], [Expect(STATE_KEY, revision)]
        )
