"""Waiting for a descriptor: a pipe that is empty or full, and a file that never makes anybody wait."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from skerry.kit.fd_readiness import wait_readable, wait_writable


async def test_a_pipe_is_readable_when_something_is_in_it() -> None:
    reading, writing = os.pipe()
    try:
        task = asyncio.ensure_future(wait_readable(reading))
        await asyncio.sleep(0)
        assert not task.done()
        os.write(writing, b"x")
        await task
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_pipe_is_writable_when_there_is_room_in_it() -> None:
    reading, writing = os.pipe()
    try:
        await wait_writable(writing)
        os.set_blocking(writing, False)
        size = os.write(writing, bytes(1 << 20))
        task = asyncio.ensure_future(wait_writable(writing))
        await asyncio.sleep(0)
        assert not task.done()
        os.read(reading, size)
        await task
    finally:
        os.close(reading)
        os.close(writing)


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    reading, writing = os.pipe()
    try:
        task = asyncio.ensure_future(wait_readable(reading))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not asyncio.get_running_loop().remove_reader(reading)
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_file_is_always_ready(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb+") as file:
        await wait_readable(file.fileno())
        await wait_writable(file.fileno())
