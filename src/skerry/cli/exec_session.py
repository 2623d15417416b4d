"""A remote program attached to our standard streams or to our terminal.

Used by `exec` of containers and of instances; the transport is in
`skerry.client.exec_streams`. Nothing is buffered: output
that we cannot write blocks the program, and input that it does not read blocks us.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Final

import click

from skerry.cli import container_options, log_output, terminal
from skerry.cli.options import option_object, without_dashes
from skerry.cli.signal_handler import SignalHandler
from skerry.client.exec_streams import ERRORS, OUTPUT, ExecCommand, ExecStream
from skerry.kit.fd_readiness import wait_readable

_INPUT: Final = 0
_CHUNK: Final = 32 * 1024


def _command(
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
        tty,
        interactive,
        *(terminal.size(_INPUT) if tty else (0, 0)),
    )


# A command gets them as `command`.
options = option_object(
    "command",
    _command,
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


async def execute(opening: AbstractAsyncContextManager[ExecStream], command: ExecCommand) -> int:
    """Run `command` over the stream that `opening` opens, and return its exit code.

    Input, output, sizes and signals are copied until the program has ended. The first signal is sent to the
    program; the next ends this command.
    """
    code: int | None = None
    has_our_terminal = command.terminal and command.takes_input
    with SignalHandler() as signals:
        try:
            async with opening as stream:
                with terminal.raw(_INPUT) if has_our_terminal else nullcontext():
                    code = await _run(stream, command, signals)
        except Exception:
            if code is None:
                raise
    assert code is not None
    return code


async def _run(stream: ExecStream, command: ExecCommand, signals: SignalHandler) -> int:
    beside = [asyncio.ensure_future(_pass_signal(stream, signals))]
    if command.takes_input:
        beside.append(asyncio.ensure_future(_pass_input(stream)))
    if command.terminal:
        beside.append(asyncio.ensure_future(_pass_sizes(stream)))
    shown = asyncio.ensure_future(_show(stream, has_terminal=command.terminal))
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


async def _show(stream: ExecStream, *, has_terminal: bool) -> int:
    """Write the output, and return the exit code. Only a program that has our terminal may control it."""
    sinks = {each: log_output.DescriptorWriter(each, is_raw=has_terminal) for each in (OUTPUT, ERRORS)}
    while not isinstance(received := await stream.receive(), int):
        await sinks[received.descriptor].write(received.data)
    return received


async def _pass_input(stream: ExecStream) -> None:
    while True:
        await wait_readable(_INPUT)
        if not (data := _read()):
            break
        await stream.send_input(data)
    await stream.end_input()


async def _pass_sizes(stream: ExecStream) -> None:
    with _size_changes() as changed:
        while True:
            await changed.wait()
            changed.clear()
            await stream.resize(*terminal.size(_INPUT))


async def _pass_signal(stream: ExecStream, signals: SignalHandler) -> None:
    await stream.signal(await signals.first)


def _read() -> bytes:
    try:
        return os.read(_INPUT, _CHUNK)
    except OSError:
        return b""  # our terminal is gone, or there never was an input


@contextmanager
def _size_changes() -> Iterator[asyncio.Event]:
    """Set whenever the size of our terminal changes."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        yield changed
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
