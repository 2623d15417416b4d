"""`/api/subscribe`: offers pushed over a WebSocket, first as they are and then as they change.

One connection has one place in the ledger's history and any number of subscriptions, up to a bound; a change
is told once, whichever of them mean it. A reader that is too slow has no queue here: once what it missed is
no longer kept it is told so, and gets everything anew. One that does not read at all is let go.
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
MAX_MISTAKES: Final = 16
_LONELY_S: Final = 30.0  # a connection that subscribes to nothing is closed after this
_SENT_AT_ONCE: Final = 32  # messages, before others have their turn
_LOOKED_AT_ONCE: Final = 1024  # flavors, likewise
_TOO_SLOW: Final = "too slow: changes that were not read are no longer kept; forget what you know"


@endpoint(
    "GET",
    "/api/subscribe",
    summary="Be told of offers as they change",
    status=101,
    raises=(errors.Overloaded, errors.Unavailable),
    streams=True,
    max_message_bytes=messages_xml.MAX_BYTES,
    subprotocols=(messages.JSON, messages.XML),
)
async def subscribe(rear: RearContext, call: RequestContext) -> WebSocketResponse:
    """A WebSocket of text messages: `rear.v1.json` (also without a subprotocol) or `rear.v1.xml`.

    Send `{"SubscribeMessage": {"All": true}}`, or with `FlavorID`, `FlavorType` or `Selector`; the answer is
    a `SubscribedMessage`, so many flavors as it says, and then a `RefreshMessage` or `WithdrawMessage` for
    each change. With `Resume`, the last `Revision` you saw, only what you missed follows, if that is kept.
    """
    async with AsyncExitStack() as undo:
        buyer = buyer_of(call)
        undo.enter_context(rear.subscribers.take(buyer.cloud))
        key = buyer.cloud if buyer.is_key else None
        subscriber = SubscriptionSession(rear, key, is_xml=call.subprotocol == messages.XML)
        return WebSocketResponse(subscriber.converse, undo.pop_all(), speaks_text=True)


@endpoint(
    "GET",
    "/api/rear.xsd",
    summary="The XML schema of the messages",
    media="application/xml",
    raises=(errors.Unavailable,),
)
async def schema(rear: RearContext, call: RequestContext) -> RawBody:
    """Of everything that is sent over `/api/subscribe` in XML, in both directions."""
    return RawBody(messages_xml.schema())


class SubscriptionSession:
    """One connection; `key` is whose, if it is none of an account of this cloud."""

    def __init__(self, rear: RearContext, key: CloudId | None = None, *, is_xml: bool) -> None:
        self._rear = rear
        self._key = key
        self._changes = rear.ledger.changes
        self._is_xml = is_xml
        self._scopes: dict[str, SubscriptionScope] = {}
        self._follower: OfferWatcher | None = None  # None: nothing is subscribed to
        self._revision = 0  # up to here everything was told
        self._spoke_at = 0.0
        self._sent = 0
        self._mistakes = 0

    async def converse(self, socket: WebSocket) -> None:
        """Until the client goes."""
        clock = asyncio.get_running_loop().time
        self._spoke_at = clock()
        asking = asyncio.ensure_future(socket.receive())
        change: asyncio.Future[None] | None = None
        try:
            while True:
                if self._key is not None:  # who is taken off the list hears no more
                    self._rear.ledger.check_access(self._key, is_read=True)
                await self._send_changes(socket)
                quiet_s = self._rear.heartbeat_s if self._scopes else _LONELY_S
                if asking.done():
                    message = asking.result()
                    if message is None:
                        return
                    await self._answer(socket, message)
                    asking = asyncio.ensure_future(socket.receive())
                elif (left_s := self._spoke_at + quiet_s - clock()) > 0:
                    if self._follower is not None and (change is None or change.done()):
                        change = asyncio.ensure_future(self._follower.wait())
                    waiting: list[asyncio.Future[Any]] = [asking]
                    if change is not None and not change.done():
                        waiting.append(change)
                    await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                elif self._scopes:
                    await self._send(socket, HeartbeatMessage(self._revision))
                else:
                    raise errors.Invalid("nothing was subscribed to; send a SubscribeMessage")
        finally:
            await cancel_and_wait([asking] if change is None else [asking, change])

    async def _answer(self, socket: WebSocket, message: bytes) -> None:
        try:
            asked = messages_xml.decode(message) if self._is_xml else messages.decode(message)
            if isinstance(asked, SubscribeMessage):
                await self._subscribe(socket, asked)
                return
            if self._scopes.pop(asked.subscription_id, None) is None:
                raise errors.NotFound(f"there is no subscription {asked.subscription_id!r}")
            if not self._scopes:
                self._follower = None
            await self._send(socket, UnsubscribedMessage(asked.subscription_id))
        except (
            errors.Invalid,
            errors.NotFound,
            errors.AlreadyExists,
            errors.TooLarge,
            errors.Overloaded,
        ) as error:
            self._mistakes += 1
            if self._mistakes > MAX_MISTAKES:
                raise errors.Invalid(
                    f"{MAX_MISTAKES} messages were wrong; read what was said of them"
                ) from None
            await self._send(socket, ErrorMessage(error.slug, error.message))

    async def _subscribe(self, socket: WebSocket, asked: SubscribeMessage) -> None:
        scope = asked.scope()
        if scope.id in self._scopes:
            raise errors.AlreadyExists(
                f"there is a subscription {scope.id!r}; give each its own SubscriptionID"
            )
        if len(self._scopes) >= MAX_SCOPES:
            raise errors.Overloaded(
                f"{MAX_SCOPES} subscriptions are the most on one connection; end one first"
            )
        if scope.flavor and asked.resume is None:
            self._rear.ledger.flavor(OfferId(scope.flavor))
        if self._follower is None and asked.resume is not None:
            try:
                self._follower = self._changes.resume(asked.resume)
            except errors.Compacted:
                pass  # then it is told that it was not resumed, and everything follows
            else:
                self._scopes[scope.id] = scope
                self._revision = asked.resume
                await self._send(socket, SubscribedMessage(scope.id, asked.resume, True, 0))
                return
        # What the other subscriptions mean is told first: no revision below that of the snapshot follows it.
        while await self._send_changes(socket):
            pass
        accounts, self._follower = self._changes.snapshot()
        self._revision = revision = self._changes.revision
        self._scopes[scope.id] = scope
        meant = await _chosen(accounts, partial(_deps, scope))
        await self._send(socket, SubscribedMessage(scope.id, revision, False, len(meant)))
        await self._show(socket, meant, revision)

    async def _send_changes(self, socket: WebSocket) -> bool:
        """What changed since the last time; False if nothing did."""
        if self._follower is None:
            return False
        batches, reached = self._follower.take(), self._changes.revision
        if batches is None:
            accounts, self._follower = self._changes.snapshot()
            meant = await _chosen(accounts, self._is_meant)
            await self._send(socket, ResetMessage(_TOO_SLOW, reached, len(meant)))
            await self._show(socket, meant, reached)
        else:
            for revision, batch in batches:
                for changed in batch:
                    if self._is_meant(changed.before) or self._is_meant(changed.after):
                        data = self._rear.changes.written(revision, changed, is_xml=self._is_xml)
                        if data is not None:
                            await self._send_written(socket, data)
        self._revision = reached
        return batches != []

    async def _show(self, socket: WebSocket, accounts: Iterable[OfferRecord], revision: int) -> None:
        for account in accounts:
            await self._send(socket, change_messages.snapshot_message(self._rear.owner, account, revision))

    def _is_meant(self, account: OfferRecord | None) -> bool:
        return account is not None and any(_deps(scope, account) for scope in self._scopes.values())

    async def _send(self, socket: WebSocket, message: ServerSubscriptionMessage) -> None:
        await self._send_written(
            socket, messages_xml.encode(message) if self._is_xml else messages.encode(message)
        )

    async def _send_written(self, socket: WebSocket, data: bytes) -> None:
        await socket.send(data)
        self._spoke_at = asyncio.get_running_loop().time()
        self._sent += 1
        if self._sent % _SENT_AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be many, and who reads quickly never makes us wait


async def _chosen(
    accounts: Sequence[OfferRecord], is_meant: Callable[[OfferRecord], bool]
) -> list[OfferRecord]:
    found: list[OfferRecord] = []
    for start in range(0, len(accounts), _LOOKED_AT_ONCE):
        found += filter(is_meant, accounts[start : start + _LOOKED_AT_ONCE])
        await asyncio.sleep(0)  # there may be very many, and others want to go on
    return found


def _deps(scope: SubscriptionScope, account: OfferRecord) -> bool:
    if account.withdrawn is not None:
        return False  # that it was not, before, is what a WITHDRAW is told by
    if scope.flavor:
        return account.flavor.id == scope.flavor
    if scope.kind:
        return account.flavor.kind == scope.kind
    return scope.selector is None or matches(snapshot_offer(account), scope.selector)
