"""OCI runtimes: which one works on this machine, and how it is called.

That one is installed proves little: crun refuses machines with both kinds of cgroups, and a version may not
know what our configuration asks for. So each is made to run a container, with the same configuration as every
other (`skerry.node.containers.runtime_probe`), once a boot.

Starting containers and processes in them is the business of cells, which get a command line from here. The
agent itself only looks, signals and deletes.
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
from skerry.node.kernel import mount_flags, thread_syscalls
from skerry.node.user_namespaces import UserNamespaces

log = structlog.get_logger(__name__)

_CANDIDATES: Final = ("runc", "crun")
_CALL_S: Final = 30.0
_LOG_BYTES: Final = 64 * 1024
_VERSION: Final = re.compile(r"(\S+) version (\S+)")


class OciRuntime(msgspec.Struct, frozen=True):
    """A runtime that works here; `folder` is where it keeps what it knows of its containers."""

    path: str
    name: str
    version: str
    folder: str

    def run_arguments(self, container: str, *, bundle: Path, pid_file: Path, log: Path) -> tuple[str, ...]:
        """The command line that starts a container and ends when it runs; for `Cells.start_container`."""
        places = ("--bundle", str(bundle), "--pid-file", str(pid_file))
        return (*self._logging(log), "run", "--detach", *places, container)

    def create_arguments(self, container: str, *, bundle: Path, pid_file: Path, log: Path) -> tuple[str, ...]:
        """Likewise, but it ends when all is ready for the program, which `start` begins."""
        places = ("--bundle", str(bundle), "--pid-file", str(pid_file))
        return (*self._logging(log), "create", *places, container)

    async def start(self, container: str) -> None:
        """Begin the program of a container that was created. FailedPrecondition if that fails."""
        self._check_known(container)
        await self._call("start", container)

    def exec_arguments(
        self, container: str, *, process: Path, log: Path, pid_file: Path, console_socket: Path | None = None
    ) -> tuple[str, ...]:
        """The command line that runs `process`, a file of `oci_config.make_process`; for `Cells.attach`.

        It ends with the process, and with its code. With `console_socket`, which somebody listens on, the
        master of the terminal of a process that has one is sent there.
        """
        places = ("--process", str(process), "--pid-file", str(pid_file))
        console = () if console_socket is None else ("--console-socket", str(console_socket))
        return (*self._logging(log), "exec", *places, *console, container)

    async def state(self, container: str) -> str:
        """`created`, `running`, `paused` or `stopped`; NotFound if the runtime does not know it."""
        self._check_known(container)
        done = await self._call("state", container)
        try:
            return json_codec.decode(done.output, _State).status
        except json_codec.InvalidJson as error:
            raise errors.Internal(
                f"{self.name} gave no readable state of container {container}; see the log", detail=str(error)
            ) from error

    async def kill(self, container: str, number: int) -> None:
        """Send a signal to its first process. NotFound if the runtime does not know it, FailedPrecondition if
        the container has ended."""
        self._check_known(container)
        await self._call("kill", container, str(number))

    async def delete(self, container: str) -> None:
        """Forget the container, killing what still runs; quick if nothing does. Not there: nothing done."""
        if self._knows(container):
            self._unmount_copies(container)
            await self._call("delete", "--force", container)

    def _unmount_copies(self, container: str) -> None:
        """runc starts from a mount of itself that it takes away at once; who killed it then has left one,
        and it would be in the way."""
        for copy in Path(self.folder, container).glob("runc.*"):
            with contextlib.suppress(OSError):  # it is not mounted; else deleting fails, and says so
                thread_syscalls.unmount(str(copy), mount_flags.MNT_DETACH)

    def _logging(self, log: Path) -> tuple[str, ...]:
        return (self.path, "--root", self.folder, "--log", str(log), "--log-format", "json")

    def _knows(self, container: str) -> bool:
        # Both runtimes keep a folder for each, and looking costs less than asking.
        return (Path(self.folder) / container).exists()

    def _check_known(self, container: str) -> None:
        if not self._knows(container):
            raise errors.NotFound(
                f"{self.name} has no container {container}; it was not started, or has gone"
            )

    async def _call(self, verb: str, *arguments: str) -> runtime_commands.CommandResult:
        line = (self.path, "--root", self.folder, verb, *arguments)
        try:
            done = await runtime_commands.run_command(line, _CALL_S)
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


class _Found(msgspec.Struct):
    """What was found to work; good for this boot, and while the program is the same."""

    boot_id: str
    program: tuple[str, int, int, int]
    name: str
    version: str


def failure_in(log: Path) -> str:
    """The last error that a runtime wrote to its `log`, in its words; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return runtime_commands.last_failure(file.read(_LOG_BYTES))
    except FileNotFoundError:
        return ""


async def find_runtime(setting: str, folder: Path, *, cgroup_root: str, boot_id: str) -> OciRuntime:
    """The runtime that `setting` (a name or a path) says, or the first of runc and crun that works.

    `folder` is there; in it a runtime gets `runtime` for what it knows, and what was found is remembered for
    this boot. Groups made on trial begin with `cgroup_root`. Raises Unavailable with why each was refused and
    what to install.
    """
    refused: list[str] = []
    for name in (setting,) if setting else _CANDIDATES:
        path = shutil.which(name, path=runtime_commands.PATH)
        if path is None:
            refused.append(f"{name} is not installed")
            continue
        found = await _try(path, folder, cgroup_root, boot_id)
        if isinstance(found, OciRuntime):
            return found
        refused.append(f"{path} does not work: {found}")
    remedy = (
        "set node.runtime to one that works, or to nothing"
        if setting
        else "install one, as with `apt-get install runc`"
    )
    raise errors.Unavailable(f"no OCI runtime for containers: {'; '.join(refused)}. To have one, {remedy}")


async def _try(path: str, folder: Path, cgroup_root: str, boot_id: str) -> OciRuntime | str:
    """The runtime at `path`, or why it is none."""
    memory = folder / "runtime.json"
    program = _program(path)
    known = record_files.read(memory, _Found)
    if known is None or (known.boot_id, known.program) != (boot_id, program):
        try:
            done = await runtime_commands.run_command((path, "--version"), _CALL_S)
        except TimeoutError:
            return f"`--version` did not end in {_CALL_S:g} s"
        except OSError as error:
            return f"it cannot be run: {error.strerror}"
        version = _VERSION.match(done.output.decode(errors="replace"))
        if done.code or version is None:
            return f"`--version` says {done.failure or 'nothing of a runtime'}"
        reason = await runtime_probe.probe_failure(path, folder / "trial", cgroup_root)
        if reason:
            log.info("runtime.refused", path=path, version=version[2], reason=reason)
            return reason
        known = _Found(boot_id, program, version[1], version[2])
        # Not synced, as it is for this boot only; what is half written is found anew.
        memory.write_bytes(json_codec.encode(known))
        log.info("runtime.found", path=path, name=known.name, version=known.version)
    return OciRuntime(path, known.name, known.version, str(folder / "runtime"))


async def userns_failure(runtime: OciRuntime, folder: Path, *, cgroup_root: str, boot_id: str) -> str:
    """Why no container of `runtime` can have a user namespace on this machine; empty: they can.

    `folder` is the one of `find_runtime`. Tried until it has worked, and then once a boot.
    """
    memory = folder / "userns.json"
    found = _Found(boot_id, _program(runtime.path), runtime.name, runtime.version)
    if record_files.read(memory, _Found) == found:
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
    """Tells one program at `path` from the next."""
    status = os.stat(path)
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)
