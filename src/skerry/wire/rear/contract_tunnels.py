"""The contract tunnel, and tunnels to the buyer's instances: WebSockets to the contract's cell.

The cell runs an agent, a node of the buyer, and the buyer connects here to be its control plane: frames of
the node session in both directions, as on every tunnel (`skerry.transport.links.nodes`). Text messages, from
the provider only, have the status of the contract. Only the frame headers are decoded here;
`skerry.wire.rear.tunnel_server` admits buyers.
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
_FRAME_OVERHEAD: Final = 64  # bytes around the data of a frame, at most
_FIRST_MESSAGE_S: Final = 10.0
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
    summary="Connect to the node of a contract",
    status=101,
    raises=_RAISES,
    headers=_HEADERS,
    streams=True,
    max_message_bytes=MAX_FRAME + _FRAME_OVERHEAD,
    subprotocols=(PROTOCOL,),
)
async def door(rear: RearContext | None, call: RequestContext, path: MarketIdPath) -> WebSocketResponse:
    """A WebSocket (`skerry.door.v1`).

    Binary messages are frames of the node session, `skerry.nodes.v1`. Text messages have the status of the
    contract and its cell: first, and again on every change. After one with `ended` the connection is closed
    with 1000. A contract has one connection at a time: a new one replaces the old. While the cell is not
    ready this is 503; an ended contract is 410.
    """
    tunnels = _tunnels(rear)
    contract = await tunnels.admit(path.id, call.headers.get(_AUTHORIZATION))
    await tunnels.heartbeats.mark_connected(contract.id)
    node, cell = tunnels.locate(contract.id)
    async with AsyncExitStack() as undo:
        tunnel = await undo.enter_async_context(tunnels.dialer.open_tunnel(node, cell, GuestSessionRequest()))
        replaced = undo.enter_context(tunnels.connected(contract.id))
        await undo.enter_async_context(tunnels.heartbeats.connected(contract.id))
        session = ContractTunnelSession(tunnels, contract, tunnel, replaced)
        return WebSocketResponse(session.relay, undo.pop_all())


@endpoint(
    "GET",
    "/api/contracts/{id}/tunnel",
    summary="Logs or exec of an instance in a contract",
    status=101,
    raises=_RAISES,
    headers=_HEADERS,
    streams=True,
    max_message_bytes=MAX_FRAME + _FRAME_OVERHEAD,
    subprotocols=(PROTOCOL,),
)
async def tunnel(rear: RearContext | None, call: RequestContext, path: MarketIdPath) -> WebSocketResponse:
    """A WebSocket of binary messages. The first is yours: an `OpenTunnel` of `skerry.nodes.v1`, with the
    instance and `logs` or `exec`. All others are frames of the tunnel.
    """
    tunnels = _tunnels(rear)
    contract = await tunnels.admit(path.id, call.headers.get(_AUTHORIZATION))
    tunnels.locate(contract.id)
    async with AsyncExitStack() as undo:
        undo.enter_context(tunnels.at_tunnel(contract.id))
        return WebSocketResponse(lambda socket: _open_tunnel(socket, tunnels, contract), undo.pop_all())


ENDPOINTS: Final[tuple[Endpoint, ...]] = (door, tunnel)


def _tunnels(rear: RearContext | None) -> ContractTunnelServer:
    if rear is None or rear.tunnels is None:
        raise errors.Unavailable("this server lends nothing; ask another server of this cloud")
    return rear.tunnels


class ContractTunnelSession:
    """The connection of a buyer to the node of its contract."""

    def __init__(
        self,
        tunnels: ContractTunnelServer,
        contract: Contract,
        tunnel: TunnelStream,
        replaced: asyncio.Event,
    ) -> None:
        self._tunnels = tunnels
        self._contract = contract
        self._tunnel = tunnel
        self._replaced = replaced

    async def relay(self, socket: WebSocket) -> None:
        """Relay until the contract ends, the buyer disconnects or is replaced, or the node ends the
        session."""
        with self._tunnels.changes_of(self._contract) as changed:
            first = await self._send_status(socket, None)
            await race(
                self._send_status_for_ever(socket, first, changed),
                self._until_replaced(),
                self._relay(socket),
            )

    async def _until_replaced(self) -> None:
        await self._replaced.wait()
        raise errors.Conflict("replaced by a newer connection with the same credential")

    async def _relay(self, socket: WebSocket) -> None:
        if not await _relay_frames(socket, self._tunnel):
            raise errors.Unavailable("the node of this cell has ended the session; connect again")

    async def _send_status_for_ever(
        self, socket: WebSocket, sent: ContractStatusMessage, changed: asyncio.Event
    ) -> None:
        """Send the status on every change; returns after it was sent that the contract has ended."""
        while sent.ended is None:
            try:
                async with asyncio.timeout(self._tunnels.until_due(self._contract)):
                    await changed.wait()
            except TimeoutError:
                pass
            changed.clear()
            sent = await self._send_status(socket, sent)

    async def _send_status(
        self, socket: WebSocket, sent: ContractStatusMessage | None
    ) -> ContractStatusMessage:
        contract_state = self._tunnels.contract_state(self._contract)
        if contract_state != sent:
            await socket.send_text(json_codec.encode(contract_state))
        return contract_state


async def _open_tunnel(socket: WebSocket, tunnels: ContractTunnelServer, contract: Contract) -> None:
    """Open the tunnel of the first message, and relay frames until both ends have finished."""
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_S):
            message = await socket.receive()
    except TimeoutError:
        raise errors.Invalid(f"no OpenTunnel came within {_FIRST_MESSAGE_S:g} s") from None
    if message is None:
        return
    request = _stream_request(message)
    node, cell = tunnels.locate(contract.id)
    async with tunnels.dialer.open_tunnel(node, cell, request) as tunnel:
        await _relay_frames(socket, tunnel)


def _stream_request(message: bytes) -> GuestStreamRequest:
    request = pb.OpenTunnel()
    try:
        request.ParseFromString(message)
    except DecodeError:
        raise errors.Invalid("the first message must be an OpenTunnel") from None
    opened = tunnel_codec.decode_tunnel(request)
    if not isinstance(opened.stream, LogStreamRequest | ExecStreamRequest):
        raise errors.Invalid("an instance in a contract's cell has only logs and exec")
    return GuestStreamRequest(InstanceId(ids.check_id(opened.instance, "instance")), opened.stream)


async def _relay_frames(socket: WebSocket, tunnel: TunnelStream) -> bool:
    """Relay frames between both sides; True if the client disconnected."""
    return await race(_to_client(socket, tunnel), _from_client(socket, tunnel))


async def _from_client(socket: WebSocket, tunnel: TunnelStream) -> bool:
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


async def _to_client(socket: WebSocket, tunnel: TunnelStream) -> bool:
    try:
        while (data := await tunnel.receive()) is not None:
            await socket.send(tunnel_codec.encode_data(data).SerializeToString())
    except errors.SkerryError as error:
        await socket.send(tunnel_codec.encode_failure(error).SerializeToString())
        raise
    await socket.send(tunnel_codec.END.SerializeToString())
    return False
