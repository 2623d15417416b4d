"""The text of a token."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import ulid
from skerry.model.token_text import MalformedToken, TokenText, new_secret, pin_of

PIN = pin_of("ab" * 32)


@pytest.mark.parametrize("pin", ["", PIN])
def test_a_token_reads_as_it_was_written(pin: str) -> None:
    text = TokenText(ulid.new_id(1_700_000_000.0), new_secret(), pin)
    assert TokenText.parse(text.format()) == text


@given(st.one_of(st.text(), st.from_regex(r"skerry_[0-9a-z_]{0,120}", fullmatch=True)))
def test_any_text_is_a_token_or_malformed(text: str) -> None:
    try:
        parsed = TokenText.parse(text)
    except MalformedToken:
        return
    assert parsed.format() == text


def test_a_broken_token_is_not_repeated_in_the_error() -> None:
    text = TokenText(ulid.new_id(0.0), new_secret(), PIN[:-1])
    with pytest.raises(MalformedToken) as caught:
        TokenText.parse(text.format())
    assert text.secret not in str(caught.value)


def test_secrets_differ_and_hold_no_separator() -> None:
    found = {new_secret() for _ in range(100)}
    assert len(found) == 100
    assert set("".join(found)) <= set(string.ascii_lowercase + string.digits)


def test_neither_repr_nor_digest_show_the_secret() -> None:
    text = TokenText(ulid.new_id(0.0), new_secret(), PIN)
    assert text.secret not in repr(text)
    assert text.secret not in f"{text}"
    assert text.secret not in text.digest


def test_a_newline_after_a_token_is_not_part_of_one() -> None:
    text = TokenText(ulid.new_id(0.0), new_secret()).format()
    with pytest.raises(MalformedToken):
        TokenText.parse(text + "\n")
