"""The init of a cell: process 1 of its namespaces, parent of everything that runs in it.

It forks executables on request, reaps them, moves output into rings on disk and writes exit records before it
reports exits. A record that the disk refuses is written later, and the exit is reported meanwhile. The init
depends on neither the agent nor the launcher, of which it is a fork. It keeps both ends of its control
socket, so that a later agent takes the other end from it (`skerry.node.launcher.client.InitClient.adopt`).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import socket
import struct
import time
from collections import deque
from typing import Any, Final, NoReturn

from skerry.node.kernel import process_marks, syscalls
from skerry.node.launcher.child import capabilities, cell_mounts, exec_setup, messages, poll_loop, zygotes
from skerry.node.launcher.child.cell_root import CellRoot
from skerry.node.launcher.child.exec_setup import ProgramSpec
from skerry.node.launcher.child.output_pumps import OutputPump
from skerry.node.launcher.child.syscall_scripts import ScriptMemory

# Without an agent, exit reports beyond this are dropped; the records on disk stay.
_MOST_UNSENT: Final = 4096
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_ABOVE_OUR_ENDS: Final = 10
# Between two attempts to write records that the disk refuses; doubles from the first to the longest.
_FIRST_RETRY_MS: Final = 250
_LONGEST_RETRY_MS: Final = 4000
# As in a start request of `skerry.node.launcher.client`, with a folder for a program.
_REHEARSAL: Final[dict[str, Any]] = {
    "id": 0,
    "key": "",
    "arguments": ["/"],
    "environment": {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"},  # noqa: S108 - the cell's
    "folder": "/",
    "uid": 65534,
    "gid": 65534,
    "capabilities": "none",
    "open_files": 1024,
    "is_trusted": False,
    "is_fork": False,
    "has_logs": False,
    "has_socket": False,
    "streams": 0,
    "clone_into": False,
    "log_bytes": 65536,
    "pid_file": "",
    "owner": 0,
    "mounts": None,
}


def begin(
    spec: dict[str, Any],
    launcher: int,
    ends: tuple[int, int],
    network: int | None,
    root: CellRoot | None,
    procs: list[int],
    system_calls: syscalls.SeccompFilter,
    stage: ScriptMemory,
) -> NoReturn:
    """Main function of the launcher's child; `launcher` is a pidfd of the launcher. `ends` are the agent's
    end of the socket and its own, `network` is a namespace to enter, and without a `root` it has the
    host's."""
    agent_end, own_end = ends
    step, reporting_end = "enter cgroup", own_end
    try:
        if (marks := process_marks.decoded(spec.get("marks"))) is not None:
            marks.set_tag()
        if spec["is_spare"]:  # it would never be found again
            syscalls.end_with(launcher)
        late = [procs.pop()] if spec["has_cpu"] else []
        for group in procs:
            os.write(group, b"0")
        step = "enter network"
        if network is not None:
            syscalls.enter_namespace(network, syscalls.CLONE_NEWNET)
        step = "set up the cell"
        if root is not None:
            root.enter()
        late = _close_others(agent_end, own_end, late)
        reporting_end = messages.OWN_END
        _set_up(spec)
        own = socket.socket(fileno=messages.OWN_END)
        init = InitProcess(own, system_calls, stage, late, spec)
    except BaseException as error:  # noqa: BLE001 - a child must never come back into the launcher's loop
        failure = {"failed": getattr(error, "step", step), "errno": getattr(error, "errno", errno.EINVAL)}
        messages.send(socket.socket(fileno=reporting_end), messages.encode(failure))
        os._exit(1)
    init.run()


def _close_others(agent_end: int, own_end: int, extra: list[int]) -> list[int]:
    """Close all but the standard descriptors, the two ends, which get their well-known numbers, and `extra`,
    whose new numbers are returned."""
    duplicates = [
        fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _ABOVE_OUR_ENDS) for each in (agent_end, own_end, *extra)
    ]
    first = max(messages.AGENT_END, messages.OWN_END) + 1
    numbers = [messages.AGENT_END, messages.OWN_END, *range(first, first + len(extra))]
    for each, number in zip(duplicates, numbers, strict=True):
        os.dup2(each, number, inheritable=False)
    syscalls.close_from(first + len(extra))
    return numbers[2:]


def _set_up(spec: dict[str, Any]) -> None:
    syscalls.set_name(messages.INIT_NAME)
    if spec.get("is_unconfined"):
        syscalls.set_tracer_any()  # the next agent is no ancestor, and adopts by tracing
    else:
        syscalls.set_dumpable(False)
    os.setsid()
    os.umask(0)
    if spec["isolates_processes"]:
        capabilities.bound_to_sets()
        syscalls.set_host_name(spec["host_name"])
        cell_mounts.set_up(spec["tmp_mb"])
    else:
        syscalls.set_subreaper(True)
    os.umask(0o077)
    if spec["isolates_network"] and not spec["network"]:
        _raise_loopback()
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


class InitExecutable:
    """One executable, from its start until its exit is recorded and its output is complete."""

    __slots__ = ("ending", "folders", "is_over", "key", "pid", "pid_file", "pumps", "request")

    def __init__(
        self, key: str, request: int, folders: list[int], pumps: list[OutputPump], pid_file: str
    ) -> None:
        self.key = key
        self.request = request
        self.folders = folders  # of its record, and of its logs if that is another
        self.pumps = pumps
        # not empty: the current process is a runtime's, which will start the executable
        self.pid_file = pid_file
        self.pid = 0  # in the cell
        self.ending: dict[str, Any] = {}  # its exit
        self.is_over = False  # it has ended, and that is recorded or never will be


class InitProcess:
    """The event loop of an init, and its state."""

    def __init__(
        self,
        own: socket.socket,
        system_calls: syscalls.SeccompFilter,
        stage: ScriptMemory,
        late: list[int],
        spec: dict[str, Any],
    ) -> None:
        self._own = own
        # Groups that it has still to enter: that of the cpu quota, which would slow down its first start.
        self._late = late
        self._stage = stage
        self._is_spare = spec["is_spare"]
        self._is_unconfined = spec.get("is_unconfined", False)
        self._system_calls = system_calls
        self._loop = poll_loop.PollLoop()
        self._running: dict[int, InitExecutable] = {}  # by pid in the cell
        # Exits of unknown processes, kept while a runtime may still report one of them as an executable.
        self._strays: dict[int, int] = {}
        self._unrecorded: list[InitExecutable] = []  # they have ended, and the disk refused their records
        self._retry_ms = _FIRST_RETRY_MS
        self._unsent: deque[tuple[bytes, list[int], int]] = deque()
        self._loop.watch(own.fileno(), self._read)
        self._loop.watch_children(self._reap)

    def run(self) -> NoReturn:
        if self._is_spare:
            self._warm_up()
        self._send({"ready": True})
        while True:
            if not self._unrecorded:
                self._loop.run_once()
            else:
                self._loop.run_once(self._retry_ms)
                self._retry_ms = min(2 * self._retry_ms, _LONGEST_RETRY_MS)
                self._record_again()

    def _warm_up(self) -> None:
        """Run a start whose program does not exist. Each page of the interpreter that this process is the
        first to touch is copied for it: that happens before anybody waits, and outside any cell's quota."""
        agent, own = messages.pair()
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with agent, own:
            messages.send(agent, messages.encode(_REHEARSAL), [folder])
            os.close(folder)
            message = messages.receive(own)
            assert message is not None
            try:
                self._start(message)
            except syscalls.StepFailed:
                pass  # expected: a folder cannot be executed
            finally:
                message.close()

    # Requests of the agent

    def _read(self) -> None:
        self._flush()
        try:
            message = messages.receive(self._own)
        except (BlockingIOError, messages.MalformedMessage):
            return
        if message is None or message.body.get("do") == "quit":
            os._exit(0)
        if message.body.get("do") == "enter":
            self._late = _enter(message)
            self._is_spare = False
            return
        if message.body.get("do") == "repeat":
            for running in self._unrecorded:
                self._report_exit(running)
            return
        if self._is_spare:  # what it started would be under no cell's limits
            self._send({"id": message.body.get("id"), "failed": "enter cell", "errno": errno.EPERM})
            message.close()
            return
        failure: dict[str, Any] | None = None
        try:
            if message.body.get("do") == "mount":
                self._mount(message)
            else:
                self._start(message)
        except OSError as error:
            failure = {"failed": getattr(error, "step", "start"), "errno": error.errno or errno.EIO}
        except (LookupError, TypeError, ValueError) as error:
            failure = {"failed": repr(error), "errno": errno.EINVAL}
        finally:
            message.close()
        if failure is not None:
            self._send({"id": message.body.get("id"), **failure})

    def _mount(self, message: messages.LauncherMessage) -> None:
        syscalls.move_mount(message.descriptors[0], message.body["place"])
        self._send({"id": message.body["id"]})

    def _start(self, message: messages.LauncherMessage) -> None:
        body = message.body
        # The last ones, unknown to earlier versions, whose child enters all groups of an entry.
        rest, barrier = _split_last(message.descriptors, 1 if body.get("has_barrier") else 0)
        rest, quota_fds = _split_last(rest, 2 if body.get("has_outside") else 0)
        late, self._late = self._late, []
        inside = late or quota_fds[1:]
        try:
            if quota_fds and not late:
                os.write(quota_fds[0], b"0")
            # The executable is in the quota's group from its first step on, and we are when we reply.
            self._begin(body, [*rest, *inside], *barrier)
        finally:
            for group in inside:
                os.write(group, b"0")
            _close(*late)

    def _begin(self, body: dict[str, Any], descriptors: list[int], barrier: int | None = None) -> None:
        # Closed with the message; an executable keeps its folders for longer.
        folders, rest = _split(descriptors, 2 if body["has_logs"] else 1)
        streams, rest = _split(rest, body["streams"])
        passed, entry_fds = _split(rest, int(body["has_socket"]))
        folders = [fcntl.fcntl(folder, fcntl.F_DUPFD_CLOEXEC, 0) for folder in folders]
        reading: list[int] = []
        writing: list[int] = []
        try:
            program = _program(body, is_isolated=not self._is_unconfined)
            clone_into = entry_fds.pop(0) if body["clone_into"] else None
            for _ in () if streams else range(2):
                ends = os.pipe2(os.O_CLOEXEC)
                reading.append(ends[0])
                writing.append(ends[1])
                os.set_blocking(ends[0], False)
                if body["owner"]:
                    os.fchown(ends[0], body["owner"], body["owner"])  # both ends are one file
            # Before the start, since nothing may fail after it.
            pumps = [
                OutputPump(pipe, folders[-1], stream, body["log_bytes"])
                for pipe, stream in zip(reading, ("stdout", "stderr"), strict=False)
            ]
            running = InitExecutable(body["key"], body["id"], folders, pumps, body["pid_file"])
            make_script = functools.partial(
                exec_setup.script,
                program,
                self._system_calls,
                tuple(streams or writing),
                entry_fds,
                barrier=barrier,
            )
            if body["is_fork"]:
                running.pid, pidfd = zygotes.fork(make_script, passed, program.environment, clone_into)
            else:
                running.pid, pidfd = make_script(passed).spawn(self._stage, clone_into)
        except BaseException:
            _close(*folders, *reading)
            raise
        finally:
            _close(*writing)
        self._running[running.pid] = running
        if running.pid_file:
            os.close(pidfd)  # the executable is still to come
        elif self._is_unconfined:  # its pid is the agent's, and passing it to be translated takes privileges
            self._send({"id": running.request, "pid": running.pid}, [pidfd])
        else:
            # Without a pid namespace of its own the agent's is ours, and only root may name another process.
            has_own_pids = os.getpid() == 1
            body = {"id": running.request} if has_own_pids else {"id": running.request, "pid": running.pid}
            self._send(body, [pidfd], running.pid if has_own_pids else 0)
        for pump in running.pumps:
            self._loop.watch(pump.pipe, functools.partial(self._move, running, pump))

    def _move(self, running: InitExecutable, pump: OutputPump) -> None:
        pump.move()
        self._tidy(running)

    def _tidy(self, running: InitExecutable) -> None:
        """Release what is over."""
        for pump in [pump for pump in running.pumps if pump.has_ended]:
            self._loop.forget(pump.pipe)
            os.close(pump.pipe)
            running.pumps.remove(pump)
        if running.is_over and not running.pumps:
            _close(*running.folders)

    # Exits

    def _reap(self) -> None:
        while True:
            try:
                # Not reaped at first: until then the kernel can translate the pid for the agent.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            running = self._running.get(ended.si_pid)
            if running is None:
                _, status = os.waitpid(ended.si_pid, 0)  # an orphan
                if any(each.pid_file for each in self._running.values()):
                    self._strays[ended.si_pid] = status
                continue
            _, status = os.waitpid(ended.si_pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if running.pid_file:
                self._take_over(running, code)
            else:
                self._end(running, code)

    def _take_over(self, running: InitExecutable, code: int) -> None:
        """A runtime has exited: its container's process is our child now, and the executable. Or it
        failed."""
        del self._running[running.pid]
        pid = _read_pid(running.pid_file) if code == 0 else 0
        running.pid_file = ""
        status = self._strays.pop(pid, None)
        if not any(each.pid_file for each in self._running.values()):
            self._strays.clear()
        if not pid or (status is None and not _is_child(pid)):
            for pump in running.pumps:
                pump.drain()
            self._close(running)
            self._send({"id": running.request, "failed": "runtime", "errno": 0, "code": code})
            return
        running.pid = pid
        self._running[pid] = running
        pidfd = [os.pidfd_open(pid)] if status is None else []
        self._send({"id": running.request, "pid": pid}, pidfd)
        if status is not None:
            self._end(running, os.waitstatus_to_exitcode(status))

    def _end(self, running: InitExecutable, code: int) -> None:
        del self._running[running.pid]
        for pump in running.pumps:
            pump.drain()  # its output is stored before its exit
        record = {"code": None, "signal": -code} if code < 0 else {"code": code, "signal": None}
        running.ending = {**record, "at": time.time()}
        if not self._record(running):
            self._unrecorded.append(running)
            self._retry_ms = _FIRST_RETRY_MS
            self._report_exit(running)

    def _record(self, running: InitExecutable) -> bool:
        """Write its exit record, and report; False if the disk refuses for now."""
        try:
            _write_record(running.folders[0], running.ending)
        except OSError:
            return False
        self._close(running)
        self._report_exit(running)
        return True

    def _record_again(self) -> None:
        """Retry records that the disk refused, except for those that the agent has written or removed."""
        for running in self._unrecorded[:]:
            if _is_recorded(running.folders[0]):
                self._close(running)
            elif not self._record(running):
                continue
            self._unrecorded.remove(running)

    def _close(self, running: InitExecutable) -> None:
        running.is_over = True
        self._tidy(running)

    def _report_exit(self, running: InitExecutable) -> None:
        self._send({"exited": running.key, **running.ending})

    # Messages to the agent

    def _send(self, body: dict[str, Any], descriptors: list[int] | None = None, process: int = 0) -> None:
        """Send, now or when the socket is writable; `descriptors` are closed then."""
        if len(self._unsent) >= _MOST_UNSENT and "exited" in body:
            return
        self._unsent.append((messages.encode(body), descriptors or [], process))
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            packet, descriptors, process = self._unsent[0]
            try:
                try:
                    messages.send(self._own, packet, descriptors, process)
                except ProcessLookupError:
                    messages.send(self._own, packet, descriptors)  # reaped before it could be sent
            except BlockingIOError:
                break
            except OSError:
                pass  # can never be sent; do not block the next
            self._unsent.popleft()
            _close(*descriptors)
        events = poll_loop.READABLE | (poll_loop.WRITABLE if self._unsent else 0)
        self._loop.watch(self._own.fileno(), self._read, events)


def _enter(message: messages.LauncherMessage) -> list[int]:
    """Turn a prestarted init into the init of a cell: enter its groups, before any other request, except for
    those that are returned. Or it ends."""
    try:
        late = [message.descriptors.pop()] if message.body["has_cpu"] else []
        for group in message.descriptors:
            os.write(group, b"0")
        if (marks := process_marks.decoded(message.body.get("marks"))) is not None:
            marks.set_tag()
        if message.body["host_name"]:
            syscalls.set_host_name(message.body["host_name"])
        syscalls.set_parent_death_signal(0)
    except (OSError, LookupError):
        os._exit(1)
    message.close()
    return late


def _program(body: dict[str, Any], *, is_isolated: bool) -> ProgramSpec:
    return ProgramSpec(
        arguments=[_bytes(argument) for argument in body["arguments"]],
        environment={_bytes(key): _bytes(value) for key, value in body["environment"].items()},
        folder=_bytes(body["folder"]),
        uid=body["uid"],
        gid=body["gid"],
        capabilities=body["capabilities"],
        open_files=body["open_files"],
        is_trusted=body["is_trusted"],
        marks=process_marks.decoded(body.get("marks")),
        is_isolated=is_isolated,
        mounts=None if (mounts := body.get("mounts")) is None else tuple(map(_bytes, mounts)),
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _read_pid(path: str) -> int:
    """The pid that a runtime has written there; 0 if there is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _write_record(folder: int, record: dict[str, Any]) -> None:
    """Write `exit.json` atomically."""
    data = json.dumps(record).encode()
    file = os.open(
        "exit.json.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        written = os.write(file, data)
    finally:
        os.close(file)
    if written != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.rename("exit.json.new", "exit.json", src_dir_fd=folder, dst_dir_fd=folder)


def _is_recorded(folder: int) -> bool:
    """True if the exit of an executable is recorded, or its folder was removed."""
    return os.access("exit.json", os.F_OK, dir_fd=folder) or not os.fstat(folder).st_nlink


def _split(descriptors: list[int], count: int) -> tuple[list[int], list[int]]:
    return descriptors[:count], descriptors[count:]


def _split_last(descriptors: list[int], count: int) -> tuple[list[int], list[int]]:
    return _split(descriptors, len(descriptors) - count)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
