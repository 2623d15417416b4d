"""A container with a disk limit cannot write more than that, however it tries, and goes on."""

from __future__ import annotations

import hashlib

import pytest

from skerry.model.cells import ExitStatus
from skerry.model.resources import Gigabytes, Megabytes, Resources
from skerry.node.containers import state
from skerry.node.containers.writable_layers import DiskLimitKind
from tests.node.containers.real import Agent, Ground, needs_runc, printed, spec

pytestmark = [needs_runc, pytest.mark.root]

MB = 1024 * 1024
LIMIT = 32 * MB
SMALL = Resources(disk=Gigabytes(1))


@pytest.fixture(autouse=True)
def gigabytes_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a disk is full soon."""
    monkeypatch.setattr(state, "_GIGABYTE", LIMIT)


async def run(
    agent: Agent, script: str, name: str = "web", resources: Resources = SMALL
) -> tuple[ExitStatus, str]:
    """What a container that runs `script` says, with a word at its end that says that it went on."""
    await agent.containers.create(spec(name, "sh", "-c", f"{script}\necho went on", resources=resources))
    await agent.containers.start(name)
    how = await agent.containers.wait(name)
    return how, printed(agent.containers, name).decode()


def taken(ground: Ground, name: str = "web") -> int:
    """Bytes of the node's disk that everything of a container takes."""
    folder = ground.folder / "containers" / "all" / name
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


async def test_a_file_grows_to_its_limit_and_no_further(agent: Agent, ground: Ground) -> None:
    how, said = await run(agent, "dd if=/dev/zero of=/file bs=1M count=100 2>&1")
    assert (how.code, "No space left" in said, "went on" in said) == (0, True, True)
    stats = await agent.containers.stats("web")
    assert stats.disk_limit_kind in (DiskLimitKind.QUOTA, DiskLimitKind.FILE_SYSTEM)
    assert LIMIT * 0.9 < taken(ground) < LIMIT * 1.1
    assert LIMIT * 0.9 < stats.disk_bytes <= LIMIT


async def test_a_file_that_has_no_name_any_more_counts_too(agent: Agent, ground: Ground) -> None:
    script = "exec 3>/file; rm /file; dd if=/dev/zero bs=1M count=100 2>&1 >&3; sync"
    _, said = await run(agent, script)
    assert "No space left" in said
    assert "went on" in said
    assert taken(ground) < LIMIT * 1.1


async def test_reserving_more_than_there_is_fails(agent: Agent, ground: Ground) -> None:
    _, said = await run(agent, "fallocate -l 8G /file 2>&1 || echo refused")
    assert "No space left" in said
    assert "refused\nwent on" in said
    assert taken(ground) < LIMIT * 1.1


async def test_files_without_content_run_out(agent: Agent, ground: Ground) -> None:
    script = "n=0; while echo -n >/$n; do n=$((n+1)); [ $n -gt 20000 ] && break; done 2>&1; echo made $n"
    _, said = await run(agent, script)
    assert "No space left" in said
    assert "went on" in said
    created = int(said.split("made ")[1].split()[0])
    assert 1500 < created < LIMIT // (16 * 1024)
    assert taken(ground) < LIMIT * 1.1


async def test_who_has_filled_the_disk_starts_again_and_finds_what_it_wrote(agent: Agent) -> None:
    script = "ls /file && rm /file && exit 7; dd if=/dev/zero of=/file bs=1M count=100; true"
    _, said = await run(agent, script)
    assert "went on" in said
    await agent.containers.start("web")
    assert (await agent.containers.wait("web")).code == 7


async def test_little_memory_is_enough_to_fill_the_disk(agent: Agent) -> None:
    resources = Resources(memory=Megabytes(32), disk=Gigabytes(8))
    script = "dd if=/dev/zero of=/file bs=1M count=200 2>&1 && md5sum /file"
    how, said = await run(agent, script, resources=resources)
    assert (how.code, how.oom) == (0, False)
    assert hashlib.md5(bytes(200 * MB), usedforsecurity=False).hexdigest() in said
