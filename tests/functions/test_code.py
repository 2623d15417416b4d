"""Code is kept once per digest, as long as anybody needs it and no longer, also across a kill."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import hypothesis
import hypothesis.strategies as some
import pytest

from skerry.functions.code import digest_of
from skerry.functions.registry import Functions
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.store.sqlite import SqliteStore
from tests.functions import tarballs
from tests.functions.registries import HELLO, OTHER, Ground, hello

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "code")


@pytest.fixture
async def functions(ground: Ground) -> AsyncIterator[Functions]:
    async with ground.registry() as functions:
        yield functions


async def test_the_same_code_is_kept_once_and_until_the_last_function_of_it_goes(
    functions: Functions, ground: Ground
) -> None:
    await asyncio.gather(*(functions.create(hello(f"f{n}"), actor="ann") for n in range(5)))
    for number in range(5):
        assert ground.kept() == {digest_of(HELLO)}
        await functions.delete(f"f{number}", actor="ann")
        await functions.collect(set())
    assert ground.kept() == set()


async def test_code_that_a_worker_uses_stays_until_it_does_not(functions: Functions, ground: Ground) -> None:
    before = await functions.create(hello(), actor="ann")
    await functions.update(hello(code=OTHER), actor="ann")
    await functions.collect({digest_of(HELLO)})
    folder = functions.code_folder(before)
    assert folder is not None
    assert folder.exists()
    await functions.collect(set())
    assert functions.code_folder(before) is None
    assert ground.kept() == {digest_of(OTHER)}


async def test_code_that_was_removed_can_be_brought_again(functions: Functions, ground: Ground) -> None:
    for _ in range(2):
        await functions.create(hello(), actor="ann")
        assert ground.kept() == {digest_of(HELLO)}
        await functions.delete("hello", actor="ann")
        await functions.collect(set())
        assert ground.kept() == set()


async def test_the_archive_can_be_had_as_it_came_while_the_code_is_there(functions: Functions) -> None:
    await functions.create(hello(), actor="ann")
    assert await functions.archive(digest_of(HELLO)) == HELLO
    await functions.update(hello(code=OTHER), actor="ann")
    await functions.collect(set())
    assert await functions.archive(digest_of(OTHER)) == OTHER
    for digest in (digest_of(HELLO), digest_of(b"")):
        with pytest.raises(errors.NotFound):
            await functions.archive(digest)


async def test_an_archive_that_was_lost_is_kept_when_its_code_is_brought_again(
    functions: Functions, ground: Ground
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
    tmp_path: Path, step: str, times: int
) -> None:
    calls = ("create", "update", "delete")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.functions.registry_driver", str(tmp_path), step, str(times)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
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
