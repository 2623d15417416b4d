"""Signatures on contracts, checked by whoever has the text and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import OKPKey, RSAKey

from skerry.market.terms import canonical_json, contract_document, signatures
from skerry.market.terms.signatures import ContractSigner
from skerry.model import errors
from skerry.model.ids import CloudId
from tests.support import deals
from tests.support.deals import BUYER, CONTRACT, NOW, SELLER, STRANGER

SOLD = ContractSigner(SELLER).sign(CONTRACT)
BOTH = signatures.countersign(BUYER, SOLD)


def header(signer: str = "seller", **members: Any) -> bytes:
    """The header of a contract that `signer` signs, with some of its members another or (None) not there."""
    plain = {"alg": "Ed25519", "jwk": deals.key(signer).public.as_jwk(), "typ": signatures.CONTRACT} | members
    return json.dumps({name: value for name, value in plain.items() if value is not None}).encode()


def test_a_contract_is_verified_with_nothing_but_its_text() -> None:
    verified = signatures.verify(SOLD, seller=SELLER.cloud, buyer=BUYER.cloud, now=NOW + 1)
    assert verified.contract == CONTRACT
    assert (verified.seller, verified.buyer) == (SELLER.public, None)
    verified = signatures.verify(BOTH, seller=SELLER.cloud, buyer=BUYER.cloud, now=NOW + 1)
    assert (verified.seller, verified.buyer) == (SELLER.public, BUYER.public)
    assert verified.by_seller == SOLD


def test_the_same_contract_is_signed_with_the_same_bytes() -> None:
    assert ContractSigner(SELLER).sign(CONTRACT) == SOLD
    assert signatures.countersign(BUYER, SOLD) == signatures.countersign(BUYER, BOTH) == BOTH


def test_a_program_that_knows_only_jws_can_read_it() -> None:
    outer = jws.deserialize_compact(BOTH, OKPKey.import_key(BUYER.public.as_jwk()), algorithms=["Ed25519"])
    inner = jws.deserialize_compact(
        outer.payload, OKPKey.import_key(SELLER.public.as_jwk()), algorithms=["Ed25519"]
    )
    assert json.loads(inner.payload)["buyer"] == BUYER.cloud


def test_the_end_of_a_line_is_no_part_of_a_contract() -> None:
    assert signatures.verify(SOLD + b"\n").by_seller == SOLD


def test_a_cloud_signs_only_as_itself() -> None:
    with pytest.raises(errors.FailedPrecondition, match="cannot sign as the seller"):
        ContractSigner(STRANGER).sign(CONTRACT)
    with pytest.raises(errors.Forbidden, match="only its buyer"):
        signatures.countersign(STRANGER, SOLD)


def resigned(**changes: Any) -> bytes:
    """The contract with other terms, under the seller's old signature."""
    start, _, end = SOLD.split(b".")
    return b".".join([start, deals.encoded(contract_document.write(deals.changed(**changes))), end])


def by_key_of_rsa() -> bytes:
    key = RSAKey.generate_key(2048, auto_kid=False)
    members = {"alg": "RS256", "typ": signatures.CONTRACT, "jwk": key.as_dict(private=False)}
    registry = jws.JWSRegistry(algorithms=["RS256"])
    registry.max_header_length = 4096
    return jws.serialize_compact(members, contract_document.write(CONTRACT), key, registry=registry).encode()


TERMS = contract_document.write(CONTRACT)
TWICE = TERMS.replace(b'"count":2', b'"count":2,"count":4')
UNSIGNED = deals.encoded(header(alg="none")) + b"." + deals.encoded(TERMS) + b"."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (UNSIGNED, "not signed at all"),
        (deals.with_header(SOLD, alg="none"), "not signed at all"),
        (deals.with_header(SOLD, alg="nOnE"), "not signed at all"),
        (deals.with_header(SOLD, alg="HS256"), "'HS256'; only Ed25519"),
        (deals.with_header(SOLD, alg="EdDSA"), "'EdDSA'; only Ed25519"),
        (deals.with_header(SOLD, alg=None), "'None'; only Ed25519"),
        (deals.with_header(SOLD, alg=["Ed25519"]), "only Ed25519"),
        (by_key_of_rsa(), "'RS256'; only Ed25519"),
        (deals.with_header(SOLD, jwk=STRANGER.public.as_jwk()), "not good"),
        (deals.with_header(SOLD, jwk=None), "Ed25519 key"),
        (deals.with_header(SOLD, typ="JWT"), "signed as 'JWT', not as a contract"),
        (deals.with_header(SOLD, typ=signatures.COUNTERSIGNED), "not good"),
        (deals.forged("seller", header(crit=["exp"], exp=1), TERMS), "crit"),
        (deals.forged("seller", header(kid="a", jku="https://elsewhere"), TERMS), "'jku'"),
        (deals.forged("seller", header(b64=False, crit=["b64"]), TERMS), "crit"),
        (deals.forged("seller", header()[:-1] + b',"alg":"Ed25519"}', TERMS), "'alg' is there twice"),
        (deals.forged("seller", b"[]", TERMS), "no JSON object"),
        (deals.forged("seller", b"{", TERMS), "header of the contract cannot be read"),
        (b"!." + SOLD.partition(b".")[2], "cannot be read: it is not base64url; give all of it"),
        (deals.forged("seller", header(), TWICE), "'count' is there twice"),
        (deals.forged("seller", header(), b"{}"), "no terms"),
        (deals.forged("seller", header(), b" " + TERMS), "canonical form"),
        (deals.forged("stranger", header("stranger"), TERMS), f"but {STRANGER.cloud} signed it"),
        (resigned(resources=deals.resources(8, 16384)), "not good"),
        (resigned(ends_at=NOW + 9e6), "not good"),
        (SOLD[:-1], "not good"),
        (SOLD[:-40], "not good"),
        (SOLD[: SOLD.rindex(b".")], "cut off"),
        (SOLD[:20], "cut off"),
        (b"", "cut off"),
        (SOLD + b".", "cut off"),
        (SOLD + b"=", "not good"),
        (SOLD.replace(b".", b"\n.", 1), "header of the contract cannot be read"),
        (b"A" * (signatures.MAX_BYTES + 1), "longer than"),
        (
            deals.forged("stranger", header("stranger", typ=signatures.COUNTERSIGNED), SOLD),
            "signed as the buyer",
        ),
        (deals.forged("buyer", header("buyer", typ=signatures.COUNTERSIGNED), TERMS), "cut off"),
        (
            signatures.PayloadSigner(BUYER, signatures.COUNTERSIGNED).sign(BOTH),
            "signed by both sides, not as a contract",
        ),
    ],
)
def test_a_contract_that_is_not_good_is_refused_with_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason) as caught:
        signatures.verify(text)
    assert len(caught.value.message) < 400


@given(st.integers(0, len(BOTH) * 8 - 1))
def test_no_bit_of_a_contract_can_be_changed(bit: int) -> None:
    spoilt = bytearray(BOTH)
    spoilt[bit // 8] ^= 1 << bit % 8
    with pytest.raises(errors.Invalid):
        signatures.verify(bytes(spoilt))


@given(st.binary(max_size=200) | st.text(st.sampled_from("eyJ.AB{}"), max_size=40).map(str.encode))
def test_whatever_is_sent_it_is_refused_plainly(text: bytes) -> None:
    with pytest.raises(errors.Invalid):
        signatures.verify(text)


def test_a_contract_is_for_its_own_parties_and_its_own_time() -> None:
    with pytest.raises(errors.Invalid, match=f"the seller is {SELLER.cloud}, not"):
        signatures.verify(BOTH, seller=STRANGER.cloud)
    with pytest.raises(errors.Invalid, match=f"for the buyer {BUYER.cloud}, not for"):
        signatures.verify(BOTH, buyer=STRANGER.cloud)
    with pytest.raises(errors.Invalid, match=r"begins only at 2023-11-14T22:13:20.000Z"):
        signatures.verify(BOTH, now=NOW - 0.001)
    assert signatures.verify(BOTH, now=CONTRACT.ends_at - 0.001).contract == CONTRACT
    with pytest.raises(errors.Invalid, match=r"ended at 2023-11-15T00:13:20.000Z"):
        signatures.verify(BOTH, now=CONTRACT.ends_at)


def test_the_seller_keeps_only_what_it_signed_itself() -> None:
    assert signatures.check_countersigned(BOTH, SOLD).buyer == BUYER.public
    with pytest.raises(errors.Invalid, match="lacks the buyer's signature"):
        signatures.check_countersigned(SOLD, SOLD)
    other = ContractSigner(SELLER).sign(deals.changed(count=4))
    with pytest.raises(errors.Invalid, match="other terms"):
        signatures.check_countersigned(signatures.countersign(BUYER, other), SOLD)


def test_a_buyer_without_a_key_has_the_sellers_signature_only() -> None:
    account = CloudId("uid-1000")
    sold = ContractSigner(SELLER).sign(deals.changed(buyer=account))
    assert signatures.verify(sold, buyer=account).buyer is None
    with pytest.raises(errors.FailedPrecondition, match="buy with a key"):
        signatures.check_countersigned(sold, sold)
    forged = signatures.PayloadSigner(BUYER, signatures.COUNTERSIGNED).sign(sold)
    with pytest.raises(errors.Invalid, match="names the buyer uid-1000"):
        signatures.check_countersigned(forged, sold)


def test_a_text_signed_for_another_use_is_no_contract() -> None:
    proof = signatures.PayloadSigner(SELLER, "vnd.skerry.proof+jws").sign(
        canonical_json.encode(json.loads(TERMS))
    )
    with pytest.raises(errors.Invalid, match="not as a contract"):
        signatures.verify(proof)
