"""Values on a node: requested, waited for, kept while they are used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.node_messages import SecretDelivery, SecretValue
from skerry.model.secrets import SecretKind, SecretRef, SecretUse
from skerry.node.secrets import secret_files
from skerry.node.secrets.memory_folder import MemoryFolder
from skerry.node.secrets.node_secrets import NodeSecrets
from skerry.node.secrets.secret_files import FileOwner, SecretFileWriter
from tests.support.waiting import eventually

DB = SecretRef(DEFAULT_NAMESPACE, SecretKind.SECRET, "db", 3)
LOGIN = SecretRef(DEFAULT_NAMESPACE, SecretKind.REGISTRY, "docker.io", 0)


@pytest.fixture
def memory(tmp_path: Path) -> MemoryFolder:
    return MemoryFolder(tmp_path / "run" / "secrets", mounts=False)


def ignore(text: str) -> None:
    pass


def answer(ref: SecretRef, data: bytes = b"", error: str = "") -> SecretDelivery:
    return SecretDelivery((SecretValue(ref, data, error),))


async def test_what_waits_says_so_and_goes_on_when_the_value_comes(memory: MemoryFolder) -> None:
    secrets = NodeSecrets(memory, patience_s=0.0)
    said: list[str] = []
    waits = [asyncio.create_task(secrets.ensure([DB], said.append)) for _ in range(3)]
    assert await secrets.next_request() == (DB,)  # once, for all of them
    await eventually(lambda: said == ["waits for secret db version 3 from the server"] * 3)
    secrets.deliver(answer(DB, b"canary"))
    await asyncio.gather(*waits)
    assert await secrets.values([DB]) == {DB: b"canary"}
    await secrets.ensure([DB], said.append)
    assert len(said) == 3


async def test_a_value_that_was_requested_ahead_is_here_when_it_is_needed(memory: MemoryFolder) -> None:
    secrets = NodeSecrets(memory)
    secrets.prefetch([DB])
    secrets.prefetch([DB])
    assert await secrets.next_request() == (DB,)
    secrets.deliver(answer(DB, b"canary"))
    assert await secrets.values([DB]) == {DB: b"canary"}
    secrets.prefetch([DB])  # here already
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await secrets.next_request()


async def test_a_new_session_requests_again_what_was_not_answered(memory: MemoryFolder) -> None:
    secrets = NodeSecrets(memory)
    waits = asyncio.create_task(secrets.ensure([DB], ignore))
    assert await secrets.next_request() == (DB,)
    secrets.begin_session()
    assert await secrets.next_request() == (DB,)
    secrets.deliver(answer(DB, b"canary"))
    await waits
    secrets.begin_session()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await secrets.next_request()


async def test_a_refusal_is_an_error_and_the_next_try_asks_again(memory: MemoryFolder) -> None:
    secrets = NodeSecrets(memory)
    for _ in range(2):
        waits = asyncio.create_task(secrets.ensure([DB], ignore))
        assert await secrets.next_request() == (DB,)
        secrets.deliver(answer(DB, error="nothing uses it"))
        with pytest.raises(errors.FailedPrecondition, match="nothing uses it"):
            await waits


async def test_values_outlive_the_agent_and_go_when_nothing_uses_them(memory: MemoryFolder) -> None:
    secrets = NodeSecrets(memory)
    waits = asyncio.create_task(secrets.ensure([DB], ignore))
    await secrets.next_request()
    secrets.deliver(answer(DB, b"canary"))
    await waits
    memory.close()  # something is left: it stays
    again, used = NodeSecrets(memory), [DB]
    again.add_user(lambda: used)
    again.prune()
    assert await again.values([DB]) == {DB: b"canary"}
    used.clear()
    again.prune()
    memory.close()
    assert not memory._path.exists()


async def test_what_nobody_asked_for_and_logins_are_not_kept(memory: MemoryFolder) -> None:
    secrets = NodeSecrets(memory)
    secrets.deliver(answer(DB, b"canary"))
    asking = asyncio.create_task(secrets.login(LOGIN))
    assert await secrets.next_request() == (LOGIN,)
    secrets.deliver(answer(LOGIN, b"hush"))
    assert await asking == b"hush"
    asking = asyncio.create_task(secrets.login(LOGIN))
    await secrets.next_request()
    secrets.deliver(answer(LOGIN, error="there is none"))
    assert await asking is None
    assert memory.existing("values") is None


@pytest.mark.root(tries=1)
def test_files_have_the_mode_and_owner_of_their_use(memory: MemoryFolder, tmp_path: Path) -> None:
    import os

    writer = SecretFileWriter(memory)
    uses = [
        SecretUse("db", version=3),
        SecretUse("db", target="copy", mode=0o440, version=3),
        SecretUse("db", target="/etc/pw", version=3),
        SecretUse("db", variable="PASSWORD", version=3),
    ]
    owner = FileOwner(os.getuid(), os.getgid())
    files = writer.write("c", uses, "default", {DB: b"canary"}, owner)
    mounts = dict(files.mounts)
    run = mounts["/run/secrets"]
    assert sorted(path.name for path in run.iterdir()) == ["copy", "db"]
    assert oct((run / "db").stat().st_mode & 0o7777) == "0o400"
    assert oct((run / "copy").stat().st_mode & 0o7777) == "0o440"
    assert mounts["/etc/pw"].read_bytes() == b"canary"
    assert files.environment == ("PASSWORD=canary",)
    assert "canary" not in repr(files)
    writer.write("d", uses[:1], "default", {DB: b"canary"}, owner)
    writer.keep_only({"d"})
    writer.remove("d")
    writer.remove("d")
    memory.close()
    assert not memory._path.exists()


def test_a_variable_holds_text_alone(memory: MemoryFolder) -> None:
    writer = SecretFileWriter(memory)
    for value in (b"\xff", b"a\0b"):
        with pytest.raises(errors.Invalid, match="no text") as refused:
            writer.write("c", [SecretUse("db", variable="P", version=3)], "default", {DB: value}, FileOwner())
        assert value.hex() not in refused.value.message


@pytest.mark.root(tries=1)
def test_the_files_of_one_namespace_leave_memory_for_others(
    memory: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "_SHARE_BYTES", 100)
    writer = SecretFileWriter(memory)
    use = SecretUse("db", version=3)
    owner = FileOwner(os.getuid(), os.getgid())

    def write(name: str, namespace: str, size: int) -> None:
        ref = use.ref(Namespace(namespace))
        writer.write(name, [use], namespace, {ref: b"x" * size}, owner)

    write("one", "shop", 60)
    with pytest.raises(errors.ResourcesExhausted, match="namespace shop have 60 bytes"):
        SecretFileWriter(memory).write(  # also after a restart of the agent
            "two", [use], "shop", {use.ref(Namespace("shop")): b"x" * 60}, owner
        )
    write("one", "shop", 90)  # in place of its own
    write("two", "lab", 60)
    write("three", DEFAULT_NAMESPACE, 200)
    writer.remove("one")
    write("two", "shop", 60)
