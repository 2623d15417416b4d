"""The workers of functions on this node: made from stock, called, and gone without a trace.

`skerry.functions` decides how many there are and who is called; it knows this as its host. A worker is a
process in a cell of its own, `functions/w<id>`, below a cell that holds all of them to the node's pool. No
worker outlives the agent that made it: its socket closes and it ends, and the next agent frees what is left
of its cell. Nothing here knows a contract or keeps a function.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from skerry.kit.clock import Clock
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.settings import FunctionSettings
from skerry.node.cells.cells import Cells
from skerry.node.network.network import Network


class Workers:
    """Makes workers of the runtimes `python` and `nodejs`."""

    @classmethod
    async def open(
        cls,
        cells: Cells,
        network: Network | str,
        settings: FunctionSettings,
        clock: Clock,
        folder: Path,
        *,
        memory_mb: int,
        kind_of: Callable[[str], str],
    ) -> Workers:
        """Free what an earlier agent left, and begin.

        `network` is that of the containers, or why there is none, in words. `folder` keeps what functions
        print; `memory_mb` is what all workers may have together; `kind_of` tells a runtime's kind by its name.
        """
        raise NotImplementedError

    async def spawn(self, function: Function, code: Path | None) -> object:
        """A worker that has loaded the function. Raises LoadFailed, NoRoom, Unavailable; whatever was begun is
        undone then, and also if the caller is cancelled."""
        raise NotImplementedError

    async def prepare(self, function: Function, *, force: bool) -> None:
        """What a cold start of the function would need, made ahead. Raises Unavailable."""
        raise NotImplementedError

    def describe(self, kind: str) -> str:
        """What really runs, such as `Python 3.11.2`. Raises Unavailable, with why it cannot be had here."""
        raise NotImplementedError

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[object, None]:
        """What the workers of a function have printed, in the order of time: `LogLine`s."""
        raise NotImplementedError

    def forget(self, name: FunctionName) -> None:
        """Drop what is kept of a function that is gone."""

    async def run(self) -> None:
        """Keep the stock filled and the logs within their bound, for ever."""

    async def close(self) -> None:
        """End every worker, free all cells, and leave nothing but the logs."""
