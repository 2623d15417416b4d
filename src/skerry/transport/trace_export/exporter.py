"""Exports spans in batches to an OTLP receiver, over HTTP.

Off the path of requests: a loop takes what the recorder has every second. A receiver that is away is tried
again with the same batch for a while; meanwhile the recorder's buffer is bounded. What is dropped is counted,
and logged now and then. `skerry.kit.traces` records; the setting `traces.endpoint` turns this on.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog

from skerry.kit import credential_files, metrics, traces
from skerry.kit.backoff import Backoff
from skerry.kit.traces import Attribute, SpanRecorder, TraceSpan
from skerry.model import errors
from skerry.model.trace_settings import TraceSettings
from skerry.transport.trace_export import otlp_json

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger(__name__)

_EVERY_S: Final = 1.0
_BATCH: Final = 512
_TRIES: Final = 6
_REQUEST_S: Final = 10.0
_CLOSE_S: Final = 1.0
_LOG_AGAIN_S: Final = 600.0
_RETRIED: Final = frozenset({429, 502, 503, 504})  # as OTLP has it
_BACKOFF: Final = Backoff(first_s=0.5, cap_s=10.0)

EXPORTED = metrics.counter("skerry_trace_spans_exported_total", "Spans that the receiver has taken")


class ExportFailed(Exception):
    """The receiver did not take a batch; `is_final`: it never will."""

    def __init__(self, problem: str, *, is_final: bool) -> None:
        super().__init__(problem)
        self.is_final = is_final


def check_endpoint(settings: TraceSettings) -> None:
    """Raises Invalid if traces cannot be sent there."""
    url = urlsplit(settings.endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise errors.Invalid(
            f"traces.endpoint: {settings.endpoint[:200]!r} is no URL such as http://127.0.0.1:4318/v1/traces"
        )
    if url.username or url.password:
        raise errors.Invalid(
            "traces.endpoint has credentials, which would be logged; put a header into a file, and name that "
            "in traces.headers"
        )


class TraceExporter:
    """Sends the spans of a recorder to the receiver of `settings`."""

    def __init__(
        self,
        recorder: SpanRecorder,
        settings: TraceSettings,
        resource: Mapping[str, Attribute],
        version: str,
    ) -> None:
        self._recorder = recorder
        self._settings = settings
        self._resource = resource
        self._version = version
        self._session: aiohttp.ClientSession | None = None
        self._logged_at = float("-inf")

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.export()

    async def export(self) -> None:
        """Send everything that is recorded now."""
        while spans := self._recorder.take(_BATCH):
            await self._send_with_retries(spans)

    async def close(self) -> None:
        """Try to send what is left, for a short time."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.export()
        except TimeoutError:
            pass
        if self._session is not None:
            await self._session.close()

    async def _send_with_retries(self, spans: Sequence[TraceSpan]) -> None:
        body = otlp_json.encode(spans, self._resource, self._version)
        for failures in range(_TRIES):
            try:
                await self._send(body)
            except ExportFailed as error:
                self._log(str(error), spans=len(spans))
                if error.is_final:
                    traces.DROPPED.labels("refused").inc(len(spans))
                    return
                await asyncio.sleep(_BACKOFF.delay(failures))
            else:
                EXPORTED.inc(len(spans))
                return
        traces.DROPPED.labels("unreachable").inc(len(spans))

    async def _send(self, body: bytes) -> None:
        import aiohttp

        url = self._settings.endpoint
        try:
            headers = {**self._headers(), "content-type": "application/json"}
            # A redirect would be followed with a GET that delivers nothing, headers included.
            async with self._opened().post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status < 300:
                    return
                said = (await response.content.read(500)).decode("utf-8", "replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ExportFailed(f"{url}: {error or 'it does not answer'}", is_final=False) from error
        raise ExportFailed(
            f"{url} answered {response.status}: {said[:200]}", is_final=response.status not in _RETRIED
        )

    def _headers(self) -> dict[str, str]:
        if not self._settings.headers:
            return {}
        try:
            return credential_files.read(Path(self._settings.headers))
        except credential_files.UnusableCredentials as error:
            raise ExportFailed(str(error), is_final=False) from error

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            tls = ssl.create_default_context(cafile=self._settings.ca or None)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls, limit=1),
                timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
                trust_env=False,
            )
        return self._session

    def _log(self, problem: str, *, spans: int) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_AGAIN_S:
            self._logged_at = now
            log.warning("traces.not_exported", error=problem, spans=spans)
