"""Tokens, joining, renewing and revoking, on a store in memory and a clock that stands still."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog

from skerry.control.events.log import EventLog
from skerry.control.identity import certificates, tokens
from skerry.control.identity.authenticator import Authenticator, EnrollmentResult
from skerry.kit import json_codec, pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import SERVER, AuthMethod, Caller, Role, Token
from skerry.model.identity_settings import IdentitySettings
from skerry.model.settings import EventSettings
from skerry.store.protocol import MAX_OPS, Delete, Expect, Op
from skerry.store.tables.table import json_of
from tests.support.clouds import Cloud, cloud_in, following, new_request
from tests.support.waiting import eventually


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path, clock) as made:
        yield made


async def new_token(cloud: Cloud, role: Role = Role.NODE, ttl_s: float | None = None) -> str:
    return (await cloud.identity.create_token(role, ttl_s=ttl_s, note="", actor="test"))[1]


async def join(cloud: Cloud, folder: Path, name: str = "edge-1") -> EnrollmentResult:
    return await cloud.identity.join(await new_token(cloud), new_request(folder, name), name)


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


def caller_of(cloud: Cloud, pem: bytes) -> Caller:
    return cloud.identity.caller_from_certificate(der(pem))


# tokens


@pytest.mark.parametrize("role", [Role.ADMIN, Role.DEPLOYER, Role.INVOKER, Role.VIEWER])
async def test_a_token_makes_a_caller_of_its_role(cloud: Cloud, role: Role) -> None:
    token, text = await cloud.identity.create_token(role, ttl_s=None, note="ci", actor="test")
    caller = cloud.identity.caller_from_token(text)
    assert caller == Caller(AuthMethod.TOKEN, f"token:{token.id}", role, token=token.id)
    assert token.expires_at is None
    assert [event.actor for event in await cloud.events("token.created")] == ["test"]


async def test_a_bound_token_makes_a_caller_of_its_namespaces_until_it_is_revoked(cloud: Cloud) -> None:
    token, text = await cloud.identity.create_token(
        Role.DEPLOYER, ttl_s=None, note="", actor="test", namespaces=["shop", "store", "shop"]
    )
    assert token.namespaces == ("shop", "store")
    assert cloud.identity.caller_from_token(text).namespaces == ("shop", "store")
    (event,) = await cloud.events("token.created")
    assert event.data["bound_to"] == "shop store"
    assert event.namespace is None  # for admins
    await cloud.identity.revoke_token(token.id, actor="test")
    with pytest.raises(errors.Unauthenticated):
        cloud.identity.caller_from_token(text)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.NODE])
async def test_admins_and_nodes_are_of_the_whole_cloud(cloud: Cloud, role: Role) -> None:
    with pytest.raises(errors.Invalid, match="cannot be bound to namespaces"):
        await cloud.identity.create_token(role, ttl_s=None, note="", actor="test", namespaces=["shop"])
    assert cloud.identity.tokens() == []


async def test_neither_store_nor_log_nor_events_hold_the_secret(cloud: Cloud) -> None:
    with structlog.testing.capture_logs() as logs:
        token, text = await cloud.identity.create_token(Role.NODE, ttl_s=60, note="", actor="test")
    secret = text.split("_")[2]
    entries = (await cloud.store.range("")).entries
    assert entries
    assert not [entry.key for entry in entries if secret.encode() in entry.value]
    assert secret not in repr(logs)
    assert secret not in repr(token)


async def test_an_expired_token_is_refused_as_expired(cloud: Cloud, clock: ManualClock) -> None:
    text = await new_token(cloud, Role.VIEWER, ttl_s=60)
    clock.advance(59.9)
    assert cloud.identity.caller_from_token(text).role is Role.VIEWER
    clock.advance(0.1)
    with pytest.raises(errors.Unauthenticated, match="expired at 2023-"):
        cloud.identity.caller_from_token(text)


async def test_a_revoked_token_is_refused_at_once_and_leaves_an_event(cloud: Cloud) -> None:
    token, text = await cloud.identity.create_token(Role.VIEWER, ttl_s=None, note="", actor="test")
    await cloud.identity.revoke_token(token.id, actor="somebody")
    with pytest.raises(errors.Unauthenticated, match="not known here"):
        cloud.identity.caller_from_token(text)
    assert cloud.identity.tokens() == []
    (event,) = await cloud.events("token.revoked")
    assert (event.subject, event.actor) == (f"token/{token.id}", "somebody")


async def test_revoking_what_is_not_there_says_so(cloud: Cloud) -> None:
    with pytest.raises(errors.NotFound, match="no token 'nonsense'"):
        await cloud.identity.revoke_token("nonsense", actor="test")
    assert await cloud.events("token.revoked") == []


async def test_a_right_id_with_a_wrong_secret_is_unknown(cloud: Cloud) -> None:
    one, other = await new_token(cloud, Role.ADMIN), await new_token(cloud, Role.ADMIN)
    forged = "_".join([*one.split("_")[:2], other.split("_")[2]])
    with pytest.raises(errors.Unauthenticated, match="not known here"):
        cloud.identity.caller_from_token(forged)


@pytest.mark.parametrize("text", ["", "nonsense", "skerry_a_b", "skerry__" + "a" * 52, "Bearer x"])
async def test_a_malformed_token_is_refused_as_malformed(cloud: Cloud, text: str, tmp_path: Path) -> None:
    with pytest.raises(errors.Unauthenticated, match="not a Skerry token"):
        cloud.identity.caller_from_token(text)
    with pytest.raises(errors.Unauthenticated, match="not a Skerry token"):
        await cloud.identity.join(text, new_request(tmp_path), "edge-1")


async def test_a_join_token_always_ends_and_opens_nothing_but_joining(
    cloud: Cloud, clock: ManualClock
) -> None:
    token, text = await cloud.identity.create_token(Role.NODE, ttl_s=None, note="", actor="test")
    assert token.expires_at == clock.now() + 3600
    assert text.endswith("_" + cloud.authority.fingerprint[:32])
    with pytest.raises(errors.Unauthenticated, match="for joining only"):
        cloud.identity.caller_from_token(text)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 0.5, 1e10, float("nan"), float("inf")])
async def test_a_life_out_of_range_is_refused(cloud: Cloud, ttl_s: float) -> None:
    with pytest.raises(errors.Invalid, match="1 s to 3650 days") as caught:
        await new_token(cloud, Role.ADMIN, ttl_s=ttl_s)
    assert caught.value.field == "ttl_s"


@pytest.mark.parametrize("note", ["x" * 201, "two\nlines", "\x1b[31mred"])
async def test_a_note_is_one_short_line(cloud: Cloud, note: str) -> None:
    with pytest.raises(errors.Invalid, match="one line"):
        await cloud.identity.create_token(Role.ADMIN, ttl_s=None, note=note, actor="test")


async def test_the_number_of_tokens_is_bounded(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    for _ in range(2):
        await new_token(cloud, Role.VIEWER)
    with pytest.raises(errors.TooLarge, match="revoke those that nobody uses"):
        await new_token(cloud, Role.VIEWER)


# joining


async def test_a_join_gives_a_certificate_with_the_node_id_and_an_event(cloud: Cloud, tmp_path: Path) -> None:
    joined = await join(cloud, tmp_path, "edge-1")
    issued = pki.read_certificate(joined.certificate_pem)
    assert (issued.name, issued.role) == (joined.node, "node")
    assert joined.ca_pem == cloud.authority.certificate_pem
    assert caller_of(cloud, joined.certificate_pem) == Caller(
        AuthMethod.CERTIFICATE, f"node:{joined.node}", Role.NODE, node=joined.node, serial=issued.serial
    )
    (record,) = cloud.identity.certificates()
    assert (record.serial, record.name, record.node) == (issued.serial, "edge-1", joined.node)
    (event,) = await cloud.events("node.joined")
    assert (event.subject, event.data["name"]) == (f"node/{joined.node}", "edge-1")


async def test_of_two_joins_with_one_token_exactly_one_wins(cloud: Cloud, tmp_path: Path) -> None:
    text = await new_token(cloud)
    outcomes = await asyncio.gather(
        *(cloud.identity.join(text, new_request(tmp_path, f"edge-{i}"), f"edge-{i}") for i in range(5)),
        return_exceptions=True,
    )
    assert len([one for one in outcomes if isinstance(one, EnrollmentResult)]) == 1
    lost = [one for one in outcomes if isinstance(one, errors.Unauthenticated)]
    assert len(lost) == 4
    assert {"was used at" in one.message for one in lost} == {True}
    assert len(await cloud.events("node.joined")) == len(cloud.identity.certificates()) == 1
    with pytest.raises(errors.Unauthenticated, match="was used at"):
        cloud.identity.caller_from_token(text)


async def test_a_machine_that_lost_the_answer_joins_again_as_the_same_node(
    cloud: Cloud, tmp_path: Path
) -> None:
    text = await new_token(cloud)
    first = await cloud.identity.join(text, new_request(tmp_path), "edge-1")
    again = await cloud.identity.join(text, new_request(tmp_path), "edge-1")
    assert again.node == first.node
    assert caller_of(cloud, again.certificate_pem).node == first.node
    assert len(await cloud.events("node.joined")) == 1


async def test_joining_again_is_over_when_the_token_or_the_node_is(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    text = await new_token(cloud)
    first = await cloud.identity.join(text, new_request(tmp_path), "edge-1")
    serial = pki.read_certificate(first.certificate_pem).serial
    await cloud.identity.revoke_certificate(serial, actor="test")
    with pytest.raises(errors.Unauthenticated, match="was revoked at"):
        await cloud.identity.join(text, new_request(tmp_path), "edge-1")
    clock.advance(3600)
    with pytest.raises(errors.Unauthenticated, match="token expired"):
        await cloud.identity.join(text, new_request(tmp_path), "edge-1")


async def test_a_token_of_another_role_cannot_join(cloud: Cloud, tmp_path: Path) -> None:
    text = await new_token(cloud, Role.ADMIN)
    with pytest.raises(errors.Forbidden, match="has the role admin and cannot join"):
        await cloud.identity.join(text, new_request(tmp_path), "edge-1")


async def test_expired_and_revoked_tokens_cannot_join(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    token, text = await cloud.identity.create_token(Role.NODE, ttl_s=60, note="", actor="test")
    clock.advance(60)
    with pytest.raises(errors.Unauthenticated, match="token expired"):
        await cloud.identity.join(text, new_request(tmp_path), "edge-1")
    await cloud.identity.revoke_token(token.id, actor="test")
    with pytest.raises(errors.Unauthenticated, match="not known here"):
        await cloud.identity.join(text, new_request(tmp_path), "edge-1")
    assert cloud.identity.certificates() == []


@pytest.mark.parametrize("name", ["", "a b", "-edge", "edge.", "x" * 64, "\x1b[2J", "edge\n", "é"])
async def test_a_bad_name_is_refused_and_leaves_the_token_good(
    cloud: Cloud, tmp_path: Path, name: str
) -> None:
    text = await new_token(cloud)
    with pytest.raises(errors.Invalid, match="a node's name"):
        await cloud.identity.join(text, new_request(tmp_path), name)
    assert await cloud.identity.join(text, new_request(tmp_path), "edge-1")


async def test_a_bad_request_is_refused_and_leaves_the_token_good(cloud: Cloud, tmp_path: Path) -> None:
    text = await new_token(cloud)
    with pytest.raises(errors.Invalid, match="not a PEM certificate signing request") as caught:
        await cloud.identity.join(text, b"nonsense", "edge-1")
    assert caught.value.field == "csr"
    assert await cloud.identity.join(text, new_request(tmp_path), "edge-1")


# certificates


async def test_an_expired_certificate_is_refused_as_expired(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    joined = await join(cloud, tmp_path)
    clock.advance(24 * 3600)
    with pytest.raises(errors.Unauthenticated, match="certificate expired at"):
        caller_of(cloud, joined.certificate_pem)


async def test_a_certificate_of_another_ca_is_refused(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    async with cloud_in(tmp_path / "other", clock) as other:
        joined = await join(other, tmp_path)
    with pytest.raises(errors.Unauthenticated, match="this cloud's CA"):
        caller_of(cloud, joined.certificate_pem)


async def test_a_certificate_that_is_not_on_record_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    request = pki.SigningRequest.parse(new_request(tmp_path))
    forged = cloud.authority.issue(request, name="me", role="admin", lifetime_s=3600)
    with pytest.raises(errors.Unauthenticated, match="not on record"):
        caller_of(cloud, forged.pem)


async def test_a_nodes_certificate_that_the_store_has_forgotten_counts_and_is_put_on_record(
    cloud: Cloud, tmp_path: Path
) -> None:
    request = pki.SigningRequest.parse(new_request(tmp_path))
    later = cloud.authority.issue(request, name="n7", role=Role.NODE, lifetime_s=3600, client=True)
    caller = caller_of(cloud, later.pem)
    assert (caller.role, caller.node, caller.serial) == (Role.NODE, "n7", later.serial)
    assert not cloud.identity.is_revoked(later.serial)
    await eventually(lambda: cloud.identity.counts(later.serial))
    (record,) = [one for one in cloud.identity.certificates() if one.node == "n7"]
    assert (record.serial, record.not_after, record.key) == (later.serial, later.not_after, later.key)
    assert [event.subject for event in await cloud.events("certificate.recorded")] == [
        f"certificate/{later.serial}"
    ]
    renewed = await cloud.identity.renew(caller, new_request(tmp_path))
    await cloud.identity.revoke_certificate(later.serial, actor="test")
    for pem in (later.pem, renewed):
        with pytest.raises(errors.Unauthenticated, match="revoked"):
            caller_of(cloud, pem)


async def test_a_forgotten_certificate_can_be_renewed_at_once(cloud: Cloud, tmp_path: Path) -> None:
    request = pki.SigningRequest.parse(new_request(tmp_path))
    later = cloud.authority.issue(request, name="n7", role=Role.NODE, lifetime_s=3600, client=True)
    await cloud.identity.renew(caller_of(cloud, later.pem), new_request(tmp_path))
    assert len([one for one in cloud.identity.certificates() if one.node == "n7"]) == 2


async def test_revoking_a_node_takes_certificates_that_the_store_has_forgotten_too(
    cloud: Cloud, tmp_path: Path
) -> None:
    joined = await join(cloud, tmp_path)
    request = pki.SigningRequest.parse(new_request(tmp_path, "thief"))
    later = cloud.authority.issue(request, name=joined.node, role=Role.NODE, lifetime_s=3600, client=True)
    await cloud.identity.revoke_certificate(caller_serial(joined.certificate_pem), actor="test")
    with pytest.raises(errors.Unauthenticated, match="was revoked at"):
        caller_of(cloud, later.pem)
    await eventually(lambda: cloud.identity.is_revoked(later.serial))  # and so other nodes hear of it


@pytest.mark.parametrize("shown", ["revoked", "expired before that"])
async def test_a_revoked_node_never_comes_back_by_a_certificate_of_before(
    cloud: Cloud, clock: ManualClock, tmp_path: Path, shown: str
) -> None:
    joined = await join(cloud, tmp_path)
    caller, first = caller_of(cloud, joined.certificate_pem), joined.certificate_pem
    clock.advance(20 * 3600)
    second = await cloud.identity.renew(caller, new_request(tmp_path, "edge-1"))
    clock.advance(20 * 3600)
    await cloud.identity.sweep()
    await cloud.identity.revoke_certificate(caller_serial(second), actor="test")
    clock.advance(50 * 3600)
    await cloud.identity.sweep()
    assert cloud.identity.certificates() == []
    again = Authenticator(
        cloud.store, EventLog(cloud.store, clock, EventSettings()), cloud.authority, clock, IdentitySettings()
    )
    async with following(again):
        for identity in (cloud.identity, again):
            token = await new_token(cloud)
            previous = second if shown == "revoked" else first
            with pytest.raises(errors.Unprocessable, match="was revoked"):
                await identity.join(token, new_request(tmp_path, "edge-1"), "edge-1", previous_pem=previous)


async def test_revocations_that_the_store_has_forgotten_are_learnt_from_who_was_told_by_a_server(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    first, second = await join(cloud, tmp_path, "edge-1"), await join(cloud, tmp_path, "edge-2")
    for joined in (first, second):
        await cloud.identity.revoke_certificate(caller_of(cloud, joined.certificate_pem).serial, actor="test")
    one, other = cloud.identity.revoked()
    assert one.proof
    assert one.proof != other.proof
    for key in (entry.key for entry in (await cloud.store.range("identity/certificates/")).entries):
        await cloud.store.commit([Delete(key)])
    await eventually(lambda: not cloud.identity.certificates())
    lie = msgspec.structs.replace(other, proof=one.proof)
    await cloud.identity.import_revoked([one, lie], actor="node/n1")
    assert cloud.identity.is_revoked(one.serial)
    assert not cloud.identity.is_revoked(other.serial), "anybody could say so"
    assert [told.serial for told in cloud.identity.revoked()] == [one.serial]
    assert (await cloud.events("certificate.revoked"))[-1].actor == "node/n1"
    pems = {caller_serial(joined.certificate_pem): joined.certificate_pem for joined in (first, second)}
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        caller_of(cloud, pems[one.serial])


def caller_serial(pem: bytes) -> str:
    return pki.read_certificate(pem).serial


async def test_nonsense_is_no_certificate(cloud: Cloud) -> None:
    with pytest.raises(errors.Unauthenticated, match="unreadable"):
        cloud.identity.caller_from_certificate(b"nonsense")


@pytest.mark.parametrize(("role", "reason"), [(SERVER, "a server's certificate"), ("king", "role 'king'")])
async def test_certificates_of_servers_and_unknown_roles_make_no_caller(
    cloud: Cloud, tmp_path: Path, role: str, reason: str
) -> None:
    issued = await cloud.identity.issue_local(new_request(tmp_path), role=role, name="x")
    with pytest.raises(errors.Unauthenticated, match=reason):
        caller_of(cloud, issued.pem)


async def test_a_local_certificate_is_on_record_and_works(cloud: Cloud, tmp_path: Path) -> None:
    issued = await cloud.identity.issue_local(new_request(tmp_path), role=Role.ADMIN, name="local-admin")
    caller = caller_of(cloud, issued.pem)
    assert (caller.name, caller.role) == ("certificate:local-admin", Role.ADMIN)
    assert [record.serial for record in cloud.identity.certificates()] == [issued.serial]
    assert cloud.identity.counts(issued.serial)
    assert len(await cloud.events("certificate.issued")) == 1


async def test_a_node_renews_for_itself_and_may_change_its_key(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    joined = await join(cloud, tmp_path)
    clock.advance(15 * 3600)
    caller = caller_of(cloud, joined.certificate_pem)
    renewed = pki.read_certificate(await cloud.identity.renew(caller, new_request(tmp_path, "new")))
    assert (renewed.name, renewed.role) == (joined.node, "node")
    assert renewed.not_after == clock.now() + 24 * 3600
    assert caller_of(cloud, renewed.pem).node == joined.node
    followed = next(one for one in cloud.identity.certificates() if one.serial == caller.serial)
    assert followed.renewed_by == renewed.serial


@pytest.mark.parametrize(
    "caller",
    [
        Caller(AuthMethod.LOOPBACK, "uid:0", Role.ADMIN),
        Caller(AuthMethod.TOKEN, "token:x", Role.NODE, token="x"),
        Caller(AuthMethod.CERTIFICATE, "certificate:a", Role.ADMIN, serial="00"),
    ],
)
async def test_only_a_node_with_its_certificate_renews(cloud: Cloud, tmp_path: Path, caller: Caller) -> None:
    with pytest.raises(errors.Forbidden, match="only a node renews"):
        await cloud.identity.renew(caller, new_request(tmp_path))


async def test_a_revoked_certificate_opens_nothing_and_cannot_renew(cloud: Cloud, tmp_path: Path) -> None:
    joined = await join(cloud, tmp_path)
    caller = caller_of(cloud, joined.certificate_pem)
    await cloud.identity.revoke_certificate(caller.serial, actor="somebody")
    with pytest.raises(errors.Unauthenticated, match="was revoked at"):
        caller_of(cloud, joined.certificate_pem)
    with pytest.raises(errors.Unauthenticated, match="was revoked at"):
        await cloud.identity.renew(caller, new_request(tmp_path))
    (event,) = await cloud.events("certificate.revoked")
    assert (event.actor, event.data["node"]) == ("somebody", joined.node)
    assert not cloud.identity.counts(caller.serial)


async def test_a_node_is_told_to_join_again_and_the_local_admin_to_start_the_server_again(
    cloud: Cloud, tmp_path: Path
) -> None:
    node = (await join(cloud, tmp_path)).certificate_pem
    admin = await cloud.identity.issue_local(new_request(tmp_path), role=Role.ADMIN, name="local-admin")
    for certificate, remedy in ((node, "join again"), (admin.pem, "start the server again")):
        await cloud.identity.revoke_certificate(caller_of(cloud, certificate).serial, actor="somebody")
        with pytest.raises(errors.Unauthenticated, match=f"was revoked at .*{remedy}"):
            caller_of(cloud, certificate)


async def test_revoking_one_certificate_of_a_node_revokes_all_of_it_and_nobody_elses(
    cloud: Cloud, tmp_path: Path
) -> None:
    joined, neighbour = await join(cloud, tmp_path, "edge-1"), await join(cloud, tmp_path, "edge-2")
    caller = caller_of(cloud, joined.certificate_pem)
    renewed = await cloud.identity.renew(caller, new_request(tmp_path))
    await cloud.identity.revoke_certificate(caller.serial, actor="test")
    with pytest.raises(errors.Unauthenticated, match="was revoked at"):
        caller_of(cloud, renewed)
    assert caller_of(cloud, neighbour.certificate_pem).node == neighbour.node


async def test_revoked_certificates_are_told_at_once_and_listed_until_they_have_expired(
    cloud: Cloud, tmp_path: Path
) -> None:
    joined, neighbour = await join(cloud, tmp_path, "edge-1"), await join(cloud, tmp_path, "edge-2")
    caller = caller_of(cloud, joined.certificate_pem)
    told: list[str] = []
    cloud.identity.listen_revoked(lambda revoked: told.extend(one.serial for one in revoked))
    await cloud.identity.revoke_certificate(caller.serial, actor="test")
    assert told == [caller.serial] == [one.serial for one in cloud.identity.revoked()]
    assert cloud.identity.is_revoked(caller.serial)
    assert not cloud.identity.is_revoked(caller_of(cloud, neighbour.certificate_pem).serial)
    cloud.clock.advance(IdentitySettings().node_certificate_s + 2 * 3600)
    assert cloud.identity.revoked() == []


async def test_a_renewal_in_the_middle_of_a_revocation_does_not_slip_through(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = await join(cloud, tmp_path)
    caller = caller_of(cloud, joined.certificate_pem)
    commit = cloud.store.commit
    renewed: list[bytes] = []

    async def renew_first(ops: list[Op], expect: list[Expect]) -> int:
        monkeypatch.setattr(cloud.store, "commit", commit)
        renewed.append(await cloud.identity.renew(caller, new_request(tmp_path)))
        return await commit(ops, expect)

    monkeypatch.setattr(cloud.store, "commit", renew_first)
    await cloud.identity.revoke_certificate(caller.serial, actor="test")
    with pytest.raises(errors.Unauthenticated, match="was revoked at"):
        caller_of(cloud, renewed[0])


async def test_revoking_twice_is_once_and_revoking_nothing_says_so(cloud: Cloud, tmp_path: Path) -> None:
    joined = await join(cloud, tmp_path)
    serial = pki.read_certificate(joined.certificate_pem).serial
    await cloud.identity.revoke_certificate(serial, actor="test")
    await cloud.identity.revoke_certificate(serial, actor="test")
    assert len(await cloud.events("certificate.revoked")) == 1
    with pytest.raises(errors.NotFound, match="no certificate 'ff'"):
        await cloud.identity.revoke_certificate("ff", actor="test")


async def test_a_node_that_renews_without_end_is_slowed_down(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "MAX_LIVE_PER_NODE", 2)
    joined = await join(cloud, tmp_path)
    caller = caller_of(cloud, joined.certificate_pem)
    await cloud.identity.renew(caller, new_request(tmp_path))
    with pytest.raises(errors.Overloaded, match="use the newest"):
        await cloud.identity.renew(caller, new_request(tmp_path))


# keeping house


async def test_the_sweep_forgets_what_expired_long_ago_and_nothing_else(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    request = new_request(tmp_path)
    for _ in range(MAX_OPS // 2 + 1):  # a token and a certificate each: more than fit one transaction
        await cloud.identity.join(await new_token(cloud), request, "edge")
    lasting = await new_token(cloud, Role.ADMIN)
    clock.advance(25 * 3600)
    fresh = await join(cloud, tmp_path, "fresh")
    await cloud.identity.sweep()
    assert len((await cloud.store.range(certificates.PREFIX)).entries) == 1
    assert len((await cloud.store.range(tokens.PREFIX)).entries) == 2
    assert caller_of(cloud, fresh.certificate_pem).node == fresh.node
    assert cloud.identity.caller_from_token(lasting).role is Role.ADMIN


async def test_a_second_server_with_the_same_ca_shares_tokens_and_certificates(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    text = await new_token(cloud, Role.DEPLOYER)
    joined = await join(cloud, tmp_path)
    events = EventLog(cloud.store, clock, EventSettings())
    second = Authenticator(cloud.store, events, cloud.authority, clock, IdentitySettings())
    async with following(second):
        assert second.caller_from_token(text).role is Role.DEPLOYER
        assert second.caller_from_certificate(der(joined.certificate_pem)).node == joined.node


async def test_a_server_whose_ca_differs_from_the_stores_refuses_to_start(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    authority = pki.CertificateAuthority.load_or_create(tmp_path / "other", clock)
    events = EventLog(cloud.store, clock, EventSettings())
    second = Authenticator(cloud.store, events, authority, clock, IdentitySettings())
    with pytest.raises(errors.FailedPrecondition, match=r"copy ca\.crt and ca\.key"):
        await second.ready()


async def test_records_of_a_later_version_with_more_fields_are_read(cloud: Cloud) -> None:
    await new_token(cloud, Role.VIEWER)
    (entry,) = (await cloud.store.range(tokens.PREFIX)).entries
    more = json_codec.encode(json_codec.decode(entry.value, dict) | {"colour": "green"})
    decode = json_of(Token)
    assert decode(msgspec.structs.replace(entry, value=more)) == decode(entry)
