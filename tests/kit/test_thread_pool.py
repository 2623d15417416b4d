"""What a function raises in a thread reaches whoever awaits it."""

from __future__ import annotations

import asyncio

import pytest

from skerry.kit.thread_pool import new_event_loop


def test_a_stop_iteration_is_an_error_and_not_a_wait_without_end() -> None:
    async def main() -> None:
        assert await asyncio.to_thread(next, iter([7])) == 7
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            await asyncio.to_thread(next, iter([]))
        assert isinstance(caught.value.__cause__, StopIteration)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
