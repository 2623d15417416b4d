"""Credentials of contracts: given out again and again, and good for that contract at that cloud alone."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.market.terms import contract_credentials
from skerry.market.terms.contract_credentials import ContractCredentials
from skerry.market.terms.keys import SigningKey
from skerry.model import errors
from skerry.model.ids import ContractId

KEY = SigningKey.generate()
OURS = ContractCredentials(KEY)
ID = ContractId("01hf7yat00c0ntract")


def test_a_contract_has_one_credential_whoever_makes_it_out() -> None:
    text = OURS.of(ID)
    assert text == ContractCredentials(KEY).of(ID)
    assert text.startswith(f"{ID}.")
    assert OURS.check(text) == ID


def test_an_id_with_dots_is_no_matter() -> None:
    dotted = ContractId("a.b.c")
    assert OURS.check(OURS.of(dotted)) == dotted


def test_the_credential_of_another_cloud_is_refused() -> None:
    with pytest.raises(errors.Unauthenticated, match="not the credential of a contract with this cloud"):
        OURS.check(ContractCredentials(SigningKey.generate()).of(ID))


def test_the_code_of_one_contract_does_not_open_another() -> None:
    code = OURS.of(ID).rpartition(".")[2]
    with pytest.raises(errors.Unauthenticated):
        OURS.check(f"another.{code}")


@given(place=st.integers(0, 200), other=st.characters(min_codepoint=33, max_codepoint=126))
def test_a_credential_with_another_letter_is_refused(place: int, other: str) -> None:
    text = OURS.of(ID)
    place %= len(text)
    changed = text[:place] + other + text[place + 1 :]
    if changed != text:
        with pytest.raises(errors.Unauthenticated):
            OURS.check(changed)


def test_another_spelling_of_the_same_code_is_refused() -> None:
    text = OURS.of(ID)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = text[:-1] + alphabet[alphabet.index(text[-1]) ^ 1]  # only a bit that base64 does not use
    codes = [base64.urlsafe_b64decode(one.rpartition(".")[2] + "=") for one in (text, twin)]
    assert codes[0] == codes[1]
    with pytest.raises(errors.Unauthenticated):
        OURS.check(twin)


@given(st.text(max_size=300))
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        OURS.check(text)


def test_what_is_too_long_is_refused_though_its_code_is_right() -> None:
    with pytest.raises(errors.Unauthenticated):
        OURS.check(OURS.of(ContractId("a" * 129)))


def test_secrets_of_different_uses_have_nothing_in_common() -> None:
    assert KEY.derive(b"one") == KEY.derive(b"one") != KEY.derive(b"two")
    assert KEY.derive(b"one") not in KEY.pem()


def test_a_header_of_another_scheme_is_told_which_is_needed() -> None:
    assert contract_credentials.parse_authorization(f"skerry-contract  {OURS.of(ID)}") == OURS.of(ID)
    with pytest.raises(errors.Unauthenticated, match="Authorization: Skerry-Contract"):
        contract_credentials.parse_authorization("Bearer skerry_x")
