"""The life of async calls, whatever happens in whatever order: kills, stops and the passing of time."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import hypothesis.strategies as some
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.kit import tasks
from skerry.kit.clock import ManualClock
from skerry.model.calls import CallFailure, CallState
from skerry.model.settings import FunctionSettings
from tests.functions.asynchronous.callers import Patient, answered, as_after_a_kill, ask, refused
from tests.support.waiting import eventually

T = TypeVar("T")
TTL_S = 100.0
SETTINGS = FunctionSettings(queue_length=8, result_ttl_s=TTL_S)  # two run at once


@dataclass
class Expected:
    """What a call must be told as."""

    params: bytes
    state: CallState | None = CallState.QUEUED
    failure: CallFailure | None = None
    at: float = 0.0  # when it ended, or expired


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.scratch = tempfile.TemporaryDirectory()
        self.folders = (Path(self.scratch.name, str(number)) for number in itertools.count())
        self.folder = next(self.folders)
        self.folder.mkdir()
        self.clock = ManualClock()
        self.invoker = Patient()
        self.calls: dict[str, Expected] = {}
        self.numbers = itertools.count()
        self.run(self.open())

    def run(self, steps: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(steps)

    async def open(self) -> None:
        self.asynchronous = await AsyncCallRunner(self.folder, self.invoker, self.clock, SETTINGS).open()
        self.running = asyncio.create_task(self.asynchronous.run())
        await self.settle()

    async def close(self) -> None:
        await tasks.cancel_and_wait([self.running])
        await self.asynchronous.close(within_s=0)

    def of(self, *states: CallState) -> list[Expected]:
        return [one for one in self.calls.values() if one.state in states]

    async def settle(self) -> None:
        """Wait until as many run as may, which are the oldest; then everything must be told as it is."""
        waiting = self.of(CallState.QUEUED, CallState.RUNNING)
        for one in waiting[:2]:
            one.state = CallState.RUNNING
        running = {one.params for one in waiting[:2]}
        await eventually(lambda: self.invoker.under_way.keys() == running)
        for id, expected in self.calls.items():
            await eventually(lambda id=id, expected=expected: self.is_told(id, expected))

    async def is_told(self, id: str, expected: Expected) -> bool:
        told = await self.asynchronous.poll(id)
        if told is None or told.report is None:
            return (told and told.state) == expected.state
        answer = told.report.answer
        assert answer.result == (b"" if expected.failure else expected.params)
        return (told.state, answer.failure) == (expected.state, expected.failure)

    @rule()
    def accept(self) -> None:
        params = b"%d" % next(self.numbers)
        id = self.run(self.asynchronous.accept(ask(params)))
        assert id not in self.calls
        self.calls[id] = Expected(params)
        self.run(self.settle())

    @precondition(lambda self: self.invoker.under_way)
    @rule(which=some.integers(0, 1), failure=some.sampled_from([None, CallFailure.HANDLER]))
    def answer(self, which: int, failure: CallFailure | None) -> None:
        running = self.of(CallState.RUNNING)
        one = running[which % len(running)]
        self.invoker.answer(one.params, refused(failure) if failure else answered(one.params))
        self.end(one, failure)
        self.run(self.settle())

    @rule()
    def kill(self) -> None:
        folder = as_after_a_kill(self.folder, next(self.folders))
        self.run(self.close())
        self.folder = folder
        self.interrupt()

    @rule()
    def stop(self) -> None:
        self.run(self.close())
        self.interrupt()

    @rule(seconds=some.sampled_from([1.0, TTL_S / 2, TTL_S]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.now()
        for one in self.calls.values():
            if one.at + TTL_S <= now:
                if one.state is CallState.EXPIRED:
                    one.state = None
                elif one.state in (CallState.DONE, CallState.FAILED):
                    one.state, one.at = CallState.EXPIRED, now
        self.run(self.asynchronous.sweep())
        self.run(self.settle())

    def interrupt(self) -> None:
        for one in self.of(CallState.RUNNING):
            self.end(one, CallFailure.INTERRUPTED)
        self.run(self.open())

    def end(self, one: Expected, failure: CallFailure | None) -> None:
        one.state = CallState.FAILED if failure else CallState.DONE
        one.failure, one.at = failure, self.clock.now()

    def teardown(self) -> None:
        self.run(self.close())
        self.runner.close()
        self.scratch.cleanup()
        ran = [one.params for one in self.invoker.asked]
        assert len(ran) == len(set(ran)), "a call was run twice"


TestLives = Lives.TestCase
TestLives.settings = hypothesis.settings(max_examples=12, stateful_step_count=15)
