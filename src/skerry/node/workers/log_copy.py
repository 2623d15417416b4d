"""Copies the output of a container worker to the logs of its function.

A container's own rings are removed with it (`skerry.node.containers`), and logs of functions are kept for
longer. A slow copy blocks nobody: gaps are marked where they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, aclosing, closing
from pathlib import Path

from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs import merge
from skerry.node.logs.merge import LogSource
from skerry.node.logs.rings import RingWriter


async def copy(sources: Sequence[LogSource], folder: Path, *, max_bytes: int) -> None:
    """Copy `sources` to rings in `folder`, each at most `max_bytes`, until they end."""
    with ExitStack() as opened:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        rings = {
            source.stream: opened.enter_context(
                closing(RingWriter(descriptor, source.stream, max_bytes=max_bytes))
            )
            for source in sources
        }
        latest = 0
        async with aclosing(merge.pieces(sources, follow=True)) as pieces:
            async for stream, item in pieces:
                if isinstance(item, SequenceGap):
                    lost = item.last - item.first + 1
                    rings[stream].write(f"\n[{lost} pieces of output are lost here]\n".encode(), latest)
                else:
                    latest = item.time_ns
                    rings[stream].write(item.data, latest)
        for ring in rings.values():
            ring.end(latest)
