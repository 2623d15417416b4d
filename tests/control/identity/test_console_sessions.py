"""Console sessions: links that work once, and sessions that are no more than the credential behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.control.identity.console_sessions import CODE_S, SESSION_S, ConsoleSessions
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from tests.support.clouds import Cloud, cloud_in

LOCAL = Caller(origin=AuthMethod.LOOPBACK, name="uid:0", role=Role.ADMIN)


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path, clock) as made:
        yield made


@pytest.fixture
def sessions(cloud: Cloud) -> ConsoleSessions:
    return cloud.identity.console_sessions


async def open_session(sessions: ConsoleSessions, caller: Caller = LOCAL, uid: int | None = 0) -> str:
    return (await sessions.redeem((await sessions.create_link(caller)).code, uid)).text


async def token_caller(cloud: Cloud, *namespaces: str) -> Caller:
    _, text = await cloud.identity.create_token(
        Role.DEPLOYER, ttl_s=3600, note="", actor="test", namespaces=namespaces
    )
    return cloud.identity.caller_from_token(text)


async def test_a_session_has_the_caller_that_asked_for_its_link(
    cloud: Cloud, sessions: ConsoleSessions
) -> None:
    caller = await token_caller(cloud, "shop", "store")
    assert sessions.caller(await open_session(sessions, caller), 0) == caller


async def test_a_link_works_once(sessions: ConsoleSessions) -> None:
    link = await sessions.create_link(LOCAL)
    results = await asyncio.gather(*(sessions.redeem(link.code, 0) for _ in range(5)), return_exceptions=True)
    assert sorted(isinstance(one, errors.Unauthenticated) for one in results) == [False] + 4 * [True]


async def test_a_link_expires(sessions: ConsoleSessions, clock: ManualClock) -> None:
    link = await sessions.create_link(LOCAL)
    clock.advance(CODE_S)
    with pytest.raises(errors.Unauthenticated, match="skerry console"):
        await sessions.redeem(link.code, 0)


@pytest.mark.parametrize("text", ["", ".", "x.y", "id only"])
async def test_a_wrong_code_or_secret_opens_nothing(sessions: ConsoleSessions, text: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        await sessions.redeem(text, 0)
    with pytest.raises(errors.Unauthenticated):
        sessions.caller(text, 0)


async def test_a_code_is_no_session_and_a_secret_no_code(sessions: ConsoleSessions) -> None:
    link = await sessions.create_link(LOCAL)
    with pytest.raises(errors.Unauthenticated):
        sessions.caller(link.code, 0)
    text = (await sessions.redeem(link.code, 0)).text
    with pytest.raises(errors.Unauthenticated):
        await sessions.redeem(text, 0)


async def test_a_session_ends_by_itself_and_is_removed(
    cloud: Cloud, sessions: ConsoleSessions, clock: ManualClock
) -> None:
    text = await open_session(sessions)
    clock.advance(SESSION_S)
    with pytest.raises(errors.Unauthenticated):
        sessions.caller(text, 0)
    await cloud.identity.sweep()
    assert (await cloud.store.range("identity/console-sessions/")).entries == ()


async def test_a_session_ends_with_its_token(cloud: Cloud, sessions: ConsoleSessions) -> None:
    caller = await token_caller(cloud)
    text = await open_session(sessions, caller)
    link = await sessions.create_link(caller)
    await cloud.identity.revoke_token(caller.token, actor="test")
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        sessions.caller(text, 0)
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        await sessions.redeem(link.code, 0)


async def test_a_session_ends_when_its_token_expires(
    cloud: Cloud, sessions: ConsoleSessions, clock: ManualClock
) -> None:
    text = await open_session(sessions, await token_caller(cloud))
    clock.advance(3600)
    with pytest.raises(errors.Unauthenticated, match="expired"):
        sessions.caller(text, 0)


@pytest.mark.parametrize("other", [None, 1000])
async def test_a_session_is_of_the_local_user_that_opened_it(
    sessions: ConsoleSessions, other: int | None
) -> None:
    text = await open_session(sessions, uid=0)
    with pytest.raises(errors.Unauthenticated):
        sessions.caller(text, other)


async def test_signing_out_ends_a_session(cloud: Cloud, sessions: ConsoleSessions) -> None:
    text = await open_session(sessions)
    await sessions.close("x" + text)
    assert sessions.caller(text, 0) == LOCAL
    await sessions.close(text)
    await sessions.close(text)
    with pytest.raises(errors.Unauthenticated):
        sessions.caller(text, 0)
    assert len(await cloud.events("console.closed")) == 1


async def test_the_store_has_neither_codes_nor_secrets(cloud: Cloud, sessions: ConsoleSessions) -> None:
    link = await sessions.create_link(LOCAL)
    text = await open_session(sessions)
    stored = b"".join(entry.value for entry in (await cloud.store.range("")).entries)
    assert all(secret.partition(".")[2].encode() not in stored for secret in (link.code, text))


async def test_nobody_without_a_role_of_people_gets_a_link(sessions: ConsoleSessions) -> None:
    node = Caller(origin=AuthMethod.CERTIFICATE, name="n", role=Role.NODE)
    for caller in (ANONYMOUS, node):
        with pytest.raises(errors.Forbidden):
            await sessions.create_link(caller)
