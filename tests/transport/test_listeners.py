"""Listeners: connections are accepted beside the input of those that are there."""

from __future__ import annotations

import asyncio
import socket

from prometheus_client import Counter, Gauge

from skerry.transport import pacing
from skerry.transport.admission import AdmissionLimits, ConnectionSlot
from skerry.transport.listeners import Listener, ListenerMetrics, ListenerOptions


class Ended:
    """A connection whose client has left."""

    def __init__(self, slot: ConnectionSlot) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self.closed.set_result(None)

    def abort(self) -> None:
        pass


async def test_connections_wait_one_turn_and_not_two_while_others_use_up_each() -> None:
    loop = asyncio.get_running_loop()
    accepted = Gauge("held", "Connections held", ["listener"], registry=None)
    refused = Counter("refused", "Connections refused", ["listener", "reason"], registry=None)
    options = ListenerOptions(
        tls=None,
        plaintext=True,
        limits=AdmissionLimits(10, 10),
        handshake_timeout_s=5.0,
        trusted_uids=frozenset(),
        measures=ListenerMetrics(accepted, refused),
    )
    with socket.create_server(("127.0.0.1", 0)) as sock:
        clients = [socket.create_connection(sock.getsockname()) for _ in range(2)]
        listener = Listener("test", sock, options, Ended)
        counts = []
        for _ in range(5):
            pacing.pacer_of(loop).spend(pacing.TURN_S)
            await asyncio.sleep(0)
            counts.append(accepted.labels("test")._value.get())
        assert counts == [0, 0, 1, 1, 2]  # a count is taken before what the turn accepts
        listener.close()
        for client in clients:
            client.close()
        await listener.drained()
