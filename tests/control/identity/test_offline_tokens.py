"""Offline tokens on a server: who may have one, how long, and what nodes are told of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.control.events.log import EventLog
from skerry.control.identity.authenticator import Authenticator
from skerry.kit import signing
from skerry.kit.clock import ManualClock
from skerry.model import errors, offline_tokens
from skerry.model.callers import AuthMethod, Caller, Role, Token
from skerry.model.identity_settings import IdentitySettings
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.offline_tokens import OfflineClaims, RevokedToken, TokenKey
from skerry.model.settings import EventSettings
from tests.support.clouds import Cloud, cloud_in, following
from tests.support.waiting import eventually

DAY_S = 86400.0
NODE = NodeId("n1")


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path, clock) as made:
        yield made


async def create(
    cloud: Cloud, role: Role = Role.INVOKER, ttl_s: float | None = None, namespaces: tuple[str, ...] = ()
) -> tuple[Token, str]:
    return await cloud.identity.create_token(
        role, ttl_s=ttl_s, note="thermostat", actor="test", namespaces=namespaces, offline=True
    )


def objects(cloud: Cloud) -> dict[NetworkKey, NetworkObject]:
    """What a node is told."""
    return {each.network_key: each for each in cloud.identity.offline_feed.objects(NODE)}


def keys(cloud: Cloud) -> set[str]:
    return {each.id for each in objects(cloud).values() if isinstance(each, TokenKey)}


def revoked(cloud: Cloud) -> set[str]:
    return {each.id for each in objects(cloud).values() if isinstance(each, RevokedToken)}


def read(cloud: Cloud, text: str) -> OfflineClaims:
    """The claims of a token as a node reads them, with what it was sent."""
    sent = {
        each.id: bytes.fromhex(each.public) for each in objects(cloud).values() if isinstance(each, TokenKey)
    }
    return offline_tokens.read_signed(text, sent.get)[0]


async def test_a_server_accepts_it_and_a_node_can_verify_it(cloud: Cloud, clock: ManualClock) -> None:
    token, text = await create(cloud, ttl_s=30 * DAY_S, namespaces=("shop", "store"))
    assert cloud.identity.caller_from_token(text) == Caller(
        AuthMethod.TOKEN, f"token:{token.id}", Role.INVOKER, token=token.id, namespaces=token.namespaces
    )
    claims = read(cloud, text)
    assert (claims.id, claims.role, claims.ns) == (token.id, Role.INVOKER, ("shop", "store"))
    assert claims.exp == token.expires_at == clock.now() + 30 * DAY_S
    assert claims.nbf < clock.now()
    assert claims.iss == cloud.authority.fingerprint[:32]
    (event,) = await cloud.events("token.created")
    assert event.data["offline"] == "true"
    assert (token.kind, token.digest) == ("offline", "")


@pytest.mark.parametrize("role", [Role.ADMIN, Role.DEPLOYER, Role.NODE])
async def test_roles_that_change_something_have_none(cloud: Cloud, role: Role) -> None:
    with pytest.raises(errors.Invalid, match="for the role invoker or viewer"):
        await create(cloud, role)
    assert cloud.identity.tokens() == []


async def test_it_always_expires_and_not_after_the_longest_life(cloud: Cloud, clock: ManualClock) -> None:
    token, text = await create(cloud)
    assert token.expires_at == clock.now() + 30 * DAY_S
    with pytest.raises(errors.Invalid, match="at most 90 days"):
        await create(cloud, ttl_s=90 * DAY_S + 1)
    clock.advance(30 * DAY_S + offline_tokens.LEEWAY_S)
    with pytest.raises(errors.Unauthenticated, match="expired at"):
        cloud.identity.caller_from_token(text)
    clock.advance(DAY_S)
    await cloud.identity.sweep()
    await eventually(lambda: cloud.identity.tokens() == [])


async def test_a_revoked_one_is_refused_and_stays_on_the_list_until_it_has_expired(
    cloud: Cloud, clock: ManualClock
) -> None:
    changes: list[tuple[NodeId | None, NetworkKey, NetworkObject | None]] = []
    cloud.identity.offline_feed.listen(lambda *change: changes.append(change))
    token, text = await create(cloud, ttl_s=DAY_S)
    assert cloud.identity.caller_from_token(text).token == token.id
    await cloud.identity.revoke_token(token.id, actor="test")
    await cloud.identity.revoke_token(token.id, actor="test")
    assert len(await cloud.events("token.revoked")) == 1
    await eventually(lambda: revoked(cloud) == {token.id})
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        cloud.identity.caller_from_token(text)
    (listed,) = cloud.identity.tokens()
    assert listed.revoked_at == clock.now()
    assert changes[-1] == (
        None,
        NetworkKey("revoked-token", token.id),
        RevokedToken(token.id, token.expires_at or 0),
    )
    clock.advance(2 * DAY_S + 1)
    await cloud.identity.sweep()
    await eventually(lambda: revoked(cloud) == set())
    assert changes[-1] == (None, NetworkKey("revoked-token", token.id), None)


async def test_one_that_the_store_does_not_know_is_refused(cloud: Cloud, clock: ManualClock) -> None:
    """A signature is not enough for a server, which has a record of each."""
    _, text = await create(cloud)
    (record,) = cloud.identity._token_keys.all()
    key = cloud.identity._token_keys._derive(record.salt)
    forged = OfflineClaims("0" * 26, cloud.authority.fingerprint[:32], Role.INVOKER, 0, int(clock.now()) + 60)
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        cloud.identity.caller_from_token(offline_tokens.sign(forged, key))
    assert cloud.identity.caller_from_token(text).role is Role.INVOKER


async def test_its_id_with_any_secret_is_no_token(cloud: Cloud) -> None:
    token, _ = await create(cloud)
    with pytest.raises(errors.Unauthenticated, match="not known here"):
        cloud.identity.caller_from_token(f"skerry_{token.id}_{'a' * 52}")


async def test_another_key_signs_after_a_rotation_and_the_old_one_is_kept_for_its_tokens(
    cloud: Cloud, clock: ManualClock
) -> None:
    _, first = await create(cloud, ttl_s=DAY_S)
    (old,) = keys(cloud)
    new = await cloud.identity.rotate_token_key(actor="test", revoke=False)
    assert keys(cloud) == {old, new}
    _, second = await create(cloud, ttl_s=5 * DAY_S)
    for text, key in ((first, old), (second, new)):
        assert text.split(".")[1] == key
        assert cloud.identity.caller_from_token(text)
    clock.advance(2 * DAY_S + 1)
    await cloud.identity.sweep()  # the token
    await eventually(lambda: len(cloud.identity.tokens()) == 1)
    await cloud.identity.sweep()  # and its key
    await eventually(lambda: keys(cloud) == {new})
    assert cloud.identity.caller_from_token(second)


async def test_a_rotation_that_revokes_refuses_all_tokens_of_before(cloud: Cloud, clock: ManualClock) -> None:
    token, text = await create(cloud, ttl_s=DAY_S)
    (old,) = keys(cloud)
    assert cloud.identity.caller_from_token(text)  # and so its signature is known
    new = await cloud.identity.rotate_token_key(actor="test", revoke=True)
    assert keys(cloud) == {new}
    assert objects(cloud)[NetworkKey("revoked-token", old)] == RevokedToken(old, token.expires_at or 0)
    with pytest.raises(errors.Unauthenticated, match="key of this token was revoked"):
        cloud.identity.caller_from_token(text)
    assert cloud.identity.caller_from_token((await create(cloud))[1])


async def test_every_server_of_a_cloud_has_the_same_key_and_other_clouds_have_others(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    _, text = await create(cloud)
    beside = Authenticator(
        cloud.store, EventLog(cloud.store, clock, EventSettings()), cloud.authority, clock, IdentitySettings()
    )
    async with following(beside):
        assert beside.caller_from_token(text)
        _, other = await beside.create_token(Role.VIEWER, ttl_s=None, note="", actor="test", offline=True)
        assert other.split(".")[1] == text.split(".")[1]
        await eventually(lambda: len(cloud.identity.tokens()) == 2)
        assert cloud.identity.caller_from_token(other).role is Role.VIEWER
    async with cloud_in(tmp_path / "stranger", clock) as stranger:
        with pytest.raises(errors.Unauthenticated, match="another cloud"):
            stranger.identity.caller_from_token(text)


async def test_a_store_that_was_restored_from_before_a_revocation_learns_it_again(
    cloud: Cloud, clock: ManualClock
) -> None:
    token, text = await create(cloud, ttl_s=DAY_S)
    (old,) = keys(cloud)
    gone = RevokedToken("0" * 26, clock.now() + DAY_S)  # of which the store has no record
    await cloud.identity.import_revoked_tokens([RevokedToken(token.id, token.expires_at or 0), gone])
    await eventually(lambda: revoked(cloud) == {token.id, gone.id})
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        cloud.identity.caller_from_token(text)
    lost = signing.SigningKey(b"x" * 32).id
    await cloud.identity.import_revoked_tokens([RevokedToken(each, gone.expires_at) for each in (old, lost)])
    await eventually(lambda: {old, lost} < revoked(cloud))
    assert keys(cloud) == set()
    assert cloud.identity.caller_from_token((await create(cloud))[1])


async def test_the_private_key_is_nowhere_in_the_store(cloud: Cloud) -> None:
    await create(cloud)
    (record,) = cloud.identity._token_keys.all()
    secret = cloud.authority.derive(b"skerry offline tokens " + bytes.fromhex(record.salt))
    assert signing.SigningKey(secret).id == record.id
    for entry in (await cloud.store.range("")).entries:
        assert secret not in entry.value
        assert secret.hex().encode() not in entry.value


async def test_nodes_of_a_cloud_without_offline_tokens_are_told_nothing(cloud: Cloud) -> None:
    token, _ = await cloud.identity.create_token(Role.INVOKER, ttl_s=None, note="", actor="test")
    await cloud.identity.revoke_token(token.id, actor="test")
    assert objects(cloud) == {}
