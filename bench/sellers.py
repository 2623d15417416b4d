"""Connections to a server that can deliver whatever it sells: it has a node of any size, which is played."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from tests.support.played_nodes import played_node

from bench.wires import Wire, wires


@asynccontextmanager
async def seller_wires(url: str, count: int) -> AsyncIterator[list[Wire]]:
    """So many connections to the server at `url`, which has such a node meanwhile."""
    with TemporaryDirectory(prefix="skerry-bench-") as folder, structlog.testing.capture_logs():
        async with wires(url, count) as connections:
            token = json.loads(await connections[0].ask("POST", "/token/", b'{"role": "node"}'))["token"]
            async with played_node(Path(folder), url, token):
                yield connections
