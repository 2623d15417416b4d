"""What nodes need to verify offline tokens: public keys, and what was revoked. A source of
`skerry.control.network.feed`, for all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skerry.control.identity.token_keys import TokenKeyRecord, TokenKeys
from skerry.control.identity.tokens import TokenRegistry
from skerry.kit.callbacks import CallbackList
from skerry.model.callers import Token
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange
from skerry.model.offline_tokens import RevokedToken
from skerry.store.tables.table import RecordChange


class OfflineTokenFeed:
    """Keys and revocations."""

    def __init__(self, tokens: TokenRegistry, keys: TokenKeys) -> None:
        self._tokens = tokens
        self._keys = keys
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        tokens.table.subscribe(self._tokens_changed)
        keys.table.subscribe(self._keys_changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        """The same for every node."""
        revoked = [one for token in self._tokens.all() if (one := revocation_of(token)) is not None]
        return [*(record.object() for record in self._keys.all()), *revoked]

    def revoked(self) -> list[RevokedToken]:
        """Revoked tokens and keys."""
        return [each for each in self.objects(NodeId("")) if isinstance(each, RevokedToken)]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._tokens.table.ready()
        await self._keys.table.ready()

    def _tokens_changed(self, changes: Sequence[RecordChange[Token]]) -> None:
        for _, before, after in changes:
            self._notify(
                None if before is None else revocation_of(before.value),
                None if after is None else revocation_of(after.value),
            )

    def _keys_changed(self, changes: Sequence[RecordChange[TokenKeyRecord]]) -> None:
        for _, before, after in changes:
            self._notify(
                None if before is None else before.value.object(),
                None if after is None else after.value.object(),
            )

    def _notify(self, before: NetworkObject | None, after: NetworkObject | None) -> None:
        if after == before:
            return
        if after is not None:
            self._listeners.notify(None, after.network_key, after)
        if before is not None and (after is None or after.network_key != before.network_key):
            self._listeners.notify(None, before.network_key, None)


def revocation_of(token: Token) -> RevokedToken | None:
    """What nodes are told of a token; None unless it is an offline one that was revoked."""
    if not token.is_offline or token.revoked_at is None or token.expires_at is None:
        return None
    return RevokedToken(token.id, token.expires_at)
