"""Functions are registered durably and whole, under names that keep case, and refused in plain words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.functions.registry.code_store import digest_of
from skerry.functions.registry.registry import FunctionRegistry
from skerry.kit import tasks
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.model.functions import Function
from skerry.model.images import ImageAccess
from skerry.model.resources import NO_RESOURCES, Megabytes, Millicores, Resources
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Delete, Expect, Op, Put
from tests.functions.registry.registries import HELLO, OTHER, Ground, hello
from tests.functions.registry.tarballs import HELLO as SOURCE
from tests.functions.registry.tarballs import member, tar
from tests.support.waiting import eventually


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "code")


@pytest.fixture
async def functions(ground: Ground) -> AsyncIterator[FunctionRegistry]:
    async with ground.registry() as functions:
        yield functions


async def test_a_function_is_there_with_its_code_when_create_returns(
    functions: FunctionRegistry, ground: Ground
) -> None:
    wish = hello(environment=("KEY=v",), cpu=Millicores(500), is_idempotent=True, policy="edgecloud")
    made = await functions.create(wish, actor="ann")
    assert functions.get("hello") == made
    assert (made.is_idempotent, made.policy) == (True, "edgecloud")
    assert (made.version, made.code, made.cpu, made.environment) == (1, digest_of(HELLO), 500, ("KEY=v",))
    folder = functions.code_folder(made)
    assert folder is not None
    assert (folder / "hello.py").read_text() == SOURCE
    assert folder.stat().st_mode & 0o777 == 0o755
    assert ground.events.told == [
        (
            "function.created",
            "function/hello",
            "ann",
            {"name": "hello", "namespace": "default", "version": "1"},
        )
    ]


async def test_names_that_differ_only_in_case_are_two_functions(functions: FunctionRegistry) -> None:
    await functions.create(hello("Hello"), actor="ann")
    await functions.create(hello("hello"), actor="ann")
    with pytest.raises(errors.AlreadyExists, match="'Hello' exists"):
        await functions.create(hello("Hello"), actor="ann")
    assert (await functions.update(hello("hello", code=OTHER), actor="ann")).version == 2
    assert functions.names() == ["Hello", "hello"]
    shown = functions.get("Hello")
    assert shown is not None
    assert (shown.name, shown.version) == ("Hello", 1)
    assert functions.get("HELLO") is None
    await functions.delete("hello", actor="ann")
    assert functions.names() == ["Hello"]


async def test_a_function_of_an_earlier_version_is_known_by_its_own_name(ground: Ground) -> None:
    async with ground.registry() as functions:
        made = await functions.create(hello("Hello"), actor="ann")
    entry = await ground.store.get("function/Hello")
    assert entry is not None
    await ground.store.commit([Delete("function/Hello"), Put("function/hello", entry.value)])
    async with ground.registry() as functions:
        assert functions.get("Hello") == made
        assert functions.get("hello") is None
        assert functions.code_folder(made) is not None
        assert (await functions.update(hello("Hello", code=OTHER), actor="ann")).version == 2
        await functions.create(hello("hello"), actor="ann")
        assert functions.names() == ["Hello", "hello"]


async def test_a_signature_is_kept(functions: FunctionRegistry) -> None:
    declared = '{"Inputs": [{"Name": "n", "Type": "Int"}], "Outputs": []}'
    made = await functions.create(hello(signature=declared), actor="ann")
    assert (made.signature, functions.get("hello")) == (declared, made)


async def test_of_many_that_create_one_name_one_succeeds(functions: FunctionRegistry) -> None:
    async def create(number: int) -> Function | None:
        try:
            return await functions.create(hello(), actor="ann")
        except errors.AlreadyExists:
            return None

    made = await asyncio.gather(*(create(number) for number in range(20)))
    assert [one for one in made if one is not None] == [functions.get("hello")]


async def test_updates_at_once_each_get_a_version(functions: FunctionRegistry, ground: Ground) -> None:
    await functions.create(hello(), actor="ann")
    made = await asyncio.gather(
        *(functions.update(hello(code=(HELLO, OTHER)[n % 2]), actor="ann") for n in range(10))
    )
    assert sorted(one.version for one in made) == list(range(2, 12))
    newest = max(made, key=lambda one: one.version)
    assert functions.get("hello") == newest
    await functions.collect(set())
    assert ground.kept() == {newest.code}


async def test_update_of_what_is_not_there_creates_it(functions: FunctionRegistry, ground: Ground) -> None:
    assert (await functions.update(hello(), actor="ann")).version == 1
    assert [kind for kind, *_ in ground.events.told] == ["function.created"]


async def test_update_keeps_when_it_was_created(functions: FunctionRegistry, ground: Ground) -> None:
    made = await functions.create(hello(), actor="ann")
    assert isinstance(ground.clock, ManualClock)
    ground.clock.advance(60)
    after = await functions.update(hello(), actor="ann")
    assert (after.created_at, after.updated_at) == (made.created_at, made.created_at + 60)


async def test_deleting_what_is_not_there_says_so(functions: FunctionRegistry) -> None:
    for name in ("nothing", "", "x" * 1000, "a/b"):
        with pytest.raises(errors.NotFound, match=r"^Unknown function\.$"):
            await functions.delete(name, actor="ann")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"runtime": "java21"}, errors.NotFound, "^there is no runtime "),
        ({"runtime": "", "memory": 0}, errors.NotFound, "^there is no runtime "),
        ({"memory": 0}, errors.Unprocessable, "^Invalid memory limit$"),
        ({"memory": -5}, errors.Unprocessable, "^Invalid memory limit$"),
        ({"runtime": "go1.22", "is_web": True}, errors.Unprocessable, "go1.22 cannot be a web handler"),
        ({"memory": 1025}, errors.Unprocessable, "1025 MB can never be had.*1024 MB"),
        ({"cpu": 2001}, errors.Unprocessable, "2.001 cores can never be had.*have 2 "),
        ({"name": ""}, errors.Invalid, "name"),
        ({"name": "a/b"}, errors.Invalid, "name"),
        ({"name": "../x"}, errors.Invalid, "name"),
        ({"name": "x" * 600}, errors.Invalid, "name"),
        ({"handler": ""}, errors.Invalid, "handler"),
        ({"handler": "nodots"}, errors.Invalid, "handler"),
        ({"code": b""}, errors.Invalid, "needs its code"),
        ({"code": b"https://example.org/x.tar"}, errors.Invalid, "URL.*send the tar archive itself"),
        ({"code": b"not a tar"}, errors.Invalid, "not a tar archive"),
        ({"code": tar(member("../x"))}, errors.Invalid, "leads out"),
        ({"code": bytes(70_000)}, errors.TooLarge, r"functions\.max_code_bytes"),
        ({"runtime": "custom", "handler": ""}, errors.Invalid, "needs an image"),
        ({"image": "example.org/x"}, errors.Invalid, "custom"),
        ({"environment": ("novalue",)}, errors.Invalid, "KEY=VALUE"),
        ({"environment": tuple(f"K{n}={'v' * 30_000}" for n in range(9))}, errors.TooLarge, "256 KiB"),
        ({"max_concurrency": 0}, errors.Invalid, "max_concurrency"),
        ({"timeout_s": -1.0}, errors.Invalid, "timeout_s"),
        ({"policy": "edgeclowd"}, errors.Invalid, "did you mean 'edgecloud'"),
    ],
)
async def test_what_cannot_be_is_refused_and_leaves_nothing(
    ground: Ground, fields: dict[str, object], error: type[errors.SkerryError], message: str
) -> None:
    async with ground.registry(max_code_bytes=65536) as functions:
        name = str(fields.pop("name", "hello"))
        with pytest.raises(error, match=message):
            await functions.create(hello(name, **fields), actor="ann")
        with pytest.raises(error, match=message):
            await functions.update(hello(name, **fields), actor="ann")
        assert functions.names() == []
        await functions.collect(set())
    assert (ground.kept(), ground.left_over(), ground.events.told) == (set(), [], [])


async def test_what_may_be_asked_for_is_what_the_largest_node_has_at_that_time(ground: Ground) -> None:
    ground.most = NO_RESOURCES
    async with ground.registry() as functions:
        with pytest.raises(errors.Unavailable, match="no node of this cloud runs functions"):
            await functions.create(hello(memory=1), actor="ann")
        ground.most = Resources(Millicores(1000), Megabytes(4096))
        await functions.create(hello(memory=4096), actor="ann")


async def test_that_it_exists_is_told_before_anything_else(functions: FunctionRegistry) -> None:
    await functions.create(hello(), actor="ann")
    with pytest.raises(errors.AlreadyExists):
        await functions.create(hello(runtime="nonsense", memory=0), actor="ann")


async def test_a_custom_function_needs_no_code_but_may_bring_it(functions: FunctionRegistry) -> None:
    bare = await functions.create(
        hello("bare", runtime="custom", image="example.org/x", code=b"", handler=""), actor="ann"
    )
    assert functions.code_folder(bare) is None
    with_code = await functions.create(hello("both", runtime="custom", image="example.org/x"), actor="ann")
    assert functions.code_folder(with_code) is not None


async def test_no_more_functions_than_the_limit_also_at_once(ground: Ground) -> None:
    async with ground.registry(max_functions=3) as functions:
        done = await asyncio.gather(
            *(functions.create(hello(f"f{n}"), actor="ann") for n in range(8)), return_exceptions=True
        )
        assert len([one for one in done if isinstance(one, Function)]) == 3 == len(functions.names())
        refused = [one for one in done if not isinstance(one, Function)]
        assert all(isinstance(one, errors.TooLarge) and "max_functions" in one.message for one in refused)
        await functions.update(hello(functions.names()[0], code=OTHER), actor="ann")


async def test_a_function_that_fails_its_check_is_not_registered(
    functions: FunctionRegistry, ground: Ground
) -> None:
    seen = []

    async def check(function: Function, folder: Path | None) -> None:
        assert folder is not None
        seen.append((function.name, sorted(path.name for path in folder.iterdir())))
        # While it is looked at, its code may not go, though nothing names it yet.
        await functions.collect(set())
        assert folder.exists()
        raise CodeLoadError("no module named nothing")

    with pytest.raises(CodeLoadError):
        await functions.create(hello(), actor="ann", check=check)
    assert seen == [("hello", ["hello.py"])]
    assert functions.get("hello") is None
    await functions.collect(set())
    assert ground.kept() == set()


async def test_everything_is_there_again_after_a_restart(ground: Ground) -> None:
    async with ground.registry() as functions:
        made = [await functions.create(hello(f"f{n}"), actor="ann") for n in range(3)]
        await functions.update(hello("f1", code=OTHER), actor="ann")
    async with ground.registry() as functions:
        assert functions.names() == ["f0", "f1", "f2"]
        assert functions.get("f0") == made[0]
        again = functions.get("f1")
        assert again is not None
        assert (again.version, again.code) == (2, digest_of(OTHER))
        assert ground.kept() == {digest_of(HELLO), digest_of(OTHER)}


async def test_another_server_s_functions_are_seen(ground: Ground, tmp_path: Path) -> None:
    there = Ground(tmp_path / "there", ground.store, ground.clock)
    there.events = ground.events
    async with ground.registry() as here, there.registry() as far:
        made = await far.create(hello(), actor="ann")
        await eventually(lambda: here.get("hello") == made)
        assert here.code_folder(made) is None  # its code is on the other's disk


class DoubtfulStore(MemoryStore):
    """Does what it is asked, and then says that it is not sure."""

    is_doubtful = False

    async def commit(
        self, ops: list[Op] | tuple[Op, ...], expect: list[Expect] | tuple[Expect, ...] = ()
    ) -> int:  # type: ignore[override] - what the registry gives it
        revision = await super().commit(ops, expect)
        if self.is_doubtful:
            raise errors.Unavailable("the connection was lost; it may have happened")
        return revision


async def test_who_listens_hears_of_every_change_and_can_catch_up(ground: Ground, tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []
    async with ground.registry() as functions:
        functions.listen(lambda name, now: heard.append((name, now.version if now else 0)))
        other = Ground(tmp_path / "other", ground.store, ground.clock)
        async with other.registry() as elsewhere:
            await elsewhere.create(hello("Hello"), actor="ann")
            made = await elsewhere.update(hello("Hello", code=OTHER), actor="ann")
            await functions.sync()
            assert [each.version for each in functions.all()] == [2]
            assert functions.code_folder(made) is None, "code is where it was registered"
            await elsewhere.delete("Hello", actor="ann")
        await functions.sync()
    assert heard == [("Hello", 1), ("Hello", 2), ("Hello", 0)]


async def test_a_function_that_may_have_been_registered_keeps_its_code(tmp_path: Path) -> None:
    store = DoubtfulStore(ManualClock())
    ground = Ground(tmp_path / "code", store)
    async with ground.registry() as functions:
        store.is_doubtful = True
        with pytest.raises(errors.Unavailable):
            await functions.create(hello(), actor="ann")
        await functions.collect(set())
        made = await eventually(lambda: functions.get("hello"))
        assert functions.code_folder(made) is not None


async def test_a_caller_who_leaves_in_the_middle_leaves_a_whole_function_or_none(ground: Ground) -> None:
    steps = ["code.unpacked", "code.synced", "code.renamed", "code.kept", "function.checked"]
    for number, leave_at in enumerate(steps):
        loop = asyncio.get_running_loop()
        creating: list[asyncio.Task[Function]] = []

        def failpoint(step: str, wanted: str = leave_at) -> None:
            if step == wanted:
                loop.call_soon_threadsafe(creating[0].cancel)  # noqa: B023 - called within this turn

        async with ground.registry(failpoint) as functions:
            creating.append(asyncio.create_task(functions.create(hello(f"f{number}"), actor="ann")))
            await asyncio.wait(creating)
            await tasks.cancel_and_wait(creating)
            await functions.collect(set())
            there = functions.get(f"f{number}")
            assert (ground.kept() == set()) == (there is None)
            if there is not None:
                await functions.delete(there.name, actor="ann")
                await functions.collect(set())
        assert ground.left_over() == []


async def test_a_path_is_an_admins_to_name_and_others_may_leave_it_as_it_is(
    functions: FunctionRegistry,
) -> None:
    path = hello("f", runtime="custom", image="rootfs:/srv", code=b"", handler="")
    admins = replace(path, caller_access=ImageAccess.ALL)
    for register in (functions.create, functions.update):
        with pytest.raises(errors.Forbidden, match="only an admin"):
            await register(path, actor="ann")
    assert functions.names() == []
    assert (await functions.create(admins, actor="root")).image_access is ImageAccess.ALL
    louder = replace(path, environment=("LEVEL=1",))
    assert (await functions.update(louder, actor="ann")).image_access is ImageAccess.ALL
    with pytest.raises(errors.Forbidden):
        await functions.update(replace(path, image="rootfs:/etc"), actor="ann")
    plain = await functions.update(replace(path, image="example.org/x"), actor="ann")
    assert plain.image_access is ImageAccess.REGISTRIES
    with pytest.raises(errors.Forbidden):
        await functions.update(path, actor="ann")
