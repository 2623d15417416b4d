"""Code that is elsewhere comes once, is what it should be, and is there when a worker starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.functions.continuum.code_fetcher import CodeFetcher, CodeFetchingHost
from skerry.functions.ports import FunctionWorker
from skerry.functions.registry.code_store import CodeStore, digest_of
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import Digest, NodeId
from skerry.model.settings import FunctionSettings
from tests.functions.registry.registries import HELLO, OTHER
from tests.support.workers import FakeHost, function

F = replace(function("f"), code=digest_of(HELLO))


class Elsewhere:
    """Has what a test gives it, and answers when it lets it."""

    def __init__(self, *archives: bytes) -> None:
        self.archives = {digest_of(archive): archive for archive in archives}
        self.asked: list[Digest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def fetch(self, digest: Digest, source: NodeId | None = None) -> bytes:
        self.asked.append(digest)
        await self.may_answer.wait()
        if digest not in self.archives:
            raise errors.NotFound("not here")
        return self.archives[digest]


class NotingHost(FakeHost):
    """Notes with which folder each worker was started, and what was prepared."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.folders: list[Path | None] = []
        self.noted: list[str] = []

    async def spawn(self, function: Function, code: Path | None) -> FunctionWorker:
        self.folders.append(code)
        return await super().spawn(function, Path("/code") / function.name)

    async def prepare(self, function: Function, *, force: bool) -> None:
        self.noted.append(function.name)


@pytest.fixture
def code(tmp_path: Path) -> CodeStore:
    made = CodeStore(tmp_path, FunctionSettings())
    made.load(())
    return made


@pytest.fixture
def host() -> NotingHost:
    return NotingHost()


async def test_code_is_fetched_for_the_first_worker_and_for_no_other(
    code: CodeStore, host: NotingHost
) -> None:
    elsewhere = Elsewhere(HELLO)
    fetching = CodeFetchingHost(host, CodeFetcher(code, elsewhere.fetch))
    for _ in range(2):
        await fetching.spawn(F, code.folder(digest_of(HELLO)))
    assert elsewhere.asked == [digest_of(HELLO)]
    [folder, again] = host.folders
    assert folder == again
    assert folder is not None
    assert (folder / "hello.py").exists()
    assert await code.archive(digest_of(HELLO)) == HELLO, "others may ask us now"


async def test_many_that_start_at_once_wait_for_one_fetch(code: CodeStore, host: NotingHost) -> None:
    elsewhere = Elsewhere(HELLO)
    elsewhere.may_answer.clear()
    fetching = CodeFetchingHost(host, CodeFetcher(code, elsewhere.fetch))
    starts = [asyncio.ensure_future(fetching.spawn(F, None)) for _ in range(5)]
    await asyncio.sleep(0)
    elsewhere.may_answer.set()
    await asyncio.gather(*starts)
    assert elsewhere.asked == [digest_of(HELLO)]


async def test_one_that_gives_up_does_not_end_the_fetch_of_others(code: CodeStore, host: NotingHost) -> None:
    elsewhere = Elsewhere(HELLO)
    elsewhere.may_answer.clear()
    fetching = CodeFetchingHost(host, CodeFetcher(code, elsewhere.fetch))
    first, second = (asyncio.ensure_future(fetching.spawn(F, None)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    elsewhere.may_answer.set()
    await second
    assert first.cancelled()
    assert code.folder(digest_of(HELLO)) is not None


async def test_nothing_is_fetched_for_an_image(code: CodeStore, host: NotingHost) -> None:
    elsewhere = Elsewhere()
    image = replace(F, runtime=CUSTOM, image="i", handler="", code=None)
    fetching = CodeFetchingHost(host, CodeFetcher(code, elsewhere.fetch))
    await fetching.spawn(image, None)
    await fetching.prepare(image, force=False)
    assert (elsewhere.asked, host.folders, host.noted) == ([], [None], ["f"])


async def test_what_is_prepared_is_fetched(code: CodeStore, host: NotingHost) -> None:
    fetching = CodeFetchingHost(host, CodeFetcher(code, Elsewhere(HELLO).fetch))
    await fetching.prepare(F, force=False)
    assert code.folder(digest_of(HELLO)) is not None
    assert host.noted == ["f"]


async def test_code_that_nobody_has_or_that_is_another_starts_no_worker(
    code: CodeStore, host: NotingHost
) -> None:
    nobody, liar = Elsewhere(), Elsewhere()
    liar.archives[digest_of(HELLO)] = OTHER
    for elsewhere, message in ((nobody, "no member has the code of f"), (liar, "is something else")):
        with pytest.raises(errors.Unavailable, match=message):
            await CodeFetchingHost(host, CodeFetcher(code, elsewhere.fetch)).spawn(F, None)
    assert host.folders == []
    assert code.folder(digest_of(HELLO)) is None
    # Whoever comes later tries again.
    await CodeFetchingHost(host, CodeFetcher(code, Elsewhere(HELLO).fetch)).spawn(F, None)
    assert len(host.folders) == 1


async def test_why_it_cannot_be_fetched_is_told(code: CodeStore, host: NotingHost) -> None:
    async def away(digest: Digest, source: NodeId | None = None) -> bytes:
        raise errors.Unavailable("the server is away")

    with pytest.raises(errors.Unavailable, match=r"code of f is not on this node.*the server is away"):
        await CodeFetchingHost(host, CodeFetcher(code, away)).spawn(F, None)
