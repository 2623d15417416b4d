"""From a cell's init to a running program: what the new process does before it is one.

It is born in its cgroup and gives up everything it must not have before the program's first instruction, as a
script (`skerry.node.launcher.child.syscall_scripts`) that either works to its end or tells which step did
not.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import termios
from typing import Final, NamedTuple

from skerry.node.kernel import syscalls
from skerry.node.launcher.child import capabilities
from skerry.node.launcher.child.syscall_scripts import SyscallScript

# High enough that the kernel, short of memory, takes any executable of a cell before the cell's init.
_OOM_SCORE: Final = b"500"
_DEFAULT_PATH: Final = b"/usr/local/bin:/usr/bin:/bin"
_AT_FDCWD: Final = -100
_LIMIT: Final = struct.Struct("=QQ")
_NO_SIGNALS: Final = bytes(8)
_BARRIER: Final = "wait for the agent"
FIRST_KEPT: Final = 3


class ProgramSpec(NamedTuple):
    """What to run, and as whom."""

    arguments: list[bytes]  # none: the process goes on in Python
    environment: dict[bytes, bytes]
    folder: bytes
    uid: int
    gid: int
    capabilities: str  # the name of a set
    open_files: int
    is_trusted: bool  # part of us: root with all that root has


def script(
    program: ProgramSpec,
    system_calls: syscalls.SeccompFilter,
    streams: tuple[int, ...],
    procs: list[int],
    kept: list[int],
    barrier: int | None = None,
) -> SyscallScript:
    """Run `program` with `streams` as its standard input, output and error, or only the last two of these,
    held to the filter `system_calls`, in the groups whose files are open as `procs`. `kept`, each above
    `FIRST_KEPT` and their count, are the only other descriptors it has, from that number on. With a
    `barrier` it waits there before the program (`skerry.node.launcher.exec_barriers`)."""
    made = SyscallScript()
    for group in procs:
        made.call("enter cgroup", "write", group, b"0", 1)
    if not program.is_trusted:
        # In its groups already: these, and not the host's, are the root of what it is told of cgroups.
        made.call("enter cgroup namespace", "unshare", syscalls.CLONE_NEWCGROUP)
    made.call("set up process", "setsid")
    for place, stream in enumerate(streams, start=3 - len(streams)):
        made.call("set up process", "dup3", stream, place, 0)
    if len(streams) == 3 and os.isatty(streams[0]):
        made.call("set up process", "ioctl", 0, termios.TIOCSCTTY, 0)  # to hear of changes of its size
    for place, descriptor in enumerate(kept, start=FIRST_KEPT):
        made.call("set up process", "dup3", descriptor, place, 0)
    free = FIRST_KEPT + len(kept)
    if barrier is not None:
        made.call("set up process", "dup3", barrier, free, os.O_CLOEXEC)
        barrier, free = free, free + 1
    made.call("set up process", "close_range", free, syscalls.ALL, 0)
    made.call("set up process", "umask", 0o022)
    if not program.is_trusted:
        _confine(made, program, system_calls, free)
    made.call("set up process", "rt_sigprocmask", signal.SIG_SETMASK, _NO_SIGNALS, 0, len(_NO_SIGNALS))
    if barrier is not None:
        _wait(made, barrier)
    if program.arguments:
        paths = candidates(program.arguments[0], program.environment.get(b"PATH", _DEFAULT_PATH))
        made.exec(paths, program.arguments, program.environment)
    return made


def _confine(
    made: SyscallScript, program: ProgramSpec, system_calls: syscalls.SeccompFilter, score: int
) -> None:
    """`score` is the first number that no descriptor has, and so what an open gives."""
    made.call("set up process", "openat", _AT_FDCWD, b"/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    made.call("set up process", "write", score, _OOM_SCORE, len(_OOM_SCORE))
    made.call("set up process", "prlimit64", 0, resource.RLIMIT_CORE, _LIMIT.pack(0, 0), 0)
    files = _LIMIT.pack(program.open_files, program.open_files)
    made.call("limit open files", "prlimit64", 0, resource.RLIMIT_NOFILE, files, 0)
    kept = capabilities.mask_of(program.capabilities) if program.uid == 0 else 0
    for number in capabilities.out_of(kept):
        made.call("drop privileges", "prctl", syscalls.PR_CAPBSET_DROP, number, 0, 0, 0)
    made.call("drop privileges", "setresgid", program.gid, program.gid, program.gid)
    made.call("drop privileges", "setresuid", program.uid, program.uid, program.uid)
    if program.uid == 0:  # else they are gone with the user
        made.call("drop privileges", "capset", syscalls.CAPABILITY_HEADER, syscalls.capability_sets(kept))
    made.call("drop privileges", "prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    made.call("change folder", "chdir", program.folder)
    made.call(
        "filter system calls",
        "prctl",
        syscalls.PR_SET_SECCOMP,
        syscalls.SECCOMP_MODE_FILTER,
        system_calls.address,
        0,
        0,
    )


def _wait(made: SyscallScript, barrier: int) -> None:
    made.call(_BARRIER, "sendto", barrier, b"1", 1, socket.MSG_NOSIGNAL, 0)
    made.call(_BARRIER, "read", barrier, bytes(1), 1)
    # The read also ends, with nothing, if the agent has closed the barrier or is dead: then this fails.
    made.call(_BARRIER, "sendto", barrier, b"1", 1, socket.MSG_NOSIGNAL, 0)


def candidates(name: bytes, path: bytes) -> list[bytes]:
    """Where a program called `name` may be, as a shell would look for it."""
    if b"/" in name:
        return [name]
    return [(folder or b".") + b"/" + name for folder in path.split(b":")]
