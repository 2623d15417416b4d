"""Sends lines to a server with Loki's push API, over HTTP.

The credentials are read from their file for every new connection, so that they can be changed without a
restart.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skerry.kit import credential_files
from skerry.transport.log_forwarding import formats
from skerry.transport.log_forwarding.batches import (
    ForwardedLine,
    LinesRefused,
    NodeLabels,
    TargetUnavailable,
    TooManyLines,
)
from skerry.transport.log_forwarding.targets import LokiTarget

if TYPE_CHECKING:
    import aiohttp

_REQUEST_S: Final = 30.0
_MAX_ANSWER: Final = 2000
_TOO_LARGE: Final = 413
_REFUSED: Final = (400, 422)  # all others may change: credentials, limits, a proxy on the way


class LokiSender:
    """Pushes to one server."""

    def __init__(self, target: LokiTarget, labels: NodeLabels) -> None:
        self._target = target
        self._labels = labels
        self._session: aiohttp.ClientSession | None = None

    async def send(self, lines: Sequence[ForwardedLine]) -> None:
        import aiohttp

        body = formats.loki_push(lines, self._labels)
        try:
            headers = self._headers()
            # A redirect would be followed with a GET that delivers nothing, credentials included.
            async with self._opened().post(
                self._target.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status < 300:
                    return
                said = (await response.content.read(_MAX_ANSWER)).decode("utf-8", "replace").strip()
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            await self.close()
            raise TargetUnavailable(f"{self._target.url}: {error or 'it does not answer'}") from error
        problem = f"{self._target.url} answered {response.status}: {said[:200]}"
        if response.status == _TOO_LARGE:
            raise TooManyLines(problem)
        if response.status in _REFUSED:
            raise LinesRefused(problem)
        raise TargetUnavailable(problem)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            tls = ssl.create_default_context(cafile=self._target.ca or None)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls, limit=1),
                timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._target.tenant:
            headers["X-Scope-OrgID"] = self._target.tenant
        if self._target.credentials:
            try:
                keys = credential_files.read(Path(self._target.credentials))
            except credential_files.UnusableCredentials as error:
                raise TargetUnavailable(str(error)) from error
            if token := keys.get("token"):
                headers["Authorization"] = f"Bearer {token}"
            elif keys.get("username"):
                login = f"{keys['username']}:{keys.get('password', '')}".encode()
                headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
            else:
                raise TargetUnavailable(
                    f"{self._target.credentials} must have a line token=..., or lines username=... and "
                    "password=..."
                )
        return headers
