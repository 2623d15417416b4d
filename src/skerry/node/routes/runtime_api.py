"""Commands to a running HAProxy, over its unix sockets. Knows nothing of routes.

A process that was just replaced may still take commands on the same socket: so every batch begins with
`show info`, whose `description` is compared with the configuration that is meant.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skerry.model import errors

_TIMEOUT_S = 5.0
_MAX_ANSWER = 16 * 1024 * 1024
_BATCH_BYTES = 8 * 1024  # of commands; HAProxy reads one buffer
# What it says if it did nothing.
_REFUSALS = (
    "No such",
    "Can't",
    "Unknown command",
    "unable to",
    "not found",
    "invalid",
    "Invalid",
    "Permission",
)


class BackendCounts(msgspec.Struct, frozen=True):
    """What a backend has to do."""

    name: str
    current: int  # requests under way, and waiting
    total: int  # since the process began


async def send(path: Path, commands: str) -> str:
    """The answer to a line of commands, or to one with a payload; raises `Unavailable`."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_ANSWER)
            try:
                writer.write(f"{commands}\n".encode())
                await writer.drain()
                return (await reader.read(-1)).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise errors.Unavailable(f"HAProxy does not answer: {error or 'it took too long'}") from error


async def description(path: Path) -> str:
    """The `description` of the configuration that the process at this socket has."""
    return _description(await send(path, "show info"))


async def execute(path: Path, commands: Sequence[str], *, described: str) -> bool:
    """Have all commands done by a process of that description; False if another one answered. Raises
    `Unavailable` if a command is refused."""
    batch: list[str] = []
    for command in (*commands, ""):
        if batch and (not command or sum(map(len, batch)) + len(command) > _BATCH_BYTES):
            if not await _execute(path, batch, described):
                return False
            batch = []
        if command:
            batch.append(command)
    return True


async def execute_payload(path: Path, command: str, payload: str) -> str:
    """One command with a payload of lines, none of which is empty."""
    lines = "\n".join(line for line in payload.splitlines() if line.strip())
    answer = await send(path, f"{command} <<\n{lines}\n")
    if any(refusal in answer for refusal in _REFUSALS):
        raise errors.Unavailable(f"HAProxy refused `{command}`: {answer.strip()[:200]}")
    return answer


async def old_processes(master: Path) -> list[int]:
    """The pids of processes that were replaced and have open connections."""
    answer = await send(master, "show proc;quit")
    _, _, old = answer.partition("# old workers")
    old, _, _ = old.partition("# programs")
    return [int(words[0]) for line in old.splitlines() if (words := line.split()) and words[0].isdigit()]


async def backend_counts(path: Path, pid: int | None = None) -> list[BackendCounts]:
    """What all backends have to do; with a pid, of that process, asked by the socket of the master."""
    command = "show stat -1 2 -1"
    answer = await send(path, command if pid is None else f"@!{pid} {command};quit")
    rows = csv.DictReader(io.StringIO(answer.lstrip("# \n")))
    return [
        BackendCounts(row["pxname"], int(row["scur"] or 0) + int(row["qcur"] or 0), int(row["stot"] or 0))
        for row in rows
        if row.get("svname") == "BACKEND"
    ]


async def _execute(path: Path, batch: Sequence[str], described: str) -> bool:
    answer = await send(path, ";".join(("show info", *batch)))
    if _description(answer) != described:
        return False
    info_end = answer.find("\n\n")
    rest = answer[info_end:]
    if any(refusal in rest for refusal in _REFUSALS):
        raise errors.Unavailable(f"HAProxy refused a command: {rest.strip()[:200]}")
    return True


def _description(answer: str) -> str:
    for line in answer.splitlines():
        if line.startswith("description: "):
            return line.removeprefix("description: ").strip()
    return ""
