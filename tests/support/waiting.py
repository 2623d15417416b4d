"""Waiting for a condition instead of sleeping: the only place in the tests that sleeps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

_STEP_S = 0.01
# Who asks a whole program works it: the longer a wait is, the less often it is asked.
_SHARE, _LONGEST_STEP_S = 0.05, 0.05
# More than any of it takes: a busy machine says nothing about the code, and what never comes fails anyway.
PATIENCE_S = 60.0


async def eventually(
    condition: Callable[[], Any | Awaitable[Any]], *, within: float = PATIENCE_S, what: str = ""
) -> Any:
    """The first true value of `condition`, asked again until `within` seconds are over."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or inspect.getsource(condition).strip()}")
        await asyncio.sleep(_STEP_S)


def eventually_sync(condition: Callable[[], Any], *, within: float = PATIENCE_S, what: str = "") -> Any:
    """`eventually` for tests without an event loop."""
    begin = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begin
        if waited > within:
            raise AssertionError(f"not within {within} s: {what or inspect.getsource(condition).strip()}")
        time.sleep(max(_STEP_S, min(waited * _SHARE, _LONGEST_STEP_S)))
    return value
