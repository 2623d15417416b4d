"""Code is kept once per digest, as long as anybody needs it and no longer, also across a kill."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import hypothesis
import hypothesis.strategies as some
import pytest

from skerry.functions.continuum.code_fetcher import CodeFetcher
from skerry.functions.registry.code_store import digest_of
from skerry.functions.registry.registry import FunctionRegistry
from skerry.kit import files
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import Digest, NodeId
from skerry.store.sqlite.store import SqliteStore
from tests.functions.registry import tarballs
from tests.functions.registry.registries import HELLO, OTHER, Ground, hello
from tests.support.drivers import Drivers
from tests.support.waiting import eventually


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "code")


@pytest.fixture
async def functions(ground: Ground) -> AsyncIterator[FunctionRegistry]:
    async with ground.registry() as functions:
        yield functions


async def test_the_same_code_is_kept_once_and_until_the_last_function_of_it_goes(
    functions: FunctionRegistry, ground: Ground
) -> None:
    await asyncio.gather(*(functions.create(hello(f"f{n}"), actor="ann") for n in range(5)))
    for number in range(5):
        assert ground.kept() == {digest_of(HELLO)}
        await functions.delete(f"f{number}", actor="ann")
        await functions.collect(set())
    assert ground.kept() == set()


async def test_code_that_a_worker_uses_stays_until_it_does_not(
    functions: FunctionRegistry, ground: Ground
) -> None:
    before = await functions.create(hello(), actor="ann")
    await functions.update(hello(code=OTHER), actor="ann")
    await functions.collect({digest_of(HELLO)})
    folder = functions.code_folder(before)
    assert folder is not None
    assert folder.exists()
    await functions.collect(set())
    assert functions.code_folder(before) is None
    assert ground.kept() == {digest_of(OTHER)}


async def test_code_that_was_removed_can_be_brought_again(
    functions: FunctionRegistry, ground: Ground
) -> None:
    for _ in range(2):
        await functions.create(hello(), actor="ann")
        assert ground.kept() == {digest_of(HELLO)}
        await functions.delete("hello", actor="ann")
        await functions.collect(set())
        assert ground.kept() == set()


async def test_the_archive_can_be_had_as_it_came_while_the_code_is_there(functions: FunctionRegistry) -> None:
    await functions.create(hello(), actor="ann")
    assert await functions.archive(digest_of(HELLO)) == HELLO
    await functions.update(hello(code=OTHER), actor="ann")
    await functions.collect(set())
    assert await functions.archive(digest_of(OTHER)) == OTHER
    for digest in (digest_of(HELLO), digest_of(b"")):
        with pytest.raises(errors.NotFound):
            await functions.archive(digest)


async def test_an_archive_that_was_lost_is_kept_when_its_code_is_brought_again(
    functions: FunctionRegistry, ground: Ground
) -> None:
    await functions.create(hello(), actor="ann")
    [lost] = (ground.folder / "archives").iterdir()
    lost.unlink()
    with pytest.raises(errors.NotFound):
        await functions.archive(digest_of(HELLO))
    await functions.update(hello(), actor="ann")
    assert await functions.archive(digest_of(HELLO)) == HELLO
    lost.unlink()
    await functions.delete("hello", actor="ann")
    await functions.collect(set())
    assert (ground.kept(), ground.left_over()) == (set(), [])


async def test_code_and_settings_that_do_not_agree_are_told(ground: Ground) -> None:
    async with ground.registry(max_unpacked_bytes=1024) as functions:
        big = tarballs.tar(tarballs.member("hello.py", "x" * 2000))
        with pytest.raises(errors.TooLarge, match="max_unpacked_bytes"):
            await functions.create(hello(code=big), actor="ann")
    assert (ground.kept(), ground.left_over()) == (set(), [])


async def test_code_does_not_fill_the_disk_of_the_node(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "spare_bytes", lambda folder: len(HELLO) - 1)
    async with ground.registry() as functions:
        with pytest.raises(errors.Unavailable, match="nearly full"):
            await functions.create(hello(), actor="ann")
    assert (ground.kept(), ground.left_over()) == (set(), [])


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    some.lists(
        some.tuples(
            some.sampled_from(["put", "delete", "use", "leave", "collect", "restart"]),
            some.sampled_from(["a", "b", "C"]),
            some.sampled_from([HELLO, OTHER]),
        ),
        max_size=14,
    )
)
def test_code_is_there_while_it_is_registered_or_used_and_gone_after(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, bytes]]
) -> None:
    ground = Ground(tmp_path_factory.mktemp("ground") / "code")
    asyncio.run(_live(ground, steps))


async def _live(ground: Ground, steps: list[tuple[str, str, bytes]]) -> None:
    wanted: dict[str, Digest] = {}
    rest = list(steps)
    while rest:
        async with ground.registry() as functions:
            while rest:
                verb, name, code = rest.pop(0)
                if verb == "put":
                    made = await functions.update(hello(name, code=code), actor="ann")
                    wanted[name] = digest_of(code)
                    assert made.code == wanted[name]
                elif verb == "delete" and name in wanted:
                    await functions.delete(name, actor="ann")
                    del wanted[name]
                elif verb == "use" and name in wanted:
                    ground.in_use.add(wanted[name])
                elif verb == "leave":
                    ground.in_use.discard(digest_of(code))
                elif verb == "restart":
                    ground.in_use.clear()
                    break
                elif verb == "collect":
                    await functions.collect(ground.in_use)
                    assert ground.kept() <= {*wanted.values(), *ground.in_use}
                assert ground.kept() >= {*wanted.values(), *ground.in_use}
            assert sorted(functions.names()) == sorted(wanted)
    async with ground.registry():
        assert (ground.kept(), ground.left_over()) == (set(wanted.values()), [])


STEPS = [
    *(
        (step, times)
        for step in (
            "code.unpacked",
            "code.synced",
            "code.archived",
            "code.renamed",
            "code.kept",
            "function.checked",
        )
        for times in (1, 2)
    ),
    *(("function.registered", times) for times in (1, 2)),
    *(("code.thrown", times) for times in (1, 2)),
    ("code.removed", 1),
]


@pytest.mark.parametrize(("step", "times"), STEPS)
async def test_a_kill_at_any_step_leaves_no_function_without_code_and_no_code_for_ever(
    drivers: Drivers, tmp_path: Path, step: str, times: int
) -> None:
    calls = ("create", "update", "delete")
    arguments = (str(tmp_path), step, str(times))
    done = await asyncio.to_thread(drivers.run, "tests.functions.registry.registry_driver", *arguments)
    assert done.returncode == -signal.SIGKILL
    acknowledged = done.stdout.split()
    assert acknowledged == list(calls[: len(acknowledged)])
    possible: list[Digest | None] = [None, digest_of(HELLO), digest_of(OTHER), None]
    store = await SqliteStore.open(tmp_path / "store.db", SystemClock())
    try:
        async with Ground(tmp_path / "code", store, SystemClock()).registry() as functions:
            made = functions.get("hello")
            code = None if made is None else made.code
            assert code in possible[len(acknowledged) : len(acknowledged) + 2]
            if made is not None:
                folder = functions.code_folder(made)
                assert folder is not None
                assert [path.name for path in folder.iterdir()] == ["hello.py"]
            ground = Ground(tmp_path / "code")
            assert ground.kept() == ({code} if code else set())
            assert ground.left_over() == []
    finally:
        await store.close()


async def test_an_archive_that_is_not_what_it_was_is_given_to_nobody_and_can_come_again(
    functions: FunctionRegistry, ground: Ground
) -> None:
    await functions.create(hello(), actor="ann")
    digest, code = digest_of(HELLO), functions.code
    stamp = code.stamp
    place = ground.folder / "archives" / digest.removeprefix("sha256:")
    place.write_bytes(HELLO[:-1] + b"x")
    with pytest.raises(errors.NotFound):
        await functions.archive(digest)
    assert not code.has_archive(digest)
    assert code.stamp != stamp, "others hear of it"
    assert code.folder(digest) is not None, "workers have their folder"
    async with code.holding(HELLO, digest):
        assert await functions.archive(digest) == HELLO


async def test_archives_alone_are_enough_to_restore_code(ground: Ground) -> None:
    async with ground.registry() as functions:
        await functions.create(hello(), actor="ann")
        await functions.create(hello("other", code=OTHER), actor="ann")
        await functions.delete("other", actor="ann")
    shutil.rmtree(ground.folder / "kept")
    async with ground.registry() as functions:
        digest = digest_of(HELLO)
        assert functions.code.archived == {digest}
        assert functions.code.folder(digest) is None

        async def fetch(digest: Digest, source: NodeId | None = None) -> bytes:
            raise AssertionError("it is here")

        function = functions.get("hello")
        assert function is not None
        folder = await CodeFetcher(functions.code, fetch).have(function, digest)
        assert (folder / "hello.py").exists()
        await functions.delete("hello", actor="ann")
        await functions.collect(set())
        assert functions.code.archived == set()


async def test_code_that_comes_ahead_of_its_function_stays_until_that_has_come_and_gone(
    functions: FunctionRegistry,
) -> None:
    digest, code = digest_of(HELLO), functions.code

    async def fetch(digest: Digest, source: NodeId | None = None) -> bytes:
        return HELLO

    await CodeFetcher(code, fetch).store(digest, NodeId("n"))
    await functions.collect(set())
    assert code.has_archive(digest)
    await functions.create(hello(), actor="ann")
    await functions.delete("hello", actor="ann")
    await functions.collect(set())
    assert not code.has_archive(digest)
    async with code.holding(HELLO, digest):
        code.hold_ahead(digest, 0.0)
    await eventually(lambda: _collected(functions, digest))


async def _collected(functions: FunctionRegistry, digest: Digest) -> bool:
    await functions.collect(set())
    return not functions.code.has_archive(digest)


async def test_code_that_could_not_be_had_is_not_held_and_nobody_has_more_kept_ahead_than_some(
    functions: FunctionRegistry,
) -> None:
    async def fetch(digest: Digest, source: NodeId | None = None) -> bytes:
        if digest == digest_of(HELLO):
            return HELLO
        raise errors.NotFound("nobody has it")

    fetcher = CodeFetcher(functions.code, fetch)
    for number in range(100):
        with pytest.raises(errors.NotFound):
            await fetcher.store(digest_of(b"%d" % number), NodeId("n"))
        with pytest.raises(errors.Invalid):
            await fetcher.store(Digest(f"../../{number}"), NodeId("n"))
    await fetcher.store(digest_of(HELLO), NodeId("n"))
    others = [digest_of(b"other %d" % number) for number in range(31)]
    for other in others:
        functions.code.hold_ahead(other, 60.0)
    with pytest.raises(errors.Overloaded, match="not known yet"):
        functions.code.hold_ahead(digest_of(b"more"), 60.0)
    for other in others:
        functions.code.end_hold_ahead(other)
    functions.code.hold_ahead(digest_of(b"more"), 0.0)
