"""Async calls over an invoker that answers when a test says so."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skerry.functions.asynchronous import FILE_NAME, Asynchronous, Invokes
from skerry.functions.results import Polled
from skerry.kit import tasks
from skerry.kit.clock import Clock, ManualClock
from skerry.model.calls import Answer, Ask, Failure, Report
from skerry.model.ids import FunctionName
from skerry.model.settings import FunctionSettings

HELLO = FunctionName("hello")
Begins = Callable[[], Awaitable[None]]


def ask(params: bytes = b"null", function: str = HELLO, **fields: Any) -> Ask:
    return Ask(FunctionName(function), params, **fields)


def answered(result: bytes) -> Report:
    return Report(Answer(0.5, result=result, output="said"), response_s=0.75, queueing_s=0.25, node="here")


def refused(failure: Failure) -> Report:
    return Report(Answer(0.0, failure=failure, error="because"), response_s=0.1)


class Echo:
    """Answers every call with what it was asked, at once."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []

    async def invoke(self, ask: Ask, *, begins: Begins) -> Report:
        await begins()
        self.asked.append(ask)
        return answered(ask.params)


class Patient:
    """Answers a call when it is told to: `outcomes[params]` is what to return or raise."""

    def __init__(self) -> None:
        self.under_way: dict[bytes, asyncio.Future[Report]] = {}
        self.asked: list[Ask] = []

    async def invoke(self, ask: Ask, *, begins: Begins) -> Report:
        await begins()
        self.asked.append(ask)
        future = self.under_way[ask.params] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self.under_way[ask.params]

    def answer(self, params: bytes, outcome: Report | Exception) -> None:
        if isinstance(outcome, Report):
            self.under_way[params].set_result(outcome)
        else:
            self.under_way[params].set_exception(outcome)


class Crowded:
    """Has no worker free for anybody, ever."""

    def __init__(self) -> None:
        self.waiting: list[Ask] = []

    async def invoke(self, ask: Ask, *, begins: Begins) -> Report:
        self.waiting.append(ask)
        return await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def asynchronous(
    folder: Path,
    invoker: Invokes,
    clock: Clock | None = None,
    *,
    is_run: bool = True,
    within_s: float = 5.0,
    **settings: Any,
) -> AsyncIterator[Asynchronous]:
    calls = await Asynchronous.open(folder, invoker, clock or ManualClock(), FunctionSettings(**settings))
    running = asyncio.create_task(calls.run()) if is_run else None
    try:
        yield calls
    finally:
        await tasks.give_up([running] if running else [])
        await calls.close(within_s=within_s)


async def ended(calls: Asynchronous, id: str) -> Polled | None:
    """What is told of it, if it has ended."""
    told = await calls.poll(id)
    assert told is not None
    return told if told.report is not None else None


def as_after_a_kill(folder: Path, copy: Path) -> Path:
    """The file as the next process would find it if this one died now."""
    copy.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy / name)
    return copy
