"""The text of an access token: what is shown once to a person, and what callers send.

`skerry_<id>_<secret>`, and for joining `_<pin>` after it: the first half of the CA's fingerprint, by which a
new machine knows the right server before it trusts anything. Pure text; `skerry.control.identity.tokens`
knows which tokens exist, `skerry.node.agent.node_identity` checks the pin.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

import msgspec

PIN_LENGTH = 32
_SECRET_BYTES = 32
_SHAPE = re.compile(r"skerry_([0-9a-z]{26})_([a-z2-7]{52})(?:_([0-9a-f]{32}))?")


class MalformedToken(ValueError):
    """The text is no token; it is not repeated in the message, since most of it may be a secret."""


class TokenText(msgspec.Struct, frozen=True):
    """A token taken apart. It shows its secret only when formatted."""

    id: str
    secret: str
    pin: str = ""

    @classmethod
    def parse(cls, text: str) -> TokenText:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise MalformedToken(
                "this is not a Skerry token, which looks like skerry_<id>_<secret>; "
                "copy all of it and nothing around it"
            )
        return cls(id=match[1], secret=match[2], pin=match[3] or "")

    def format(self) -> str:
        return "_".join(("skerry", self.id, self.secret, *([self.pin] if self.pin else [])))

    @property
    def digest(self) -> str:
        """What a server keeps of the secret. It is 256 bits of chance, so a plain hash gives nothing away."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"TokenText(id={self.id!r})"


def new_secret() -> str:
    """256 bits of chance in letters and digits."""
    return base64.b32encode(secrets.token_bytes(_SECRET_BYTES)).decode().rstrip("=").lower()


def pin_of(fingerprint: str) -> str:
    """The part of a CA's fingerprint (SHA-256 in hex) that goes into a join token."""
    return fingerprint[:PIN_LENGTH]
