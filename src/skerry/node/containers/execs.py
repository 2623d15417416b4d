"""Commands run in a container that is up.

`Containers.exec` begins one; an `ExecSession` is one that has begun. The runtime's helper for it is an
executable of the container's cell, with the caller's streams. It ends with its command, with the container,
or when whoever asked for it goes away: nobody is left to read what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import stat
import struct
import termios
from pathlib import Path

import structlog

from skerry.kit.ulid import new_id
from skerry.model import errors
from skerry.model.cells import CellOwner, Executable, ExecutableState, ExitStatus
from skerry.model.ids import CellName, ExecutableName
from skerry.node import record_files
from skerry.node.containers import orphaned_execs, runtimes, tree_size
from skerry.node.containers.oci_config import make_process
from skerry.node.containers.state import ContainerDeps, ContainerEntry, command_text
from skerry.node.containers.users import resolve_user

log = structlog.get_logger(__name__)

NOT_EXECUTABLE = 126
NOT_FOUND = 127
_SIGNAL_BASE = 128
_RUNTIME_FAILED = 255
_UNKNOWN = 255  # it has ended, and nobody knows how
_PREFIX = "exec-"
_MISSING = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)


class ExecSession:
    """A command that was begun in a container."""

    def __init__(
        self, execs: ExecManager, container: ContainerEntry, state: ExecutableState, terminal: int | None
    ) -> None:
        """Owns `terminal`, a descriptor of the slave side if the command has one."""
        self._execs = execs
        self._container = container
        self._state = state
        self._terminal = terminal
        self.teardown = asyncio.create_task(self._end(), name=f"{state.name} in {container.name}")

    async def exit_code(self) -> int:
        """Its exit code once it has ended; 128 and the number of the signal that ended it, 126 if it cannot
        be executed, 127 if it is not there."""
        return await asyncio.shield(self.teardown)

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has this size from now on; nothing if it has none, or has ended."""
        if self._terminal is not None:
            with contextlib.suppress(OSError):  # the other side is closed
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            self.signal(signal.SIGWINCH)  # the helper looks at the size again

    def signal(self, number: int) -> None:
        """Send a signal to the command; nothing if it has ended."""
        with contextlib.suppress(errors.NotFound):  # the helper hands on what it gets
            self._execs.deps.cells.signal(self._state.cell, self._state.name, number)

    async def kill(self) -> None:
        """End it with every process of its session; nothing if it has ended."""
        await self._execs.end(self._container.pid, self._state)
        await asyncio.wait({self.teardown})

    async def _end(self) -> int:
        try:
            return await self._execs.report(self._container, self._state)
        finally:
            if self._terminal is not None:
                terminal, self._terminal = self._terminal, None
                os.close(terminal)


class ExecManager:
    """Begins commands, and ends those that nobody wants any more."""

    def __init__(self, deps: ContainerDeps) -> None:
        self.deps = deps
        self._sessions: set[ExecSession] = set()

    async def begin(
        self,
        container: ContainerEntry,
        arguments: tuple[str, ...],
        *,
        environment: tuple[str, ...],
        user: str,
        folder: str,
        tty: bool,
        stdio: tuple[int, int, int],
    ) -> ExecSession:
        record, place = container.record, container.place
        if not arguments or any("\0" in word for word in arguments):
            raise errors.Invalid("name a program to run, and no NUL byte", field="arguments")
        identity = resolve_user(user or record.spec.user or record.config.user, place.rootfs, container.ids)
        if container.users is not None:
            _hand_over(stdio, container.users.first_id)
        process = make_process(
            record.spec,
            record.config,
            arguments,
            identity=identity,
            environment=environment,
            folder=folder,
            tty=tty,
        )
        name = ExecutableName(f"{_PREFIX}{new_id(self.deps.clock.now())}")
        home = place.execs / name
        home.mkdir(mode=0o700, parents=True)
        # Held until the helper runs: the caller may close its own, and a size may be told at any time.
        terminal = os.dup(stdio[0]) if tty else None
        try:
            record_files.write(home / "process.json", process)
            command = self.deps.runtime.exec_arguments(
                container.name, process=home / "process.json", log=home / "log", pid_file=home / "pid"
            )
            state = await self.deps.cells.start_trusted(
                Executable(name, container.cell, command_text(arguments)), command, stdio
            )
        except BaseException:
            tree_size.remove(home)
            if terminal is not None:
                os.close(terminal)
            raise
        session = ExecSession(self, container, state, terminal)
        self._sessions.add(session)
        session.teardown.add_done_callback(lambda _: self._sessions.discard(session))
        return session

    async def report(self, container: ContainerEntry, state: ExecutableState) -> int:
        """Wait for the end of a command, forget it, and say what its exit code is."""
        how = await self.deps.cells.wait(state.cell, state.name)
        home = container.place.execs / state.name
        code = code_of(how, runtimes.failure_in(home / "log"))
        await self._forget(state.cell, state.name, home)
        return code

    async def end(self, main: int | None, state: ExecutableState) -> None:
        """End a command whose container has the main process `main`."""
        try:
            await self.deps.cells.kill(state.cell, state.name)
        except errors.NotFound:
            return
        if main is not None:
            await asyncio.to_thread(orphaned_execs.end_orphans, main)

    async def end_all(self, container: ContainerEntry, main: ExecutableState | None) -> None:
        """End what an earlier agent began, as its callers are gone."""
        try:
            cell = self.deps.cells.get(container.cell)
        except errors.NotFound:
            return
        began = [each for each in cell.executables if each.name.startswith(_PREFIX)]
        for each in began:
            await self.end(main.pid if main is not None and main.exit is None else None, each)
            await self._forget(each.cell, each.name, container.place.execs / each.name)
        await asyncio.to_thread(tree_size.remove, container.place.execs)

    async def close(self) -> None:
        """End every command: whoever reads what they say goes too."""
        await asyncio.gather(*(session.kill() for session in self._sessions), return_exceptions=True)

    async def _forget(self, cell: CellName, name: ExecutableName, home: Path) -> None:
        with contextlib.suppress(errors.NotFound):  # its cell was freed
            await self.deps.cells.stop(cell, name, grace_s=0, owner=CellOwner.CONTAINER)
        await asyncio.to_thread(tree_size.remove, home)


def _hand_over(stdio: tuple[int, ...], owner: int) -> None:
    """Whoever is root in the container must be able to open pipes again, as /dev/stdout. A terminal is made
    for the command by its runtime."""
    for descriptor in stdio:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, owner, owner)


def code_of(how: ExitStatus, failure: str) -> int:
    """The exit code of a command, from the end of the runtime's helper and what that wrote to its log."""
    if how.signal is not None:
        return _SIGNAL_BASE + how.signal
    if how.code is None:
        return _UNKNOWN
    if how.code != _RUNTIME_FAILED or not failure:
        return how.code
    return NOT_FOUND if _MISSING.search(failure) else NOT_EXECUTABLE
