"""Long cables between machines: what goes in at one end comes out at the other a while later.

The demo's relay carries the frames (`skerry.demo.delay_relay`), in a process of its own.

    with long_cables(place, [Cable("near-edge", "far-edge", 0.005)]): ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from skerry.demo import delay_relay
from skerry.demo.delay_relay import DelayedLink as Cable
from skerry.demo.delay_relay import disable_offloads as plain

__all__ = ["Cable", "long_cables", "plain"]


@contextlib.contextmanager
def long_cables(place: Path, cables: Sequence[Cable]) -> Iterator[None]:
    """Carry frames in the network namespace at `place`, until the context is left."""
    words = [delay_relay.as_word(cable) for cable in cables]
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "tests.support.cables", str(place), *words], os.environ
    )
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    from tests.node.network.machines import enter

    enter(sys.argv[1])
    delay_relay.relay(delay_relay.parse(sys.argv[2:]))
