"""Secrets in the store: versions, limits, users, and what is written of a value."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.secrets import registry
from skerry.control.secrets import vault as vaults
from skerry.control.services.requests import ServiceSpec
from skerry.kit import json_codec
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, MARKET_NAMESPACE, Namespace
from skerry.model.node_messages import SecretRequest
from skerry.model.secrets import (
    MAX_VALUE,
    MAX_VERSIONS,
    RegistryLoginValue,
    SecretKind,
    SecretRef,
    SecretUse,
)
from skerry.model.settings import EventSettings
from skerry.model.workloads import InstanceSpec
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put
from tests.support.controls import Control, control_on
from tests.support.waiting import eventually

SECRET, CONFIG = SecretKind.SECRET, SecretKind.CONFIG
SHOP = Namespace("shop")
SPEC = InstanceSpec("web", "example.org/web:1", secrets=(SecretUse("db"),))


@pytest.fixture
async def control(store: MemoryStore, clock: ManualClock) -> AsyncIterator[Control]:
    async with control_on(store, EventLog(store, clock, EventSettings()), clock) as made:
        yield made


@pytest.fixture
async def led(store: MemoryStore, clock: ManualClock) -> AsyncIterator[Control]:
    async with control_on(store, EventLog(store, clock, EventSettings()), clock, leads=True) as made:
        yield made


async def put(control: Control, value: bytes, name: str = "db", **more: object) -> int:
    made, _ = await control.secrets.set(SECRET, name, value, actor="ann", **more)  # type: ignore[arg-type]
    return made.current.number


async def dump(store: MemoryStore) -> bytes:
    page = await store.range("")
    return b"\n".join(entry.key.encode() + b" " + entry.value for entry in page.entries)


async def test_another_value_is_another_version_and_the_same_is_none(control: Control) -> None:
    assert await put(control, b"one") == 1
    assert await put(control, b"two") == 2
    assert await control.secrets.set(SECRET, "db", b"two", actor="ann") == (
        await control.secrets.find(SECRET, "db"),
        False,
    )
    assert await control.secrets.value(SecretRef(DEFAULT_NAMESPACE, SECRET, "db", 1)) == b"one"
    assert await control.secrets.value(SecretRef(DEFAULT_NAMESPACE, SECRET, "db", 2)) == b"two"


async def test_one_namespace_cannot_use_up_what_others_may_store(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_OF_KIND", 8)
    monkeypatch.setattr(registry, "MAX_BYTES", 100)
    for number in range(2):
        await put(control, b"x", f"s{number}", namespace=SHOP)
    await eventually(lambda: len(control.secrets.tables[SECRET]) == 2)
    with pytest.raises(errors.TooLarge, match="2 secrets in the namespace 'shop'"):
        await put(control, b"x", "s2", namespace=SHOP)
    await put(control, b"y", "s0", namespace=SHOP)  # a new version of one that is there
    with pytest.raises(errors.TooLarge, match="with all their versions"):
        await put(control, b"z" * 98, "s0", namespace=SHOP)
    await put(control, b"z" * 98, "s0", namespace=Namespace("lab"))
    for number in range(5):
        await put(control, b"x", f"s{number}")  # the default namespace may have all
    await eventually(lambda: len(control.secrets.tables[SECRET]) == 8)
    with pytest.raises(errors.TooLarge, match="there are 8 secrets"):
        await put(control, b"x", "s5")
    await control.secrets.delete(SECRET, "s1", actor="ann", namespace=SHOP)
    await eventually(lambda: len(control.secrets.tables[SECRET]) == 7)
    await put(control, b"x", "s2", namespace=SHOP)


async def test_a_version_of_a_name_never_has_another_value(control: Control) -> None:
    for value in (b"one", b"two", b"three"):
        await put(control, value)
    await control.secrets.delete(SECRET, "db", actor="ann")
    assert await put(control, b"four") == 4  # nodes may have version 1 still
    assert await put(control, b"five") == 5
    assert await put(control, b"one", namespace=SHOP) == 1
    await control.secrets.delete(SECRET, "db", actor="ann")
    again = await asyncio.gather(*(put(control, b"%d" % number) for number in range(5)))
    assert sorted(again) == [6, 7, 8, 9, 10]


async def test_a_name_is_its_own_in_its_namespace_and_kind(control: Control) -> None:
    await put(control, b"default")
    await put(control, b"shop", namespace=SHOP)
    await control.secrets.set(CONFIG, "db", b"config", actor="ann")
    assert await control.secrets.value(SecretRef(SHOP, SECRET, "db", 1)) == b"shop"
    assert {one.namespace for one in control.secrets.list(SECRET).items} == {"default", "shop"}
    assert control.secrets.list(SECRET, namespace=SHOP).total == 1
    with pytest.raises(errors.NotFound):
        await control.secrets.find(SECRET, "db", Namespace("lab"))
    with pytest.raises(errors.NotFound):
        await control.secrets.find(SECRET, "shop/db")


async def test_what_cannot_be_is_refused(control: Control) -> None:
    with pytest.raises(errors.Invalid):
        await put(control, b"")
    with pytest.raises(errors.TooLarge):
        await put(control, b"x" * (MAX_VALUE + 1))
    assert await put(control, b"x" * MAX_VALUE) == 1
    with pytest.raises(errors.Forbidden):
        await put(control, b"x", namespace=MARKET_NAMESPACE)
    for name in ("", "a/b", "-", "x" * 101):
        with pytest.raises(errors.Invalid):
            await put(control, b"x", name)


async def test_the_store_and_its_events_hold_no_value(control: Control, store: MemoryStore) -> None:
    canary = b"canary-2f9d"
    await put(control, canary)
    await control.secrets.set_login("docker.io", RegistryLoginValue("robot", canary.decode()), actor="ann")
    await control.secrets.delete(SECRET, "db", actor="ann")
    await put(control, canary)
    await control.rotation.rotate(actor="ann")
    whole = await dump(store)
    for form in (canary, base64.b64encode(canary), canary.hex().encode()):
        assert form not in whole
    assert b"secret.set" in whole


async def test_a_value_does_not_open_in_another_place(control: Control, store: MemoryStore) -> None:
    await put(control, b"of-shop", namespace=SHOP)
    await put(control, b"of-lab", namespace=Namespace("lab"))
    there, here = (vaults.value_key(SecretRef(Namespace(name), SECRET, "db", 1)) for name in ("shop", "lab"))
    entry = await store.get(there)
    assert entry is not None
    await store.commit([Put(here, entry.value)])
    with pytest.raises(errors.Internal, match="cannot be opened"):
        await control.secrets.value(SecretRef(Namespace("lab"), SECRET, "db", 1))


async def test_old_versions_go_unless_something_uses_them(control: Control, store: MemoryStore) -> None:
    await put(control, b"0")
    instance, _ = await control.instances.create(SPEC, actor="ann")
    assert instance.spec.secrets[0].version == 1
    for number in range(1, MAX_VERSIONS + 3):
        await put(control, b"%d" % number)
    kept = [version.number for version in (await control.secrets.find(SECRET, "db")).versions]
    assert kept == [1, *range(4, MAX_VERSIONS + 4)]
    assert len((await store.range(vaults.PREFIX)).entries) == len(kept)
    assert await control.secrets.value(SecretRef(DEFAULT_NAMESPACE, SECRET, "db", 1)) == b"0"


async def test_users_are_searched_for_only_when_a_version_may_go(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[object] = []
    monkeypatch.setattr(control.secrets, "_users", lambda *subject: searches.append(subject) or ())
    for number in range(MAX_VERSIONS):
        await put(control, b"%d" % number)
    assert searches == []
    await put(control, b"one more")
    assert searches == [(DEFAULT_NAMESPACE, SECRET, "db")]


async def test_one_that_is_used_is_not_deleted(control: Control, store: MemoryStore) -> None:
    await put(control, b"1")
    instance, _ = await control.instances.create(SPEC, actor="ann")
    with pytest.raises(errors.Conflict, match="instance web"):
        await control.secrets.delete(SECRET, "db", actor="ann")
    await control.instances.destroy(instance.id, actor="ann")
    await control.secrets.delete(SECRET, "db", actor="ann")
    assert not (await store.range(vaults.PREFIX)).entries
    with pytest.raises(errors.NotFound):
        await control.secrets.delete(SECRET, "db", actor="ann")


async def test_a_spec_with_a_secret_that_there_is_not_is_refused(control: Control) -> None:
    await put(control, b"1", namespace=SHOP)
    with pytest.raises(errors.Unprocessable, match="skerry secret set db"):
        await control.instances.create(SPEC, actor="ann")
    made, _ = await control.instances.create(SPEC, actor="ann", namespace=SHOP)
    assert made.spec.secrets[0].version == 1


async def test_a_node_gets_exactly_what_its_instances_use(control: Control) -> None:
    await put(control, b"one")
    await put(control, b"other", "key")
    instance, _ = await control.instances.create(SPEC, actor="ann")
    await put(control, b"two")
    for node in ("n1", "n2"):
        await control.join(node)
    await control.bind(instance.id, "n1")
    used = SecretRef(DEFAULT_NAMESPACE, SECRET, "db", 1)
    wanted = [
        used,
        replace(used, version=2),
        replace(used, name="key"),
        replace(used, name="nothing"),
        replace(used, namespace=SHOP),
        SecretRef(DEFAULT_NAMESPACE, SecretKind.REGISTRY, "docker.io", 0),
    ]
    feed = control.sessions._secrets
    assert feed is not None
    answers = await feed.values(control.nodes.get("n1").id, SecretRequest(tuple(wanted)))
    assert [(one.ref, one.data) for one in answers] == [(used, b"one"), *((ref, b"") for ref in wanted[1:])]
    assert len({one.error for one in answers[1:]}) == 1  # it tells not what exists
    assert [one.data for one in await feed.values(control.nodes.get("n2").id, SecretRequest((used,)))] == [
        b""
    ]


async def test_a_node_gets_the_login_for_images_of_its_instances_namespace(control: Control) -> None:
    login = RegistryLoginValue("robot", "hush")
    for namespace in ("shop", "lab"):
        await control.secrets.set_login("example.org", login, actor="ann", namespace=Namespace(namespace))
    instance, _ = await control.instances.create(replace(SPEC, secrets=()), actor="ann", namespace=SHOP)
    await control.join("n1")
    await control.bind(instance.id, "n1")
    feed = control.sessions._secrets
    assert feed is not None
    refs = tuple(
        SecretRef(Namespace(name), SecretKind.REGISTRY, "example.org", 0) for name in ("shop", "lab")
    )
    given, refused = await feed.values(control.nodes.get("n1").id, SecretRequest(refs))
    assert json_codec.decode(given.data, RegistryLoginValue) == login
    assert (refused.data, bool(refused.error)) == (b"", True)


async def test_a_service_follows_a_new_version_by_an_update(led: Control) -> None:
    await put(led, b"1")
    await led.services.create(ServiceSpec(SPEC), actor="ann")
    await put(led, b"2")

    async def target() -> tuple[int, int]:
        service = (await led.services.get("web")).service
        return service.target.number, service.target.template.secrets[0].version

    async def reaches(number: int, version: int) -> bool:
        return await target() == (number, version)

    await eventually(lambda: reaches(2, 2))
    events = await led.services.events("web")
    assert events[-1].event.reason == "secret db has version 2"
    # The same request again changes nothing, and a rollback stays.
    again, is_new = await led.services.create(ServiceSpec(SPEC), actor="ann")
    assert (again.target.number, is_new) == (2, False)
    await led.services.roll_back("web", 1, actor="ann")
    await put(led, b"3", "other")
    assert await target() == (1, 1)
    await put(led, b"4")
    await eventually(lambda: reaches(3, 3))


async def test_workloads_and_schedules_follow_and_instances_and_jobs_do_not(led: Control) -> None:
    await put(led, b"1")
    workload, _ = await led.workloads.create(SPEC, actor="ann")
    instance, _ = await led.instances.create(SPEC, actor="ann")
    await put(led, b"2")

    await eventually(lambda: led.workloads.get(workload.id).spec.secrets[0].version == 2)
    assert led.workloads.get(workload.id).version == 2
    assert led.instances.get(instance.id).spec.secrets[0].version == 1
