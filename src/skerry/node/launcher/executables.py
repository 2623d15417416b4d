"""From a cell's init to a running program: fork, confine, exec.

The child is born in its cgroup and gives up everything it must not have before the program's first
instruction. Whatever fails on the way is told to the init through a pipe that closes by itself when the exec
succeeds, so that a start is known to have worked or to have failed, and at which step.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import termios
from typing import Final, NamedTuple, NoReturn

from skerry.node.launcher import capabilities, kernel

# High enough that the kernel, short of memory, takes any executable of a cell before the cell's init.
_OOM_SCORE: Final = b"500"
_DEFAULT_PATH: Final = b"/usr/local/bin:/usr/bin:/bin"
# The rest of the path is still worth a look after these.
_NOT_HERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


class Program(NamedTuple):
    """What to run, and as whom."""

    arguments: list[bytes]
    environment: dict[bytes, bytes]
    folder: bytes
    uid: int
    gid: int
    capabilities: str  # the name of a set
    open_files: int
    is_trusted: bool  # part of us: root with all that root has


class Forked(NamedTuple):
    """A child on its way to its program."""

    pid: int
    pidfd: int
    status: int  # at its end: the program runs; else an error number and a step


def fork(
    program: Program,
    system_calls: kernel.Filter,
    streams: tuple[int, ...],
    clone_into: int | None,
    procs: list[int],
) -> Forked:
    """Begin to run `program` with `streams` as its standard input, output and error, or only the last two of
    these, held to the filter `system_calls`. Raises StepFailed."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        pid, pidfd = kernel.clone(0, clone_into)
    except BaseException:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        _become(program, system_calls, streams, procs, writing)
    os.close(writing)
    return Forked(pid, pidfd, reading)


def failure(report: bytes) -> kernel.StepFailed | None:
    """What the status pipe held, as an error; None for nothing."""
    if not report:
        return None
    number, _, step = report.partition(b" ")
    return kernel.StepFailed(int(number), step.decode())


def _become(
    program: Program, system_calls: kernel.Filter, streams: tuple[int, ...], procs: list[int], status: int
) -> NoReturn:
    step = "enter cgroup"
    try:
        for group in procs:
            os.write(group, b"0")
        step = "set up process"
        kernel.unblock_signals()
        os.setsid()
        for place, stream in enumerate(streams, start=3 - len(streams)):
            os.dup2(stream, place)
        if len(streams) == 3 and os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that it hears of a terminal that changes its size
        kernel.close_on_exec_from(3)
        os.umask(0o022)
        if program.is_trusted:
            step = "exec"
            _exec(program)
        _write(b"/proc/self/oom_score_adj", _OOM_SCORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        step = "limit open files"
        resource.setrlimit(resource.RLIMIT_NOFILE, (program.open_files, program.open_files))
        step = "drop privileges"
        kept = capabilities.mask_of(program.capabilities) if program.uid == 0 else 0
        capabilities.bound_to(kept)
        os.setresgid(program.gid, program.gid, program.gid)
        os.setresuid(program.uid, program.uid, program.uid)
        if program.uid == 0:  # else they are gone with the user
            kernel.set_capabilities(kept)
        kernel.set_no_new_privileges()
        step = "change folder"
        os.chdir(program.folder)
        step = "filter system calls"
        system_calls.install()
        step = "exec"
        _exec(program)
    except OSError as error:
        os.write(status, b"%d %s" % (error.errno or errno.EIO, step.encode()))
    except BaseException:  # noqa: BLE001 - a child must never come back into the init's loop
        os.write(status, b"%d %s" % (errno.EINVAL, step.encode()))
    os._exit(127)


def _exec(program: Program) -> NoReturn:
    last = FileNotFoundError(errno.ENOENT, "not found")
    for path in candidates(program.arguments[0], program.environment.get(b"PATH", _DEFAULT_PATH)):
        try:
            os.execve(path, program.arguments, program.environment)  # noqa: S606 - no shell is the point
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            if error.errno == errno.EACCES or last.errno != errno.EACCES:
                last = error  # type: ignore[assignment]  # any OSError will do
    raise last


def candidates(name: bytes, path: bytes) -> list[bytes]:
    """Where a program called `name` may be, as a shell would look for it."""
    if b"/" in name:
        return [name]
    return [(folder or b".") + b"/" + name for folder in path.split(b":")]


def _write(path: bytes, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, data)
    finally:
        os.close(file)
