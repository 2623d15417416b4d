"""Programs in containers over the wire: bytes both ways through real pipes and terminals."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, closing

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.transport.grpc.channels import dial
from skerry.transport.proto import containers_pb2 as pb
from skerry.transport.proto.containers_grpc import ContainerServiceStub
from tests.support import leaks
from tests.support.certificates import SERVER_NAME
from tests.support.containers import Execution, FakeContainers, container_server
from tests.support.waiting import eventually
from tests.wire.own.containers.test_images import WEB
from tests.wire.own.containers.test_service import run

END = pb.ExecRequest(end_of_input=pb.EndOfInput())


@pytest.fixture(autouse=True)
async def web(containers) -> None:
    await run(containers)


def start(*arguments: str, **more) -> pb.ExecRequest:
    return pb.ExecRequest(start=pb.ExecStart(container="web", arguments=arguments, **more))


async def execute(containers, *requests: pb.ExecRequest) -> tuple[bytes, bytes, int]:
    """What a program wrote and how it ended, after `requests`."""
    output = errors = b""
    async with containers.Exec.open() as stream:
        await stream.send_request()
        for request in requests:
            await stream.send_message(request)
        await stream.end()
        async for reply in stream:
            output += reply.output
            errors += reply.errors
            last = reply
    assert last.WhichOneof("message") == "exit_code"
    return output, errors, last.exit_code


async def until(stream, text: bytes) -> bytes:
    """Output up to and with `text`."""
    seen = b""
    while text not in seen:
        reply = await stream.recv_message()
        assert reply is not None, seen
        seen += reply.output
    return seen


async def test_output_errors_and_exit_code_come_back(containers):
    script = start("sh", "-c", "printf 'out\\0put'; printf bad >&2; exit 7")
    assert await execute(containers, script) == (b"out\0put", b"bad", 7)


async def test_everything_about_the_program_arrives(served, containers):
    request = start("sh", "-c", "echo $A; pwd", environment=["A=1"], user="web", folder="/tmp")
    assert (await execute(containers, request))[0] == b"1\n/tmp\n"
    assert served.containers.executions == [
        Execution("web", ("sh", "-c", "echo $A; pwd"), ("A=1",), "web", "/tmp", tty=False)
    ]


async def test_only_an_admin_runs_a_program_where_root_is_the_nodes(served):
    spec = pb.ContainerSpec(name="host", image=WEB, userns=pb.USER_NAMESPACE_HOST)
    request = pb.ExecRequest(start=pb.ExecStart(container="host", arguments=["true"]))
    with closing(dial(str(served.path), served.tls("admin"), server_name=SERVER_NAME)) as line:
        await ContainerServiceStub(line).Run(pb.CreateRequest(spec=spec))
        assert (await execute(ContainerServiceStub(line), request))[2] == 0
    with (
        closing(dial(str(served.path), served.tls("deployer"), server_name=SERVER_NAME)) as line,
        pytest.raises(GRPCError) as caught,
    ):
        await execute(ContainerServiceStub(line), request)
    assert caught.value.status is Status.PERMISSION_DENIED
    assert len(served.containers.executions) == 1


async def test_without_input_the_program_reads_its_end_at_once(containers):
    assert await execute(containers, start("cat")) == (b"", b"", 0)


async def test_input_goes_in_byte_for_byte(containers):
    pieces = [pb.ExecRequest(input=os.urandom(50_000)) for _ in range(40)]
    output, _, code = await execute(containers, start("cat", takes_input=True), *pieces, END)
    assert (output, code) == (b"".join(piece.input for piece in pieces), 0)


async def test_a_client_that_hangs_up_its_side_ends_the_input(containers):
    assert (await execute(containers, start("cat", takes_input=True)))[2] == 0


async def test_input_that_nobody_reads_is_dropped(containers):
    pieces = [pb.ExecRequest(input=b"x" * 100_000)] * 10
    script = start("sh", "-c", "exec <&-; echo closed; sleep 0.1", takes_input=True)
    assert await execute(containers, script, *pieces) == (b"closed\n", b"", 0)


async def test_a_program_waits_for_a_client_that_does_not_read(served, containers):
    size = 64 << 20
    async with containers.Exec.open() as stream:
        await stream.send_message(start("sh", "-c", f"head -c {size} /dev/zero"), end=True)
        await stream.recv_message()
        [session] = served.containers.sessions
        # The program is held up: what is under way is bounded, so it cannot have written all.
        assert session.process.poll() is None
        got = 0
        async for reply in stream:
            got += len(reply.output)
    assert got > size // 2
    assert reply.exit_code == 0


async def test_a_client_waits_for_a_program_that_does_not_read(served, containers, tmp_path):
    go, pieces = tmp_path / "go", 256
    script = f"echo on; while [ ! -e {go} ]; do sleep 0.02; done; exec wc -c"
    sent = 0

    async def send_all(stream) -> None:
        nonlocal sent
        for _ in range(pieces):
            await stream.send_message(pb.ExecRequest(input=b"x" * 65536))
            sent += 1
        await stream.end()

    async with containers.Exec.open() as stream:
        await stream.send_message(start("sh", "-c", script, takes_input=True))
        await until(stream, b"on\n")
        sending = asyncio.ensure_future(send_all(stream))
        await eventually(lambda: sent > 0)
        for _ in range(50):  # others are served meanwhile
            await containers.List(pb.ListRequest())
        assert sent < pieces, "somebody keeps what the program has not read"
        go.touch()
        assert int(await until(stream, b"\n")) == pieces * 65536
        await sending


async def test_what_a_program_leaves_running_is_not_waited_for(served, containers):
    output, _, code = await execute(containers, start("sh", "-c", "sleep 600 & echo $!; exit 3"))
    assert code == 3
    os.kill(int(output), signal.SIGKILL)


@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "terminal"])
async def test_a_program_is_killed_when_its_client_goes_away(served, containers, terminal):
    before = leaks.footprint()
    async with containers.Exec.open() as stream:
        await stream.send_message(
            start("sh", "-c", "echo on; sleep 600", terminal=terminal, takes_input=True)
        )
        await until(stream, b"on")
        await stream.cancel()
    [session] = served.containers.sessions
    await eventually(lambda: session.process.returncode is not None)
    assert session.process.returncode == -signal.SIGKILL
    session.close()
    served.containers.sessions.clear()
    await eventually(lambda: not leaks.footprint().beyond(before))


async def test_a_program_is_killed_when_the_server_stops(tmp_path, authority):
    async with AsyncExitStack() as stack:
        keeper = stack.enter_context(closing(FakeContainers(tmp_path / "other")))
        server = AsyncExitStack()
        (tmp_path / "node").mkdir()
        served = await server.enter_async_context(container_server(tmp_path / "node", authority, keeper))
        line = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
        stack.callback(line.close)
        stub = ContainerServiceStub(line)
        await run(stub)

        async def execute_and_stop() -> None:
            async with stub.Exec.open() as stream:
                await stream.send_message(start("sh", "-c", "echo on; sleep 600"))
                await until(stream, b"on")
                await server.aclose()
                await stream.recv_message()

        with pytest.raises(GRPCError) as caught:
            await execute_and_stop()
        assert caught.value.status is Status.UNAVAILABLE
        [session] = keeper.sessions
        assert session.process.returncode == -signal.SIGKILL


async def test_a_signal_is_passed_on(served, containers):
    async with containers.Exec.open() as stream:
        await stream.send_message(start("sh", "-c", "echo on; exec sleep 600"))
        await until(stream, b"on")
        await stream.send_message(pb.ExecRequest(signal=signal.SIGTERM))
        await stream.end()
        reply = await stream.recv_message()
    assert reply.exit_code == 128 + signal.SIGTERM


async def test_a_terminal_has_the_size_it_was_given_and_takes_a_new_one(served, containers):
    script = "test -t 0 && test -t 1 && stty size; read line; stty size"
    size = pb.TerminalSize(rows=33, columns=99)
    async with containers.Exec.open() as stream:
        await stream.send_message(start("sh", "-c", script, terminal=True, size=size, takes_input=True))
        assert await until(stream, b"\n") == b"33 99\n"
        await stream.send_message(pb.ExecRequest(resize=pb.TerminalSize(rows=44, columns=55)))
        await stream.send_message(pb.ExecRequest(input=b"\n"))
        await stream.end()
        assert await until(stream, b"\n") == b"44 55\n"
        reply = await stream.recv_message()
        assert reply.exit_code == 0


async def test_the_last_output_of_a_terminal_is_not_lost(containers):
    for _ in range(10):
        request = start("sh", "-c", "seq 1000; exit 4", terminal=True)
        output, errors, code = await execute(containers, request)
        assert output.split() == [b"%d" % number for number in range(1, 1001)]
        assert (errors, code) == (b"", 4)


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([], "the first message"),
        ([END], "the first message"),
        ([pb.ExecRequest()], "the first message"),
        ([pb.ExecRequest(start=pb.ExecStart(arguments=["ls"]))], "container must"),
        ([start()], "arguments must"),
        ([start("")], "arguments must"),
        ([start("a\0")], "arguments cannot"),
        ([start("ls", folder="tmp")], "folder must"),
        ([start("ls", environment=["A"])], "environment[0] must"),
        ([start("ls", size=pb.TerminalSize(rows=1 << 20))], "a terminal has"),
        ([start("sleep", "9"), start("ls")], "only the first"),
        ([start("sleep", "9"), pb.ExecRequest()], "a message must"),
        ([start("sleep", "9"), pb.ExecRequest(signal=99)], "99 is no signal"),
    ],
)
async def test_a_message_that_means_nothing_ends_the_call(served, containers, requests, text):
    with pytest.raises(GRPCError) as caught:
        await execute(containers, *requests)
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert (caught.value.message or "").startswith(text)
    assert [each.process.poll() for each in served.containers.sessions] in ([], [-signal.SIGKILL])


async def test_a_container_that_does_not_run_is_refused(served, containers):
    await containers.Stop(pb.StopRequest(container="web"))
    with pytest.raises(GRPCError) as caught:
        await execute(containers, start("ls"))
    assert caught.value.status is Status.FAILED_PRECONDITION
