"""An invitation: one line of text with all that a new machine needs to join a cloud.

`skerry-join-v1.<payload>.<checksum>`: where the servers are, the fingerprint of the CA that they must
show, and a join token. The payload is JSON in base64url, so the line needs no quotes in a shell; the
checksum finds a line that was copied in part. It holds a secret: it is never logged and never repeated in
an error. Made by `skerry.wire.own.tokens`, taken apart by `skerry.cli.commands.daemon`; pure text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model.token_text import MalformedToken, TokenText, pin_of

VERSION = 1
MAX_URLS = 32
_PREFIX = "skerry-join-"
_SHAPE = re.compile(r"skerry-join-v([0-9]{1,4})\.([A-Za-z0-9_-]+)\.([0-9a-f]{8})")
_ANEW = "an admin makes one with `skerry token create --role node`"


class MalformedInvitation(ValueError):
    """The text is no invitation that can be used; the message says why and what to do, without the text."""


class Invitation(msgspec.Struct, frozen=True):
    """The content of an invitation. Its token is visible only when it is formatted."""

    urls: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_URLS)]  # in the order to try them
    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # SHA-256 of the CA's certificate
    token: str

    @classmethod
    def parse(cls, text: str) -> Invitation:
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise MalformedInvitation(
                f"this is no invitation, which is one line that begins with {_PREFIX}v{VERSION}. and has no "
                f"spaces: copy all of it and nothing around it; {_ANEW}"
            )
        version, payload, checksum = match.groups()
        if int(version) != VERSION:
            raise MalformedInvitation(
                f"this invitation has the version {int(version)}, and this Skerry knows version {VERSION}: "
                "install the version of Skerry here that the server has"
            )
        if checksum != _checksum(payload):
            raise MalformedInvitation(f"this invitation was not copied whole: copy the line again; {_ANEW}")
        try:
            data = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
            made = msgspec.json.decode(data, type=cls)
            pin = TokenText.parse(made.token).pin
        except (binascii.Error, msgspec.MsgspecError, MalformedToken, UnicodeDecodeError):
            raise MalformedInvitation(f"this invitation cannot be read: it was changed; {_ANEW}") from None
        if pin != pin_of(made.fingerprint):
            raise MalformedInvitation(
                f"the token in this invitation is of another cloud than the rest; {_ANEW}"
            )
        return made

    def format(self) -> str:
        payload = base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")
        return f"{_PREFIX}v{VERSION}.{payload}.{_checksum(payload)}"

    def __repr__(self) -> str:
        return f"Invitation(urls={self.urls!r})"


class JoinCredentials(msgspec.Struct, frozen=True):
    """What lets a machine join, and by which it knows the cloud: a token, and the whole fingerprint of the
    CA if it came by an invitation."""

    token: str = ""
    fingerprint: str = ""

    def __repr__(self) -> str:
        return f"Admission(fingerprint={self.fingerprint!r})"


def is_invitation(text: str) -> bool:
    """Whether this looks like an invitation, complete or not; a URL never does."""
    return text.strip().startswith(_PREFIX)


def _checksum(payload: str) -> str:
    return hashlib.sha256(payload.encode()).hexdigest()[:8]
