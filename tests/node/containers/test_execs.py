"""Commands run in a container: their streams, their codes, their terminals, and their end."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.model.containers import ContainerState
from skerry.node.containers.containers import Containers
from skerry.node.containers.execs import ExecSession, code_of
from tests.node.cells.real import is_alive
from tests.node.containers.real import Agent, Ground, needs_runc, spec
from tests.support.waiting import PATIENCE_S, eventually

SLEEP = ("sleep", "1000")


@pytest.mark.parametrize(
    ("how", "failure", "code"),
    [
        (ExitStatus(1.0, code=0), "", 0),
        (ExitStatus(1.0, code=3), "", 3),
        (ExitStatus(1.0, code=137), "", 137),
        (ExitStatus(1.0, code=255), "", 255),
        (ExitStatus(1.0, signal=9), "", 137),
        (ExitStatus(1.0, code=255), 'exec: "x": executable file not found in $PATH', 127),
        (ExitStatus(1.0, code=255), "exec /x: no such file or directory", 127),
        (ExitStatus(1.0, code=255), 'exec: "/x": permission denied', 126),
        (ExitStatus(1.0, code=255), "exec /x: exec format error", 126),
        (ExitStatus(1.0, code=3), "something that it was warned of", 3),
    ],
)
def test_the_code_of_a_command_is_its_own_or_says_why_there_was_none(
    how: ExitStatus, failure: str, code: int
) -> None:
    assert code_of(how, failure) == code


class Pipes:
    """The caller's ends of a command's streams."""

    def __init__(self) -> None:
        self.theirs: list[int] = []
        reading, self.stdin = self._pipe()
        self.stdout, writing = self._pipe()
        self.stderr, complaining = self._pipe()
        self.theirs = [reading, writing, complaining]

    def _pipe(self) -> tuple[int, int]:
        return os.pipe2(os.O_CLOEXEC)

    @property
    def stdio(self) -> tuple[int, int, int]:
        one, two, three = self.theirs
        return one, two, three

    def hand_over(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = []


@contextmanager
def pipes() -> Iterator[Pipes]:
    created = Pipes()
    try:
        yield created
    finally:
        for descriptor in (*created.theirs, created.stdin, created.stdout, created.stderr):
            os.close(descriptor)


async def read_all(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return await asyncio.to_thread(file.read)


async def outcome(containers: Containers, *arguments: str, **more: object) -> tuple[int, bytes, bytes]:
    """Run a command in `web` to its end: its code, and what it said."""
    with pipes() as ends:
        session = await containers.exec("web", arguments, stdio=ends.stdio, **more)  # type: ignore[arg-type]
        ends.hand_over()
        said, complained = await asyncio.gather(read_all(ends.stdout), read_all(ends.stderr))
        return await session.exit_code(), said, complained


@needs_runc
@pytest.mark.root
class TestReal:
    @pytest.fixture
    async def containers(self, agent: Agent) -> Containers:
        """With `web` running."""
        await agent.containers.create(spec("web", *SLEEP, environment=("A=1", "B=2")))
        await agent.containers.start("web")
        return agent.containers

    async def test_streams_go_both_ways(self, containers: Containers) -> None:
        with pipes() as ends:
            session = await containers.exec("web", ("cat",), stdio=ends.stdio)
            ends.hand_over()
            os.write(ends.stdin, b"hello")
            assert await asyncio.to_thread(os.read, ends.stdout, 100) == b"hello"
            os.close(ends.stdin)
            ends.stdin = os.dup(0)
            assert await session.exit_code() == 0

    async def test_it_is_in_the_container(self, containers: Containers, ground: Ground) -> None:
        script = "echo $A $C; id -u; pwd; cat /proc/1/cmdline; echo no >&2; exit 5"
        code, said, complained = await outcome(
            containers, "sh", "-c", script, environment=("C=3",), user="guest", folder="/tmp"
        )
        assert code == 5
        assert said.split(b"\n") == [b"1 3", b"1000", b"/tmp", b"sleep\x001000\x00"]
        assert complained == b"no\n"
        assert list((ground.folder / "containers/all/web/execs").iterdir()) == []

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("true",), 0),
            (("sh", "-c", "exit 255"), 255),
            (("sh", "-c", "kill -9 $$"), 137),
            (("nonsense",), 127),
            (("/nonsense",), 127),
            (("/unrunnable",), 126),
            (("/bin",), 126),
        ],
    )
    async def test_codes(self, containers: Containers, arguments: tuple[str, ...], code: int) -> None:
        assert (await outcome(containers, *arguments))[0] == code

    async def test_a_user_that_is_not_there_is_named(self, containers: Containers) -> None:
        with pipes() as ends, pytest.raises(errors.Invalid, match="stranger"):
            await containers.exec("web", ("true",), user="stranger", stdio=ends.stdio)

    async def test_a_terminal_has_a_size_that_changes(self, containers: Containers) -> None:
        master, slave = pty.openpty()
        try:
            script = "trap 'stty size' WINCH; stty size; tty; while :; do sleep 0.01; done"
            session = await containers.exec("web", ("sh", "-c", script), tty=True, stdio=(slave,) * 3)
            os.close(slave)
            await reads(master, rb"/dev/pts/\d+\r\n")
            session.resize(33, 111)
            await reads(master, rb"33 111\r\n")
            os.write(master, b"\x03")
            assert await session.exit_code() == 128 + signal.SIGINT
            session.resize(1, 1)
        finally:
            os.close(master)

    async def test_a_signal_reaches_the_command(self, containers: Containers) -> None:
        script = "trap 'exit 4' USR1; echo up; while :; do sleep 0.01; done"
        with pipes() as ends:
            session = await containers.exec("web", ("sh", "-c", script), stdio=ends.stdio)
            ends.hand_over()
            assert await asyncio.to_thread(os.read, ends.stdout, 100) == b"up\n"
            session.signal(signal.SIGUSR1)
            assert await session.exit_code() == 4
            session.signal(signal.SIGUSR1)

    async def test_a_command_that_nobody_wants_any_more_is_killed_with_its_session(
        self, agent: Agent, ground: Ground, containers: Containers
    ) -> None:
        (cell,) = agent.cells.list()
        alone = set(ground.groups.pids(cell.cell.name))
        with pipes() as ends:
            session = await containers.exec(
                "web", ("sh", "-c", "sleep 1000 & sleep 1000 & echo up; wait"), stdio=ends.stdio
            )
            other = await containers.exec("web", SLEEP, stdio=ends.stdio)
            ends.hand_over()
            assert await asyncio.to_thread(os.read, ends.stdout, 100) == b"up\n"
            await eventually(lambda: _runs(ground, cell.cell.name, SLEEP) == 4)
            await session.kill()
            assert await session.exit_code() == 137
            await eventually(lambda: _runs(ground, cell.cell.name, SLEEP) == 2, what="the other and main")
            assert containers.get("web").state is ContainerState.RUNNING
            await other.kill()
            await eventually(lambda: set(ground.groups.pids(cell.cell.name)) == alone)

    async def test_it_ends_with_its_container(self, containers: Containers) -> None:
        with pipes() as ends:
            session = await containers.exec("web", ("sh", "-c", "echo up; sleep 1000"), stdio=ends.stdio)
            ends.hand_over()
            assert await asyncio.to_thread(os.read, ends.stdout, 100) == b"up\n"
            await containers.stop("web", grace_s=0)
            assert await session.exit_code() == 137
            await containers.start("web")
            assert (await outcome(containers, "echo", "again"))[:2] == (0, b"again\n")

    async def test_a_removed_container_takes_its_commands_along(self, containers: Containers) -> None:
        with pipes() as ends:
            session = await containers.exec("web", ("sh", "-c", "echo up; sleep 1000"), stdio=ends.stdio)
            ends.hand_over()
            assert await asyncio.to_thread(os.read, ends.stdout, 100) == b"up\n"
            await containers.stop("web", grace_s=0)
            await containers.remove("web")
            assert await session.exit_code() == 137

    async def test_many_at_once(self, containers: Containers) -> None:
        outcomes = await asyncio.gather(*(outcome(containers, "echo", str(n)) for n in range(10)))
        assert [said for _, said, _ in outcomes] == [f"{n}\n".encode() for n in range(10)]

    async def test_what_an_agent_that_died_began_is_ended_by_the_next(self, ground: Ground) -> None:
        async with ground.agent() as first:
            await first.containers.create(spec("web", *SLEEP))
            await first.containers.start("web")
            (cell,) = first.cells.list()
            alone = set(ground.groups.pids(cell.cell.name))
            with pipes() as ends:
                script = "sleep 1000 & echo up; exec sleep 1000"
                session = await first.containers.exec("web", ("sh", "-c", script), stdio=ends.stdio)
                ends.hand_over()
                assert await asyncio.to_thread(os.read, ends.stdout, 100) == b"up\n"
                forget(first.containers, session)
        assert set(ground.groups.pids(cell.cell.name)) > alone
        async with ground.agent() as second:
            assert second.containers.get("web").state is ContainerState.RUNNING
            await eventually(lambda: set(ground.groups.pids(cell.cell.name)) == alone)
            assert [run.name for run in second.cells.list()[0].executables] == ["main"]
            await second.containers.stop("web", grace_s=0)
            await second.containers.remove("web")


def forget(containers: Containers, session: ExecSession) -> None:
    """As if the agent died: it does not get to end its commands."""
    session.teardown.cancel()
    containers._execs._sessions.clear()


def _runs(ground: Ground, cell: str, arguments: tuple[str, ...]) -> int:
    """How many processes of the cell run exactly this."""
    line = "".join(f"{word}\0" for word in arguments).encode()
    found = 0
    for pid in ground.groups.pids(cell):  # type: ignore[arg-type]
        try:
            found += Path(f"/proc/{pid}/cmdline").read_bytes() == line and is_alive(pid)
        except OSError:
            continue
    return found


async def reads(master: int, pattern: bytes) -> None:
    """Wait until the terminal has said this."""
    said = b""
    while not re.search(pattern, said):
        said += await asyncio.wait_for(asyncio.to_thread(os.read, master, 1000), PATIENCE_S)
