"""The name server on loopback: with `dig`, under floods, and with clients that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess

import pytest

from skerry.kit.clock import SystemClock
from skerry.node.network.dns.budgets import ClientLimit
from skerry.node.network.dns.listeners import DnsListener
from skerry.node.network.dns.resolver import Client
from tests.node.network.dns import resolvers
from tests.node.network.dns.objects import endpoint, instance, put, service
from tests.node.network.dns.resolvers import LOCAL, Parts, answering, fake_resolver, question, serving, values
from tests.support.waiting import PATIENCE_S, eventually


async def dig(listener: DnsListener, *arguments: str) -> str:
    command = [
        "dig",
        f"@{LOCAL}",
        "-p",
        str(listener.port),
        "+tries=1",
        f"+time={int(PATIENCE_S)}",
        *arguments,
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    return done.stdout


async def connect(listener: DnsListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(LOCAL, listener.port)


async def drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(2, "big") + packet


async def read(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


def made(**more: object) -> Parts:
    parts = resolvers.make(clock=SystemClock(), **more)  # type: ignore[arg-type]
    put(
        parts.zone,
        instance("db", "10.64.0.7"),
        service("web", *(endpoint(f"10.64.1.{n}", n) for n in range(60))),
    )
    return parts


async def test_dig_is_answered_by_datagram_and_by_connection() -> None:
    async with (
        fake_resolver(answering()) as fake,
        serving(made(resolvers=[LOCAL], port=fake.port)) as listener,
    ):
        assert (await dig(listener, "+short", "db.shop.skerry")).split() == ["10.64.0.7"]
        assert (await dig(listener, "+short", "+tcp", "db.shop.skerry")).split() == ["10.64.0.7"]
        assert (await dig(listener, "+short", "-x", "10.64.0.7")).split() == ["db.shop.skerry."]
        assert (await dig(listener, "+short", "example.org")).split() == ["192.0.2.7"]
        # Without EDNS it does not fit, and dig comes again by TCP.
        assert len((await dig(listener, "+short", "+noedns", "web.instances.shop.skerry")).split()) == 60
        assert "status: NXDOMAIN" in await dig(listener, "nope.shop.skerry")
        assert "status: NOERROR" in await dig(listener, "AAAA", "db.shop.skerry")
        assert "status: REFUSED" in await dig(listener, "CH", "TXT", "version.bind")


async def test_questions_of_one_connection_may_come_together_and_in_pieces() -> None:
    async with serving(made()) as listener:
        reader, writer = await connect(listener)
        sent = b"".join(framed(question("db.shop.skerry", id=id)) for id in range(40))
        for byte in sent[:50]:
            writer.write(bytes([byte]))
        writer.write(sent[50:])
        assert [int.from_bytes((await read(reader))[:2], "big") for _ in range(40)] == list(range(40))
        await drop(writer)


async def test_many_questions_to_others_on_one_connection_all_get_answers() -> None:
    async with (
        fake_resolver(answering()) as fake,
        serving(made(resolvers=[LOCAL], port=fake.port)) as listener,
    ):
        reader, writer = await connect(listener)
        for id in range(50):
            writer.write(framed(question(f"x{id}.org", id=id)))
        answers = [await read(reader) for _ in range(50)]
        assert {int.from_bytes(each[:2], "big") for each in answers} == set(range(50))
        await drop(writer)


async def test_a_connection_that_says_nothing_whole_is_closed() -> None:
    async with serving(made(), idle_s=0.05) as listener:
        reader, writer = await connect(listener)
        writer.write(b"\0\x20half")
        assert await is_closed(reader)
        await drop(writer)


@pytest.mark.parametrize("sent", [b"\xff\xff", framed(b"\0" * 11), framed(b"\1\2\x80" + b"\0" * 30)])
async def test_a_connection_with_something_else_than_questions_is_closed(sent: bytes) -> None:
    async with serving(made()) as listener:
        reader, writer = await connect(listener)
        writer.write(sent)
        assert await is_closed(reader)
        await drop(writer)


async def test_a_client_that_does_not_read_is_not_written_to_for_ever() -> None:
    async with serving(made(), idle_s=0.3) as listener:
        reader, writer = await connect(listener)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        packet = framed(question("web.instances.shop.skerry"))

        async def flood() -> None:
            while True:
                writer.write(packet * 1000)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(flood(), PATIENCE_S)
        await drop(writer)
        assert reader is not None


async def test_connections_of_one_client_are_limited_and_places_come_back() -> None:
    places = ClientLimit(3, 100)
    async with serving(made(), connections=places) as listener:
        opened = [await connect(listener) for _ in range(3)]
        for reader, writer in opened:
            writer.write(framed(question("db.shop.skerry")))
            assert values(await read(reader)) == ["10.64.0.7"]
        reader, writer = await connect(listener)
        assert await is_closed(reader)
        await drop(writer)
        for _, each in opened:
            await drop(each)
        await eventually(lambda: places.total == 0)
        reader, writer = await connect(listener)
        writer.write(framed(question("db.shop.skerry")))
        assert values(await read(reader)) == ["10.64.0.7"]
        await drop(writer)
    await eventually(lambda: places.total == 0)


async def test_random_packets_neither_break_nor_fill_it() -> None:
    chance = random.Random(19)
    async with serving(made()) as listener:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect((LOCAL, listener.port))
            for number in range(3000):
                packet = bytearray(question("db.shop.skerry", "SRV", edns=900))
                for _ in range(chance.randrange(6)):
                    packet[chance.randrange(len(packet))] = chance.randrange(256)
                sender.send(packet if number % 2 else chance.randbytes(chance.randrange(600)))
                if number % 100 == 0:
                    await asyncio.sleep(0)
        assert (await dig(listener, "+short", "db.shop.skerry")).split() == ["10.64.0.7"]


async def test_random_streams_neither_break_it_nor_stay_open() -> None:
    chance = random.Random(23)
    places = ClientLimit(8, 8)
    async with serving(made(), connections=places) as listener:
        for _ in range(150):
            reader, writer = await connect(listener)
            stream = bytearray().join(
                framed(question("db.shop.skerry", chance.choice(["A", "SRV", "TXT"])))
                for _ in range(chance.randrange(1, 4))
            )
            for _ in range(chance.randrange(8)):
                at = chance.randrange(len(stream))
                stream[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            with contextlib.suppress(ConnectionError):
                writer.write(stream[: chance.randrange(len(stream) + 1)] if chance.random() < 0.3 else stream)
                await writer.drain()
                if chance.random() < 0.7:
                    writer.write_eof()
                    await reader.read(-1)
            await drop(writer)
        await eventually(lambda: places.total == 0)
        assert (await dig(listener, "+short", "+tcp", "db.shop.skerry")).split() == ["10.64.0.7"]


async def test_a_flood_of_one_turn_leaves_turns_to_others() -> None:
    parts = made()
    async with serving(parts) as listener:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect((LOCAL, listener.port))
            for _ in range(200):
                sender.send(question("db.shop.skerry"))
            taken: list[Client] = []
            handle = parts.resolver.handle

            def count(packet: bytes, client: Client, respond: object) -> bool:
                taken.append(client)
                return handle(packet, client, respond)  # type: ignore[arg-type]

            parts.resolver.handle = count  # type: ignore[method-assign]
            turns = 0
            while len(taken) < 200:
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 6


async def test_an_address_in_use_is_an_error_and_leaves_nothing_open() -> None:
    parts = made()
    async with serving(parts) as listener:
        second = DnsListener(LOCAL, parts.resolver, lambda client: True, ClientLimit(1, 1), idle_s=1)
        with pytest.raises(OSError):
            await second.open(listener.port)


async def test_a_client_that_is_not_accepted_gets_nothing() -> None:
    parts = made()
    listener = DnsListener(LOCAL, parts.resolver, lambda client: False, ClientLimit(1, 1), idle_s=1)
    await listener.open(0)
    reader, writer = await connect(listener)
    assert await is_closed(reader)
    await drop(writer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(question("db.shop.skerry"), (LOCAL, listener.port))
        sender.setblocking(False)
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            sender.recv(100)
    await listener.close()
