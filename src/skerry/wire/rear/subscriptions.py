"""`/api/subscribe`: offers pushed over a WebSocket: a snapshot, then changes.

One connection has one position in the ledger's history and several subscriptions, up to a limit; a change is
sent once, even if several match. A slow reader has no queue here: when changes that it missed are no longer
stored, it gets a reset and a new snapshot. One that does not read at all is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.catalog.offer_catalog import snapshot_offer
from skerry.market.provider.ledger.changelog import OfferWatcher
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.terms.selectors import matches
from skerry.model import errors
from skerry.model.ids import CloudId, OfferId
from skerry.transport.http.endpoints import RawBody, RequestContext, WebSocketResponse, endpoint
from skerry.transport.http.websocket import WebSocket
from skerry.wire.rear import change_messages, messages, messages_xml
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.dialect import buyer_of
from skerry.wire.rear.messages import (
    ErrorMessage,
    HeartbeatMessage,
    ResetMessage,
    ServerSubscriptionMessage,
    SubscribedMessage,
    SubscribeMessage,
    SubscriptionScope,
    UnsubscribedMessage,
)

MAX_SCOPES: Final = 64
MAX_ERRORS: Final = 16
_IDLE_S: Final = 30.0  # a connection without a subscription is closed after this
_SENT_AT_ONCE: Final = 32  # messages, before others have their turn
_CHECKED_AT_ONCE: Final = 1024  # flavors, likewise
_TOO_SLOW: Final = "too slow: changes that were not read are no longer kept; forget what you know"


@endpoint(
    "GET",
    "/api/subscribe",
    summary="Subscribe to offers",
    status=101,
    raises=(errors.Overloaded, errors.Unavailable),
    streams=True,
    max_message_bytes=messages_xml.MAX_BYTES,
    subprotocols=(messages.JSON, messages.XML),
)
async def subscribe(rear: RearContext, call: RequestContext) -> WebSocketResponse:
    """A WebSocket of text messages: `rear.v1.json` (also without a subprotocol) or `rear.v1.xml`.

    Send `{"SubscribeMessage": {"All": true}}`, or with `FlavorID`, `FlavorType` or `Selector`; the response
    is a `SubscribedMessage`, as many flavors as it says, and then a `RefreshMessage` or `WithdrawMessage` for
    each change. With `Resume`, the last `Revision` you got, only missed changes follow, if they are still
    stored.
    """
    async with AsyncExitStack() as undo:
        buyer = buyer_of(call)
        undo.enter_context(rear.subscribers.take(buyer.cloud))
        key = buyer.cloud if buyer.is_key else None
        subscriber = SubscriptionSession(rear, key, is_xml=call.subprotocol == messages.XML)
        return WebSocketResponse(subscriber.serve, undo.pop_all(), accepts_text=True)


@endpoint(
    "GET",
    "/api/rear.xsd",
    summary="The XML schema of the messages",
    media="application/xml",
    raises=(errors.Unavailable,),
)
async def schema(rear: RearContext, call: RequestContext) -> RawBody:
    """Of all messages over `/api/subscribe` in XML, in both directions."""
    return RawBody(messages_xml.schema())


class SubscriptionSession:
    """One connection; `key` is the buyer's key, None for an account of this cloud."""

    def __init__(self, rear: RearContext, key: CloudId | None = None, *, is_xml: bool) -> None:
        self._rear = rear
        self._key = key
        self._changes = rear.ledger.changes
        self._is_xml = is_xml
        self._scopes: dict[str, SubscriptionScope] = {}
        self._follower: OfferWatcher | None = None  # None: no subscription
        self._revision = 0  # all changes up to this revision were sent
        self._sent_at = 0.0
        self._sent = 0
        self._errors = 0

    async def serve(self, socket: WebSocket) -> None:
        """Serve until the client disconnects."""
        clock = asyncio.get_running_loop().time
        self._sent_at = clock()
        receiving = asyncio.ensure_future(socket.receive())
        change: asyncio.Future[None] | None = None
        try:
            while True:
                if self._key is not None:  # a buyer that is removed from the allowlist gets no more
                    self._rear.ledger.check_access(self._key, is_read=True)
                await self._send_changes(socket)
                quiet_s = self._rear.heartbeat_s if self._scopes else _IDLE_S
                if receiving.done():
                    message = receiving.result()
                    if message is None:
                        return
                    await self._answer(socket, message)
                    receiving = asyncio.ensure_future(socket.receive())
                elif (left_s := self._sent_at + quiet_s - clock()) > 0:
                    if self._follower is not None and (change is None or change.done()):
                        change = asyncio.ensure_future(self._follower.wait())
                    waiting: list[asyncio.Future[Any]] = [receiving]
                    if change is not None and not change.done():
                        waiting.append(change)
                    await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                elif self._scopes:
                    await self._send(socket, HeartbeatMessage(self._revision))
                else:
                    raise errors.Invalid("nothing was subscribed to; send a SubscribeMessage")
        finally:
            await cancel_and_wait([receiving] if change is None else [receiving, change])

    async def _answer(self, socket: WebSocket, data: bytes) -> None:
        try:
            message = messages_xml.decode(data) if self._is_xml else messages.decode(data)
            if isinstance(message, SubscribeMessage):
                await self._subscribe(socket, message)
                return
            if self._scopes.pop(message.subscription_id, None) is None:
                raise errors.NotFound(f"there is no subscription {message.subscription_id!r}")
            if not self._scopes:
                self._follower = None
            await self._send(socket, UnsubscribedMessage(message.subscription_id))
        except (
            errors.Invalid,
            errors.NotFound,
            errors.AlreadyExists,
            errors.TooLarge,
            errors.Overloaded,
        ) as error:
            self._errors += 1
            if self._errors > MAX_ERRORS:
                raise errors.Invalid(f"{MAX_ERRORS} messages were invalid; see their ErrorMessages") from None
            await self._send(socket, ErrorMessage(error.slug, error.message))

    async def _subscribe(self, socket: WebSocket, message: SubscribeMessage) -> None:
        scope = message.scope()
        if scope.id in self._scopes:
            raise errors.AlreadyExists(
                f"there is a subscription {scope.id!r}; give each its own SubscriptionID"
            )
        if len(self._scopes) >= MAX_SCOPES:
            raise errors.Overloaded(
                f"{MAX_SCOPES} subscriptions are the most on one connection; end one first"
            )
        if scope.flavor and message.resume is None:
            self._rear.ledger.flavor(OfferId(scope.flavor))
        if self._follower is None and message.resume is not None:
            try:
                self._follower = self._changes.resume(message.resume)
            except errors.Compacted:
                pass  # then it is not resumed, and a snapshot follows
            else:
                self._scopes[scope.id] = scope
                self._revision = message.resume
                await self._send(socket, SubscribedMessage(scope.id, message.resume, True, 0))
                return
        # Changes for the other subscriptions are sent first: no revision below that of the snapshot follows
        # it.
        while await self._send_changes(socket):
            pass
        accounts, self._follower = self._changes.snapshot()
        self._revision = revision = self._changes.revision
        self._scopes[scope.id] = scope
        meant = await _matching(accounts, partial(_is_in_scope, scope))
        await self._send(socket, SubscribedMessage(scope.id, revision, False, len(meant)))
        await self._send_snapshot(socket, meant, revision)

    async def _send_changes(self, socket: WebSocket) -> bool:
        """Send changes since the last time; False if there were none."""
        if self._follower is None:
            return False
        batches, reached = self._follower.take(), self._changes.revision
        if batches is None:
            accounts, self._follower = self._changes.snapshot()
            meant = await _matching(accounts, self._matches)
            await self._send(socket, ResetMessage(_TOO_SLOW, reached, len(meant)))
            await self._send_snapshot(socket, meant, reached)
        else:
            for revision, batch in batches:
                for changed in batch:
                    if self._matches(changed.before) or self._matches(changed.after):
                        data = self._rear.changes.written(revision, changed, is_xml=self._is_xml)
                        if data is not None:
                            await self._send_written(socket, data)
        self._revision = reached
        return batches != []

    async def _send_snapshot(self, socket: WebSocket, accounts: Iterable[OfferRecord], revision: int) -> None:
        for account in accounts:
            await self._send(socket, change_messages.snapshot_message(self._rear.owner, account, revision))

    def _matches(self, account: OfferRecord | None) -> bool:
        return account is not None and any(_is_in_scope(scope, account) for scope in self._scopes.values())

    async def _send(self, socket: WebSocket, message: ServerSubscriptionMessage) -> None:
        await self._send_written(
            socket, messages_xml.encode(message) if self._is_xml else messages.encode(message)
        )

    async def _send_written(self, socket: WebSocket, data: bytes) -> None:
        await socket.send(data)
        self._sent_at = asyncio.get_running_loop().time()
        self._sent += 1
        if self._sent % _SENT_AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be many, and a quick reader never makes this wait


async def _matching(
    accounts: Sequence[OfferRecord], predicate: Callable[[OfferRecord], bool]
) -> list[OfferRecord]:
    found: list[OfferRecord] = []
    for start in range(0, len(accounts), _CHECKED_AT_ONCE):
        found += filter(predicate, accounts[start : start + _CHECKED_AT_ONCE])
        await asyncio.sleep(0)  # there may be very many, and other requests must go on
    return found


def _is_in_scope(scope: SubscriptionScope, account: OfferRecord) -> bool:
    if account.withdrawn is not None:
        return False  # whether it matched before decides about a WITHDRAW
    if scope.flavor:
        return account.flavor.id == scope.flavor
    if scope.kind:
        return account.flavor.kind == scope.kind
    return scope.selector is None or matches(snapshot_offer(account), scope.selector)
