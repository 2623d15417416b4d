"""What a test may not leave behind: open files, threads and child processes."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.forking import fork_server
from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Footprint:
    """What this process holds at one moment."""

    files: frozenset[str]
    threads: frozenset[str]
    children: frozenset[int]

    def beyond(self, before: Footprint) -> list[str]:
        """What is held now and was not `before`, in words."""
        return [
            *(f"open file {name}" for name in sorted(self.files - before.files)),
            *(f"thread {name}" for name in sorted(self.threads - before.threads)),
            *(f"child process {pid}" for pid in sorted(self.children - before.children)),
        ]


def footprint() -> Footprint:
    files = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
        # Caches of the interpreter and of the test tools come and go by themselves.
        if "/proc/" in target or "site-packages" in target or ".hypothesis" in target:
            continue
        files.add(f"{number} -> {target}")
    threads = {
        t.name for t in threading.enumerate() if not t.name.startswith(("asyncio_", "ThreadPoolExecutor"))
    }
    children = children_of("self")
    if fork_server.pid is not None:
        children |= children_of(fork_server.pid)
    return Footprint(frozenset(files), frozenset(threads), frozenset(children))


def children_of(pid: int | str) -> set[int]:
    """The child processes of all threads of a process that lives."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found.update(int(child) for child in (task / "children").read_text().split())
    return found


def assert_nothing_leaked(before: Footprint, *, within: float = PATIENCE_S) -> None:
    """Compare with `before`, giving closing sockets and ending processes a moment."""
    deadline = time.monotonic() + within
    while leaked := footprint().beyond(before):
        if time.monotonic() > deadline:
            raise AssertionError("left behind: " + "; ".join(leaked))
        gc.collect()
        time.sleep(0.02)
