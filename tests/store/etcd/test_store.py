"""The etcd store when the way is bad: restarts, broken connections, lost answers, wrong certificates."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop

from skerry.model import errors
from skerry.model.settings import StoreSettings
from skerry.store.etcd.store import EtcdStore
from skerry.store.protocol import Batch, Delete, Expect, Put
from tests.support.certificates import TestAuthority
from tests.support.etcd import EtcdServer
from tests.support.proxy import Proxy
from tests.support.shares import free_port
from tests.support.waiting import PATIENCE_S, eventually

_numbers = itertools.count()


@pytest.fixture
def settings() -> StoreSettings:
    return StoreSettings(etcd_prefix=f"/wire-{next(_numbers)}/", timeout_s=20.0)


@pytest.fixture
async def direct(etcd_server: EtcdServer, settings: StoreSettings) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open([etcd_server.address], settings, tls=False)
    yield store
    await store.close()


@pytest.fixture
async def proxy(etcd_server: EtcdServer) -> AsyncIterator[Proxy]:
    async with Proxy(etcd_server.port) as made:
        yield made


@pytest.fixture
async def store(proxy: Proxy, settings: StoreSettings) -> AsyncIterator[EtcdStore]:
    """The store whose connection the test can break."""
    opened = await EtcdStore.open([proxy.address], settings, tls=False)
    yield opened
    await opened.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.stop()


async def take(batches: AsyncIterator[Batch], count: int) -> list[Batch]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(batches) for _ in range(count)]


async def test_a_dropped_watch_resumes_without_gap_or_repeat(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    since = await direct.revision()
    wanted: list[int] = []
    seen: list[int] = []
    async with store.watch("", since=since) as batches:
        for number in range(30):
            wanted.append(await direct.commit([Put("a", str(number).encode()), Put(f"b{number}", b"")]))
            if number % 3 == 0:
                await proxy.cut()
            if number % 2 == 0:
                seen += [batch.revision for batch in await take(batches, 1)]
        seen += [batch.revision for batch in await take(batches, 30 - len(seen))]
    assert seen == wanted
    assert proxy.connections > 2, "the watch was never dropped"


async def test_a_watch_that_waits_is_resumed_when_its_connection_breaks(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    async with store.watch("a", since=await direct.revision()) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        await proxy.refuse()
        revision = await direct.commit([Put("a", b"while away")])
        await proxy.listen()
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).revision == revision


async def test_a_watch_whose_history_went_while_it_was_away_is_compacted(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    await direct.commit([Put("a", b"0")])
    async with store.watch("", since=await direct.revision()) as batches:
        await direct.commit([Put("a", b"1")])
        await take(batches, 1)
        await proxy.refuse()
        for number in range(5):
            last = await direct.commit([Put("a", str(number).encode())])
        await direct.compact(last)
        await proxy.listen()
        with pytest.raises(errors.Compacted):
            await take(batches, 1)


async def test_a_watch_that_cannot_be_resumed_says_so(
    proxy: Proxy, settings: StoreSettings, etcd_server: EtcdServer
) -> None:
    quick = StoreSettings(etcd_prefix=settings.etcd_prefix, timeout_s=0.3)
    store = await eventually(lambda: try_open(proxy.address, quick))
    async with store.watch("", since=await store.revision()) as batches:
        await proxy.refuse()
        with pytest.raises(errors.Unavailable, match="etcd at"):
            await take(batches, 1)
    await store.close()


async def try_open(address: str, settings: StoreSettings) -> EtcdStore | None:
    try:
        return await EtcdStore.open([address], settings, tls=False)
    except errors.Unavailable:
        return None  # a busy machine, and a short time


async def test_a_lost_answer_to_an_unguarded_transaction_is_an_unknown_outcome(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.loses_answers = True
    commit = asyncio.ensure_future(store.commit([Put("a", b"1")]))
    entry = await eventually(lambda: direct.get("a"))
    await proxy.cut()
    proxy.loses_answers = False
    with pytest.raises(errors.Unavailable, match="may or may not have happened"):
        await commit
    assert await direct.get("a") == entry  # and it was not done again


async def test_a_guarded_transaction_that_never_arrived_is_sent_again(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.loses_requests = True
    commit = asyncio.ensure_future(store.commit([Put("a", b"1"), Put("b", b"")], [Expect("a")]))
    await eventually(lambda: proxy.lost)
    await proxy.cut()
    proxy.loses_requests = False
    revision = await commit
    entry = await direct.get("a")
    assert entry is not None
    assert (entry.revision, entry.created) == (revision, revision)


async def test_a_guarded_transaction_whose_answer_was_lost_does_not_happen_twice(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.loses_answers = True
    commit = asyncio.ensure_future(store.commit([Put("a", b"1")], [Expect("a")]))
    entry = await eventually(lambda: direct.get("a"))
    await proxy.cut()
    proxy.loses_answers = False
    with pytest.raises(errors.Unavailable, match="may or may not have happened"):
        await commit
    assert await direct.get("a") == entry


async def test_an_expected_key_that_is_only_read_does_not_guard(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.loses_requests = True
    commit = asyncio.ensure_future(store.commit([Put("a", b"1"), Delete("b")], [Expect("b"), Expect("c")]))
    await eventually(lambda: proxy.lost)
    await proxy.cut()
    with pytest.raises(errors.Unavailable, match="may or may not"):
        await commit
    proxy.loses_requests = False
    assert await direct.get("a") is None


async def test_a_lease_whose_grant_was_not_answered_is_granted_once(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.loses_answers = True
    grant = asyncio.ensure_future(store.grant_lease(600))
    await eventually(lambda: proxy.lost)
    await proxy.cut()
    proxy.loses_answers = False
    lease = await grant
    await direct.commit([Put("a", b"", lease)])
    proxy.loses_answers = True
    lost = proxy.lost
    drop = asyncio.ensure_future(store.revoke_lease(lease))
    await eventually(lambda: proxy.lost > lost)
    await proxy.cut()
    proxy.loses_answers = False
    await drop
    assert await direct.get("a") is None


async def test_a_read_is_repeated_until_it_is_answered(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    await direct.commit([Put("a", b"1")])
    proxy.loses_answers = True
    read = asyncio.ensure_future(store.get("a"))
    await eventually(lambda: proxy.lost)
    await proxy.cut()
    proxy.loses_answers = False
    entry = await read
    assert entry is not None
    assert entry.value == b"1"


async def test_an_endpoint_that_is_away_is_passed_over(
    etcd_server: EtcdServer, settings: StoreSettings, proxy: Proxy
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    store = await EtcdStore.open([nobody, proxy.address, etcd_server.address], settings, tls=False)
    async with store.watch("", since=await store.revision()) as batches:
        first = await store.commit([Put("a", b"1")], [Expect("a")])
        await proxy.refuse()
        second = await store.commit([Put("a", b"2")], [Expect("a", first)])
        assert [batch.revision for batch in await take(batches, 2)] == [first, second]
    await store.close()


async def test_an_endpoint_that_hangs_is_passed_over(
    etcd_server: EtcdServer, settings: StoreSettings, proxy: Proxy
) -> None:
    quick = StoreSettings(etcd_prefix=settings.etcd_prefix, timeout_s=6.0)
    store = await EtcdStore.open([proxy.address, etcd_server.address], quick, tls=False)
    await store.commit([Put("a", b"1")])
    proxy.loses_answers = True
    entry = await store.get("a")
    assert entry is not None
    await store.close()


async def test_etcd_that_is_away_is_named_at_opening() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(errors.Unavailable, match=f"etcd at {address} cannot be reached"):
        await EtcdStore.open([address], StoreSettings(timeout_s=0.3), tls=False)


async def test_the_store_survives_a_restart_of_etcd(own_server: EtcdServer) -> None:
    store = await EtcdStore.open([own_server.address], StoreSettings(timeout_s=20.0), tls=False)
    lease = await store.grant_lease(600)
    first = await store.commit([Put("a", b"1", lease)])
    async with store.watch("", since=first - 1) as batches:
        assert (await take(batches, 1))[0].revision == first
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(own_server.kill)
        writing = asyncio.ensure_future(store.commit([Put("a", b"2", lease)], [Expect("a", first)]))
        await asyncio.to_thread(own_server.start)
        second = await writing
        await store.renew_lease(lease)
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).revision == second
        await asyncio.to_thread(own_server.stop)
        await asyncio.to_thread(own_server.start)
        third = await store.commit([Delete("a")], [Expect("a", second)])
        assert (await take(batches, 1))[0].revision == third
    await store.close()


async def test_a_lease_that_nobody_keeps_ends_at_etcd(direct: EtcdStore) -> None:
    lease = await direct.grant_lease(1)
    since = await direct.commit([Put("a", b"", lease)])
    async with direct.watch("", since=since) as batches:
        assert (await take(batches, 1))[0].changes[0].entry is None
    with pytest.raises(errors.NotFound):
        await direct.renew_lease(lease)


async def test_clouds_with_different_prefixes_do_not_see_each_other(
    direct: EtcdStore, etcd_server: EtcdServer, settings: StoreSettings
) -> None:
    other = await EtcdStore.open(
        [etcd_server.address], StoreSettings(etcd_prefix=settings.etcd_prefix[:-1] + "0/"), tls=False
    )
    async with direct.watch("", since=await direct.revision()) as batches:
        await other.commit([Put("theirs", b"")])
        await direct.commit([Put("ours", b"")])
        assert [c.key for batch in await take(batches, 1) for c in batch.changes] == ["ours"]
    assert [e.key for e in (await direct.range("")).entries] == ["ours"]
    assert [e.key for e in (await other.range("")).entries] == ["theirs"]
    await other.close()


async def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ca")
    stranger = TestAuthority(tmp_path / "stranger", "stranger")
    server = EtcdServer(tmp_path, authority)
    await asyncio.to_thread(server.start)
    try:
        assert server.client is not None
        ours = {"etcd_cert": str(server.client.certificate), "etcd_key": str(server.client.key)}
        right = StoreSettings(etcd_ca=str(authority.ca), timeout_s=20.0, **ours)
        store = await EtcdStore.open([server.address], right, tls=True)
        async with store.watch("", since=0) as batches:
            revision = await store.commit([Put("a", b"1")])
            assert (await take(batches, 1))[0].revision == revision
        await store.close()
        for wrong in (
            StoreSettings(etcd_ca=str(stranger.ca), timeout_s=1.0, **ours),
            StoreSettings(etcd_ca=str(authority.ca), timeout_s=1.0),
        ):
            with pytest.raises(errors.Unavailable, match="certificates"):
                await EtcdStore.open([server.address], wrong, tls=True)
        with pytest.raises(errors.Unavailable):
            await EtcdStore.open([server.address], StoreSettings(timeout_s=1.0), tls=False)
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (StoreSettings(etcd_prefix=""), "store.etcd_prefix"),
        (StoreSettings(etcd_ca="/nowhere/ca.pem"), "store.etcd_ca"),
        (StoreSettings(etcd_cert="/nowhere/cert.pem"), "store.etcd_cert"),
    ],
)
async def test_settings_that_cannot_be_right_are_refused_by_name(settings: StoreSettings, field: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await EtcdStore.open(["127.0.0.1:1"], settings, tls=True)
    assert caught.value.field == field


async def test_history_is_trimmed_to_the_setting(
    direct: EtcdStore, monkeypatch: pytest.MonkeyPatch, etcd_server: EtcdServer, settings: StoreSettings
) -> None:
    monkeypatch.setattr("skerry.store.etcd.store._COMPACT_EVERY_S", 0.01)
    first = await direct.commit([Put("a", b"")])
    for number in range(110):
        last = await direct.commit([Put("a", str(number).encode())])
    short = StoreSettings(etcd_prefix=settings.etcd_prefix, history=100, timeout_s=20.0)
    store = await EtcdStore.open([etcd_server.address], short, tls=False)

    async def is_trimmed() -> bool:
        try:
            async with store.watch("", since=first) as batches:
                await take(batches, 1)
        except errors.Compacted:
            return True
        return False

    await eventually(is_trimmed)
    async with store.watch("", since=last - 50) as batches:
        assert (await take(batches, 1))[0].revision == last - 49
    await store.close()


@pytest.mark.usefixtures("warm_uvloop")
def test_it_works_on_uvloop(etcd_server: EtcdServer, settings: StoreSettings) -> None:
    async def use() -> list[int]:
        store = await EtcdStore.open([etcd_server.address], settings, tls=False)
        since = await store.revision()
        async with store.watch("", since=since) as batches:
            await asyncio.gather(*(store.commit([Put(str(n), b"")]) for n in range(20)))
            seen = [batch.revision - since for batch in await take(batches, 20)]
        await store.close()
        return seen

    assert uvloop.run(use()) == list(range(1, 21))


async def test_an_etcd_without_space_is_told_before_a_write_is_tried_until_its_alarm_is_disarmed(
    tmp_path: Path, settings: StoreSettings
) -> None:
    server = EtcdServer(tmp_path, quota_bytes=4 << 20)
    server.start()
    try:
        store = await EtcdStore.open([server.address], settings, tls=False)
        await store.check_writes()
        server.fill()
        with pytest.raises(errors.Unavailable, match="used up its space and takes no writes"):
            await store.check_writes()
        with pytest.raises(errors.Unavailable, match="nothing was changed"):
            await store.commit([Put("a", b"1")])
        assert await store.get("a") is None  # reads go on
        server.make_space()
        with pytest.raises(errors.Unavailable):
            await store.check_writes()
        server.disarm()
        await store.check_writes()
        await store.commit([Put("a", b"1")])
        await store.close()
    finally:
        server.stop()
