"""OCI runtimes: finds one that works on this machine, and builds its command lines.

An installed runtime may not work: crun refuses machines with both cgroup versions, and a version may not
support our configuration. So each runs a container with that configuration
(`skerry.node.containers.runtime_probe`), once per boot.

Cells start containers and processes in them, with command lines from here. The agent itself only queries,
signals and deletes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.kit import json_codec
from skerry.model import errors
from skerry.node import record_files
from skerry.node.containers import runtime_commands, runtime_probe
from skerry.node.containers.users import NODE_IDS
from skerry.node.kernel import mount_flags, thread_syscalls
from skerry.node.user_namespaces import UserNamespaces

log = structlog.get_logger(__name__)

_CANDIDATES: Final = ("runc", "crun")
_CALL_S: Final = 30.0
_LOG_BYTES: Final = 64 * 1024
# Of the commands that start containers. runc is written in Go, whose threads search for work; with one thread
# at a time a start takes 3 of 54 ms of processor time less.
ENVIRONMENT: Final = ("GOMAXPROCS=1",)
_VERSION: Final = re.compile(r"(\S+) version (\S+)")


class OciRuntime(msgspec.Struct, frozen=True):
    """A runtime that works here; `folder` is its state folder."""

    path: str
    name: str
    version: str
    folder: str

    def run_arguments(self, container: str, *, bundle: Path, pid_file: Path, log: Path) -> tuple[str, ...]:
        """The command line that starts a container and exits when it runs; for `Cells.start_container`."""
        options = ("--bundle", str(bundle), "--pid-file", str(pid_file))
        return (*self._logging(log), "run", "--detach", *options, container)

    def create_arguments(self, container: str, *, bundle: Path, pid_file: Path, log: Path) -> tuple[str, ...]:
        """Likewise, but it exits when the container is created; `start` starts its program."""
        options = ("--bundle", str(bundle), "--pid-file", str(pid_file))
        return (*self._logging(log), "create", *options, container)

    async def start(self, container: str) -> None:
        """Start the program of a created container. FailedPrecondition if that fails."""
        self._check_exists(container)
        await self._call("start", container)

    def exec_arguments(
        self, container: str, *, process: Path, log: Path, pid_file: Path, console_socket: Path | None = None
    ) -> tuple[str, ...]:
        """The command line that runs `process`, a file of `oci_config.make_process`; for
        `Cells.start_trusted`.

        It exits with the process, and with its code. With `console_socket`, on which the caller listens, the
        master of the process's terminal is sent there.
        """
        options = ("--process", str(process), "--pid-file", str(pid_file))
        console = () if console_socket is None else ("--console-socket", str(console_socket))
        return (*self._logging(log), "exec", *options, *console, container)

    async def state(self, container: str) -> str:
        """`created`, `running`, `paused` or `stopped`; NotFound if the runtime has no such container."""
        self._check_exists(container)
        done = await self._call("state", container)
        try:
            return json_codec.decode(done.output, _State).status
        except json_codec.InvalidJson as error:
            raise errors.Internal(
                f"{self.name} returned an unreadable state of container {container}; see the log",
                detail=str(error),
            ) from error

    async def kill(self, container: str, number: int) -> None:
        """Send a signal to its first process. NotFound if the runtime has no such container,
        FailedPrecondition if it has ended."""
        self._check_exists(container)
        await self._call("kill", container, str(number))

    async def delete(self, container: str) -> None:
        """Delete the container and kill what still runs; quick if nothing does. Does nothing if it does not
        exist."""
        if self._has_state(container):
            self._unmount_copies(container)
            await self._call("delete", "--force", container)

    def _unmount_copies(self, container: str) -> None:
        """Unmount runc's copies of itself, which it mounts for a moment at each start: if it was killed then,
        one is left and would block the deletion."""
        for copy in Path(self.folder, container).glob("runc.*"):
            with contextlib.suppress(OSError):  # not mounted; other errors show when deleting fails
                thread_syscalls.unmount(str(copy), mount_flags.MNT_DETACH)

    def _logging(self, log: Path) -> tuple[str, ...]:
        return (self.path, "--root", self.folder, "--log", str(log), "--log-format", "json")

    def _has_state(self, container: str) -> bool:
        # Both runtimes have a folder per container, and a check of that costs less than a command.
        return (Path(self.folder) / container).exists()

    def _check_exists(self, container: str) -> None:
        if not self._has_state(container):
            raise errors.NotFound(
                f"{self.name} has no container {container}; it was not started, or was deleted"
            )

    async def _call(self, verb: str, *arguments: str) -> runtime_commands.CommandResult:
        argv = (self.path, "--root", self.folder, verb, *arguments)
        try:
            done = await runtime_commands.run_command(argv, _CALL_S)
        except TimeoutError as error:
            raise errors.TimedOut(
                f"`{self.name} {verb}` did not end in {_CALL_S:g} s; the machine may be overloaded, or a "
                "process may hang in the kernel: try again"
            ) from error
        except OSError as error:
            raise errors.Unavailable(
                f"{self.path} cannot be run: {error.strerror}; install it again and restart Skerry"
            ) from error
        if done.code:
            raise errors.FailedPrecondition(
                f"{self.name} cannot {verb} the container: {done.failure or done.code}"
            )
        return done


class _State(msgspec.Struct):
    status: str


class _ProbedRuntime(msgspec.Struct):
    """A probed runtime; valid in this boot, while the program is the same."""

    boot_id: str
    program: tuple[str, int, int, int]
    name: str
    version: str


def failure_in(log: Path) -> str:
    """The last error that a runtime wrote to its `log`; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return runtime_commands.last_failure(file.read(_LOG_BYTES))
    except FileNotFoundError:
        return ""


async def find_runtime(
    setting: str, folder: Path, *, cgroup_root: str, boot_id: str, ids: int = NODE_IDS
) -> OciRuntime:
    """The runtime that `setting` (a name or a path) names, or the first of runc and crun that works.

    `folder` exists; `runtime` in it is the runtime's state folder, and the result is cached there for this
    boot. Cgroups of probes begin with `cgroup_root`; if that is empty, containers have none. `ids` exist for
    them. Raises Unavailable with the reason for each and what to
    install.
    """
    failures: list[str] = []
    for name in (setting,) if setting else _CANDIDATES:
        path = shutil.which(name, path=runtime_commands.PATH)
        if path is None:
            failures.append(f"{name} is not installed")
            continue
        found = await _try(path, folder, cgroup_root, boot_id, ids)
        if isinstance(found, OciRuntime):
            return found
        failures.append(f"{path} does not work: {found}")
    remedy = (
        "set node.runtime to one that works, or to nothing"
        if setting
        else "install one, as with `apt-get install runc`"
    )
    raise errors.Unavailable(f"no OCI runtime for containers: {'; '.join(failures)}. To fix this, {remedy}")


async def _try(path: str, folder: Path, cgroup_root: str, boot_id: str, ids: int) -> OciRuntime | str:
    """The runtime at `path`, or why it does not work."""
    memory = folder / "runtime.json"
    program = _program(path)
    cached = record_files.read(memory, _ProbedRuntime)
    if cached is None or (cached.boot_id, cached.program) != (boot_id, program):
        try:
            done = await runtime_commands.run_command((path, "--version"), _CALL_S)
        except TimeoutError:
            return f"`--version` did not end in {_CALL_S:g} s"
        except OSError as error:
            return f"it cannot be run: {error.strerror}"
        version = _VERSION.match(done.output.decode(errors="replace"))
        if done.code or version is None:
            return f"`--version` fails: {done.failure or 'it prints no version'}"
        reason = await runtime_probe.probe_failure(path, folder / "trial", cgroup_root, ids=ids)
        if reason:
            log.info("runtime.refused", path=path, version=version[2], reason=reason)
            return reason
        cached = _ProbedRuntime(boot_id, program, version[1], version[2])
        # Not synced, as it is for this boot only; an unreadable file is ignored.
        memory.write_bytes(json_codec.encode(cached))
        log.info("runtime.found", path=path, name=cached.name, version=cached.version)
    return OciRuntime(path, cached.name, cached.version, str(folder / "runtime"))


async def userns_failure(runtime: OciRuntime, folder: Path, *, cgroup_root: str, boot_id: str) -> str:
    """Why containers of `runtime` cannot have user namespaces on this machine; empty: they can.

    `folder` is the one of `find_runtime`. Probed until it succeeds, then once per boot.
    """
    memory = folder / "userns.json"
    found = _ProbedRuntime(boot_id, _program(runtime.path), runtime.name, runtime.version)
    if record_files.read(memory, _ProbedRuntime) == found:
        return ""
    try:
        users = UserNamespaces(f"{cgroup_root}-trial")
    except OSError as error:
        return str(error)
    reason = await runtime_probe.probe_failure(
        runtime.path, folder / "userns-trial", cgroup_root, users=users
    )
    if not reason:
        memory.write_bytes(json_codec.encode(found))
    return reason


def _program(path: str) -> tuple[str, int, int, int]:
    """Identifies the program at `path`: another version has another value."""
    status = os.stat(path)
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)
