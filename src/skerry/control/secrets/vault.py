"""Sealed values in the store, and the state of the keys that seal them.

    secret-key                              which key seals, and which are being replaced
    sealed/KIND/NAMESPACE/NAME/VERSION      one value, sealed

Kind, namespace, name and version are authenticated with each value, so none can be moved to another place. A
value is written only while the key that sealed it is the current one: the transaction expects `secret-key` as
it was read. Nothing here is cached or logged; the keys are in a file (`skerry.control.secrets.key_file`).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import structlog

from skerry.control.secrets.key_file import SecretKeyFile
from skerry.kit import envelope, json_codec
from skerry.kit.clock import Clock
from skerry.kit.envelope import SealedBytes
from skerry.model import errors
from skerry.model.secrets import SecretRef
from skerry.store.protocol import ABSENT, Delete, Entry, Expect, Put, Store

log = structlog.get_logger(__name__)

STATE_KEY = "secret-key"
PREFIX = "sealed/"


class KeyState(msgspec.Struct, frozen=True):
    """Which key seals."""

    current: str
    previous: tuple[str, ...] = ()  # values sealed by these are being sealed anew
    dropped: tuple[str, ...] = ()  # these seal nothing, and are to be forgotten


class SealedWrite(NamedTuple):
    """A value to be written, and what must hold for that."""

    put: Put
    expect: Expect


class SecretVault:
    """Seals and opens values."""

    def __init__(self, store: Store, keys: SecretKeyFile, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.keys = keys

    async def open(self) -> str:
        """Make the first key of a cloud, and forget dropped ones. Returns what is wrong with the keys of this
        server, in a sentence; empty: nothing."""
        try:
            await asyncio.to_thread(self.keys.load)
            state, _ = await self._state_or_first()
            await asyncio.to_thread(self.keys.drop, state.dropped)
            for id in (state.current, *state.previous):
                await asyncio.to_thread(self.keys.get, id)
        except errors.FailedPrecondition as error:
            log.error("secrets.no_key", reason=error.message)
            return f"secrets cannot be used on this server: {error.message}"
        return ""

    async def state(self) -> tuple[KeyState, int]:
        """The state of the keys, and its revision."""
        entry = await self._store.get(STATE_KEY)
        if entry is None:
            raise errors.FailedPrecondition(
                "there is no key of secrets yet; restart the server, which makes one"
            )
        return json_codec.decode(entry.value, KeyState), entry.revision

    async def _state_or_first(self) -> tuple[KeyState, int]:
        """The state; if there is none yet, with the newest key of the file, or a new one."""
        if await self._store.get(STATE_KEY) is None:
            id = (
                self.keys.ids[-1]
                if self.keys.ids
                else await asyncio.to_thread(self.keys.add, self._clock.now())
            )
            try:
                await self._store.commit(
                    [Put(STATE_KEY, json_codec.encode(KeyState(id)))], [Expect(STATE_KEY, ABSENT)]
                )
                log.info("secrets.key_made", key=id)
            except errors.Conflict:
                pass  # another server was quicker, and its key counts
        return await self.state()

    async def seal(self, ref: SecretRef, value: bytes) -> SealedWrite:
        state, revision = await self.state()
        key = await asyncio.to_thread(self.keys.get, state.current)
        sealed = await asyncio.to_thread(envelope.seal, key, value, _context(ref))
        return SealedWrite(Put(value_key(ref), json_codec.encode(sealed)), Expect(STATE_KEY, revision))

    async def value(self, ref: SecretRef) -> bytes:
        """Raises `NotFound`; `FailedPrecondition` if this server has not its key."""
        entry = await self._store.get(value_key(ref))
        if entry is None:
            raise errors.NotFound(f"{ref} is not stored any more")
        return await self.unseal(ref, entry)

    async def unseal(self, ref: SecretRef, entry: Entry) -> bytes:
        sealed = sealed_of(entry)
        key = await asyncio.to_thread(self.keys.get, sealed.key)
        try:
            return await asyncio.to_thread(envelope.unseal, key, sealed, _context(ref))
        except envelope.NotOpened:
            raise errors.Internal(
                f"{ref} cannot be opened: the store holds something else in its place; set it anew"
            ) from None


def sealed_of(entry: Entry) -> SealedBytes:
    return json_codec.decode(entry.value, SealedBytes)


def value_key(ref: SecretRef) -> str:
    return f"{PREFIX}{ref.kind}/{ref.namespace}/{ref.name}/{ref.version:010d}"


def delete_value(ref: SecretRef) -> Delete:
    return Delete(value_key(ref))


def ref_of(key: str) -> SecretRef:
    """The value at a key in the store."""
    kind, namespace, name, version = key.removeprefix(PREFIX).split("/")
    return msgspec.convert(
        {"namespace": namespace, "kind": kind, "name": name, "version": int(version)}, SecretRef
    )


def _context(ref: SecretRef) -> bytes:
    # None of the parts can hold a NUL byte.
    return "\0".join(("skerry secret 1", ref.kind, ref.namespace, ref.name, str(ref.version))).encode()
