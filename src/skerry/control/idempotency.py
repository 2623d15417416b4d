"""Idempotency keys: which object each created, stored for a day.

The record of a key is written in the transaction that creates the object, so there is never one without the
other. It holds only a digest of the request. Keys of different callers, or in different namespaces, are
different keys.
"""

from __future__ import annotations

import hashlib

import msgspec

from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.store.protocol import ABSENT, Expect, Put, Store
from skerry.store.tables.leases import SharedLease

PREFIX = "idempotency/"
KEEP_S = 24 * 3600
_SHARED_S = 3600
_MAX_KEY = 255


class IdempotencyRecord(msgspec.Struct, frozen=True):
    """The object that a key created, and the digest of the request."""

    created_id: str = msgspec.field(name="made")
    digest: str


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A request with an idempotency key: the key of its record, and its digest."""

    key: str
    digest: str

    @classmethod
    def of(
        cls, idempotency_key: str | None, actor: str, namespace: Namespace, *content: object
    ) -> IdempotentRequest | None:
        """A request to do what `content` says; None for one without a key, which may be done twice."""
        if not idempotency_key:
            return None
        if len(idempotency_key) > _MAX_KEY or not idempotency_key.isprintable():
            raise errors.Invalid(
                f"an Idempotency-Key is 1 to {_MAX_KEY} printable characters", field="Idempotency-Key"
            )
        # In the default namespace a record has the key from before there were others.
        scope = (actor,) if namespace == DEFAULT_NAMESPACE else (actor, namespace)
        name = hashlib.sha256("\0".join([*scope, idempotency_key]).encode()).hexdigest()
        return cls(PREFIX + name, hashlib.sha256(json_codec.encode_canonical(content)).hexdigest())


class IdempotencyTable:
    """Records of requests that were done."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._lease = SharedLease(store, clock, keep_s=KEEP_S, shared_s=_SHARED_S)

    async def recorded_id(self, request: IdempotentRequest | None) -> str | None:
        """The id of the object it created, None if it was not done; `AlreadyExists` if its key is of another
        request."""
        entry = None if request is None else await self._store.get(request.key)
        if request is None or entry is None:
            return None
        record = json_codec.decode(entry.value, IdempotencyRecord)
        if record.digest != request.digest:
            raise errors.AlreadyExists(
                "this Idempotency-Key was used for another request; use a new one for each object"
            )
        return record.created_id

    async def put(self, request: IdempotentRequest | None, created_id: str) -> tuple[list[Put], list[Expect]]:
        """The operations for the transaction that creates the object."""
        if request is None:
            return [], []
        put = Put(
            request.key,
            json_codec.encode(IdempotencyRecord(created_id, request.digest)),
            await self._lease.current(),
        )
        return [put], [Expect(request.key, ABSENT)]


def created_then_deleted(noun: str, id: str) -> errors.Expired:
    return errors.Expired(
        f"this Idempotency-Key made {noun} {id}, which is gone; use a new key to make another"
    )
