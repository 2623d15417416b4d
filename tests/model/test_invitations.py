"""Invitations: what goes in comes out; anything else is refused, in words that help and give nothing away."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.invitations import (
    Invitation,
    JoinCredentials,
    MalformedInvitation,
    _checksum,
    is_invitation,
)
from skerry.model.token_text import TokenText, new_secret, pin_of

FINGERPRINT = "89a8c322451b60ce992966f599be228c729296b581c1b5d1320e91b56603b628"
SECRET = new_secret()
TOKEN = TokenText("01m7jn6vvhcb64eqdhky0zdp6t", SECRET, pin_of(FINGERPRINT)).format()
INVITATION = Invitation(("https://192.0.2.1:1323", "https://[2001:db8::1]:1323"), FINGERPRINT, TOKEN)
TEXT = INVITATION.format()


def with_payload(**changes: object) -> str:
    """An invitation whose checksum is right and whose contents are not."""
    value = {"urls": list(INVITATION.urls), "fingerprint": FINGERPRINT, "token": TOKEN, **changes}
    payload = base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
    return f"skerry-join-v1.{payload}.{_checksum(payload)}"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=32))
def test_what_is_written_is_read_again(urls: list[str]) -> None:
    made = Invitation(tuple(urls), FINGERPRINT, TOKEN)
    assert Invitation.parse(made.format()) == made


def test_it_is_one_word_for_a_shell_and_may_have_a_line_end_after_it() -> None:
    assert TEXT.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert Invitation.parse(f" {TEXT}\n") == INVITATION


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "copy all of it"),
        ("https://192.0.2.1:1323", "copy all of it"),
        (TOKEN, "copy all of it"),
        (TEXT[:-1], "copy all of it"),
        (TEXT[:40] + TEXT[41:], "not copied whole"),
        (TEXT.replace("-v1.", "-v2."), "version 2.*install the version"),
        (with_payload(token="x"), "it was changed"),
        (with_payload(urls=[]), "it was changed"),
        (with_payload(urls=["https://a"] * 33), "it was changed"),
        (with_payload(fingerprint=FINGERPRINT[:32]), "it was changed"),
        (with_payload(fingerprint="0" * 64), "of another cloud"),
    ],
)
def test_what_is_no_invitation_is_told_apart_and_not_repeated(text: str, says: str) -> None:
    with pytest.raises(MalformedInvitation, match=says) as refused:
        Invitation.parse(text)
    assert SECRET not in str(refused.value)


def test_a_url_and_a_token_are_no_invitations_and_half_of_one_is_meant_to_be_one() -> None:
    assert not is_invitation("https://192.0.2.1:1323,https://192.0.2.2:1323")
    assert not is_invitation(TOKEN)
    assert is_invitation(TEXT[:30])


def test_it_does_not_show_its_secret_by_accident() -> None:
    assert SECRET not in repr(INVITATION) + repr(JoinCredentials(TOKEN, FINGERPRINT))
