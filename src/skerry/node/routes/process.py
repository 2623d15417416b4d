"""The HAProxy of this node: started, adopted, reloaded and stopped.

It runs in master-worker mode, in a session of its own, and outlives this process: the next one finds it by
its pid file and configuration. A reload starts a new worker that takes the listening sockets over, while the
old one finishes its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import structlog

from skerry.kit import child_process, program_paths
from skerry.kit.fd_readiness import wait_readable
from skerry.model import errors
from skerry.node.routes import runtime_api
from skerry.node.routes.config import EdgeFiles

log = structlog.get_logger(__name__)

_POLL_S = 0.02
_READY_S = 15.0
_DRAIN_S = 1.0  # for requests under way, at a clean stop
_STOP_S = 3.0
_FEW_PROCESSES = 4
_LONGEST_PAUSE_S = 30.0
_OUTPUT_BYTES = 2000  # of its messages, in an error


def reload_pause_s(old: int) -> float:
    """How long to wait for more changes before the next reload, with so many processes of before: each stays
    while it has connections."""
    return min(max(0, old - _FEW_PROCESSES) * 1.0, _LONGEST_PAUSE_S)


class HaproxyProcess:
    """At most one master."""

    def __init__(self, program: str, files: EdgeFiles) -> None:
        self._program = program_paths.find(program) or program
        self._files = files
        self._pid: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the master; None: it does not run."""
        return self._pid

    async def adopt(self) -> bool:
        """Take over one that an earlier process started; False if there is none."""
        pid = self._stored_pid()
        if pid is None:
            return False
        try:
            await runtime_api.description(self._files.admin_socket)
        except errors.Unavailable:
            log.warning("routes.not_adopted", pid=pid)
            _kill(pid, signal.SIGKILL)
            return False
        self._pid = pid
        log.info("routes.adopted", pid=pid)
        return True

    async def check(self) -> None:
        """Raise `Internal` with its message unless it accepts the configuration."""
        process = await child_process.start(
            (self._program, "-c", "-f", str(self._files.config)),
            stdout=child_process.PIPE,
            stderr=child_process.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            text = output.decode(errors="replace")
            reason = first_alert(text)
            raise errors.Internal(
                "HAProxy refuses its configuration" + (f": {reason}" if reason else ""),
                detail=text.strip()[-_OUTPUT_BYTES:],
            )

    async def start(self, described: str) -> None:
        """Start one, and return when it has the configuration of that description."""
        files = self._files
        files.pid.unlink(missing_ok=True)
        with files.output.open("wb") as output:
            self._child = await asyncio.to_thread(
                subprocess.Popen,
                [
                    self._program,
                    "-W",
                    "-f",
                    str(files.config),
                    "-S",
                    f"{files.master_socket},mode,600,level,admin",
                    "-p",
                    str(files.pid),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
            )
        self._pid = self._child.pid
        try:
            await self._wait_ready(described)
        except errors.Unavailable:
            await self.kill()
            raise
        log.info("routes.started", pid=self._pid)

    async def reload(self, described: str) -> None:
        """Begin to use the configuration file; open connections stay with what they have."""
        assert self._pid is not None
        _kill(self._pid, signal.SIGUSR2)
        await self._wait_ready(described)

    async def ended(self) -> None:
        """Return when it has ended by itself."""
        while (pid := self._pid) is not None:
            if self._child is not None and self._child.pid == pid:
                if await self._child_ended(self._child):
                    break
                continue
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                break
            try:
                await wait_readable(descriptor)
            finally:
                os.close(descriptor)
            break
        self._pid = self._child = None

    async def stop(self) -> None:
        """Let requests under way end, for a moment, then end it and remove its files."""
        if (pid := self._pid) is not None:
            _kill(pid, signal.SIGUSR1)
            if not await self._gone(pid, _DRAIN_S):
                _kill(pid, signal.SIGTERM)
                if not await self._gone(pid, _STOP_S):
                    await self.kill()
        self._forget()
        for path in (self._files.pid, self._files.admin_socket, self._files.master_socket):
            path.unlink(missing_ok=True)

    async def kill(self) -> None:
        """End it at once, with all its workers."""
        if (pid := self._pid) is not None:
            workers = _children(pid)
            for one in (pid, *workers):
                _kill(one, signal.SIGKILL)
            await self._gone(pid, _STOP_S)
        self._forget()

    def _forget(self) -> None:
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=_STOP_S)
        self._pid = self._child = None

    async def _child_ended(self, child: subprocess.Popen[bytes]) -> bool:
        descriptor = os.pidfd_open(child.pid)
        try:
            await wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return child.poll() is not None

    async def _gone(self, pid: int, within_s: float) -> bool:
        """True when no process has this pid any more; reaps a child."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self._child is not None and self._child.pid == pid:
                if self._child.poll() is not None:
                    return True
            elif not _is_alive(pid):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _wait_ready(self, described: str) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._child is not None and self._child.poll() is not None:
                raise self._unavailable("HAProxy does not start")
            with contextlib.suppress(errors.Unavailable):
                if await runtime_api.description(self._files.admin_socket) == described:
                    return
            await asyncio.sleep(_POLL_S)
        raise self._unavailable("HAProxy does not take its configuration")

    def _unavailable(self, text: str) -> errors.Unavailable:
        output = self._last_output()
        reason = first_alert(output)
        return errors.Unavailable(text + (f": {reason}" if reason else ""), detail=output)

    def _last_output(self) -> str:
        with contextlib.suppress(OSError):
            return self._files.output.read_text(errors="replace")[-_OUTPUT_BYTES:]
        return ""

    def _stored_pid(self) -> int | None:
        """The pid in the file, if it is a HAProxy with our configuration."""
        try:
            pid = int(self._files.pid.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if str(self._files.config).encode() in arguments else None


def first_alert(output: str) -> str:
    """What HAProxy complains of first, without the file and line; empty: nothing."""
    for line in output.splitlines():
        if line.startswith("[ALERT]"):
            return re.sub(r"^\[ALERT\]\s*(\(\d+\) :)?\s*(config : )?(parsing \[[^]]*\] : )?", "", line)[:300]
    return ""


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(one) for one in text.split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
