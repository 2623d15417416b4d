"""A command run in an instance as a check: exit code 0 passes.

A command that is still running when the check is given up is killed with its session. What it writes is
read to the end and not kept, but for the last line, which says why it failed.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from skerry.model.cells import OutputChannel
from skerry.node.containers.exec_relay import relay_stdio
from skerry.node.containers.ports import ExecHandle
from skerry.node.containers.stdio import StdioStreams
from skerry.node.health.decisions import CheckResult

_OUTPUT_TAIL: Final = 1024
_MAX_LINE: Final = 200


class ExecStarter(Protocol):
    """Runs commands in containers."""

    async def exec(
        self, name: str, arguments: tuple[str, ...], *, stdio: tuple[int, int, int]
    ) -> ExecHandle: ...


async def check(containers: ExecStarter, name: str, command: tuple[str, ...]) -> CheckResult:
    """Raises what beginning a command raises."""
    tail = b""

    async def keep(stream: OutputChannel, data: bytes) -> None:
        nonlocal tail
        tail = (tail + data)[-_OUTPUT_TAIL:]

    with StdioStreams.pipes(takes_input=False) as streams:
        session = await containers.exec(name, command, stdio=streams.program_fds)
        streams.close_program_fds()
        code = await relay_stdio(session, streams, send=keep, listen=_send_no_input)
    if code == 0:
        return CheckResult(True)
    lines = tail.decode("utf-8", "replace").split("\n")
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    last_line = "".join(char if char.isprintable() else " " for char in last_line[:_MAX_LINE])
    return CheckResult(False, f"exit code {code}{': ' if last_line else ''}{last_line}")


async def _send_no_input() -> None:
    await asyncio.get_running_loop().create_future()
