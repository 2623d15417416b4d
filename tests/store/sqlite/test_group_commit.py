"""Group commit: steps that come together are written together, and answered when that is done."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.store.sqlite.group_commit import GroupCommitter, StepGroup


class FakeFile:
    """Remembers groups; refuses them while `failure` is set."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.failure: Exception | None = None
        self.is_closed = False

    def write(self, group: list[int]) -> None:
        if self.failure is not None:
            raise self.failure
        self.groups.append(group)

    def close(self) -> None:
        self.is_closed = True


def prepare(steps: Sequence[int]) -> StepGroup[FakeFile]:
    """Doubles every number; 0 is written nowhere, and what is negative is an error of that step alone."""
    answers = [errors.Invalid("negative") if step < 0 else step * 2 for step in steps]
    return StepGroup(answers, (lambda file: file.write(list(steps))) if any(steps) else None)


@asynccontextmanager
async def started(file: FakeFile) -> AsyncIterator[GroupCommitter[FakeFile, int]]:
    committer: GroupCommitter[FakeFile, int] = GroupCommitter("fake", Path("fake.db"), lambda: file)
    committer.prepare = prepare
    assert await committer.start(lambda opened: opened is file)
    try:
        yield committer
    finally:
        await committer.stop()
    assert file.is_closed


async def test_steps_that_come_together_are_one_group_and_each_has_its_own_answer() -> None:
    file = FakeFile()
    async with started(file) as committer:
        answers = await asyncio.gather(*map(committer.submit, [1, -1, 3]), return_exceptions=True)
        assert (answers[0], type(answers[1]), answers[2]) == (2, errors.Invalid, 6)
        assert file.groups == [[1, -1, 3]]


async def test_a_group_with_nothing_to_write_does_not_touch_the_file() -> None:
    file = FakeFile()
    async with started(file) as committer:
        assert await committer.submit(0) == 0
        assert file.groups == []


async def test_a_group_that_the_disk_refuses_fails_as_a_whole_and_the_next_goes_on() -> None:
    file = FakeFile()
    async with started(file) as committer:
        file.failure = sqlite3.OperationalError("broken")
        answers = await asyncio.gather(*map(committer.submit, [1, -1]), return_exceptions=True)
        assert [type(answer) for answer in answers] == [errors.Unavailable, errors.Unavailable]
        assert await committer.attempt(lambda opened: opened.write([7])) is file.failure
        file.failure = None
        assert await committer.attempt(lambda opened: opened.write([7])) is None
        assert await committer.submit(2) == 4
        assert file.groups == [[7], [2]]


async def test_stopping_waits_for_what_was_submitted() -> None:
    file = FakeFile()
    async with started(file) as committer:
        waiting = asyncio.ensure_future(committer.submit(5))
        await asyncio.sleep(0)
    assert await waiting == 10


@pytest.mark.parametrize("fails_in", ["opening", "loading"])
async def test_a_file_that_cannot_be_opened_or_read_is_said_so_where_it_is_started(fails_in: str) -> None:
    file = FakeFile()

    def fail(*_: object) -> FakeFile:
        raise errors.FailedPrecondition("damaged")

    opens: Callable[[], FakeFile] = fail if fails_in == "opening" else lambda: file
    committer: GroupCommitter[FakeFile, int] = GroupCommitter("fake", Path("fake.db"), opens)
    with pytest.raises(errors.FailedPrecondition, match="damaged"):
        await committer.start(fail)
    assert file.is_closed == (fails_in == "loading")
