"""What a new process of a cell does between fork and exec.

It starts in its cgroup and drops everything it must not have before the program's first instruction, as a
script (`skerry.node.launcher.child.syscall_scripts`) that either completes or reports which step failed.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import termios
from typing import Final, NamedTuple

from skerry.node.kernel import mount_flags, syscalls
from skerry.node.kernel.process_marks import TAG_LIMIT, ProcessMarks
from skerry.node.launcher.child import capabilities
from skerry.node.launcher.child.syscall_scripts import SyscallScript

# So high that the OOM killer chooses any executable of a cell before the cell's init.
_OOM_SCORE: Final = b"500"
_DEFAULT_PATH: Final = b"/usr/local/bin:/usr/bin:/bin"
_AT_FDCWD: Final = -100
_LIMIT: Final = struct.Struct("=QQ")
_NO_SIGNALS: Final = bytes(8)
_BARRIER: Final = "wait for the agent"
FIRST_PASSED: Final = 3
_CELL_NAMESPACES: Final = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
)


class ProgramSpec(NamedTuple):
    """What to run, and as which user."""

    arguments: list[bytes]  # empty: the process continues in Python
    environment: dict[bytes, bytes]
    folder: bytes
    uid: int
    gid: int
    capabilities: str  # the name of a set
    open_files: int
    is_trusted: bool  # Skerry's own: root with all privileges
    marks: ProcessMarks | None = None  # where there are no cgroups
    is_isolated: bool = True  # else there are no namespaces, and no privileges by which to change its user
    # Paths of a mount namespace, and of a descriptor of a mount, and where that is to be mounted in a copy.
    mounts: tuple[bytes, ...] | None = None


def script(
    program: ProgramSpec,
    system_calls: syscalls.SeccompFilter,
    streams: tuple[int, ...],
    procs: list[int],
    passed: list[int],
    barrier: int | None = None,
    namespaces: int | None = None,
) -> SyscallScript:
    """Run `program` with `streams` as its stdin, stdout and stderr, or only the last two of these, under the
    seccomp filter `system_calls`, in the groups whose files are open as `procs`. Its only other descriptors
    are `passed`, which must be above `FIRST_PASSED` plus their count, renumbered from `FIRST_PASSED` on. With
    a `barrier` it waits there before the program (`skerry.node.launcher.exec_barriers`). `namespaces` is a
    pidfd of the process whose namespaces it enters, except for that of processes, with /dev/null as stdin."""
    calls = SyscallScript()
    for group in procs:
        calls.call("enter cgroup", "write", group, b"0", 1)
    if namespaces is not None:
        calls.call("enter cell", "setns", namespaces, _CELL_NAMESPACES)
    if program.marks is not None:
        _mark(calls, program.marks)
    if not program.is_trusted and program.is_isolated:
        # In its groups already: these, and not the host's, are the root of its cgroup namespace.
        calls.call("enter cgroup namespace", "unshare", syscalls.CLONE_NEWCGROUP)
    calls.call("set up process", "setsid")
    for number, stream in enumerate(streams, start=3 - len(streams)):
        calls.call("set up process", "dup3", stream, number, 0)
    if len(streams) == 3 and os.isatty(streams[0]):
        calls.call("set up process", "ioctl", 0, termios.TIOCSCTTY, 0)  # for SIGWINCH
    for number, descriptor in enumerate(passed, start=FIRST_PASSED):
        calls.call("set up process", "dup3", descriptor, number, 0)
    free = FIRST_PASSED + len(passed)
    if barrier is not None:
        calls.call("set up process", "dup3", barrier, free, os.O_CLOEXEC)
        barrier, free = free, free + 1
    calls.call("set up process", "close_range", free, syscalls.ALL, 0)
    if namespaces is not None:
        calls.call("set up process", "openat", _AT_FDCWD, b"/dev/null", os.O_RDWR | os.O_CLOEXEC)
        calls.call("set up process", "dup3", free, 0, 0)
        calls.call("set up process", "close", free)
    if program.mounts is not None:
        _enter_mounts(calls, *program.mounts, free=free)
    calls.call("set up process", "umask", 0o022)
    if not program.is_trusted:
        _confine(calls, program, system_calls, free)
    calls.call("set up process", "rt_sigprocmask", signal.SIG_SETMASK, _NO_SIGNALS, 0, len(_NO_SIGNALS))
    if barrier is not None:
        _wait(calls, barrier)
    if program.arguments:
        paths = candidates(program.arguments[0], program.environment.get(b"PATH", _DEFAULT_PATH))
        calls.exec(paths, program.arguments, program.environment)
    return calls


def _mark(calls: SyscallScript, marks: ProcessMarks) -> None:
    if marks.tag:
        calls.call("mark process", "prlimit64", 0, TAG_LIMIT, _LIMIT.pack(marks.tag, marks.tag), 0)
    if marks.processes:
        most = _LIMIT.pack(marks.processes, marks.processes)
        calls.call("limit processes", "prlimit64", 0, resource.RLIMIT_NPROC, most, 0)
    if marks.niceness:
        calls.call("set priority", "setpriority", os.PRIO_PROCESS, 0, marks.niceness)
    if marks.cpus:
        mask = sum(1 << cpu for cpu in marks.cpus).to_bytes(marks.cpus[-1] // 64 * 8 + 8, "little")
        calls.call("choose cpus", "sched_setaffinity", 0, len(mask), mask)


def _enter_mounts(
    calls: SyscallScript, namespace: bytes, mounted: bytes, target: bytes, *, free: int
) -> None:
    """`free` is the lowest free descriptor."""
    calls.call("enter mounts", "openat", _AT_FDCWD, namespace, os.O_RDONLY | os.O_CLOEXEC)
    calls.call("enter mounts", "openat", _AT_FDCWD, mounted, os.O_PATH | os.O_CLOEXEC)
    calls.call("enter mounts", "setns", free, syscalls.CLONE_NEWNS)
    calls.call("enter mounts", "unshare", syscalls.CLONE_NEWNS)
    calls.call(
        "mount root", "move_mount", free + 1, b"", _AT_FDCWD, target, mount_flags.MOVE_MOUNT_F_EMPTY_PATH
    )


def _confine(
    calls: SyscallScript, program: ProgramSpec, system_calls: syscalls.SeccompFilter, score: int
) -> None:
    """`score` is the lowest free descriptor, and so what an open returns."""
    calls.call("set up process", "openat", _AT_FDCWD, b"/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    calls.call("set up process", "write", score, _OOM_SCORE, len(_OOM_SCORE))
    calls.call("set up process", "prlimit64", 0, resource.RLIMIT_CORE, _LIMIT.pack(0, 0), 0)
    files = _LIMIT.pack(program.open_files, program.open_files)
    calls.call("limit open files", "prlimit64", 0, resource.RLIMIT_NOFILE, files, 0)
    can_retain = program.uid == 0 and program.is_isolated
    retained = capabilities.mask_of(program.capabilities) if can_retain else 0
    # Without isolation this may be an ordinary user, who has none, and gets none as no_new_privs is set.
    for number in capabilities.out_of(retained) if program.is_isolated else ():
        calls.call("drop privileges", "prctl", syscalls.PR_CAPBSET_DROP, number, 0, 0, 0)
    calls.call("drop privileges", "setresgid", program.gid, program.gid, program.gid)
    calls.call("drop privileges", "setresuid", program.uid, program.uid, program.uid)
    if program.uid == 0 or not program.is_isolated:  # else they are dropped with the user
        calls.call(
            "drop privileges", "capset", syscalls.CAPABILITY_HEADER, syscalls.capability_sets(retained)
        )
    calls.call("drop privileges", "prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    calls.call("change folder", "chdir", program.folder)
    calls.call(
        "filter system calls",
        "prctl",
        syscalls.PR_SET_SECCOMP,
        syscalls.SECCOMP_MODE_FILTER,
        system_calls.address,
        0,
        0,
    )


def _wait(calls: SyscallScript, barrier: int) -> None:
    calls.call(_BARRIER, "sendto", barrier, b"1", 1, socket.MSG_NOSIGNAL, 0)
    calls.call(_BARRIER, "read", barrier, bytes(1), 1)
    # The read also returns, with nothing, if the agent has closed the barrier or is dead: then this fails.
    calls.call(_BARRIER, "sendto", barrier, b"1", 1, socket.MSG_NOSIGNAL, 0)


def candidates(name: bytes, path: bytes) -> list[bytes]:
    """Paths at which a program called `name` may be, by the rules of a shell."""
    if b"/" in name:
        return [name]
    return [(folder or b".") + b"/" + name for folder in path.split(b":")]
