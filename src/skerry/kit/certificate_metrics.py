"""When certificates end, for `/metrics`; and of one that is in a file, which is renewed now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric

from skerry.kit import metrics, pki

NOT_AFTER = metrics.gauge_family(
    "skerry_certificate_not_after_timestamp_seconds",
    "When the newest certificate of a holder ends: kind is ca, server, node, edge or route",
    ["kind", "name"],
)
_EVERY_S: Final = 60.0


class CertificateFileMetrics(metrics.UndescribedCollector):
    """Of the certificate in `file`; `run` reads it now and then."""

    def __init__(self, kind: str, name: str, file: Path) -> None:
        self._labels = (kind, name)
        self._file = file
        self._not_after: float | None = None

    async def run(self) -> None:
        """For ever."""
        while True:
            with suppress(OSError, pki.InvalidCertificate):
                pem = await asyncio.to_thread(self._file.read_bytes)
                self._not_after = pki.read_certificate(pem).not_after
            await asyncio.sleep(_EVERY_S)

    def collect(self) -> Iterator[Metric]:
        if self._not_after is not None:
            family = NOT_AFTER()
            family.add_metric(self._labels, self._not_after)
            yield family
