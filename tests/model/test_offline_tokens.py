"""The text of offline tokens: what is signed holds to the letter, and everything else is refused."""

from __future__ import annotations

import base64
import string

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skerry.kit import json_codec, signing
from skerry.model import errors, network_kinds, offline_tokens
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import Namespace
from skerry.model.offline_tokens import OfflineClaims, RevokedToken, TokenKey

NOW = 1_800_000_000
ISSUER = "ab" * 16
KEY = signing.SigningKey(b"k" * 32)
OTHER = signing.SigningKey(b"o" * 32)
CLAIMS = OfflineClaims(
    id="01kb3k2v8x1w0d5q0m8s6n4r2t", iss=ISSUER, role=Role.INVOKER, nbf=NOW - 300, exp=NOW + 3600
)
TEXT = offline_tokens.sign(CLAIMS, KEY)


def public_of(key: str) -> bytes | None:
    return KEY.public if key == KEY.id else None


def read(text: str) -> OfflineClaims:
    return offline_tokens.read_signed(text, public_of)[0]


def check(claims: OfflineClaims, now: float = NOW) -> None:
    offline_tokens.check_claims(claims, {ISSUER}, now)


def changed(**claims: object) -> OfflineClaims:
    return msgspec.structs.replace(CLAIMS, **claims)


def signed_bytes(body: bytes, prefix: str = offline_tokens.PREFIX, key: signing.SigningKey = KEY) -> str:
    """A rightly signed token with any content."""
    text = f"{prefix}.{key.id}.{base64.urlsafe_b64encode(body).decode().rstrip('=')}"
    return f"{text}.{base64.urlsafe_b64encode(key.sign(text.encode())).decode().rstrip('=')}"


def test_a_token_is_read_as_it_was_signed() -> None:
    assert offline_tokens.read_signed(TEXT, public_of) == (CLAIMS, KEY.id)
    check(CLAIMS)
    assert offline_tokens.caller_of(CLAIMS) == Caller(
        AuthMethod.TOKEN, f"token:{CLAIMS.id}", Role.INVOKER, token=CLAIMS.id
    )
    assert offline_tokens.is_offline_token(TEXT)
    assert not offline_tokens.is_offline_token("skerry_01kb3k2v8x1w0d5q0m8s6n4r2t_secret")


def test_no_other_character_at_any_place_is_accepted() -> None:
    """Also not one that only changes bits which base64 has to spare."""
    last = {len(part) - 1 for part in (TEXT, TEXT.rpartition(".")[0] + ".")}
    for place, was in enumerate(TEXT):
        near = (
            string.ascii_letters + string.digits + "-_" if place in last or place == len(TEXT) - 88 else "Aa0"
        )
        for other in f"{near}.= ":
            if other != was:
                with pytest.raises(errors.Unauthenticated):
                    read(TEXT[:place] + other + TEXT[place + 1 :])


def test_no_shortened_or_lengthened_token_is_accepted() -> None:
    for place in range(len(TEXT)):
        with pytest.raises(errors.Unauthenticated):
            read(TEXT[:place])
        with pytest.raises(errors.Unauthenticated):
            read(TEXT[:place] + TEXT[place + 1 :])
    for more in ("=", "==", "A", " ", "\n", "\0", ".A", "é"):
        with pytest.raises(errors.Unauthenticated):
            read(TEXT + more)


@given(st.text(max_size=300))
def test_any_text_is_refused_with_a_reason(text: str) -> None:
    for shown in (text, f"{offline_tokens.PREFIX}.{text}", f"{offline_tokens.PREFIX}.{KEY.id}.{text}"):
        with pytest.raises(errors.Unauthenticated):
            read(shown)


@given(st.binary(min_size=2, max_size=300))
def test_signed_content_that_is_no_claims_is_refused(body: bytes) -> None:
    with pytest.raises(errors.Unauthenticated):
        read(signed_bytes(body))


def test_a_claim_that_is_not_known_is_refused() -> None:
    known = json_codec.decode(json_codec.encode(CLAIMS), dict[str, object])
    assert read(signed_bytes(json_codec.encode(known))) == CLAIMS
    for more in ({"only": "/invoke/hello"}, {"alg": "none"}, {"role": "king"}, {"ns": []}, {"exp": -1}):
        with pytest.raises(errors.Unauthenticated, match="claims"):
            read(signed_bytes(json_codec.encode(known | more)))


def test_another_version_and_another_kind_of_token_are_refused() -> None:
    for prefix in ("skerry-offline-v2", "skerry-join-v1", "eyJhbGciOiJub25lIn0"):
        with pytest.raises(errors.Unauthenticated, match="not a whole offline token"):
            read(signed_bytes(json_codec.encode(CLAIMS), prefix))


def test_another_key_is_unknown_and_does_not_sign_for_this_one() -> None:
    with pytest.raises(errors.Unauthenticated, match="key of this token is not known"):
        read(offline_tokens.sign(CLAIMS, OTHER))
    prefix, _, body, signature = offline_tokens.sign(CLAIMS, OTHER).split(".")
    with pytest.raises(errors.Unauthenticated, match="signature"):
        read(".".join((prefix, KEY.id, body, signature)))


def test_a_token_of_another_cloud_is_refused_though_its_key_is_known() -> None:
    with pytest.raises(errors.Unauthenticated, match="another cloud"):
        check(changed(iss="cd" * 16))


@pytest.mark.parametrize("role", [Role.ADMIN, Role.DEPLOYER, Role.NODE])
def test_other_roles_are_refused_though_they_are_signed(role: Role) -> None:
    claims = read(offline_tokens.sign(changed(role=role), KEY))
    with pytest.raises(errors.Unauthenticated, match="not accepted in an offline token"):
        check(claims)


def test_it_is_valid_from_its_beginning_to_its_end_and_a_little_around_for_clocks() -> None:
    leeway = offline_tokens.LEEWAY_S
    for valid in (CLAIMS.nbf - leeway, CLAIMS.nbf, CLAIMS.exp, CLAIMS.exp + leeway - 1):
        check(CLAIMS, valid)
    with pytest.raises(errors.Unauthenticated, match="not valid before"):
        check(CLAIMS, CLAIMS.nbf - leeway - 1)
    with pytest.raises(errors.Unauthenticated, match="expired at"):
        check(CLAIMS, CLAIMS.exp + leeway)


@given(st.integers(1, 32), st.integers(3, 63))
@example(32, 63)
def test_a_token_of_any_namespaces_fits_and_is_bound_to_them(count: int, length: int) -> None:
    bound = tuple(Namespace(f"n{number:02}".ljust(length, "x")) for number in range(count))
    text = offline_tokens.sign(changed(ns=bound), KEY)
    assert len(text) <= offline_tokens.MAX_TEXT
    assert offline_tokens.caller_of(read(text)).namespaces == bound


def test_a_text_that_is_too_long_is_refused_before_it_is_looked_at() -> None:
    text = signed_bytes(b"x" * offline_tokens.MAX_TEXT)
    with pytest.raises(errors.Unauthenticated, match="not a whole offline token"):
        read(text)


def test_keys_and_revocations_travel_as_network_objects() -> None:
    for value in (TokenKey(KEY.id, KEY.public.hex()), RevokedToken(CLAIMS.id, float(NOW))):
        assert network_kinds.decode(*value.network_key, network_kinds.encode(value)) == value
    assert RevokedToken(KEY.id, 0.0).is_key
    assert not RevokedToken(CLAIMS.id, 0.0).is_key


def test_a_signing_key_does_not_show_itself() -> None:
    assert repr(KEY) == f"SigningKey({KEY.id})"
    assert signing.key_id(KEY.public) == KEY.id
