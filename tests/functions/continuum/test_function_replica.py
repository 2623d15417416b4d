"""A node's copy of the functions: as it was told, also after a restart, with the code that it needs."""

from __future__ import annotations

import asyncio
import random
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.functions.continuum.function_replica import FunctionReplica
from skerry.functions.registry.code_store import digest_of
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.node_messages import FunctionUpdate
from skerry.model.settings import FunctionSettings
from tests.functions.registry.registries import HELLO, OTHER
from tests.support.waiting import eventually
from tests.support.workers import function


def of(name: str, code: bytes = HELLO, version: int = 1) -> Function:
    return replace(function(name, version=version), code=digest_of(code))


def whole(*functions: Function) -> FunctionUpdate:
    return FunctionUpdate(is_full=True, functions=functions)


@asynccontextmanager
async def opened(folder: Path, in_use: set[Digest] | None = None) -> AsyncIterator[FunctionReplica]:
    copies = await FunctionReplica.open(folder, FunctionSettings(), SystemClock())
    running = asyncio.ensure_future(copies.run(lambda: in_use or set()))
    try:
        yield copies
    finally:
        await cancel_and_wait([running])
        await copies.close()


async def test_functions_are_those_that_were_told_last(tmp_path: Path) -> None:
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("Alpha"), of("beta")))
        assert copies.names() == ["Alpha", "beta"]
        assert copies.get("Alpha") == of("Alpha")
        await copies.update(
            FunctionUpdate(False, (of("beta", version=2), of("gamma")), (FunctionName("Alpha"),))
        )
        assert copies.names() == ["beta", "gamma"]
        assert copies.get("Alpha") is None
        assert copies.get("beta") == of("beta", version=2)
        await copies.update(whole(of("gamma")))
        assert copies.names() == ["gamma"]


async def test_a_function_that_did_not_change_is_the_same_object(tmp_path: Path) -> None:
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("a")))
        before = copies.get("a")
        await copies.update(whole(of("a"), of("b")))
        assert copies.get("a") is before, "calls look no further than that"


async def test_changes_are_told_when_all_of_them_are_known(tmp_path: Path) -> None:
    told: list[tuple[Function | None, Function | None, list[str]]] = []
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("a"), of("b")))

        async def changed(before: Function | None, after: Function | None) -> None:
            told.append((before, after, copies.names()))

        copies.listen(changed)
        await copies.update(whole(of("a"), of("b")))
        assert told == []
        await copies.update(whole(of("a", version=2), of("c")))
    there = ["a", "c"]
    assert told == [
        (of("a"), of("a", version=2), there),
        (None, of("c"), there),
        (of("b"), None, there),
    ]


async def test_what_was_known_is_known_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("a"), replace(of("b"), environment=("PASSWORD=x",))))
        async with copies.code.holding(HELLO, digest_of(HELLO)):
            pass
    file = tmp_path / "functions.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with opened(tmp_path) as copies:
        assert copies.names() == ["a", "b"]
        folder = copies.code_folder(of("a"))
        assert folder is not None
        assert (folder / "hello.py").exists()
        assert await copies.code.archive(digest_of(HELLO)) == HELLO


async def test_what_was_told_is_on_disk_soon_without_an_orderly_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("a")))
        await eventually(lambda: (tmp_path / "functions.json").exists())
        other = await FunctionReplica.open(tmp_path, FunctionSettings(), SystemClock())
        assert other.names() == ["a"]


async def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "functions.json").write_text("{")
    async with opened(tmp_path) as copies:
        assert copies.names() == []
        await copies.update(whole(of("a")))
    async with opened(tmp_path) as copies:
        assert copies.names() == ["a"]


async def test_code_stays_while_a_function_has_it_or_a_worker_uses_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("a"), of("b")))
        async with copies.code.holding(HELLO, digest_of(HELLO)):
            pass
        await copies.update(whole(of("a", OTHER, version=2), of("b")))
        await copies.code.collect(set())
        assert copies.code.folder(digest_of(HELLO)) is not None, "b has it"
        await copies.update(whole(of("a", OTHER, version=2)))
        await copies.code.collect({digest_of(HELLO)})
        assert copies.code.folder(digest_of(HELLO)) is not None, "a worker has it"
        await copies.code.collect(set())
        assert copies.code.folder(digest_of(HELLO)) is None


@pytest.mark.parametrize("seed", range(5))
async def test_changes_lead_to_the_same_as_a_whole_set(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    wanted: dict[str, Function] = {}
    async with opened(tmp_path) as copies:
        await copies.update(whole())
        for version in range(1, 60):
            name = chance.choice("abcde")
            if name in wanted and chance.random() < 0.4:
                del wanted[name]
                await copies.update(FunctionUpdate(False, removed=(FunctionName(name),)))
            else:
                wanted[name] = of(name, chance.choice([HELLO, OTHER]), version)
                await copies.update(FunctionUpdate(False, (wanted[name],)))
        assert {name: copies.get(name) for name in copies.names()} == wanted
        named = copies.code._named
        codes = [function.code for function in wanted.values()]
        assert named == {code: codes.count(code) for code in codes}


async def test_who_waits_for_a_newer_version_goes_on_when_it_was_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as copies:
        await copies.update(whole(of("a")))
        await copies.catch_up("a", 1)
        waiting = asyncio.ensure_future(copies.catch_up("a", 2))
        await copies.update(whole(of("a"), of("b")))
        await asyncio.sleep(0)
        assert not waiting.done()
        await copies.update(FunctionUpdate(False, (of("a", version=2),), ()))
        await waiting
