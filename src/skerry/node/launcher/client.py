"""The agent's side of the launcher and of cell inits.

`LauncherClient` creates inits of cells; `InitClient` starts executables in one and receives their exits.
`skerry.node.launcher.child` is the other end; `skerry.node.cells` decides when an init is created and what is
started in it, and stores what `InitClient.adopt` needs after a restart.

Nothing here kills: the owner of a cgroup entry empties the cgroup when a step has failed, which ends
everything that was begun. Children of a dead launcher become ours and are reaped here; other orphans that
this process, as their subreaper, gets are left to whoever started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog

import skerry
from skerry.model import errors
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.kernel import syscalls
from skerry.node.kernel.processes import start_time_of
from skerry.node.launcher import channel as launcher_channel
from skerry.node.launcher.child import messages
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.exec_barriers import ExecBarrier
from skerry.node.launcher.specs import (
    ENVIRONMENT,
    InitSpec,
    ProcessExit,
    RuntimeFailed,
    StartedProcess,
    StartSpec,
    ZygoteSpec,
)

log = structlog.get_logger(__name__)

WITHIN_S: Final = 10.0
_STOP_WITHIN_S: Final = 5.0
_QUIT_WITHIN_S: Final = 1.0
_STARTS: Final = 3  # of a launcher that is killed before it is ready
# Without site-packages, the environment and the user's folders: quick to start, and nothing foreign in it.
_OPTIONS: Final = ("-I", "-S", "-X", "utf8", "-c")
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from skerry.node.launcher.child.main import main; main(*sys.argv[2:])"
)
_NO_MORE: Final = HostView()
# Steps that fail because of the request, with a hint.
_REQUEST_HINTS: Final = {
    "limit open files": "request fewer open files",
    "change folder": "choose a folder that exists in the cell and that its user may enter",
    "exec": "choose a program that exists in the cell, which has /usr and the paths in the setting "
    "node.cell_paths",
}


class InitClient:
    """A cell's init, while this agent is connected. The init runs with or without an agent."""

    control_fd: Final = messages.AGENT_END  # to be stored with pid and start time

    def __init__(self, pid: int, start_time: int, pidfd: int, control: socket.socket) -> None:
        """Owns `pidfd` and `control`; use `LauncherClient.make_init` or `adopt`."""
        self.pid = pid
        self.start_time = start_time
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[errors.SkerryError | None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._exits: asyncio.Queue[ProcessExit | None] = asyncio.Queue()
        self._is_closed = False
        self._channel = launcher_channel.LauncherChannel(
            control, on_notification=self._on_notification, on_end=self._on_disconnect
        )
        self._loop.add_reader(pidfd, self._over)

    @classmethod
    def adopt(cls, pid: int, start_time: int, control_fd: int) -> InitClient | None:
        """Connect to the init that another agent created; None if it is gone. Needs a running loop.

        Read the exit records after this, not before: later exits are reported, earlier ones are on disk, and
        those that the disk refused are reported again.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        try:
            # The pidfd pins the pid only from here on, so that what is read belongs to this process.
            if start_time_of(pid) != start_time:
                raise ProcessLookupError(errno.ESRCH, "the pid was reused")
            control = _socket_of(pidfd, control_fd)
        except PermissionError as error:
            os.close(pidfd)
            raise errors.Unavailable(
                "the init of a cell cannot be adopted: allow this process CAP_SYS_PTRACE, and tracing by "
                "root (kernel.yama.ptrace_scope below 3)",
                detail=str(error),
            ) from error
        except OSError:
            os.close(pidfd)
            return None
        handle = cls(pid, start_time, pidfd, control)
        handle._ready.set_result(None)
        handle._channel.notify({"do": "repeat"})
        return handle

    async def start(
        self,
        spec: StartSpec,
        folder: Path,
        entry: CgroupEntryFds,
        *,
        before_exec: Callable[[], None] | None = None,
        within_s: float = WITHIN_S,
    ) -> StartedProcess:
        """Run an executable; its logs and its exit record go to `folder`. `before_exec` is called when the
        process is confined and before its program begins; if it raises, the program does not begin.

        Returns once the program runs. Raises FailedPrecondition (an impossible request), TooLarge, Internal,
        TimedOut, Unavailable (the init is gone), RuntimeFailed, and errors of `before_exec`; the caller then
        empties the cgroup, since a step may still be in progress.
        """
        body = _start_request(spec, has_clone_into=entry.clone_into is not None)
        body["marks"] = entry.marks
        with contextlib.ExitStack() as opened:
            folders = [folder] if spec.logs is None else [folder, spec.logs]
            passed = [_open_folder(each, opened) for each in folders]
            passed += [*spec.streams, *(() if spec.socket is None else (spec.socket,))]
            passed += _descriptors(entry)
            if entry.outside is not None:
                body["has_outside"] = True
                passed.insert(-1, entry.outside)  # before the group inside the quota
            barrier = None
            if before_exec is not None:
                barrier = opened.enter_context(ExecBarrier(before_exec))
                body["has_barrier"] = True
                passed.append(barrier.descriptor)
            reply = await self._request(body, passed, within_s)
        if "failed" in reply.body:
            reply.close()
            if barrier is not None:
                barrier.check()
            if "code" in reply.body:
                raise RuntimeFailed(reply.body["code"])
            raise _start_error(spec, reply.body["failed"], reply.body["errno"])
        pidfd = reply.descriptors[0] if reply.descriptors else None
        return StartedProcess(reply.body.get("pid", reply.process), pidfd)

    async def mount(self, detached: int, path: str, *, within_s: float = WITHIN_S) -> None:
        """Attach a detached mount, open as `detached`, at `path` of the cell.

        Raises Internal, TimedOut, Unavailable.
        """
        reply = await self._request({"do": "mount", "place": path}, [detached], within_s)
        reply.close()
        if "failed" in reply.body:
            raise _setup_error(reply.body["failed"], reply.body["errno"])

    async def _request(
        self, body: messages.MessageBody, descriptors: list[int], within_s: float
    ) -> messages.LauncherMessage:
        try:
            async with asyncio.timeout(within_s):
                return await self._channel.request(body, descriptors)
        except launcher_channel.ChannelClosed as error:
            raise errors.Unavailable(
                "the cell's init is gone; free the cell and allocate it again"
            ) from error
        except TimeoutError as error:
            raise errors.TimedOut(f"the cell's init did not start it within {within_s} s") from error
        except messages.MessageTooLarge as error:
            raise errors.TooLarge(
                f"command, arguments and environment together are too long: {error}"
            ) from error

    async def exits(self) -> AsyncIterator[ProcessExit]:
        """Exits of executables, until the init itself ends; for one reader."""
        while (exited := await self._exits.get()) is not None:
            yield exited
        self._exits.put_nowait(None)

    async def ended(self) -> None:
        """Wait until the init, and everything in its cell, has ended."""
        await asyncio.shield(self._ended)

    async def ready(self, within_s: float) -> None:
        """Wait until the cell is set up."""
        try:
            async with asyncio.timeout(within_s):
                failure = await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise errors.TimedOut(f"the cell was not set up within {within_s} s") from error
        if failure is not None:
            raise failure

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def enter(self, host_name: str, entry: CgroupEntryFds) -> None:
        """Make a prestarted init the init of a cell; it handles later requests there. If it cannot, it ends.
        `host_name` is empty for one that has the host's.

        Raises Unavailable if the request could not be sent; then it is no cell's init, and starts nothing.
        """
        body = {"do": "enter", "host_name": host_name, "has_cpu": entry.has_cpu, "marks": entry.marks}
        entry.began(self.pid)
        if not self._channel.notify(body, entry.procs):
            raise errors.Unavailable("a prestarted init could not enter the cell; try again")

    def kill(self) -> None:
        """Kill it, and with it everything in its cell."""
        if not self._is_closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def quit(self) -> None:
        """Request it to end."""
        self._channel.notify({"do": "quit"})

    def close(self) -> None:
        """Disconnect; the init and its cell keep running."""
        if self._is_closed:
            return
        self._is_closed = True
        self._channel.close()
        self._loop.remove_reader(self._pidfd)
        _reap(os.P_PIDFD, self._pidfd)
        os.close(self._pidfd)
        self._exits.put_nowait(None)

    def _on_notification(self, message: messages.LauncherMessage) -> None:
        message.close()
        body = message.body
        if "exited" in body:
            self._exits.put_nowait(ProcessExit(body["exited"], body["at"], body["code"], body["signal"]))
        elif "ready" in body:
            self._set_ready(None)
        elif "failed" in body:
            self._set_ready(_setup_error(body["failed"], body["errno"]))

    def _on_disconnect(self) -> None:
        self._set_ready(errors.Internal("the cell's init died while it was set up"))

    def _set_ready(self, failure: errors.SkerryError | None) -> None:
        if not self._ready.done():
            self._ready.set_result(failure)

    def _over(self) -> None:
        self._loop.remove_reader(self._pidfd)
        _reap(os.P_PIDFD, self._pidfd)
        self._channel.read_all()
        self._exits.put_nowait(None)
        if not self._ended.done():
            self._ended.set_result(None)


class LauncherClient:
    """The process that forks inits; a dead one is replaced on demand."""

    def __init__(
        self, spawned: _Spawned, was_subreaper: bool, view: HostView, zygote: ZygoteSpec | None
    ) -> None:
        self.view = view
        self._spawned = spawned
        self._was_subreaper = was_subreaper
        self._zygote = zygote
        self._spawning = asyncio.Lock()

    @classmethod
    async def start(cls, zygote: ZygoteSpec | None = None, *, view: HostView = _NO_MORE) -> LauncherClient:
        """Start it; its cells have `view` of the host. From now on orphaned descendants of this process
        become its children.

        Stop several in the reverse order. Raises Unavailable.
        """
        was_subreaper = syscalls.set_subreaper(True)
        try:
            return cls(await _spawn(view, zygote), was_subreaper, view, zygote)
        except BaseException:
            syscalls.set_subreaper(was_subreaper)
            raise

    @property
    def pid(self) -> int:
        return self._spawned.process.pid

    async def make_init(
        self, spec: InitSpec, entry: CgroupEntryFds, *, within_s: float = WITHIN_S
    ) -> InitClient:
        """An init in new namespaces, inside the cgroup from its first instruction, ready to start
        executables.

        Raises Internal, TimedOut, Unavailable. A partly created one then ends by itself; the caller waits
        until the cgroup is empty, or empties it.
        """
        for is_last in (False, True):
            spawned = await self._alive()
            try:
                return await _make_init(spawned.channel, spec, entry, within_s)
            except launcher_channel.ChannelClosed as error:
                if is_last:
                    raise errors.Unavailable("the launcher dies repeatedly; see its log") from error
        raise AssertionError("unreachable")

    async def failed(self) -> None:
        """Wait until the launcher dies. Cells keep running; the next `make_init` starts another."""
        await self._spawned.died.wait()

    async def stop(self) -> None:
        """End the launcher; inits keep running."""
        await self._spawned.stop()
        syscalls.set_subreaper(self._was_subreaper)

    async def _alive(self) -> _Spawned:
        async with self._spawning:
            if not self._spawned.channel.is_open:
                log.warning("launcher.died", pid=self.pid)
                await self._spawned.stop()
                self._spawned = await _spawn(self.view, self._zygote)
            return self._spawned


class _Spawned:
    """One launcher process."""

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket) -> None:
        self.process = process
        self.died = asyncio.Event()
        self.ready = asyncio.Event()
        self.channel = launcher_channel.LauncherChannel(
            end, on_notification=lambda _: self.ready.set(), on_end=self._end
        )

    def _end(self) -> None:
        self.died.set()
        self.ready.set()

    async def stop(self) -> None:
        self.channel.close()
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        _reap_inits()


async def _spawn(view: HostView, zygote: ZygoteSpec | None) -> _Spawned:
    """Start one and wait until it is ready. One that is killed while it starts is replaced. Raises
    Unavailable."""
    for _ in range(_STARTS):
        spawned = await _begin(view, zygote)
        try:
            async with asyncio.timeout(WITHIN_S):
                await spawned.ready.wait()
            if not spawned.died.is_set():
                log.info("launcher.started", pid=spawned.process.pid)
                return spawned
        except BaseException:
            await asyncio.shield(spawned.stop())
            raise
        await asyncio.shield(spawned.stop())
        if (code := spawned.process.returncode) is None or code >= 0:
            break
        log.warning("launcher.killed", pid=spawned.process.pid, signal=-code)
    raise errors.Unavailable("the launcher of cells does not start; see its output")


async def _begin(view: HostView, zygote: ZygoteSpec | None) -> _Spawned:
    agent_end, launcher_end = messages.pair()
    with launcher_end:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable if zygote is None else zygote.interpreter,
                *_OPTIONS,
                _PROGRAM,
                str(Path(skerry.__file__).parent.parent),
                str(launcher_end.fileno()),
                json.dumps(view._asdict()),
                *(() if zygote is None else (zygote.entry, *zygote.preload)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(launcher_end.fileno(),),
                start_new_session=True,  # terminal signals are for the agent
                cwd="/",
                env={},  # keeps the agent's environment out of cells
            )
        except BaseException:
            agent_end.close()
            raise
    return _Spawned(process, agent_end)


async def _make_init(
    channel: launcher_channel.LauncherChannel, spec: InitSpec, entry: CgroupEntryFds, within_s: float
) -> InitClient:
    body = {
        "host_name": spec.host_name,
        "isolates_processes": spec.isolates_processes,
        "isolates_network": spec.isolates_network,
        "tmp_mb": spec.tmp_mb,
        "is_spare": spec.is_spare,
        "network": spec.network is not None,
        "clone_into": entry.clone_into is not None,
        "has_cpu": entry.has_cpu,
        "marks": entry.marks,
    }
    agent_end, init_end = messages.pair()
    try:
        with init_end:
            descriptors = [agent_end.fileno(), init_end.fileno()]
            descriptors += [*(() if spec.network is None else (spec.network,)), *_descriptors(entry)]
            async with asyncio.timeout(within_s):
                reply = await channel.request(body, descriptors)
    except BaseException as error:
        # An init may exist by now; it finds this in its socket and ends.
        with contextlib.suppress(OSError):
            messages.send(agent_end, messages.encode({"do": "quit"}))
        agent_end.close()
        if isinstance(error, TimeoutError):
            raise errors.TimedOut(f"the launcher did not create an init within {within_s} s") from error
        raise
    if "failed" in reply.body:
        agent_end.close()
        raise _setup_error(reply.body["failed"], reply.body["errno"])
    (pidfd,) = reply.descriptors
    pid = reply.body["pid"]
    entry.began(pid)
    try:
        start_time = start_time_of(pid)
    except OSError:
        start_time = 0  # it is gone already; the reason is in its socket
    handle = InitClient(pid, start_time, pidfd, agent_end)
    try:
        await handle.ready(within_s)
    except BaseException:
        handle.quit()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIT_WITHIN_S):
                await handle.ended()
        handle.close()
        raise
    return handle


def _start_request(spec: StartSpec, *, has_clone_into: bool) -> messages.MessageBody:
    sandbox = spec.sandbox
    settings = sandbox.environment if spec.runtime is None else spec.runtime.environment
    requested = dict(setting.split("=", 1) for setting in settings)
    trusted = spec.trusted if spec.runtime is None else spec.runtime.arguments
    arguments = trusted or sandbox.arguments or ("/bin/sh", "-c", spec.command)
    return {
        "key": spec.key,
        "arguments": () if spec.is_fork else arguments,
        "environment": {**ENVIRONMENT, **requested},
        "folder": sandbox.folder,
        "uid": spec.uid if sandbox.uid is None else sandbox.uid,
        "gid": spec.gid if sandbox.gid is None else sandbox.gid,
        "capabilities": "default" if sandbox.root_capabilities else "none",
        "open_files": sandbox.open_files,
        "log_bytes": spec.log_bytes,
        "clone_into": has_clone_into,
        "is_trusted": bool(trusted),
        "streams": len(spec.streams),
        "has_socket": spec.socket is not None,
        "is_fork": spec.is_fork,
        "has_logs": spec.logs is not None,
        "pid_file": "" if spec.runtime is None else spec.runtime.pid_file,
        "owner": 0 if spec.runtime is None else spec.runtime.owner,
    }


def _open_folder(path: Path, opened: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


def _descriptors(entry: CgroupEntryFds) -> list[int]:
    return [*(() if entry.clone_into is None else (entry.clone_into,)), *entry.procs]


def _start_error(spec: StartSpec, step: str, number: int) -> errors.SkerryError:
    reason = os.strerror(number)
    if step in _REQUEST_HINTS:
        subject = (
            spec.sandbox.folder if step == "change folder" else (spec.sandbox.arguments or ("/bin/sh",))[0]
        )
        return errors.FailedPrecondition(f"cannot {step} ({subject[:100]}): {reason}; {_REQUEST_HINTS[step]}")
    if step == "clone" and number == errno.EAGAIN:
        return errors.FailedPrecondition(
            "the cell has reached its limit of processes; stop some or raise the limit"
        )
    return errors.Internal(f"the executable could not be started: {step}: {reason}")


def _setup_error(step: str, number: int) -> errors.SkerryError:
    return errors.Internal(f"the cell could not be set up: {step}: {os.strerror(number)}")


def _socket_of(pidfd: int, number: int) -> socket.socket:
    descriptor = syscalls.descriptor_of(pidfd, number)
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


def _reap(kind: int, number: int) -> None:
    try:
        os.waitid(kind, number, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass  # reaped by the launcher or another agent


def _reap_inits() -> None:
    """Reap ended inits that a launcher left when it ended itself."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for pid in (task / "children").read_text().split():
                if (Path("/proc") / pid / "comm").read_bytes() == messages.INIT_NAME + b"\n":
                    _reap(os.P_PID, int(pid))
