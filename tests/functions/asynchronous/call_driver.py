"""What the crash test of async calls kills, forked from a warm parent.

`python -m tests.functions.asynchronous.call_driver FOLDER`: for every line on standard input it forks a child
that prints `pid PID`, and then `ack ID NUMBER` for every call that was accepted, until it is killed; the
parent then prints `done`. A call notes in FOLDER/ran that it is run, and returns its number.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import structlog

from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.kit.clock import SystemClock
from skerry.model.calls import CallReport, CallRequest
from skerry.model.settings import FunctionSettings
from tests.functions.asynchronous.callers import Begins, answered, ask

CALLERS = 16


class Noting:
    """Answers with what it was asked, and writes down that it was."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    async def invoke(self, ask: CallRequest, *, begins: Begins) -> CallReport:
        await begins()
        os.write(self.file, ask.params + b"\n")
        await asyncio.sleep(0)
        return answered(ask.params)


async def call_for_ever(folder: Path) -> None:
    calls = await AsyncCallRunner(folder, Noting(folder / "ran"), SystemClock(), FunctionSettings()).open()

    async def call(caller: int) -> None:
        number = 0
        while True:
            number += 1
            params = b"%d%06d%06d" % (os.getpid(), caller, number)
            id = await calls.accept(ask(params))
            os.write(1, b"ack %s %s\n" % (id.encode(), params))

    await asyncio.gather(calls.run(), *(call(caller) for caller in range(CALLERS)))


def main(folder: Path) -> None:
    for _ in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            os.write(1, b"pid %d\n" % os.getpid())
            asyncio.run(call_for_ever(folder))
        os.waitpid(pid, 0)
        os.write(1, b"done\n")


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    main(Path(sys.argv[1]))
