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
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Final, TypeVar

import structlog

import skerry
from skerry.kit import child_process
from skerry.model import errors
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.kernel import syscalls
from skerry.node.kernel.processes import start_time_of
from skerry.node.launcher import channel as launcher_channel
from skerry.node.launcher import worker_inits
from skerry.node.launcher.cell_inits import (
    WITHIN_S,
    CellInit,
    descriptors_of,
    open_folder,
    reap,
    setup_error,
    start_error,
    start_request,
)
from skerry.node.launcher.child import messages
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.exec_barriers import ExecBarrier
from skerry.node.launcher.specs import (
    InitSpec,
    ProcessExit,
    RuntimeFailed,
    StartedProcess,
    StartSpec,
    ZygoteSpec,
)
from skerry.node.launcher.worker_inits import LauncherConnection, WorkerGroups, WorkerInit, WorkerLaunch

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STOP_WITHIN_S: Final = 5.0
_QUIT_WITHIN_S: Final = 1.0
_STARTS: Final = 3  # of a launcher that is killed before it is ready
# Without site-packages, the environment and the user's folders: quick to start, and nothing foreign in it.
_OPTIONS: Final = ("-I", "-S", "-X", "utf8", "-c")
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from skerry.node.launcher.child.main import main; main(*sys.argv[2:])"
)
_NAMES: Final = (messages.INIT_NAME, *messages.UNNAMED_INITS, messages.OUTPUT_NAME)
_NO_MORE: Final = HostView()


class InitClient(CellInit):
    """A cell's init, while this agent is connected. The init runs with or without an agent."""

    control_fd: Final = messages.AGENT_END  # to be stored with pid and start time

    def __init__(self, pid: int, start_time: int, pidfd: int, control: socket.socket) -> None:
        """Owns `pidfd` and `control`; use `LauncherClient.make_init` or `adopt`."""
        super().__init__(pid, start_time, pidfd)
        self._ready: asyncio.Future[errors.SkerryError | None] = self._loop.create_future()
        self._channel = launcher_channel.LauncherChannel(
            control, on_notification=self._on_notification, on_end=self._on_disconnect
        )

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
        handle.enters_mounts = False  # it may be of an earlier version
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
        body = start_request(spec, has_clone_into=entry.clone_into is not None)
        body["marks"] = entry.marks
        with contextlib.ExitStack() as opened:
            folders = [folder] if spec.logs is None else [folder, spec.logs]
            passed = [open_folder(each, opened) for each in folders]
            passed += [*spec.streams, *(() if spec.socket is None else (spec.socket,))]
            passed += descriptors_of(entry)
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
            raise start_error(spec, reply.body["failed"], reply.body["errno"])
        pidfd = reply.descriptors[0] if reply.descriptors else None
        return StartedProcess(reply.body.get("pid", reply.process), pidfd)

    async def mount(self, detached: int, path: str, *, within_s: float = WITHIN_S) -> None:
        reply = await self._request({"do": "mount", "place": path}, [detached], within_s)
        reply.close()
        if "failed" in reply.body:
            raise setup_error(reply.body["failed"], reply.body["errno"])

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

    async def ready(self, within_s: float) -> None:
        """Wait until the cell is set up."""
        try:
            async with asyncio.timeout(within_s):
                failure = await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise errors.TimedOut(f"the cell was not set up within {within_s} s") from error
        if failure is not None:
            raise failure

    def enter(self, host_name: str, entry: CgroupEntryFds) -> None:
        """Make a prestarted init the init of a cell; it handles later requests there. If it cannot, it ends.
        `host_name` is empty for one that has the host's.

        Raises Unavailable if the request could not be sent; then it is no cell's init, and starts nothing.
        """
        body = {"do": "enter", "host_name": host_name, "has_cpu": entry.has_cpu, "marks": entry.marks}
        entry.began(self.pid)
        if not self._channel.notify(body, entry.procs):
            raise errors.Unavailable("a prestarted init could not enter the cell; try again")

    def quit(self) -> None:
        """Request it to end."""
        self._channel.notify({"do": "quit"})

    def _disconnect(self) -> None:
        self._channel.close()

    def _read_all(self) -> None:
        self._channel.read_all()

    def _on_notification(self, message: messages.LauncherMessage) -> None:
        message.close()
        body = message.body
        if "exited" in body:
            self._exits.put_nowait(ProcessExit(body["exited"], body["at"], body["code"], body["signal"]))
        elif "ready" in body:
            self._set_ready(None)
        elif "failed" in body:
            self._set_ready(setup_error(body["failed"], body["errno"]))

    def _on_disconnect(self) -> None:
        self._set_ready(errors.Internal("the cell's init died while it was set up"))

    def _set_ready(self, failure: errors.SkerryError | None) -> None:
        if not self._ready.done():
            self._ready.set_result(failure)


class LauncherClient:
    """The process that forks inits; a dead one is replaced on demand."""

    def __init__(
        self,
        spawned: _Spawned,
        orphans: OrphanReaper,
        was_subreaper: bool,
        view: HostView,
        zygote: ZygoteSpec | None,
    ) -> None:
        self.view = view
        self._spawned = spawned
        self._orphans = orphans
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
        orphans = OrphanReaper()
        try:
            return cls(await _spawn(view, zygote, orphans), orphans, was_subreaper, view, zygote)
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
        return await self._with_retry(lambda spawned: _make_init(spawned.channel, spec, entry, within_s))

    @property
    def makes_worker_inits(self) -> bool:
        """True if `launch_worker` is possible on this machine."""
        return self._zygote is not None and self._spawned.connection.makes_inits

    async def launch_worker(
        self, launch: WorkerLaunch, groups: WorkerGroups, *, within_s: float = WITHIN_S
    ) -> tuple[WorkerInit, StartedProcess]:
        """A cell for one worker, which is a fork of the launcher itself; its init only waits.

        Raises FailedPrecondition, Internal, TimedOut, Unavailable. What is left of a partly created one is in
        its groups.
        """
        spawned = await self._alive()
        try:
            return await worker_inits.launch(spawned.connection, launch, groups, within_s)
        except launcher_channel.ChannelClosed as error:  # what it has made is in these groups: no other try
            raise errors.Unavailable("the launcher has died; start another worker") from error

    async def _with_retry(self, make: Callable[[_Spawned], Awaitable[T]]) -> T:
        for is_last in (False, True):
            spawned = await self._alive()
            try:
                return await make(spawned)
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
        self._orphans.close()
        _reap_named((*_NAMES, messages.WORKER_NAME))
        syscalls.set_subreaper(self._was_subreaper)

    async def _alive(self) -> _Spawned:
        async with self._spawning:
            if not self._spawned.channel.is_open:
                log.warning("launcher.died", pid=self.pid)
                await self._spawned.stop()
                self._spawned = await _spawn(self.view, self._zygote, self._orphans)
            return self._spawned


class OrphanReaper:
    """Reaps workers and inits that a launcher left when it died while it made them: nobody knows them.

    Until a process is reaped, the init of its pid namespace cannot end. An init that somebody knows may be
    reaped by either.
    """

    def __init__(self) -> None:
        self._pidfds: set[int] = set()

    def add(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self._pidfds.add(pidfd)
        asyncio.get_running_loop().add_reader(pidfd, self._reap, pidfd)

    def close(self) -> None:
        for pidfd in list(self._pidfds):
            self._reap(pidfd)

    def _reap(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        self._pidfds.discard(pidfd)
        reap(os.P_PIDFD, pidfd)
        os.close(pidfd)


class _Spawned:
    """One launcher process."""

    def __init__(
        self, process: child_process.ChildProcess, end: socket.socket, orphans: OrphanReaper
    ) -> None:
        self.process = process
        self._orphans = orphans
        self._ending: asyncio.Task[None] | None = None
        self.died = asyncio.Event()
        self.ready = asyncio.Event()
        self.channel = launcher_channel.LauncherChannel(
            end, on_notification=self._on_notification, on_end=self._end
        )
        self.connection = LauncherConnection(self.channel)

    def _on_notification(self, message: messages.LauncherMessage) -> None:
        message.close()
        if "cell" in message.body:
            self.connection.notified(message.body)
        else:
            self.connection.makes_inits = bool(message.body.get("pauses"))
            self.ready.set()

    def _end(self) -> None:
        self._ending = asyncio.create_task(self._adopt_workers())
        self.died.set()
        self.ready.set()

    async def _adopt_workers(self) -> None:
        """Its children are ours as soon as it is gone, which may be later than its end of the channel."""
        await self.process.wait()
        known = self.connection.died()
        for pid in _children((*_NAMES, messages.WORKER_NAME)):
            if pid not in known:
                self._orphans.add(pid)

    async def stop(self) -> None:
        self.channel.close()
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        if self._ending is not None:
            await self._ending
        _reap_named(_NAMES)


async def _spawn(view: HostView, zygote: ZygoteSpec | None, orphans: OrphanReaper) -> _Spawned:
    """Start one and wait until it is ready. One that is killed while it starts is replaced. Raises
    Unavailable."""
    for _ in range(_STARTS):
        spawned = await _begin(view, zygote, orphans)
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


async def _begin(view: HostView, zygote: ZygoteSpec | None, orphans: OrphanReaper) -> _Spawned:
    agent_end, launcher_end = messages.pair()
    with launcher_end:
        try:
            process = await child_process.start(
                (
                    sys.executable if zygote is None else zygote.interpreter,
                    *_OPTIONS,
                    _PROGRAM,
                    str(Path(skerry.__file__).parent.parent),
                    str(launcher_end.fileno()),
                    json.dumps(view._asdict()),
                    *(() if zygote is None else (zygote.entry, *zygote.preload)),
                ),
                stderr=None,
                pass_fds=(launcher_end.fileno(),),
                start_new_session=True,  # terminal signals are for the agent
                cwd="/",
                env={},  # keeps the agent's environment out of cells
            )
        except BaseException:
            agent_end.close()
            raise
    return _Spawned(process, agent_end, orphans)


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
            descriptors += [*(() if spec.network is None else (spec.network,)), *descriptors_of(entry)]
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
        raise setup_error(reply.body["failed"], reply.body["errno"])
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


def _socket_of(pidfd: int, number: int) -> socket.socket:
    descriptor = syscalls.descriptor_of(pidfd, number)
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


def _reap_named(names: Collection[bytes]) -> None:
    """Reap ended processes with these names that a launcher left when it ended itself."""
    for pid in _children(names):
        reap(os.P_PID, pid)


def _children(names: Collection[bytes]) -> Iterator[int]:
    """Our children with these names."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for pid in (task / "children").read_text().split():
                if (Path("/proc") / pid / "comm").read_bytes().rstrip() in names:
                    yield int(pid)
