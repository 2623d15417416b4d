"""Progress of a pull: bars on a terminal, lines elsewhere, JSON for scripts, or nothing.

Bars and lines go to stderr, so that stdout has only the result of a command. `rich` is imported only to draw
bars.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from skerry.cli import message_format
from skerry.cli import output as printing
from skerry.client.errors import NodeError
from skerry.kit import terminal_text

if TYPE_CHECKING:
    from grpclib.client import UnaryStreamMethod
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from skerry.transport.proto.containers_pb2 import CreateItem, LayerProgress, Progress, PullItem

R = TypeVar("R")
Item = TypeVar("Item", bound="PullItem | CreateItem")
PullProgressCallback = Callable[["Progress"], None]

_SHORT: Final = 12


@contextmanager
def show_progress(output: str = "table", *, quiet: bool = False) -> Iterator[PullProgressCallback]:
    """A callback that shows progress as `output` asks."""
    if output == "json":
        yield _as_json
    elif quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        with _bars() as show:
            yield show
    else:
        yield _Lines().show


async def run_with_progress(
    method: UnaryStreamMethod[R, Item], request: R, show: PullProgressCallback
) -> Item:
    """Call `method`, show its progress, and return its last item, the result."""
    async with method.open() as stream:
        await stream.send_message(request, end=True)
        async for item in stream:
            if not item.HasField("progress"):
                return item
            show(item.progress)
    raise NodeError("The node ended the call without a result; try again.", "UNKNOWN")


def short(digest: str) -> str:
    """The first characters of a digest or id."""
    return digest.removeprefix("sha256:")[:_SHORT]


def _as_json(progress: Progress) -> None:
    printing.as_json_line({"progress": message_format.message_to_dict(progress)})


class _Lines:
    """A line whenever the state of a layer changes."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def show(self, progress: Progress) -> None:
        if not progress.layers:
            self._print(progress.reference, progress.message)
        for layer in progress.layers:
            self._print(f"layer {short(layer.digest)}", layer.state, _amount(layer))

    def _print(self, what: str, state: str, more: str = "") -> None:
        if self._shown.get(what) != state:
            self._shown[what] = state
            click.echo(f"{what}: {state}{more}", err=True)


def _amount(layer: LayerProgress) -> str:
    return f", {printing.size(layer.total)}" if layer.total and layer.state == "pulling" else ""


@contextmanager
def _bars() -> Iterator[PullProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[state]:9}", markup=False),
        BarColumn(),
    )
    console = Console(file=terminal_text.unfiltered(sys.stderr))
    with Progress(
        *columns,
        DownloadColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,  # what else is printed would go around the filter
        redirect_stderr=False,
    ) as bars:
        drawn = _Drawn(bars)
        yield drawn.show


class _Drawn:
    """A line for the image, and a bar for each layer."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._last_message = ""

    def show(self, progress: Progress) -> None:
        if not progress.layers and progress.message != self._last_message:
            self._last_message = progress.message
            self._bars.console.print(terminal_text.visible(progress.message), markup=False, highlight=False)
        for layer in progress.layers:
            self._update(layer.digest, **_drawn(layer))

    def _update(self, digest: str, **fields: Any) -> None:
        if digest not in self._tasks:
            self._tasks[digest] = self._bars.add_task(terminal_text.visible(short(digest)), **fields)
        else:
            self._bars.update(self._tasks[digest], **fields)


def _drawn(layer: LayerProgress) -> dict[str, Any]:
    is_whole = layer.state in ("done", "present")
    total = layer.total or (layer.bytes if is_whole else None)
    return {
        "total": total,
        "completed": total if is_whole else layer.bytes,
        "state": terminal_text.visible(layer.state),
    }
