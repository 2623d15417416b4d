"""Freezing a file system: its data is written out and consistent, and writers wait, until it is thawed.

The kernel does not thaw when the process that froze ends. So a guard, a process of its own, holds a
descriptor of the file system and thaws it when the agent closes its pipe, or is killed. A process that waits
for a frozen file system cannot be killed before it is thawed: freezes have to be short. Requires root.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skerry.kit import files
from skerry.model import errors

_FREEZE: Final = 0xC0045877  # FIFREEZE
_THAW: Final = 0xC0045878  # FITHAW
_GUARD_S: Final = 10.0
# Waits for the end of the pipe, then thaws; EINVAL is what it gets if the agent has thawed.
_GUARD: Final = (
    "import fcntl, os, signal, sys\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})\n"
    "os.write(1, b'.')\n"
    "while os.read(0, 1): pass\n"
    "try: fcntl.ioctl(int(sys.argv[1]), int(sys.argv[2]), 0)\n"
    "except OSError: pass\n"
)


@contextlib.contextmanager
def frozen(mount: int) -> Iterator[None]:
    """Freeze the file system of `mount`, a descriptor of its mount, for the block.

    Raises `FailedPrecondition` if it is frozen already, OSError if the kernel refuses, and `Unavailable` if
    somebody else thawed it before the end of the block.
    """
    folder = os.open(f"/proc/self/fd/{mount}/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Freezing writes all that is in memory; what is written before does not hold up the writers.
        files.sync_file_system(Path(f"/proc/self/fd/{folder}"))
        with _guard(folder):
            try:
                fcntl.ioctl(folder, _FREEZE, 0)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    raise errors.FailedPrecondition(
                        "the file system of the volume is frozen by another program; thaw it (fsfreeze -u)"
                    ) from error
                raise
            was_frozen = False
            try:
                yield
            finally:
                was_frozen = _thaw(folder)
            if not was_frozen:
                raise errors.Unavailable(
                    "another program thawed the volume while it was copied, so the copy is useless; try again"
                )
    finally:
        os.close(folder)


def thaw(mount: int) -> bool:
    """Thaw the file system of `mount`; False if it was not frozen."""
    folder = os.open(f"/proc/self/fd/{mount}/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _thaw(folder)
    finally:
        os.close(folder)


def _thaw(folder: int) -> bool:
    try:
        fcntl.ioctl(folder, _THAW, 0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


@contextlib.contextmanager
def _guard(folder: int) -> Iterator[None]:
    """A process that thaws `folder` when this block ends, however it does."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(folder), str(_THAW)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(folder,),
        start_new_session=True,
        cwd="/",
        env={},
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        if guard.stdout.read(1) != b".":
            raise errors.Unavailable("the process that thaws a volume could not be started; try again")
        yield
    finally:
        guard.stdin.close()
        guard.stdout.close()
        try:
            guard.wait(_GUARD_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
