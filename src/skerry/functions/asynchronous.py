"""Async calls: accepted durably, run once, and their results kept for whoever polls.

A call is on disk before its id is given out, and marked as running before it is run: after a crash those that
waited are run, and those that ran are told as interrupted, because nobody knows how far they came.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from skerry.kit.clock import Clock
from skerry.model.calls import Ask, CallState, Report
from skerry.model.settings import FunctionSettings


class Invokes(Protocol):
    """What runs a call, such as `skerry.functions.invoking.Invoker`."""

    async def invoke(self, ask: Ask) -> Report: ...


class Polled(msgspec.Struct, frozen=True):
    """Where a call is; with its report when it is done or failed."""

    state: CallState
    report: Report | None = None


class Asynchronous:
    """`await Asynchronous.open(...)`, then `run` for ever; `close` last."""

    @classmethod
    async def open(
        cls, folder: Path, invoker: Invokes, clock: Clock, settings: FunctionSettings
    ) -> Asynchronous:
        """With what an earlier process left in `folder`: waiting calls wait, running ones have failed."""
        raise NotImplementedError

    async def accept(self, ask: Ask) -> str:
        """The id of the call, which is durable and can be polled. Raises `Overloaded`.

        Whether there is such a function is for the caller to look: here it fails when it is run.
        """
        raise NotImplementedError

    async def poll(self, id: str) -> Polled | None:
        """How far it is; None if it is not known, or no longer."""
        raise NotImplementedError

    async def run(self) -> None:
        """Run what waits and drop what is too old, for ever."""
        raise NotImplementedError

    async def close(self, *, within_s: float) -> None:
        """Start nothing more; what runs may end within this time, and is interrupted then."""
        raise NotImplementedError
