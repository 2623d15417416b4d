"""Buyers of one flavor over real HTTP, whose connections break, and what each of them saw.

A buyer asks again, with the same Idempotency-Key or the same transaction, until it knows what became of its
request; some give up instead, and then nobody knows. What was seen is written down for the checker of
histories (`tests.support.linearizability`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from skerry.kit.clock import SystemClock
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model.ids import CloudId
from tests.support.linearizability import Kind, Operation

FLAVOR = "contested"
CORE_MB = 512  # of memory, that go with each core


class Lost(Exception):
    """There was no answer: nobody knows what happened."""


@dataclass
class Shop:
    """Where to buy, and what is known of it."""

    provider: CloudId
    port: int = 0
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    is_calm: bool = False  # one buyer at a time, so that what each is told can be nothing else
    is_closing: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    history: list[Operation] = field(default_factory=list)
    contracts: dict[str, tuple[Buyer, bytes]] = field(default_factory=dict)  # by transaction
    transactions: set[str] = field(default_factory=set)  # of holds that were answered
    answers: int = 0

    def settled(self, holds: Iterable[Any]) -> list[Operation]:
        """The history without what never happened: who gave up and has no hold among all that were ever made
        was not served. Who has some, of those it gave up on with that amount, may have any of them."""
        given_up = Counter(
            (hold["Buyer"]["NodeID"], hold["Partition"]["Cpu"])
            for hold in holds
            if hold["TransactionID"] not in self.transactions
        )
        return [one for one in self.history if one.answered is not None or given_up[one.who, one.amount]]


class Buyer:
    """One buyer on one connection that is kept while it lasts; named, or with a key of its own."""

    def __init__(self, shop: Shop, number: int, chance: random.Random, *, has_key: bool) -> None:
        key = SigningKey.generate() if has_key else None
        self.name = f"buyer-{number}" if key is None else str(key.cloud)
        self._shop = shop
        self._chance = chance
        self._prover = None if key is None else RequestSigner(key, SystemClock())
        self._requests = 0
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def shop(self) -> None:
        """Make one deal after the other until the shop closes."""
        try:
            while not self._shop.is_closing:
                async with self._shop.turn if self._shop.is_calm else nullcontext():
                    await self._deal()
        finally:
            self.hang_up()

    async def purchase(self, transaction: str) -> bytes:
        """The contract, as it was answered; asked for again until there is an answer."""
        status, contract = await self._insist("POST", "/api/purchaseflavor", {"TransactionID": transaction})
        assert status == 200, contract
        return contract

    async def _deal(self) -> None:
        if self._chance.random() < 0.2:
            await self._see()
        amount = self._chance.randint(1, 3)
        transaction = await self._reserve(amount)
        if transaction is None:
            return
        if self._chance.random() < 0.3:
            await self._end("DELETE", f"/api/reservations/{transaction}", Kind.CANCELLED, amount)
            return
        asked = time.monotonic()
        contract = await self.purchase(transaction)
        self._note(Kind.BOUGHT, amount, asked)
        self._shop.contracts[transaction] = (self, contract)
        assert await self.purchase(transaction) == contract
        if self._chance.random() < 0.95:
            id = json.loads(contract)["ContractID"]
            await self._end("POST", f"/api/contracts/{id}/release", Kind.RELEASED, amount)

    async def _reserve(self, amount: int) -> str | None:
        """The transaction; None if there was no room, or nobody knows."""
        self._requests += 1
        body: dict[str, Any] = {
            "FlavorID": FLAVOR,
            "Partition": {"Cpu": amount, "Memory": amount * CORE_MB},
        }
        if self._prover is None:
            body["Buyer"] = {"NodeID": self.name}
        key = {"Idempotency-Key": f"{self.name}-{self._requests}"}
        asked = time.monotonic()
        try:
            if self._chance.random() < 0.03:
                status, answer = await self._ask("POST", "/api/reserveflavor", body, key)  # and no more
            else:
                status, answer = await self._insist("POST", "/api/reserveflavor", body, key)
        except Lost:
            self._note(Kind.RESERVED, amount, asked, is_known=False)
            return None
        told = json.loads(answer)
        if status == 409:
            assert told["code"] == "no-room", told
            self._note(Kind.REFUSED, amount, asked)
            return None
        assert status == 200, told
        assert told["Partition"]["Cpu"] == amount
        self._note(Kind.RESERVED, amount, asked)
        self._shop.transactions.add(told["TransactionID"])
        return str(told["TransactionID"])

    async def _end(self, method: str, path: str, kind: Kind, amount: int) -> None:
        asked = time.monotonic()
        status, answer = await self._insist(method, path)
        assert status == 200, answer
        self._note(kind, amount, asked)

    async def _see(self) -> None:
        asked = time.monotonic()
        status, answer = await self._insist("GET", f"/api/flavors/{FLAVOR}")
        assert status == 200, answer
        self._note(Kind.SEEN, json.loads(answer)["Characteristics"]["Cpu"], asked)

    def _note(self, kind: Kind, amount: int, asked: float, *, is_known: bool = True) -> None:
        answered = time.monotonic() if is_known else None
        self._shop.history.append(Operation(kind, amount, asked, answered, self.name))
        self._shop.answers += is_known

    async def _insist(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        while True:
            try:
                status, answer = await self._ask(method, path, body, headers)
            except Lost:
                await self._shop.is_open.wait()
                continue
            if status != 503 and not (status == 409 and b"is under way" in answer):
                return status, answer

    async def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        shown = dict(headers or {})
        if self._prover is not None:
            shown["Authorization"] = self._prover.header(self._shop.provider, method, path, data)
        lines = "".join(f"{name}: {value}\r\n" for name, value in shown.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{lines}\r\n"
        try:
            reader, writer = await self._connected()
            writer.write(head.encode() + data)
            if self._chance.random() < 0.05:
                await writer.drain()
                raise ConnectionError("the line was cut")
            first, *more = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            length = next(line.partition(":")[2] for line in more if line.startswith("content-length:"))
            return int(first.split()[1]), await reader.readexactly(int(length))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.hang_up()
            raise Lost from error

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._shop.port)
        return self._line

    def hang_up(self) -> None:
        if self._line is not None:
            self._line[1].transport.abort()
            self._line = None
