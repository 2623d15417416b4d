"""Waiting for a descriptor to be ready, once: without threads, and without changing the descriptor.

For descriptors that belong to others too, such as our own standard streams, which must not be made
non-blocking for other processes. A descriptor that cannot be waited for, such as a file, is always ready.
"""

from __future__ import annotations

import asyncio


async def wait_readable(descriptor: int) -> None:
    """Return when a read would not block."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(descriptor, _notify, ready)
    except PermissionError:
        return
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def wait_writable(descriptor: int) -> None:
    """Return when a small write would not block."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_writer(descriptor, _notify, ready)
    except PermissionError:
        return
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _notify(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
