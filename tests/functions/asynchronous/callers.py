"""Async calls over an invoker that answers when a test says so."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.runner import FILE_NAME, AsyncCallRunner, CallRunner
from skerry.kit import tasks
from skerry.kit.clock import Clock, ManualClock
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult
from skerry.model.ids import FunctionName
from skerry.model.settings import FunctionSettings

HELLO = FunctionName("hello")
Begins = Callable[[], Awaitable[None]]


def ask(params: bytes = b"null", function: str = HELLO, **fields: Any) -> CallRequest:
    return CallRequest(FunctionName(function), params, **fields)


def answered(result: bytes) -> CallReport:
    return CallReport(
        CallResult(0.5, result=result, output="said"), response_s=0.75, queueing_s=0.25, node="here"
    )


def refused(failure: CallFailure) -> CallReport:
    return CallReport(CallResult(0.0, failure=failure, error="because"), response_s=0.1)


class Echo:
    """Answers every call with what it was asked, at once."""

    def __init__(self) -> None:
        self.asked: list[CallRequest] = []

    async def invoke(self, ask: CallRequest, *, begins: Begins) -> CallReport:
        await begins()
        self.asked.append(ask)
        return answered(ask.params)


class Patient:
    """Answers a call when it is told to: `outcomes[params]` is what to return or raise."""

    def __init__(self) -> None:
        self.under_way: dict[bytes, asyncio.Future[CallReport]] = {}
        self.asked: list[CallRequest] = []

    async def invoke(self, ask: CallRequest, *, begins: Begins) -> CallReport:
        await begins()
        self.asked.append(ask)
        future = self.under_way[ask.params] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self.under_way[ask.params]

    def answer(self, params: bytes, outcome: CallReport | Exception) -> None:
        if isinstance(outcome, CallReport):
            self.under_way[params].set_result(outcome)
        else:
            self.under_way[params].set_exception(outcome)


class Crowded:
    """Has no worker free for anybody, ever."""

    def __init__(self) -> None:
        self.waiting: list[CallRequest] = []

    async def invoke(self, ask: CallRequest, *, begins: Begins) -> CallReport:
        self.waiting.append(ask)
        return await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def asynchronous(
    folder: Path,
    invoker: CallRunner,
    clock: Clock | None = None,
    *,
    is_run: bool = True,
    within_s: float = 5.0,
    **settings: Any,
) -> AsyncIterator[AsyncCallRunner]:
    calls = await AsyncCallRunner(
        folder, invoker, clock or ManualClock(), FunctionSettings(**settings)
    ).open()
    running = asyncio.create_task(calls.run()) if is_run else None
    try:
        yield calls
    finally:
        await tasks.cancel_and_wait([running] if running else [])
        await calls.close(within_s=within_s)


async def ended(calls: AsyncCallRunner, id: str) -> AsyncCallResult | None:
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
