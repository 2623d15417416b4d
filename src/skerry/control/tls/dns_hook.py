"""The DNS hook: a program of the operator that sets and removes TXT records, for challenges by DNS.

It is called as `PROGRAM present|cleanup DOMAIN NAME VALUE`, without a shell, in its own session, with `PATH`
alone in its environment, and is killed with its children after a timeout. Both calls may be made more than
once for the same record. Its output goes to the log alone, because it may have credentials in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

import structlog

from skerry.control.tls.acme_api import AcmeFailure
from skerry.kit import child_process
from skerry.kit.child_process import ChildProcess
from skerry.model.tls_certificates import WILDCARD
from skerry.model.tls_settings import TlsSettings

log = structlog.get_logger(__name__)

_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_MAX_OUTPUT: Final = 4096
_REAP_S: Final = 5.0


class DnsHook:
    """Calls of the program of the settings."""

    def __init__(self, settings: TlsSettings) -> None:
        self._program = settings.dns_hook
        self._timeout_s = settings.dns_hook_timeout_s

    @property
    def is_set(self) -> bool:
        return bool(self._program)

    async def present(self, domain: str, value: str) -> None:
        """Have the record; raises `AcmeFailure`."""
        await self._run("present", domain, value)

    async def cleanup(self, domain: str, value: str) -> None:
        """Have it no more; raises `AcmeFailure`."""
        await self._run("cleanup", domain, value)

    async def _run(self, verb: str, domain: str, value: str) -> None:
        if not self._program:
            raise AcmeFailure(f"a certificate for {domain} needs a DNS hook; an admin sets tls.dns_hook")
        plain = domain.removeprefix(WILDCARD)
        arguments = (verb, plain, f"_acme-challenge.{plain}", value)
        try:
            process = await child_process.start(
                (self._program, *arguments),
                stdout=child_process.PIPE,
                stderr=child_process.STDOUT,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            log.error("tls.dns_hook_not_started", program=self._program, error=str(error))
            raise AcmeFailure(
                "the DNS hook cannot be started; the log of the server has the reason"
            ) from None
        output = b""
        try:
            async with asyncio.timeout(self._timeout_s):
                output = await _read(process)
                status = await process.wait()
        except TimeoutError:
            log.error("tls.dns_hook_timeout", verb=verb, domain=plain, output=_text(output))
            raise AcmeFailure(f"the DNS hook did not end within {self._timeout_s:g} s") from None
        finally:
            await _kill(process)
        if status != 0:
            log.error("tls.dns_hook_failed", verb=verb, domain=plain, status=status, output=_text(output))
            raise AcmeFailure(
                f"the DNS hook failed with status {status}; the log of the server has its output"
            )
        log.info("tls.dns_hook", verb=verb, domain=plain)


async def _read(process: ChildProcess) -> bytes:
    """The beginning of the output; the rest is read too, so that the program does not block."""
    assert process.stdout is not None
    kept = b""
    while data := await process.stdout.read(65536):
        kept = (kept + data)[:_MAX_OUTPUT]
    return kept


async def _kill(process: ChildProcess) -> None:
    """End it with what it has started; one that has ended may leave something behind."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # What it has written is read first, so that the pipe closes. What has left its session may hold it open.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_S):
            await _read(process)
            await process.wait()


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")
