"""A Skerry of an ordinary user, which is executed: it becomes that user before it starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.ordinary_users import OrdinaryUser
from tests.support.shares import subnet_of
from tests.support.waiting import PATIENCE_S, eventually_sync

_NAMESPACES: Final = "namespaces-of-skerry"


class OrdinarySkerry:
    """The Skerry of a user, in the folder that it chooses by itself, and commands for it."""

    def __init__(self, user: OrdinaryUser, *wrapper: str) -> None:
        """`wrapper` is a command that executes the one that follows it."""
        self.user = user
        self.wrapper = wrapper
        self.log = user.home.parent / "log" if os.geteuid() == 0 else user.home / "log"
        self.data = user.home / ".local" / "share" / "skerry"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str, role: str = "up") -> dict[str, Any]:
        """Start it, and wait until it is ready; its ready file."""
        subnet = f"network.subnet={subnet_of(self.user.home)}"
        own = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--set", subnet)
        flags = (role, *(own if role == "up" else ()), *flags)
        ready = self.data / "ready.json"
        ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = self.user.start(
                *self.wrapper, *self.user.python, "-m", "skerry", *flags, stdout=log, stderr=log
            )

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            return ready.exists()

        eventually_sync(is_ready, within=PATIENCE_S, what="the ready file")
        _record_namespace(self.user)
        document: dict[str, Any] = json.loads(ready.read_text())
        return document

    def cli(self, *arguments: str) -> str:
        """A command of the user, which succeeds; its output."""
        done = self.attempt(*arguments)
        assert done.returncode == 0, (done.stdout, done.stderr, self.log.read_text()[-4000:])
        return done.stdout

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.user.run(*self.user.python, "-m", "skerry", *arguments)

    def file(self, name: str, content: str) -> Path:
        """A file in the user's home."""
        path = self.user.home / name
        path.write_text(content)
        path.chmod(0o644)
        return path

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def processes_of(user: OrdinaryUser) -> list[tuple[int, str]]:
    """What runs as the user, or as one of its ids: pids and names. A test that runs as an ordinary user has
    others beside it that are the same user: for it, what names the home of `user` or is in a namespace of its
    Skerry, and what these have started."""
    running: dict[int, tuple[str, int]] = {}
    own: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
            if fields["State"][0] in "ZX":
                continue
            pid, uid = int(folder.name), int(fields["Uid"].split()[0])
            running[pid] = fields["Name"], int(fields["PPid"])
            if uid == user.uid or uid in user.ids if os.geteuid() == 0 else _is_of(user, folder):
                own.add(pid)
    if os.geteuid() != 0:
        while more := {pid for pid, (_, parent) in running.items() if parent in own} - own:
            own |= more
    return [(pid, running[pid][0]) for pid in sorted(own)]


def _is_of(user: OrdinaryUser, process: Path) -> bool:
    home = os.fsencode(user.home)
    with contextlib.suppress(OSError):
        if home in (process / "cmdline").read_bytes() or home in (process / "environ").read_bytes():
            return True
    with contextlib.suppress(OSError):
        return os.readlink(process / "ns/user") in _namespaces(user)
    return False


def _namespaces(user: OrdinaryUser) -> set[str]:
    """All that a Skerry of the user has had: what is left in one whose holder was killed is its own, too."""
    record = user.home / _NAMESPACES
    return set(record.read_text().split()) if record.exists() else set()


def _record_namespace(user: OrdinaryUser) -> None:
    with contextlib.suppress(FileNotFoundError):
        current = json.loads((user.home / ".local/share/skerry/namespace.json").read_text())
        with (user.home / _NAMESPACES).open("a") as record:
            record.write(current["namespace"] + "\n")


@contextlib.contextmanager
def skerry_of(user: OrdinaryUser, *wrapper: str) -> Iterator[OrdinarySkerry]:
    """Nothing of it is left at the end, whatever the test did."""
    skerry = OrdinarySkerry(user, *wrapper)
    try:
        yield skerry
    finally:
        if skerry.process is not None and skerry.process.poll() is None:
            skerry.kill()
        # Until there are none: a process may be the parent of the next.
        for _ in range(100):
            if not (left := processes_of(user)):
                break
            for pid, _ in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
