"""Signals that end a command while it waits for something on the node."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalHandler:
    """The first signal is the result of `first`; each further one cancels the task."""

    def __enter__(self) -> SignalHandler:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[int] = loop.create_future()
        self._task = asyncio.current_task()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _take(self, number: int) -> None:
        if not self.first.done():
            self.first.set_result(number)
        elif self._task is not None:
            self._task.cancel()
