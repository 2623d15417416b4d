"""Rotation of the key: every value stays readable, whatever step the process ends at."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from skerry.control.events.log import EventLog
from skerry.control.secrets import vault as vaults
from skerry.control.secrets.key_file import SecretKeyFile
from skerry.control.secrets.registry import SecretRegistry
from skerry.control.secrets.rotation import KeyRotation
from skerry.control.secrets.vault import SecretVault
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE
from skerry.model.secrets import SecretKind, SecretRef
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore

STEPS = (
    "rotation.key_made",
    "rotation.begun",
    "rotation.value",
    "rotation.sealed",
    "rotation.ended",
    "rotation.dropped",
)
NAMES = [f"s{number}" for number in range(5)]


class Killed(BaseException):
    """The process ended here."""


class World:
    """One server after the other on a store and a file."""

    def __init__(self, store: MemoryStore, clock: ManualClock, path: Path) -> None:
        self.store = store
        self.clock = clock
        self.path = path
        self.events = EventLog(store, clock, EventSettings())

    async def start(self, fail_at: str = "") -> tuple[SecretVault, KeyRotation]:
        vault, rotation = self.unchecked(fail_at)
        assert await vault.open() == ""
        return vault, rotation

    def unchecked(self, fail_at: str = "") -> tuple[SecretVault, KeyRotation]:
        vault = SecretVault(self.store, SecretKeyFile(self.path), self.clock)

        def failpoint(step: str) -> None:
            if step == fail_at:
                raise Killed(step)

        return vault, KeyRotation(self.store, vault, self.events, self.clock, failpoint=failpoint)

    async def fill(self, vault: SecretVault) -> None:
        registry = SecretRegistry(self.store, self.events, self.clock, vault, users=lambda *_: ())
        for name in NAMES:
            write = await vault.seal(ref(name), name.encode())
            await self.store.commit([write.put], [write.expect])
        del registry

    async def check(self, vault: SecretVault) -> None:
        for name in NAMES:
            assert await vault.value(ref(name)) == name.encode()


def ref(name: str) -> SecretRef:
    return SecretRef(DEFAULT_NAMESPACE, SecretKind.SECRET, name, 1)


@pytest.fixture
def world(store: MemoryStore, clock: ManualClock, tmp_path: Path) -> World:
    return World(store, clock, tmp_path / "pki" / "secrets.key")


async def test_the_key_is_in_a_file_for_its_owner_alone_and_not_in_the_store(world: World) -> None:
    vault, _ = await world.start()
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600
    key = vault.keys.get(vault.keys.ids[0])
    page = await world.store.range("")
    assert not any(key in entry.value for entry in page.entries)
    again, _ = await world.start()
    assert again.keys.ids == vault.keys.ids


async def test_a_rotation_seals_everything_anew_and_forgets_the_old_key(world: World) -> None:
    vault, rotation = await world.start()
    await world.fill(vault)
    old = vault.keys.ids[0]
    before = {entry.key: entry.value for entry in (await world.store.range(vaults.PREFIX)).entries}
    report = await rotation.rotate(actor="ann")
    assert (report.sealed, report.is_prepared) == (len(NAMES), False)
    after = (await world.store.range(vaults.PREFIX)).entries
    assert all(vaults.sealed_of(entry).key == report.key != old for entry in after)
    assert all(entry.value != before[entry.key] for entry in after)
    assert vault.keys.ids == (report.key,)
    await world.check(vault)


@pytest.mark.parametrize("step", STEPS)
async def test_a_rotation_that_is_killed_at_any_step_is_finished_by_the_next_start(
    world: World, step: str
) -> None:
    vault, rotation = await world.start(step)
    await world.fill(vault)
    old = vault.keys.ids[0]
    with pytest.raises(Killed):
        await rotation.rotate(actor="ann")
    vault, rotation = await world.start()
    await world.check(vault)
    write = await vault.seal(ref("late"), b"late")  # values can be set meanwhile
    await world.store.commit([write.put], [write.expect])
    if (await vault.state())[0].previous:
        async with rotation._lock:
            await rotation._finish()
    await world.check(vault)
    assert await vault.value(ref("late")) == b"late"
    state, _ = await vault.state()
    assert state.previous == ()
    if step == "rotation.key_made":  # it seals nothing yet: the next rotation uses it
        assert state.current == old
        report = await rotation.rotate(actor="ann")
        assert vault.keys.ids == (report.key,)
    else:
        vault, _ = await world.start()
        assert vault.keys.ids == (state.current,)
        assert old not in vault.keys.ids
    await world.check(vault)


async def test_a_server_without_the_key_says_so_and_finds_one_that_is_copied_to_it(
    world: World, tmp_path: Path
) -> None:
    vault, _ = await world.start()
    await world.fill(vault)
    other = SecretVault(world.store, SecretKeyFile(tmp_path / "other" / "secrets.key"), world.clock)
    assert "copy secrets.key" in await other.open()
    assert not other.keys.path.exists()
    with pytest.raises(errors.FailedPrecondition, match="no key"):
        await other.value(ref("s0"))
    with pytest.raises(errors.FailedPrecondition, match="no key"):
        await other.seal(ref("new"), b"x")
    with pytest.raises(errors.FailedPrecondition, match="no key"):
        await KeyRotation(world.store, other, world.events, world.clock).rotate(actor="ann")
    other.keys.path.parent.mkdir()
    other.keys.path.write_bytes(world.path.read_bytes())
    other.keys.path.chmod(0o644)
    with pytest.raises(errors.FailedPrecondition, match="chmod 600"):
        await other.value(ref("s0"))
    other.keys.path.chmod(0o600)
    assert await other.value(ref("s0")) == b"s0"


async def test_a_prepared_key_is_used_by_the_next_rotation(world: World, tmp_path: Path) -> None:
    vault, rotation = await world.start()
    await world.fill(vault)
    prepared = await rotation.prepare(actor="ann")
    assert (prepared.is_prepared, prepared.sealed) == (True, 0)
    assert (await rotation.prepare(actor="ann")).key == prepared.key
    other_file = tmp_path / "other" / "secrets.key"
    other_file.parent.mkdir()
    other_file.write_bytes(world.path.read_bytes())
    other_file.chmod(0o600)
    other = SecretVault(world.store, SecretKeyFile(other_file), world.clock)
    assert await other.open() == ""
    assert (await rotation.rotate(actor="ann")).key == prepared.key
    await world.check(other)
    assert await other.open() == ""
    assert other.keys.ids == (prepared.key,)


async def test_a_damaged_file_is_refused_without_its_content(world: World) -> None:
    await world.start()
    whole = world.path.read_bytes()
    for damaged in (b"", whole[:-5], whole.replace(b'"key":"', b'"key":"AAAA')):
        world.path.write_bytes(damaged)
        with pytest.raises(errors.FailedPrecondition, match="damaged") as refused:
            SecretKeyFile(world.path).load()
        assert "AAAA" not in refused.value.message


@pytest.mark.parametrize("fail_at", ["", "rotation.key_made", "discard.replaced", "discard.value"])
async def test_with_a_lost_key_values_are_discarded_and_set_anew(
    store: MemoryStore, clock: ManualClock, tmp_path: Path, fail_at: str
) -> None:
    world = World(store, clock, tmp_path / "secrets.key")
    vault, _ = await world.start()
    await world.fill(vault)
    world.path.unlink()
    vault, rotation = world.unchecked(fail_at)
    assert "--discard-lost" in await vault.open()
    with pytest.raises(errors.FailedPrecondition):
        await vault.seal(ref("s0"), b"new")
    if fail_at:
        with pytest.raises(Killed):
            await rotation.discard_lost(actor="ann")
        vault, rotation = world.unchecked()
    await rotation.discard_lost(actor="ann")
    assert (await store.range(vaults.PREFIX)).entries == ()
    write = await vault.seal(ref("s0"), b"new")
    await store.commit([write.put], [write.expect])
    await rotation.rotate(actor="ann")  # keys that are here, and values that they sealed, are not affected
    assert await rotation.discard_lost(actor="ann") == 0
    assert await vault.value(ref("s0")) == b"new"
    assert await vault.open() == ""
