"""Offline tokens on a node: verified with what a server sent last, on disk and for a while."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from skerry.kit import pki, signing
from skerry.kit.clock import ManualClock
from skerry.model import errors, offline_tokens
from skerry.model.callers import Role
from skerry.model.ids import Namespace
from skerry.model.node_messages import NetworkUpdate
from skerry.model.offline_tokens import OfflineClaims, RevokedToken, TokenKey
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.network_state import NetworkState
from skerry.node.agent.offline_tokens import OfflineTokenVerifier
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.revoked_tokens import RevokedTokenList
from skerry.node.agent.server_contact import ServerContact
from tests.support.waiting import eventually

NODE = "01m7gcw50e0jtcr1kycqgkzyxm"
ISSUER = "ab" * 16
ID = "01kb3k2v8x1w0d5q0m8s6n4r2t"
KEY, NEWER = signing.SigningKey(b"k" * 32), signing.SigningKey(b"n" * 32)
WEEK_S = 7 * 86400.0


class Node:
    """What an agent knows in `folder`; made again, another agent."""

    def __init__(self, folder: Path, clock: ManualClock, offline_s: float = WEEK_S) -> None:
        self.clock = clock
        self.network = NetworkState(folder / "network.json")
        self.revoked = RevokedTokenList(folder / "revoked-tokens.json", clock)
        self.contact = ServerContact(folder / "contact.json", clock)
        certificates = CertificateVerifier(NODE, clock, RevocationList(folder / "revoked.json", clock))
        self.verifier = OfflineTokenVerifier({ISSUER}, certificates, self.revoked, self.contact, offline_s)
        self.verifier.follow(self.network)

    def hear(self, *objects: TokenKey | RevokedToken, is_full: bool = True) -> None:
        """A server has sent these."""
        self.network.apply(NetworkUpdate(is_full, objects))
        self.contact.note()

    async def save(self) -> None:
        await self.network.save()
        await self.revoked.save()
        self.contact.save()

    def token(self, key: signing.SigningKey = KEY, **claims: object) -> str:
        now = int(self.clock.now())
        whole = {"id": ID, "iss": ISSUER, "role": Role.INVOKER, "nbf": now - 300, "exp": now + 3600, **claims}
        return offline_tokens.sign(OfflineClaims(**whole), key)  # type: ignore[arg-type]

    def refusal(self, token: str) -> str:
        with pytest.raises(errors.Unauthenticated) as refused:
            self.verifier.caller_from_token(token)
        return refused.value.message


def sent(key: signing.SigningKey) -> TokenKey:
    return TokenKey(key.id, key.public.hex())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock) -> Node:
    made = Node(tmp_path, clock)
    made.hear(sent(KEY))
    return made


def test_a_token_makes_a_caller_of_its_role_and_namespaces(node: Node) -> None:
    caller = node.verifier.caller_from_token(node.token(ns=(Namespace("shop"),)))
    assert (caller.role, caller.token, caller.namespaces) == (Role.INVOKER, ID, ("shop",))
    assert node.verifier.caller_from_token(node.token(role=Role.VIEWER)).role is Role.VIEWER


def test_what_is_not_valid_is_refused_with_its_reason(node: Node) -> None:
    now = int(node.clock.now())
    assert "expired" in node.refusal(node.token(nbf=now - 9000, exp=now - 61))
    assert "not valid before" in node.refusal(node.token(nbf=now + 61))
    assert "another cloud" in node.refusal(node.token(iss="cd" * 16))
    assert "role admin" in node.refusal(node.token(role=Role.ADMIN))
    assert "not known" in node.refusal(node.token(NEWER))
    head, _, signature = node.token().rpartition(".")
    assert "signature" in node.refusal(f"{head}.{signature.swapcase()}")
    assert "offline tokens only" in node.refusal("skerry_" + "0" * 26 + "_" + "a" * 52)


def test_a_token_that_was_accepted_is_refused_once_it_is_revoked_or_its_key_is_gone(node: Node) -> None:
    token, other = node.token(), node.token(NEWER, id="0" * 26)
    node.hear(sent(NEWER), is_full=False)
    assert node.verifier.caller_from_token(token)
    assert node.verifier.caller_from_token(other)
    node.hear(RevokedToken(ID, node.clock.now() + 3600), is_full=False)
    assert "revoked" in node.refusal(token)
    node.hear(sent(KEY))
    assert "not known" in node.refusal(other)
    assert "revoked" in node.refusal(token), "no update makes it valid again"


def test_a_key_under_an_id_that_is_not_its_own_is_ignored(node: Node) -> None:
    node.hear(TokenKey(KEY.id, NEWER.public.hex()), TokenKey(NEWER.id, "no hex"))
    assert node.verifier.keys == ()


def test_a_revoked_key_is_refused_though_a_server_sends_it_again(node: Node) -> None:
    node.hear(RevokedToken(KEY.id, node.clock.now() + 3600))
    node.hear(sent(KEY))
    assert "revoked" in node.refusal(node.token())


async def test_another_agent_knows_the_same_without_a_server(
    node: Node, tmp_path: Path, clock: ManualClock
) -> None:
    stolen = node.token(id="0" * 26)
    node.hear(RevokedToken("0" * 26, clock.now() + 3600), is_full=False)
    await node.save()
    after = Node(tmp_path, clock)
    assert after.verifier.caller_from_token(node.token())
    assert "revoked" in after.refusal(stolen)
    assert after.contact.at == clock.now()
    for name in ("revoked-tokens.json", "contact.json"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


async def test_a_node_that_has_heard_of_no_server_for_too_long_accepts_none(
    node: Node, tmp_path: Path, clock: ManualClock
) -> None:
    token = node.token(exp=int(clock.now() + 3 * WEEK_S))
    await node.save()
    clock.advance(WEEK_S)
    assert node.verifier.caller_from_token(token)
    clock.advance(1)
    for agent in (node, Node(tmp_path, clock)):
        with pytest.raises(errors.Unavailable, match=r"node\.offline_s"):
            agent.verifier.caller_from_token(token)
    assert Node(tmp_path, clock, offline_s=0).verifier.caller_from_token(token), "for ever"
    node.contact.note()
    assert node.verifier.caller_from_token(token)


async def test_a_clock_that_starts_in_the_past_makes_no_expired_token_valid(
    node: Node, tmp_path: Path, clock: ManualClock
) -> None:
    """As on a machine without a battery."""
    short = node.token(exp=int(clock.now()) + 10)
    clock.advance(3600)
    node.contact.note()
    await node.save()
    assert "expired" in node.refusal(short)
    after = Node(tmp_path, ManualClock(start=0.0))
    assert "expired" in after.refusal(short)
    assert after.verifier.caller_from_token(node.token())


async def test_a_clock_that_was_ahead_and_is_right_again_counts(tmp_path: Path, clock: ManualClock) -> None:
    ahead = ManualClock(start=clock.now() + 10 * 365 * 86400)
    node = Node(tmp_path, ahead)
    node.hear(sent(KEY))
    await node.save()
    after = Node(tmp_path, clock)
    assert "expired" in after.refusal(after.token())
    after.contact.note()
    assert after.verifier.caller_from_token(after.token())


async def test_revocations_are_written_at_once_and_expired_ones_dropped(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "revoked-tokens.json"
    revoked = RevokedTokenList(path, clock)
    running = asyncio.ensure_future(revoked.run())
    try:
        revoked.add([RevokedToken("a" * 26, clock.now() + 10)])
        await eventually(path.exists)
        clock.advance(2 * 86400)
        revoked.add([RevokedToken("b" * 26, clock.now() + 10)])
        await eventually(lambda: b"b" * 26 in path.read_bytes())
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert b"a" * 26 not in path.read_bytes()
    path.write_bytes(b"[broken")
    with pytest.raises(errors.FailedPrecondition, match="damaged"):
        RevokedTokenList(path, clock)


def test_the_certificate_of_a_node_is_not_accepted_over_the_network(
    tmp_path: Path, clock: ManualClock
) -> None:
    authority = pki.CertificateAuthority.load_or_create(tmp_path, clock)
    request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(tmp_path / "key")))
    node = Node(tmp_path, clock)

    def der(name: str, role: Role) -> bytes:
        issued = authority.issue(request, name=name, role=role, lifetime_s=60)
        return ssl.PEM_cert_to_DER_cert(issued.pem.decode())

    for name in (NODE, "another"):
        with pytest.raises(errors.Forbidden, match="certificate of a node"):
            node.verifier.caller_from_certificate(der(name, Role.NODE))
    assert node.verifier.caller_from_certificate(der("till", Role.INVOKER)).role is Role.INVOKER
