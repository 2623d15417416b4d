"""Workers that run nothing: they take as long as a call says, and as long to start as its function does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from skerry.kit.response_stream import ResponseStream
from skerry.model.calls import CallFailure, CallResult
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.web_calls import WebResponseHead


class FakeWorker:
    """A `skerry.functions.ports.FunctionWorker`; the parameters of a call are the seconds that it takes."""

    id = "pretended"
    runtime = "pretended"
    is_alive = True

    def __init__(self, init_s: float) -> None:
        self.init_s = init_s
        self.start_phases = ()

    async def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> CallResult:
        run_s = float(params)
        if run_s > within_s:
            await asyncio.sleep(within_s)
            return CallResult(within_s, failure=CallFailure.TIMEOUT, error="it took too long")
        await asyncio.sleep(run_s)
        return CallResult(run_s, result=b"null")

    async def call_web(
        self, request: bytes, response: ResponseStream[WebResponseHead], *, within_s: float
    ) -> CallResult:
        return CallResult(0.0, failure=CallFailure.RESULT, error="it takes no HTTP requests")

    def on_end(self, ended: Callable[[], None]) -> None:
        """It never ends by itself."""

    async def close(self) -> None:
        """There is nothing to end."""


class FakeWorkerHost:
    """A `skerry.functions.ports.WorkerHost` that waits for as long as a start takes."""

    def __init__(self, starts_s: Mapping[FunctionName, float]) -> None:
        self._starts_s = starts_s  # by function

    async def spawn(self, function: Function, code: Path | None) -> FakeWorker:
        init_s = self._starts_s[function.name]
        await asyncio.sleep(init_s)
        return FakeWorker(init_s)

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Nothing has to be fetched."""

    def describe(self, runtime_kind: str) -> str:
        return "pretended"


class FakeFunctionLookup:
    """A `skerry.functions.ports.FunctionLookup` of functions that have no code."""

    def __init__(self, functions: Mapping[FunctionName, Function]) -> None:
        self._functions = functions

    def get(self, name: str) -> Function | None:
        return self._functions.get(FunctionName(name))

    def code_folder(self, function: Function) -> Path | None:
        return None
