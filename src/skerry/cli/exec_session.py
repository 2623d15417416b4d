"""A remote program attached to our standard streams or to our terminal.

Used by `exec` of containers and of instances; the transport is in `exec_streams`. Nothing is buffered: output
that we cannot write blocks the program, and input that it does not read blocks us.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NamedTuple, Protocol

import click

from skerry.cli import container_options, log_output, signal_handler
from skerry.cli import terminal as cli_terminal
from skerry.cli.options import option_object, without_dashes
from skerry.kit.fd_readiness import wait_readable

_INPUT: Final = 0
_CHUNK: Final = 32 * 1024

OUTPUT: Final = 1
ERRORS: Final = 2


class OutputChunk(NamedTuple):
    """A piece of stdout or stderr of the program."""

    descriptor: int
    data: bytes


class ExecStream(Protocol):
    """A stream to a program. Several tasks may send, one may receive."""

    async def receive(self) -> OutputChunk | int:
        """The next output, or last the exit code; raises `ClickException` if the stream breaks."""

    async def put_in(self, data: bytes) -> None:
        """More of its input."""

    async def end_input(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def signal(self, number: int) -> None: ...


class ExecCommand(NamedTuple):
    """The command to run, and how it is attached."""

    arguments: tuple[str, ...]
    environment: list[str]
    user: str
    folder: str
    terminal: bool
    takes_input: bool

    def size(self) -> tuple[int, int]:
        """Rows and columns of its terminal; 0 and 0 if it has none."""
        return cli_terminal.size(_INPUT) if self.terminal else (0, 0)


def _program(
    arguments: tuple[str, ...],
    interactive: bool,
    tty: bool,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    user: str,
    workdir: str,
) -> ExecCommand:
    if tty and interactive and not os.isatty(_INPUT):
        raise click.UsageError("Standard input is not a terminal; leave out -t.")
    return ExecCommand(
        arguments,
        container_options.variables(env, env_file),
        user,
        workdir,
        terminal=tty,
        takes_input=interactive,
    )


# They arrive together as `program`.
options = option_object(
    "program",
    _program,
    click.argument(
        "arguments",
        metavar="[--] COMMAND...",
        nargs=-1,
        required=True,
        type=click.UNPROCESSED,
        callback=without_dashes,
    ),
    click.option("-i", "--interactive", is_flag=True, help="Keep stdin open."),
    click.option("-t", "--tty", is_flag=True, help="Allocate a terminal."),
    container_options.environment,
    click.option("-u", "--user", metavar="USER", default="", help="User.  [default: the container's]"),
    click.option(
        "-w", "--workdir", metavar="DIR", default="", help="Working directory.  [default: the container's]"
    ),
)


async def run_exec_session(
    line: ExecStream, program: ExecCommand, signals: signal_handler.SignalHandler
) -> int:
    """Copy input, output, sizes and signals until the program has ended, and return its exit code.

    The first signal is sent to the program; the next ends this command.
    """
    has_our_terminal = program.terminal and program.takes_input
    with cli_terminal.raw(_INPUT) if has_our_terminal else nullcontext():
        beside = [asyncio.ensure_future(_pass_signal(line, signals))]
        if program.takes_input:
            beside.append(asyncio.ensure_future(_pass_input(line)))
        if program.terminal:
            beside.append(asyncio.ensure_future(_pass_sizes(line)))
        shown = asyncio.ensure_future(_show(line))
        pending: set[asyncio.Future[Any]] = {shown, *beside}
        try:
            while not shown.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if shown not in done:
                    for task in done:
                        task.result()
            return shown.result()
        finally:
            for task in (shown, *beside):
                task.cancel()
            await asyncio.gather(shown, *beside, return_exceptions=True)


async def _show(line: ExecStream) -> int:
    """Write the output, and return the exit code."""
    sinks = {
        OUTPUT: log_output.DescriptorWriter(OUTPUT, is_raw=True),
        ERRORS: log_output.DescriptorWriter(ERRORS, is_raw=True),
    }
    while not isinstance(said := await line.receive(), int):
        await sinks[said.descriptor].write(said.data)
    return said


async def _pass_input(line: ExecStream) -> None:
    while True:
        await wait_readable(_INPUT)
        if not (data := _read()):
            break
        await line.put_in(data)
    await line.end_input()


async def _pass_sizes(line: ExecStream) -> None:
    with _told_of_sizes() as changed:
        while True:
            await changed.wait()
            changed.clear()
            await line.resize(*cli_terminal.size(_INPUT))


async def _pass_signal(line: ExecStream, signals: signal_handler.SignalHandler) -> None:
    await line.signal(await signals.first)


def _read() -> bytes:
    try:
        return os.read(_INPUT, _CHUNK)
    except OSError:
        return b""  # our terminal is gone, or there never was an input


@contextmanager
def _told_of_sizes() -> Iterator[asyncio.Event]:
    """Set whenever the size of our terminal changes."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        yield changed
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
