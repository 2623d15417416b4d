"""A market behind a real server, spoken to in one dialect; it can crash and come back on the same store."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from skerry.control.events.log import EventLog
from skerry.kit.clock import ManualClock, SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import ProofVerifier
from skerry.market.terms.signatures import ContractSigner
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.market_settings import MarketSettings
from skerry.model.settings import EventSettings, HttpSettings, Settings
from skerry.store.local.memory import MemoryStore
from skerry.transport.access.gate import AccessGate, allowed_hosts
from skerry.transport.http.dispatcher import HttpDispatcher, ServedHosts
from skerry.transport.http.server import HttpServer
from skerry.wire.rear import routes
from skerry.wire.rear.context import RearContext
from tests.transport.http.talking import Answer, Wire

CORE_MB = 1024  # of memory, that go with each core


class Nobody:
    """There are no tokens and no certificates; whoever asks is the user who runs this."""

    def caller_from_token(self, text: str) -> Caller:
        raise errors.Unauthenticated("there are no tokens")

    def caller_from_certificate(self, der: bytes) -> Caller:
        raise errors.Unauthenticated("there are no certificates")

    def listen(self, changed: Callable[[], None]) -> None:
        pass


def market_alone(rear: RearContext) -> HttpDispatcher:
    """The app with nothing but the market: it starts much sooner than the whole, and here it often does."""
    targets = list(routes.build_routes(rear, Settings()))
    return HttpDispatcher(
        prefix_routes={},
        routes=targets,
        guard=AccessGate(Nobody(), os.geteuid()),
        hosts=ServedHosts(allowed_hosts("127.0.0.1")),
        settings=HttpSettings(),
        clock=SystemClock(),
    )


class World:
    """One market. What a dialect has no words for is said in the document's."""

    def __init__(
        self,
        dialect: str,
        key: SigningKey,
        clock: ManualClock,
        settings: MarketSettings,
    ) -> None:
        self.dialect = dialect
        self._key = key
        self._clock = clock
        self._settings = settings
        self._store = MemoryStore(clock)
        self._numbers = itertools.count(1)
        self._open = AsyncExitStack()
        self.ledger: Ledger
        self._wire: Wire

    async def start(self) -> None:
        """A new ledger and a new server, on the store as it is."""
        self.ledger = ledger = Ledger(
            self._store,
            self._clock,
            self._settings,
            EventLog(self._store, self._clock, EventSettings()),
            signer=ContractSigner(self._key),
            new_hold=lambda: f"{next(self._numbers):032x}",
        )
        running = asyncio.ensure_future(ledger.run())
        self._open.push_async_callback(cancel_and_wait, [running])
        await ledger.ready()
        rear = RearContext.of(
            ledger,
            ProofVerifier(self._store, self._clock, self._key.cloud),
            provider=self._key.cloud,
            new_id=lambda: f"new-{next(self._numbers)}",
        )
        server = HttpServer(market_alone(rear), HttpSettings())
        await server.start(socket.create_server(("127.0.0.1", 0)), None)
        self._open.push_async_callback(server.stop, 5.0)
        self._wire = await Wire.to(*server.address)
        self._open.callback(self._wire.close)

    async def crash(self) -> None:
        """All that is in memory is gone."""
        await self._open.aclose()

    async def end(self) -> None:
        await self.crash()
        await self._store.close()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{lines}\r\n"
        await self._wire.send(head.encode() + data)
        return await self._wire.answer()

    async def reserve(self, buyer: str, flavor: str, cpu: int, count: int, key: str) -> tuple[int, str]:
        """The status, and the transaction if there is one."""
        memory = cpu * CORE_MB
        part = {"cpu": f"{cpu * 1000}m", "memory": f"{memory}Mi"}
        body: dict[str, Any]
        if self.dialect == "v1" and count == 1:
            path, body = f"/api/reserveflavour/{flavor}", {"buyerID": {"ID": buyer}, "partition": part}
        elif self.dialect == "v2" and count == 1:
            path = "/api/v2/reservations"
            body = {"flavorID": flavor, "buyerID": {"ID": buyer}, "configuration": {"data": part}}
        else:
            path = "/api/reserveflavor"
            part_of = {"Cpu": cpu, "Memory": memory, "Count": count}
            body = {"FlavorID": flavor, "Buyer": {"NodeID": buyer}, "Partition": part_of}
        answer = await self.ask("POST", path, body, Idempotency_Key=key)
        told = answer.json
        return answer.status, told.get("TransactionID") or told.get("transactionID") or ""

    async def purchase(self, hold: str) -> Answer:
        match self.dialect:
            case "v1":
                return await self.ask("POST", f"/api/purchaseflavour/{hold}", {"transactionID": hold})
            case "v2":
                return await self.ask("POST", f"/api/v2/transactions/{hold}/purchase", {})
            case _:
                return await self.ask("POST", "/api/purchaseflavor", {"Purchase": {"TransactionID": hold}})

    def contract(self, bought: Answer) -> tuple[str, bytes]:
        """The id and the signed document in the answer to a purchase."""
        told = bought.json
        match self.dialect:
            case "v1":
                inner = told["contract"]
                return inner["contractID"], inner["extraInformation"]["document"].encode()
            case "v2":
                return told["contractID"], told["extraInformation"]["document"].encode()
            case _:
                return told["ContractID"], told["Document"].encode()

    async def select(self, least: int, most: int) -> list[tuple[str, int]]:
        """Flavors with so many cores, and how many each has; version 1 knows one of them."""
        match self.dialect:
            case "v1":
                bounds = {"minCpu": str(least), "maxCpu": str(most)}
                answer = await self.ask("POST", "/api/listflavours/selector", {"rangeSelector": bounds})
                found = [] if answer.status == 204 else [answer.json]
                return [(one["flavourID"], int(one["characteristics"]["cpu"])) for one in found]
            case "v2":
                bounds = {"min": str(least), "max": str(most)}
                query = "&".join(f"filter[cpu][range][{name}]={value}" for name, value in bounds.items())
                answer = await self.ask("GET", f"/api/v2/flavors/k8slice?{query}")
                return [
                    (one["flavorID"], int(one["type"]["data"]["charateristics"]["cpu"]))
                    for one in answer.json
                ]
            case _:
                selector = {"MoreThanCpu": least, "LessThanCpu": most}
                answer = await self.ask("POST", "/api/listflavors", {"Selector": selector})
                assert answer.json["Continue"] is None
                return [(one["FlavorID"], one["Characteristics"]["Cpu"]) for one in answer.json["Items"]]
