"""The door of a contract, and tunnels to what its buyer runs there: WebSockets to the contract's cell.

Who bought a cell finds a node behind it, and comes here to be its control plane: frames of the node's session
go both ways, as on every tunnel (`skerry.transport.links.nodes`). Texts, from us only, tell of the contract
itself. Nothing is understood here but the frames' hulls; who may come in is
`skerry.wire.rear.tunnel_server`'s matter.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from google.protobuf.message import DecodeError

from skerry.kit import json_codec
from skerry.kit.tasks import race
from skerry.model import errors, ids
from skerry.model.ids import InstanceId
from skerry.model.market import Contract
from skerry.model.streams import (
    MAX_FRAME,
    ExecStreamRequest,
    GuestSessionRequest,
    GuestStreamRequest,
    LogStreamRequest,
    TunnelStream,
)
from skerry.transport.http.endpoints import Endpoint, RequestContext, WebSocketResponse, endpoint
from skerry.transport.http.websocket import WebSocket
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec
from skerry.wire.market_inputs import MarketIdPath
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.contract_status import PROTOCOL, ContractStatusMessage
from skerry.wire.rear.tunnel_server import ContractTunnelServer

_AUTHORIZATION: Final = b"authorization"
_HULL: Final = 64  # bytes around the data of a frame, at most
_FIRST_WORD_S: Final = 10.0
_RAISES: Final = (
    errors.Unauthenticated,
    errors.Expired,
    errors.FailedPrecondition,
    errors.Overloaded,
    errors.Unavailable,
    errors.TimedOut,
)
_HEADERS: Final = {"Authorization": "`Skerry-Contract` and the token of the contract's credentials"}


@endpoint(
    "GET",
    "/api/contracts/{id}/door",
    summary="Be the control plane of what was bought",
    status=101,
    raises=_RAISES,
    headers=_HEADERS,
    streams=True,
    max_message_bytes=MAX_FRAME + _HULL,
    subprotocols=(PROTOCOL,),
)
async def door(rear: RearContext | None, call: RequestContext, path: MarketIdPath) -> WebSocketResponse:
    """A WebSocket (`skerry.door.v1`). Binary messages are frames of the node's session, `skerry.nodes.v1`.

    Text messages tell how the contract and its cell stand: first, and again on every change. After one with
    `ended` the connection is closed with 1000. There is one place at a door: who comes anew gets it. While
    the cell is not there yet this is 503; a contract that is over is 410.
    """
    tunnels = _tunnels(rear)
    contract = await tunnels.admit(path.id, call.headers.get(_AUTHORIZATION))
    await tunnels.heartbeats.arrive(contract.id)
    node, cell = tunnels.whereabouts(contract.id)
    async with AsyncExitStack() as undo:
        tunnel = await undo.enter_async_context(tunnels.dialer.open_tunnel(node, cell, GuestSessionRequest()))
        displaced = undo.enter_context(tunnels.connected(contract.id))
        await undo.enter_async_context(tunnels.heartbeats.visit(contract.id))
        session = ContractTunnelSession(tunnels, contract, tunnel, displaced)
        return WebSocketResponse(session.converse, undo.pop_all())


@endpoint(
    "GET",
    "/api/contracts/{id}/tunnel",
    summary="Output of, or a program in, an instance in what was bought",
    status=101,
    raises=_RAISES,
    headers=_HEADERS,
    streams=True,
    max_message_bytes=MAX_FRAME + _HULL,
    subprotocols=(PROTOCOL,),
)
async def tunnel(rear: RearContext | None, call: RequestContext, path: MarketIdPath) -> WebSocketResponse:
    """A WebSocket of binary messages. The first is yours: an `OpenTunnel` of `skerry.nodes.v1`, with the
    instance and `logs` or `exec`. All others are frames, as of any tunnel.
    """
    tunnels = _tunnels(rear)
    contract = await tunnels.admit(path.id, call.headers.get(_AUTHORIZATION))
    tunnels.whereabouts(contract.id)
    async with AsyncExitStack() as undo:
        undo.enter_context(tunnels.at_tunnel(contract.id))
        return WebSocketResponse(lambda socket: _reach(socket, tunnels, contract), undo.pop_all())


ENDPOINTS: Final[tuple[Endpoint, ...]] = (door, tunnel)


def _tunnels(rear: RearContext | None) -> ContractTunnelServer:
    if rear is None or rear.tunnels is None:
        raise errors.Unavailable("this server lends nothing; ask another server of this cloud")
    return rear.tunnels


class ContractTunnelSession:
    """A buyer at the door of its contract."""

    def __init__(
        self,
        tunnels: ContractTunnelServer,
        contract: Contract,
        tunnel: TunnelStream,
        displaced: asyncio.Event,
    ) -> None:
        self._tunnels = tunnels
        self._contract = contract
        self._tunnel = tunnel
        self._displaced = displaced

    async def converse(self, socket: WebSocket) -> None:
        """Until the contract is over, the buyer goes or comes anew, or the cell's node has no more to say."""
        with self._tunnels.ringing(self._contract) as bell:
            first = await self._send_status(socket, None)
            await race(
                self._send_status_for_ever(socket, first, bell), self._until_displaced(), self._relay(socket)
            )

    async def _until_displaced(self) -> None:
        await self._displaced.wait()
        raise errors.Conflict("somebody came to this door anew, with the same credential")

    async def _relay(self, socket: WebSocket) -> None:
        if not await _pass_on(socket, self._tunnel):
            raise errors.Unavailable("the node of this cell has ended the session; come again")

    async def _send_status_for_ever(
        self, socket: WebSocket, sent: ContractStatusMessage, bell: asyncio.Event
    ) -> None:
        """Tell of every change; returns when the contract is over, which was told then."""
        while sent.ended is None:
            try:
                async with asyncio.timeout(self._tunnels.until_due(self._contract)):
                    await bell.wait()
            except TimeoutError:
                pass
            bell.clear()
            sent = await self._send_status(socket, sent)

    async def _send_status(
        self, socket: WebSocket, sent: ContractStatusMessage | None
    ) -> ContractStatusMessage:
        contract_state = self._tunnels.contract_state(self._contract)
        if contract_state != sent:
            await socket.send_text(json_codec.encode(contract_state))
        return contract_state


async def _reach(socket: WebSocket, tunnels: ContractTunnelServer, contract: Contract) -> None:
    """Open the tunnel that is asked for first, and pass frames on until both ends have no more."""
    try:
        async with asyncio.timeout(_FIRST_WORD_S):
            message = await socket.receive()
    except TimeoutError:
        raise errors.Invalid(f"no OpenTunnel came within {_FIRST_WORD_S:g} s") from None
    if message is None:
        return
    request = _stream_request(message)
    node, cell = tunnels.whereabouts(contract.id)
    async with tunnels.dialer.open_tunnel(node, cell, request) as tunnel:
        await _pass_on(socket, tunnel)


def _stream_request(message: bytes) -> GuestStreamRequest:
    asked = pb.OpenTunnel()
    try:
        asked.ParseFromString(message)
    except DecodeError:
        raise errors.Invalid("the first message must be an OpenTunnel") from None
    opened = tunnel_codec.decode_tunnel(asked)
    if not isinstance(opened.stream, LogStreamRequest | ExecStreamRequest):
        raise errors.Invalid(
            "of an instance in a contract's cell there are only logs and programs to ask for"
        )
    return GuestStreamRequest(InstanceId(ids.check_id(opened.instance, "instance")), opened.stream)


async def _pass_on(socket: WebSocket, tunnel: TunnelStream) -> bool:
    """What comes from either side goes to the other; True if it was the client that went."""
    return await race(_down(socket, tunnel), _up(socket, tunnel))


async def _up(socket: WebSocket, tunnel: TunnelStream) -> bool:
    while (message := await socket.receive()) is not None:
        frame = pb.Frame()
        try:
            frame.ParseFromString(message)
        except DecodeError:
            raise errors.Invalid("a message must be a frame of skerry.nodes.v1") from None
        match frame.WhichOneof("frame"):
            case "data":
                await tunnel.send(frame.data)
            case "end":
                await tunnel.end()
            case "failure":
                await tunnel.fail(tunnel_codec.decode_failure(frame.failure))
            case _:
                raise errors.Invalid("a frame must hold data, an end or a failure")
    return True


async def _down(socket: WebSocket, tunnel: TunnelStream) -> bool:
    try:
        while (data := await tunnel.receive()) is not None:
            await socket.send(tunnel_codec.encode_data(data).SerializeToString())
    except errors.SkerryError as error:
        await socket.send(tunnel_codec.encode_failure(error).SerializeToString())
        raise
    await socket.send(tunnel_codec.END.SerializeToString())
    return False
