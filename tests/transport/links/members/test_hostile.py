"""Whom links are refused, and what peers may not do on them."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.functions.continuum.member_api import CallNotStarted, CallOutcomeUnknown
from skerry.kit import tls
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members import messages
from skerry.transport.links.members.framing import FrameDecoder, decode_reply, encode_frame, max_frame_bytes
from skerry.transport.links.members.server import MemberLinkServer
from skerry.transport.links.members.server_link import MemberLinkLimits
from tests.support.certificates import SERVER_NAME, TestAuthority
from tests.support.links import OpenAccess
from tests.support.waiting import eventually
from tests.transport.links.members.conftest import HERE, LOAD, THERE, call, member

HELLO = messages.LinkHello(HERE, 1_000_000)
CODE = b"what a function does"
DIGEST = Digest(f"sha256:{hashlib.sha256(CODE).hexdigest()}")


class Raw:
    """A neighbour that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameDecoder(decode_reply, 10**8)
        self.got: list[messages.ReplyMessage] = []

    def send(self, *sent: messages.LinkMessage | bytes) -> None:
        for each in sent:
            self.writer.write(each if isinstance(each, bytes) else encode_frame(each))

    async def next(self) -> messages.ReplyMessage | None:
        """The next message; None if the connection has ended."""
        while not self.got:
            try:
                data = await self._reader.read(65536)
            except OSError:
                return None
            if not data:
                return None
            self._frames.feed(data, self.got.append)
        return self.got.pop(0)


@asynccontextmanager
async def dialled(cloud, served, node: str = HERE, role: str = "node") -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", served.port, ssl=cloud.asking(node, role), server_hostname=SERVER_NAME
    )
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def events(logged) -> list[str]:
    return [line["event"] for line in logged]


def dropped(logged) -> list[str]:
    return [line["why"] for line in logged if line["event"] == "neighbour.dropped"]


# Who may dial


async def test_a_stranger_with_a_certificate_of_another_ca_gets_no_link(
    cloud, serves, tmp_path, authority, logged
):
    stranger = TestAuthority(tmp_path / "stranger")
    pair = stranger.issue(HERE, "node")
    context = tls.client(authority.ca.read_bytes())
    tls.load(context, pair.certificate, pair.key)
    with pytest.raises(CallNotStarted, match="cannot be reached"):
        await cloud.links(context).invoke(cloud.serve(serves).member(), call(), at_once=True)
    assert serves.asked == []
    await eventually(lambda: [line for line in logged if line["event"] == "connection.refused"])


async def test_a_caller_without_a_certificate_or_without_tls_gets_no_link(cloud, serves, authority, logged):
    served = cloud.serve(serves)
    with pytest.raises(CallNotStarted, match="cannot be reached"):
        await cloud.links(tls.client(authority.ca.read_bytes())).invoke(served.member(), call(), at_once=True)
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(encode_frame(HELLO))
    await eventually(
        lambda: (
            {line["reason"] for line in logged if line["event"] == "connection.refused"}
            == {"no-certificate", "plaintext"}
        )
    )
    writer.transport.abort()
    assert serves.asked == []


@pytest.mark.parametrize("role", ["admin", "deployer", "invoker", "viewer", ""])
async def test_certificates_of_people_open_no_link_also_if_they_are_called_like_a_node(
    cloud, serves, role, logged
):
    there = cloud.serve(serves).member()
    with pytest.raises(CallNotStarted, match="cannot be reached"):
        await cloud.links(cloud.asking(HERE, role)).invoke(there, call(), at_once=True)
    assert serves.asked == []
    assert "refused" in dropped(logged)


async def test_a_node_cannot_speak_for_another(cloud, serves, logged):
    served = cloud.serve(serves)
    async with dialled(cloud, served, "n3") as raw:
        raw.send(HELLO, messages.PingMessage(1, LOAD))
        assert await raw.next() is None
    assert dropped(logged) == ["refused"]
    assert serves.loads == []


async def test_a_server_speaks_as_the_member_that_it_says(cloud, serves):
    served = cloud.serve(serves)
    async with dialled(cloud, served, "host.example", "server") as raw:
        raw.send(HELLO, messages.PingMessage(1, LOAD))
        assert isinstance(await raw.next(), messages.LinkWelcome)
        assert isinstance(await raw.next(), messages.PongMessage)
    assert serves.loads == [(HERE, LOAD)]


async def test_a_revoked_certificate_ends_its_link_and_opens_no_other(cloud, serves, logged):
    links, there = cloud.links(), cloud.serve(serves).member()
    serves.codes[DIGEST] = CODE
    assert await links.fetch(there, DIGEST) == CODE
    cloud.serving_access.revoke_all()
    await eventually(lambda: "neighbour.left" in events(logged))
    for ask in (links.fetch(there, DIGEST), links.invoke(there, call(), at_once=True)):
        with pytest.raises((errors.Unavailable, CallNotStarted)):
            await ask
    assert serves.asked == []
    assert set(dropped(logged)) == {"refused"}


async def test_a_call_that_is_under_way_ends_when_its_caller_is_revoked(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves).member()
    asked = asyncio.ensure_future(links.invoke(there, call(), at_once=True))
    await eventually(lambda: serves.asked)
    cloud.serving_access.revoke_all()
    with pytest.raises(CallOutcomeUnknown):
        await asked


async def test_who_is_no_member_any_more_loses_its_link_and_gets_no_other(cloud, serves, logged):
    links, there = cloud.links(), cloud.serve(serves).member()
    serves.codes[DIGEST] = CODE
    assert await links.fetch(there, DIGEST) == CODE
    cloud.serving_access.remove(HERE)
    await eventually(lambda: "neighbour.left" in events(logged))
    for ask in (links.fetch(there, DIGEST), links.invoke(there, call(), at_once=True)):
        with pytest.raises((errors.Unavailable, CallNotStarted)):
            await ask
    assert serves.asked == []
    assert set(dropped(logged)) == {"refused"}


async def test_a_server_is_welcome_before_it_was_heard_of_and_a_node_is_not(cloud, serves):
    served = cloud.serve(serves)
    cloud.serving_access.remove(HERE)
    async with dialled(cloud, served, "host.example", "server") as raw:
        raw.send(HELLO)
        assert isinstance(await raw.next(), messages.LinkWelcome)
    async with dialled(cloud, served, HERE, "node") as raw:
        raw.send(HELLO, messages.PingMessage(1, LOAD))
        assert await raw.next() is None
    assert serves.loads == []


async def test_a_listener_wants_a_context_that_asks_for_certificates(authority, serves):
    with pytest.raises(ValueError, match="must require one"):
        MemberLinkServer(
            THERE,
            serves,
            authority.server_context(required=False),
            SystemClock(),
            FunctionSettings(),
            access=OpenAccess(),
        )


# Who may be dialled


async def test_a_person_is_not_talked_to(cloud, serves):
    there = cloud.serve(serves, context=cloud.serving(THERE, "admin")).member()
    with pytest.raises(CallNotStarted, match="of the role 'admin' opens no link"):
        await cloud.links().invoke(there, call(), at_once=True)


async def test_another_node_than_the_list_says_is_not_talked_to(cloud, serves):
    there = cloud.serve(serves, context=cloud.serving("n3")).member()
    with pytest.raises(CallNotStarted, match="the certificate there is of node n3"):
        await cloud.links().invoke(there, call(), at_once=True)
    assert serves.asked == []


async def test_a_server_must_say_that_it_is_the_member(cloud, serves):
    right = cloud.serve(serves, context=cloud.serving("host.example", "server")).member()
    assert (await cloud.links().invoke(right, call(), at_once=True)).node == THERE
    wrong = cloud.serve(serves, node="n3", context=cloud.serving("host.example", "server")).member()
    with pytest.raises(CallNotStarted, match="node n3 answers there"):
        await cloud.links().invoke(wrong, call(), at_once=True)


async def test_a_listener_of_another_cloud_is_not_talked_to(cloud, serves, tmp_path):
    stranger = TestAuthority(tmp_path / "stranger")
    context = tls.mutual_server(stranger.ca.read_bytes())
    pair = stranger.issue(THERE, "node", server=True)
    tls.load(context, pair.certificate, pair.key)
    with pytest.raises(CallNotStarted, match="issued by another CA"):
        await cloud.links().invoke(cloud.serve(serves, context=context).member(), call(), at_once=True)


async def test_a_revoked_certificate_of_a_neighbour_ends_the_link_to_it(cloud, serves, logged):
    links, there = cloud.links(), cloud.serve(serves).member()
    await links.ping(there, LOAD)
    cloud.asking_access.revoke_all()
    await eventually(lambda: "neighbour.left" in events(logged))
    with pytest.raises(errors.Unavailable, match="was revoked"):
        await links.ping(there, LOAD)
    with pytest.raises(CallNotStarted, match="was revoked"):
        await links.invoke(there, call(), at_once=True)


async def test_a_neighbour_that_is_no_member_is_not_talked_to(cloud, serves):
    there = cloud.serve(serves).member()
    cloud.asking_access.remove(THERE)
    with pytest.raises(CallNotStarted, match="is no member of this cloud"):
        await cloud.links().invoke(there, call(), at_once=True)
    assert serves.asked == []


@pytest.mark.parametrize(
    "said",
    [
        [b"\x00\x00\x00\x02\xc1\xc1"],
        [b"\x7f\xff\xff\xff"],
        [messages.CallReady(1)],
        [messages.LinkWelcome(THERE, 1000), messages.LinkWelcome(THERE, 1000)],
    ],
    ids=["noise", "too long", "before a welcome", "a second welcome"],
)
async def test_a_neighbour_that_answers_nonsense_is_dropped(cloud, said, logged):
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in said:
            writer.write(each if isinstance(each, bytes) else encode_frame(each))
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(babble, "127.0.0.1", 0, ssl=cloud.serving())
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(CallNotStarted):
        await cloud.links().invoke(member(port), call(), at_once=False)
    assert dropped(logged) == ["garbage"]
    server.close()
    await server.wait_closed()


async def test_a_port_where_nobody_speaks_costs_one_timeout(cloud):
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(CallNotStarted, match=r"within 0\.1 s"):
        await cloud.links(timeout_s=0.1).invoke(member(silent.getsockname()[1]), call(), at_once=True)


# What may be said


@pytest.mark.parametrize(
    "said",
    [
        [messages.PingMessage(1, LOAD)],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x00\x00\x10\x01"],
        [HELLO, HELLO],
        [HELLO, b"\x00\x00\x00\x04\xff\xff\xff\xff"],
        [HELLO, (max_frame_bytes(FunctionSettings()) + 1).to_bytes(4, "big")],
        [HELLO, messages.InvokeFunction(1, call(), at_once=True), messages.PollCall(1, "x")],
        [HELLO, messages.CallDone(1, None)],
    ],
    ids=[
        "before a hello",
        "another protocol",
        "a long first message",
        "a second hello",
        "noise",
        "too long",
        "a number twice",
        "another's words",
    ],
)
async def test_garbage_ends_the_link_with_a_line_in_the_log(cloud, serves, said, logged):
    serves.may_end.clear()
    async with dialled(cloud, cloud.serve(serves)) as raw:
        raw.send(*said)
        while await raw.next() is not None:
            pass
    assert dropped(logged) == ["garbage"]
    assert serves.begun == serves.cancelled
    assert serves.loads == []


async def test_a_peer_that_says_nothing_is_let_go(cloud, serves, logged):
    async with dialled(cloud, cloud.serve(serves, limits=MemberLinkLimits(hello_timeout_s=0.05))) as raw:
        assert await raw.next() is None
    assert dropped(logged) == ["refused"]


async def test_too_many_calls_on_one_link_are_refused_and_the_others_go_on(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves, limits=MemberLinkLimits(calls=2)).member()
    calls = [asyncio.create_task(links.invoke(there, call(), at_once=True)) for _ in range(2)]
    await eventually(lambda: len(serves.begun) == 2)
    with pytest.raises(CallNotStarted) as refused:
        await links.invoke(there, call(), at_once=True)
    assert refused.value.kind == "overloaded"
    serves.may_end.set()
    await asyncio.gather(*calls)


async def test_calls_of_too_many_bytes_on_one_link_are_refused_while_others_are_under_way(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves, limits=MemberLinkLimits(params_bytes=10)).member()
    calling = asyncio.create_task(links.invoke(there, call(b"12345678"), at_once=True))
    await eventually(lambda: serves.begun)
    with pytest.raises(CallNotStarted) as refused:
        await links.invoke(there, call(b"123"), at_once=True)
    assert refused.value.kind == "overloaded"
    serves.may_end.set()
    await calling
    await eventually(lambda: links.invoke(there, call(b"123"), at_once=True))


async def test_too_many_fetches_on_one_link_are_refused(cloud, serves):
    links, there = cloud.links(), cloud.serve(serves, limits=MemberLinkLimits(fetches=0)).member()
    with pytest.raises(errors.Unavailable, match="too many requests at once"):
        await links.fetch(there, "sha256:" + "0" * 64)


async def test_a_node_that_dials_again_and_again_loses_the_oldest_of_its_links(cloud, serves, logged):
    served = cloud.serve(serves)
    raws = []
    async with dialled(cloud, served) as first, dialled(cloud, served, "n3") as other:
        for raw in (first, other):
            raw.send(messages.LinkHello(HERE if raw is first else "n3", 1000))
            assert isinstance(await raw.next(), messages.LinkWelcome)
        for _ in range(4):
            context = dialled(cloud, served)
            raws.append((context, raw := await context.__aenter__()))
            raw.send(HELLO)
            assert isinstance(await raw.next(), messages.LinkWelcome)
        assert await first.next() is None
        other.send(messages.PingMessage(1))
        assert isinstance(await other.next(), messages.PongMessage)
    for context, _ in raws:
        await context.__aexit__(None, None, None)
    assert dropped(logged) == ["replaced"]


async def test_who_does_not_read_is_let_go_and_others_are_not_held_up(cloud, serves, logged):
    code = bytes(20_000_000)
    digest = "sha256:" + hashlib.sha256(code).hexdigest()
    serves.codes[digest] = code
    served = cloud.serve(serves, limits=MemberLinkLimits(stall_s=0.2))
    async with dialled(cloud, served) as raw:
        raw.send(HELLO, messages.FetchCode(1, digest), messages.InvokeFunction(2, call(), at_once=True))
        links = cloud.links(cloud.asking(HERE))
        await links.invoke(served.member(), call(), at_once=True)
        await eventually(lambda: dropped(logged) == ["stalled"])


async def test_a_long_message_that_takes_its_time_is_answered_with_signs_of_life(cloud, serves):
    async with dialled(cloud, cloud.serve(serves, limits=MemberLinkLimits(keep_alive_s=0.0))) as raw:
        raw.send(HELLO)
        assert isinstance(await raw.next(), messages.LinkWelcome)
        frame = encode_frame(messages.InvokeFunction(1, call(b"x" * 100_000), at_once=True))
        raw.send(bytes(frame[:50_000]))
        assert isinstance(await raw.next(), messages.KeepAlive)
        raw.send(bytes(frame[50_000:]))
        while isinstance(answer := await raw.next(), messages.KeepAlive):
            pass
        assert isinstance(answer, messages.CallDone)


async def test_words_about_calls_that_are_not_there_are_passed_over(cloud, serves):
    async with dialled(cloud, cloud.serve(serves)) as raw:
        raw.send(HELLO, messages.StartCall(7), messages.CancelCall(7))
        raw.send(messages.InvokeFunction(8, call(), at_once=True), messages.StartCall(8))
        assert isinstance(await raw.next(), messages.LinkWelcome)
        assert isinstance(await raw.next(), messages.CallDone)


async def test_a_fault_in_what_serves_ends_the_link_and_is_logged(cloud, serves, logged):
    def fail() -> None:
        raise RuntimeError("no standing")

    serves.on_load = fail
    with pytest.raises(errors.Unavailable, match="was lost"):
        await cloud.links().ping(cloud.serve(serves).member(), LOAD)
    assert [line["error"] for line in logged if line["event"] == "neighbour.broke"] == [
        "RuntimeError('no standing')"
    ]
