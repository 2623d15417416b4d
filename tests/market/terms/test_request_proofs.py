"""Requests that are signed by a buyer's key."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.clock import ManualClock
from skerry.market.terms import canonical_json, request_proofs, signatures
from skerry.market.terms.request_proofs import ProofVerifier, RequestSigner
from skerry.model import errors
from skerry.store.local.memory import MemoryStore
from skerry.store.sqlite.store import SqliteStore
from tests.support import deals
from tests.support.deals import BUYER, NOW, SELLER, STRANGER

BODY = b'{"FlavorID":"edge-1"}'
TARGET = "/api/reserveflavor?wait=5"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(clock)
    yield store
    await store.close()


def proof(clock: ManualClock) -> str:
    return RequestSigner(BUYER, clock).header(SELLER.cloud, "POST", TARGET, BODY)


async def check(checker: ProofVerifier, text: str, *, is_read: bool = False) -> str:
    return await checker.check(text, method="POST", target=TARGET, body=BODY, is_read=is_read)


def judge(text: str, now: float = NOW) -> request_proofs.ProofClaims:
    return request_proofs.verify_proof(
        text, audience=SELLER.cloud, method="POST", target=TARGET, body=BODY, now=now
    )


async def test_a_signed_request_says_who_sends_it(store: MemoryStore, clock: ManualClock) -> None:
    assert await check(ProofVerifier(store, clock, SELLER.cloud), proof(clock)) == BUYER.cloud
    assert request_proofs.is_proof(proof(clock))
    assert not request_proofs.is_proof("Bearer skerry_1_2")


def claims(**members: Any) -> dict[str, Any]:
    plain = {
        "iss": BUYER.cloud,
        "aud": SELLER.cloud,
        "htm": "POST",
        "htu": TARGET,
        "sha256": hashlib.sha256(BODY).hexdigest(),
        "iat": int(NOW),
        "exp": int(NOW) + 60,
        "jti": "0123456789abcdef",
    } | members
    return {name: value for name, value in plain.items() if value is not None}


def signed(typ: str = request_proofs.TYPE, key: Any = BUYER, **members: Any) -> str:
    text = signatures.PayloadSigner(key, typ).sign(canonical_json.encode(claims(**members)))
    return f"Skerry-Proof {text.decode()}"


def test_claims_need_not_be_in_canonical_form() -> None:
    header = {"alg": "Ed25519", "jwk": BUYER.public.as_jwk(), "typ": request_proofs.TYPE}
    text = deals.forged("buyer", json.dumps(header).encode(), json.dumps(claims(), indent=1).encode())
    assert judge(f"skerry-proof {text.decode()}").iss == BUYER.cloud


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Skerry-Proof", "cut off"),
        ("Skerry-Proof eyJ", "cut off"),
        ("Skerry-Proof é.é.é", "cannot be read"),
        ("Skerry-Proof " + "A" * 5000, "longer than"),
        (signed()[:-2], "not good"),
        (signed(typ=signatures.CONTRACT), "signed as a contract"),
        (signed(key=STRANGER), f"but {STRANGER.cloud} signed it"),
        (signed(iss=STRANGER.cloud), f"but {BUYER.cloud} signed it"),
        (signed(aud=STRANGER.cloud), f"this provider is {SELLER.cloud}"),
        (signed(htm="GET"), "another request"),
        (signed(htu="/api/purchaseflavor"), "another request"),
        (signed(htu="/api/reserveflavor"), "another request"),
        (signed(sha256=hashlib.sha256(b"").hexdigest()), "another body"),
        (signed(exp=int(NOW) + 61), "1 to 60 seconds"),
        (signed(exp=int(NOW)), "1 to 60 seconds"),
        (signed(exp=10**15), "1 to 60 seconds"),
        (signed(iat=int(NOW) + 11, exp=int(NOW) + 20), "11 s from now"),
        (signed(iat=int(NOW) - 60, exp=int(NOW) - 10), "ended 10 s ago"),
        (signed(jti="1"), "jti"),
        (signed(jti="../../etc/passwd"), "jti"),
        (signed(jti="٣" * 16), "jti"),
        (signed(jti=None), "missing required field `jti`"),
        (signed(scope="all"), "unknown field `scope`"),
        (signed(iat="now"), "Expected `int`"),
    ],
)
def test_a_proof_that_is_not_good_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(errors.Unauthenticated, match=reason):
        judge(text)


@given(st.text(max_size=80))
def test_whatever_is_sent_as_a_proof_it_is_refused_plainly(text: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        judge(f"Skerry-Proof {text}")


@pytest.mark.parametrize("ahead", [-request_proofs.LEEWAY_S, 0, request_proofs.LEEWAY_S])
def test_clocks_may_differ_a_little(ahead: int) -> None:
    made = int(NOW) + ahead
    assert judge(signed(iat=made, exp=made + 60)).iat == made


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_proof_is_good_once_for_as_long_as_it_lives(
    store: MemoryStore, clock: ManualClock, is_read: bool
) -> None:
    ahead = ManualClock(NOW + request_proofs.LEEWAY_S)
    checker, text = ProofVerifier(store, clock, SELLER.cloud), proof(ahead)
    await check(checker, text, is_read=is_read)
    for _ in range(80):
        with pytest.raises(errors.Unauthenticated, match="used before"):
            await check(checker, text, is_read=is_read)
        clock.advance(1)
        assert await check(checker, proof(clock), is_read=is_read) == BUYER.cloud
    with pytest.raises(errors.Unauthenticated, match="ended"):
        await check(checker, text, is_read=is_read)


async def test_a_proof_that_one_server_took_is_used_for_all(store: MemoryStore, clock: ManualClock) -> None:
    text = proof(clock)
    servers = [ProofVerifier(store, clock, SELLER.cloud) for _ in range(4)]
    answers = await asyncio.gather(*(check(one, text) for one in servers), return_exceptions=True)
    assert [answer for answer in answers if answer == BUYER.cloud] == [BUYER.cloud]
    refused = [answer for answer in answers if isinstance(answer, errors.Unauthenticated)]
    assert len(refused) == 3


async def test_a_proof_that_was_used_is_used_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    text = proof(clock)
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    await check(ProofVerifier(store, clock, SELLER.cloud), text)
    await store.close()
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    with pytest.raises(errors.Unauthenticated, match="used before"):
        await check(ProofVerifier(store, clock, SELLER.cloud), text)
    await store.close()


async def test_the_store_forgets_proofs_that_are_over(store: MemoryStore, clock: ManualClock) -> None:
    checker = ProofVerifier(store, clock, SELLER.cloud)
    for _ in range(30):
        await check(checker, proof(clock))
        clock.advance(10)
        await store.expire()
    kept = (await store.range(request_proofs.PREFIX)).entries
    assert 8 <= len(kept) <= 20, "those of the last 80 seconds, and those that share a lease with them"


async def test_reading_writes_nothing(store: MemoryStore, clock: ManualClock) -> None:
    before = await store.revision()
    await check(ProofVerifier(store, clock, SELLER.cloud), proof(clock), is_read=True)
    assert await store.revision() == before


async def test_a_lease_that_ended_too_early_is_replaced(store: MemoryStore, clock: ManualClock) -> None:
    checker = ProofVerifier(store, clock, SELLER.cloud)
    await check(checker, proof(clock))
    (entry,) = (await store.range(request_proofs.PREFIX)).entries
    await store.revoke_lease(entry.lease)
    assert await check(checker, proof(clock)) == BUYER.cloud


async def test_the_memory_of_proofs_is_bounded(store: MemoryStore, clock: ManualClock) -> None:
    checker = ProofVerifier(store, clock, SELLER.cloud, most=3)
    texts = [proof(clock) for _ in range(4)]
    for text in texts[:3]:
        await check(checker, text)
    with pytest.raises(errors.Overloaded, match="try again"):
        await check(checker, texts[3])
    with pytest.raises(errors.Unauthenticated, match="used before"):
        await check(checker, texts[0])
    clock.advance(80)
    assert await check(checker, proof(clock)) == BUYER.cloud
