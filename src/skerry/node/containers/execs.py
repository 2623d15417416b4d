"""Execs: commands run in a running container.

`Containers.exec` starts one; an `ExecSession` is one that was started. The runtime's helper for it is an
executable of the container's cell, with the caller's streams. It ends with its command, with the container,
or when its client disconnects.
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
from skerry.model.ids import CellName, ExecutableName, Namespace
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
_UNKNOWN = 255  # it has ended with unknown status
_PREFIX = "exec-"
_MISSING = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)


class ExecSession:
    """A command that was started in a container."""

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
        """Wait for its exit code; 128 plus the signal that killed it, 126 if it cannot be executed, 127 if it
        does not exist."""
        return await asyncio.shield(self.teardown)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal; does nothing if it has none, or has ended."""
        if self._terminal is not None:
            with contextlib.suppress(OSError):  # the other side is closed
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            self.signal(signal.SIGWINCH)  # makes the helper read the size again

    def signal(self, number: int) -> None:
        """Send a signal to the command; does nothing if it has ended."""
        with contextlib.suppress(errors.NotFound):  # the helper forwards signals
            self._execs.deps.cells.signal(self._state.cell, self._state.name, number)

    async def kill(self) -> None:
        """Kill every process of its session; does nothing if it has ended."""
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
    """Starts commands, and ends those whose clients are gone."""

    def __init__(self, deps: ContainerDeps) -> None:
        self.deps = deps
        self._sessions: set[ExecSession] = set()

    def _rootfs(self, container: ContainerEntry) -> Path:
        """The root of a running container, which may be mounted in the container alone."""
        rootfs = container.paths.rootfs
        is_private = self.deps.runtime_mounts is not None and not os.path.ismount(rootfs)
        return Path(f"/proc/{container.pid}/root") if is_private else rootfs

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
        record, paths = container.record, container.paths
        if not arguments or any("\0" in argument for argument in arguments):
            raise errors.Invalid("arguments must name a program, and contain no NUL byte", field="arguments")
        requested = user or record.spec.user or record.config.user
        identity = resolve_user(requested, self._rootfs(container), container.ids)
        if container.users is not None:
            _chown_pipes(stdio, container.users.first_id)
        secrets = await self._secret_variables(container)
        process = make_process(
            record.spec,
            record.config,
            arguments,
            identity=identity,
            environment=(*secrets, *environment),
            folder=folder,
            tty=tty,
        )
        name = ExecutableName(f"{_PREFIX}{new_id(self.deps.clock.now())}")
        home = paths.execs / name
        home.mkdir(mode=0o700, parents=True)
        # Duplicated until the helper runs: the caller may close its own, and may resize at any time.
        terminal = os.dup(stdio[0]) if tty else None
        try:
            document = self._process_file(container, name) if secrets else home / "process.json"
            record_files.write(document, process)
            command = self.deps.runtime.exec_arguments(
                container.name, process=document, log=home / "log", pid_file=home / "pid"
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

    async def _secret_variables(self, container: ContainerEntry) -> tuple[str, ...]:
        """Secrets that the container has in its environment, as its main process has them."""
        spec, supply = container.record.spec, self.deps.secrets
        uses = [use for use in spec.secrets if use.variable]
        if not uses or supply is None:
            return ()
        try:
            values = await supply.of_container(spec)
        except errors.SkerryError as error:  # the command can do without them
            log.warning("exec.without_secrets", container=container.name, error=error.message)
            return ()
        namespace = Namespace(spec.namespace)
        return tuple(f"{use.variable}={values[use.ref(namespace)].decode()}" for use in uses)

    def _process_file(self, container: ContainerEntry, name: ExecutableName) -> Path:
        """For a command with secrets in its environment, which must not be on a disk."""
        assert self.deps.secrets is not None
        return self.deps.secrets.files.private_file(container.name, f"{name}.json")

    async def report(self, container: ContainerEntry, state: ExecutableState) -> int:
        """Wait for the end of a command, remove its records, and return its exit code."""
        status = await self.deps.cells.wait(state.cell, state.name)
        home = container.paths.execs / state.name
        code = code_of(status, runtimes.failure_in(home / "log"))
        if any(use.variable for use in container.record.spec.secrets):
            self._process_file(container, state.name).unlink(missing_ok=True)
        await self._forget(state.cell, state.name, home)
        return code

    async def end(self, main: int | None, state: ExecutableState) -> None:
        """End a command in the container whose main process is `main`."""
        try:
            await self.deps.cells.kill(state.cell, state.name)
        except errors.NotFound:
            return
        if main is not None:
            await asyncio.to_thread(orphaned_execs.end_orphans, main)

    async def end_all(self, container: ContainerEntry, main: ExecutableState | None) -> None:
        """End the commands of an earlier agent, as their clients are gone."""
        try:
            cell = self.deps.cells.get(container.cell)
        except errors.NotFound:
            return
        began = [each for each in cell.executables if each.name.startswith(_PREFIX)]
        for each in began:
            await self.end(main.pid if main is not None and main.exit is None else None, each)
            await self._forget(each.cell, each.name, container.paths.execs / each.name)
        await asyncio.to_thread(tree_size.remove, container.paths.execs)

    async def close(self) -> None:
        """End every command, as their clients are disconnected."""
        await asyncio.gather(*(session.kill() for session in self._sessions), return_exceptions=True)

    async def _forget(self, cell: CellName, name: ExecutableName, home: Path) -> None:
        with contextlib.suppress(errors.NotFound):  # its cell was freed
            await self.deps.cells.stop(cell, name, grace_s=0, owner=CellOwner.CONTAINER)
        await asyncio.to_thread(tree_size.remove, home)


def _chown_pipes(stdio: tuple[int, ...], owner: int) -> None:
    """Let root in the container open pipes again, as /dev/stdout. The runtime creates the command's terminal
    itself."""
    for descriptor in stdio:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, owner, owner)


def code_of(status: ExitStatus, failure: str) -> int:
    """The exit code of a command, from the exit of the runtime's helper and its log."""
    if status.signal is not None:
        return _SIGNAL_BASE + status.signal
    if status.code is None:
        return _UNKNOWN
    if status.code != _RUNTIME_FAILED or not failure:
        return status.code
    return NOT_FOUND if _MISSING.search(failure) else NOT_EXECUTABLE
