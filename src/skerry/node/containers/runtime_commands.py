"""Runs commands of an OCI runtime with a timeout, and extracts their errors."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final, NamedTuple

import msgspec

from skerry.kit import child_process, json_codec

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HARMLESS: Final = frozenset({"trace", "debug", "info", "warning"})
# A line such as `time="..." level=error msg="..."`.
_FIELDS: Final = re.compile(r'level=(\w+) msg="((?:[^"\\]|\\.)*)"')
# Prefixes of an error, which mean nothing to users.
_WRAPPINGS: Final = re.compile(
    r"^(?:(?:runc \w+|exec) failed: |unable to start container process: |error during container init: )+"
)


class CommandResult(NamedTuple):
    """Result of a command: exit code, output, and its error message."""

    code: int
    output: bytes
    failure: str


class _Entry(msgspec.Struct):
    """A line of a log."""

    msg: str
    level: str = ""


async def run_command(arguments: tuple[str, ...], timeout_s: float) -> CommandResult:
    """Run the program and wait for it. Raises TimeoutError if it does not end, OSError if it cannot be
    started."""
    process = await child_process.start(
        arguments, stdout=child_process.PIPE, stderr=child_process.PIPE, env={"PATH": PATH}, cwd="/"
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, complaints = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return CommandResult(process.returncode or 0, output, last_failure(complaints))


def last_failure(text: bytes) -> str:
    """The last error in a runtime's output, be it lines of JSON, of fields, or plain text; or empty."""
    for line in reversed(text.decode(errors="replace").splitlines()):
        entry = _parse(line.strip())
        if entry.msg and entry.level not in _HARMLESS:
            return _WRAPPINGS.sub("", entry.msg)
    return ""


def _parse(line: str) -> _Entry:
    if line.startswith("{"):
        with contextlib.suppress(json_codec.InvalidJson):
            return json_codec.decode(line, _Entry)
    fields = _FIELDS.search(line)
    if fields is not None:
        return _Entry(re.sub(r"\\(.)", r"\1", fields[2]), fields[1])
    return _Entry(line)
