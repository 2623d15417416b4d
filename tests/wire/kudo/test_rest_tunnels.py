"""Output of instances and programs in them, over HTTP: the tunnels are real, the node is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import structlog
from aiohttp import WSMsgType, WSServerHandshakeError

from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit import pki
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.cells import OutputChannel
from skerry.model.streams import MAX_FRAME, ExecStreamRequest, LogStreamRequest, TunnelChannel, TunnelFrame
from skerry.wire.kudo import rest_logs_exec
from tests.support.far_nodes import FarNode, Play
from tests.support.waiting import eventually
from tests.transport.http.conftest import Site, StrangerGate, serving
from tests.wire.kudo.rest_client import WEB, Rest


@asynccontextmanager
async def instance_at(
    cloud: pki.CertificateAuthority, play: Play
) -> AsyncIterator[tuple[Rest, str, FarNode]]:
    """A running instance whose node is played."""
    far = FarNode(play)
    with structlog.testing.capture_logs():
        async with serving(cloud, tunnels=far) as site:
            rest = Rest(site, await site.session())
            yield rest, await rest.running(), far
            await far.close()


def out(data: bytes) -> bytes:
    return TunnelFrame(TunnelChannel.OUTPUT, data).pack()


async def writes_some(end: TunnelEndpoint) -> None:
    await end.send(out(b"one\n"))
    await end.send(TunnelFrame(TunnelChannel.ERRORS, b"two\n").pack())
    await end.send(TunnelFrame(TunnelChannel.LOST, b"stdout 3").pack())
    await end.send(out(b"\xff\x00three"))


async def test_output_comes_as_it_was_written_with_gaps_marked(cloud: pki.CertificateAuthority) -> None:
    async with instance_at(cloud, writes_some) as (rest, id, far):
        answer = await rest.ask("GET", f"/instance/{id}/logs")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        marked = b"\n[skerry: output is missing here: stdout 3]\n"
        assert answer.body == b"one\ntwo\n" + marked + b"\xff\x00three"
        await rest.ask("GET", f"/instance/{id}/logs?tail=5&stream=stderr")
        assert far.asked == [LogStreamRequest(), LogStreamRequest(tail=5, stream=OutputChannel.STDERR)]


async def test_output_that_is_followed_comes_as_it_is_written_and_ends_with_the_reader(
    cloud: pki.CertificateAuthority,
) -> None:
    more = asyncio.Event()

    async def play(end: TunnelEndpoint) -> None:
        await end.send(out(b"first\n"))
        await more.wait()
        await end.send(out(b"second\n"))
        await end.receive()  # until the other end is gone

    async with instance_at(cloud, play) as (rest, id, far):
        async with rest.session.get(f"/instance/{id}/logs", params={"follow": "true"}) as reply:
            assert await reply.content.readline() == b"first\n"
            more.set()
            assert await reply.content.readline() == b"second\n"
        await eventually(lambda: far.ended == ["unavailable"])


async def test_who_follows_what_is_silent_is_answered_all_the_same(
    cloud: pki.CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_logs_exec, "_REFUSAL_S", 0.01)
    speaks = asyncio.Event()

    async def play(end: TunnelEndpoint) -> None:
        await speaks.wait()
        await end.send(out(b"at last"))

    async with (
        instance_at(cloud, play) as (rest, id, _),
        rest.session.get(f"/instance/{id}/logs", params={"follow": "true"}) as reply,
    ):
        assert reply.status == 200
        speaks.set()
        assert await reply.read() == b"at last"


async def test_what_the_node_refuses_is_an_error_like_any_other(cloud: pki.CertificateAuthority) -> None:
    async def refuse(end: TunnelEndpoint) -> None:
        raise errors.NotFound("there is nothing of it here")

    async with instance_at(cloud, refuse) as (rest, id, _):
        for query in ("", "?follow=true"):
            answer = await rest.ask("GET", f"/instance/{id}/logs{query}")
            assert answer.error == (404, "not-found", "there is nothing of it here")


async def test_output_that_breaks_off_is_not_a_whole_answer(cloud: pki.CertificateAuthority) -> None:
    async def break_off(end: TunnelEndpoint) -> None:
        await end.send(out(b"some"))
        raise errors.Unavailable("the node is gone")

    async with instance_at(cloud, break_off) as (rest, id, _):
        with pytest.raises(aiohttp.ClientPayloadError):
            await rest.ask("GET", f"/instance/{id}/logs")


async def test_a_server_that_stops_breaks_off_what_is_followed(cloud: pki.CertificateAuthority) -> None:
    async def play(end: TunnelEndpoint) -> None:
        await end.send(out(b"some"))
        await end.receive()

    async with (
        instance_at(cloud, play) as (rest, id, _),
        rest.session.get(f"/instance/{id}/logs", params={"follow": "true"}) as reply,
    ):
        assert await reply.content.read(4) == b"some"
        await rest.site.server.stop(5.0)
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()


async def test_an_instance_without_a_node_has_no_output_yet_and_runs_no_programs(rest: Rest) -> None:
    made = await rest.make("/instance/", WEB)
    answer = await rest.ask("GET", f"/instance/{made['id']}/logs")
    assert answer.error[:2] == (412, "refused")
    assert "is SCHEDULING and on no node (waits for a node)" in answer.body["error"]
    with pytest.raises(WSServerHandshakeError) as told:
        await rest.session.ws_connect(f"/instance/{made['id']}/exec?command=ls")
    assert told.value.status == 412


async def test_a_node_that_is_not_connected_is_unavailable(rest: Rest) -> None:
    id = await rest.running()
    answer = await rest.ask("GET", f"/instance/{id}/logs")
    assert answer.error[:2] == (503, "unavailable")


@pytest.mark.parametrize("query", ["tail=-1", "tail=x", "stream=both", "follow=perhaps", "odd=1"])
async def test_a_bad_wish_for_output_is_400(rest: Rest, query: str) -> None:
    id = await rest.running()
    assert (await rest.ask("GET", f"/instance/{id}/logs?{query}")).error[:2] == (400, "invalid")


async def plays_cat(end: TunnelEndpoint) -> None:
    """Gives back what it gets, tells of sizes and signals, and ends with its input."""
    while (packed := await end.receive()) is not None:
        frame = TunnelFrame.unpack(packed)
        if frame.channel is TunnelChannel.INPUT:
            await end.send(out(frame.data))
        elif frame.channel is TunnelChannel.END_OF_INPUT:
            await end.send(TunnelFrame(TunnelChannel.EXIT, b"3").pack())
            return
        else:
            await end.send(
                TunnelFrame(TunnelChannel.ERRORS, frame.channel.name.encode() + b" " + frame.data).pack()
            )


async def test_a_program_gets_input_sizes_and_signals_and_gives_output_and_an_exit_code(
    cloud: pki.CertificateAuthority,
) -> None:
    async with instance_at(cloud, plays_cat) as (rest, id, far):
        query = (
            "command=sh&command=-c&command=cat%20-&terminal=true&input=true&rows=24&columns=80"
            "&user=nobody&folder=/tmp&environment=A%3D1"
        )
        async with rest.session.ws_connect(f"/instance/{id}/exec?{query}") as socket:
            large = bytes(MAX_FRAME - 1)
            for data in (b"hello", large):
                await socket.send_bytes(TunnelFrame(TunnelChannel.INPUT, data).pack())
                assert await socket.receive_bytes() == out(data)
            await socket.send_bytes(TunnelFrame(TunnelChannel.SIZE, b"30 100").pack())
            assert await socket.receive_bytes() == b"\x02SIZE 30 100"
            await socket.send_bytes(TunnelFrame(TunnelChannel.SIGNAL, b"2").pack())
            assert await socket.receive_bytes() == b"\x02SIGNAL 2"
            await socket.send_bytes(TunnelFrame(TunnelChannel.END_OF_INPUT).pack())
            assert await socket.receive_bytes() == b"\x033"
            last = await socket.receive()
            assert (last.type, last.data) == (WSMsgType.CLOSE, 1000)
        [ask] = far.asked
        assert ask == ExecStreamRequest(
            arguments=("sh", "-c", "cat -"),
            environment=("A=1",),
            user="nobody",
            folder="/tmp",
            terminal=True,
            takes_input=True,
            rows=24,
            columns=80,
        )
        assert far.ended == ["well"]


async def test_hanging_up_ends_the_program_and_frees_the_slot(cloud: pki.CertificateAuthority) -> None:
    async with instance_at(cloud, plays_cat) as (rest, id, far):
        socket = await rest.session.ws_connect(f"/instance/{id}/exec?command=cat")
        await socket.close()
        await eventually(lambda: far.ended == ["unavailable"])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (out(b"x"), "invalid: channel 1 does not go this way; it is 4, 5, 6 or 7"),
        (b"", "invalid: a frame of a tunnel must begin with the number of a channel"),
        (b"\x99x", "invalid: a frame of a tunnel must begin with the number of a channel"),
    ],
)
async def test_a_message_that_makes_no_sense_ends_it(
    cloud: pki.CertificateAuthority, message: bytes, reason: str
) -> None:
    async with instance_at(cloud, plays_cat) as (rest, id, far):
        async with rest.session.ws_connect(f"/instance/{id}/exec?command=cat") as socket:
            await socket.send_bytes(message)
            last = await socket.receive()
            assert (last.type, last.data, last.extra) == (WSMsgType.CLOSE, 1008, reason)
        await eventually(lambda: far.ended == ["unavailable"])


async def test_what_goes_wrong_at_the_node_is_in_the_close(cloud: pki.CertificateAuthority) -> None:
    async def refuse(end: TunnelEndpoint) -> None:
        raise errors.FailedPrecondition("the instance does not run")

    async def leave(end: TunnelEndpoint) -> None:
        return

    for play, reason in (
        (refuse, "refused: the instance does not run"),
        (leave, "unavailable: the node ended this without an exit code; try again"),
    ):
        async with (
            instance_at(cloud, play) as (rest, id, _),
            rest.session.ws_connect(f"/instance/{id}/exec?command=cat") as socket,
        ):
            last = await socket.receive()
            assert (last.data, last.extra) == (1011, reason)


async def test_a_program_needs_a_websocket_and_a_command(cloud: pki.CertificateAuthority) -> None:
    async with instance_at(cloud, plays_cat) as (rest, id, far):
        plain = await rest.ask("GET", f"/instance/{id}/exec?command=cat")
        assert plain.error[:2] == (426, "websocket-needed")
        assert plain.headers["Upgrade"] == "websocket"
        for query in ("", "?command=cat&rows=-1", "?command=cat&rows=99999", "?command=cat&odd=1"):
            with pytest.raises(WSServerHandshakeError) as told:
                await rest.session.ws_connect(f"/instance/{id}/exec{query}")
            assert told.value.status == 400
        assert far.asked == []


async def test_a_page_of_another_origin_cannot_run_programs(cloud: pki.CertificateAuthority) -> None:
    async with instance_at(cloud, plays_cat) as (rest, id, far):
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            with pytest.raises(WSServerHandshakeError) as told:
                await rest.session.ws_connect(f"/instance/{id}/exec?command=cat", headers=headers)
            assert told.value.status in (400, 403, 421)
        assert far.asked == []


async def exec_status(site: Site, id: str, role: Role | None) -> int:
    session = await site.session()
    headers = await site.bearer(role) if role else {}
    try:
        async with session.ws_connect(f"/instance/{id}/exec?command=cat", headers=headers):
            return 101
    except WSServerHandshakeError as error:
        return error.status


async def test_only_deployers_run_programs(cloud: pki.CertificateAuthority) -> None:
    far = FarNode(plays_cat)
    async with serving(cloud, tunnels=far, gate=StrangerGate) as site:
        deployer = await site.bearer(Role.DEPLOYER)
        rest = Rest(site, await site.session(headers=deployer))
        id = await rest.running()
        assert [await exec_status(site, id, role) for role in (None, Role.VIEWER, Role.DEPLOYER)] == [
            401,
            403,
            101,
        ]
        await far.close()


async def test_only_admins_run_programs_where_root_is_the_nodes(cloud: pki.CertificateAuthority) -> None:
    far = FarNode(plays_cat)
    async with serving(cloud, tunnels=far, gate=StrangerGate) as site:
        admin, deployer = await site.bearer(Role.ADMIN), await site.bearer(Role.DEPLOYER)
        rest = Rest(site, await site.session(headers=admin))
        id = await rest.running({**WEB, "userns": "host"})
        assert [await exec_status(site, id, role) for role in (Role.DEPLOYER, Role.ADMIN)] == [403, 101]
        # The node has the old copy until it has given it up.
        given_up = await rest.ask("PATCH", f"/instance/{id}", {"userns": None}, headers=deployer)
        assert given_up.body["userns"] == "private"
        assert await exec_status(site, id, Role.DEPLOYER) == 403
        await far.close()


async def test_there_are_only_so_many_tunnels(
    cloud: pki.CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.wire.kudo.context._MAX_TUNNELS", 1)
    async with instance_at(cloud, plays_cat) as (rest, id, far):
        async with rest.session.ws_connect(f"/instance/{id}/exec?command=cat"):
            answer = await rest.ask("GET", f"/instance/{id}/logs")
            assert answer.error[:2] == (429, "overloaded")
            assert int(answer.headers["Retry-After"]) > 0
        await eventually(lambda: far.ended == ["unavailable"])
        async with rest.session.ws_connect(f"/instance/{id}/exec?command=cat"):
            pass
