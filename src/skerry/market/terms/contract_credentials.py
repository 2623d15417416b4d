"""The credential for the tunnel of a contract: made from the market's key, and stored nowhere.

A credential is the contract's id and a MAC over it, which needs the key. So nothing secret is in the store,
every server of the cloud can verify all credentials, and a repeated request gets the same. It is for that one
contract only; the ledger knows whether that is live. Texts only: `skerry.wire.rear` serves the tunnels.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from skerry.market.terms.keys import SigningKey
from skerry.model import errors, ids
from skerry.model.ids import ContractId

SCHEME: Final = "Skerry-Contract"  # of the header `Authorization`
_USE: Final = b"skerry.contract-credential.v1"
_MAX_LENGTH: Final = ids.MAX_ID + 1 + 43


class ContractCredentials:
    """Those of one cloud's contracts."""

    def __init__(self, key: SigningKey) -> None:
        self._secret = key.derive(_USE)

    def of(self, id: ContractId) -> str:
        """The credential of a contract, always the same."""
        code = hmac.digest(self._secret, id.encode(), hashlib.sha256)
        return f"{id}.{base64.urlsafe_b64encode(code).rstrip(b'=').decode()}"

    def check(self, text: str) -> ContractId:
        """Whose credential it is; `Unauthenticated` if it is none that was given out here."""
        id = text.rpartition(".")[0]
        if not id or len(text) > _MAX_LENGTH or not text.isascii():
            raise _refusal()
        # All of the text is compared: of what it decodes to there may be several spellings.
        if not hmac.compare_digest(self.of(ContractId(id)), text):
            raise _refusal()
        return ContractId(id)


def parse_authorization(authorization: str) -> str:
    """The credential in the value of an `Authorization` header; `Unauthenticated` if it holds none."""
    scheme, _, text = authorization.strip().partition(" ")
    if scheme.lower() != SCHEME.lower():
        raise errors.Unauthenticated(
            f"send `Authorization: {SCHEME} CREDENTIAL`, as the purchase answered it"
        )
    return text.strip()


def _refusal() -> errors.Unauthenticated:
    return errors.Unauthenticated(
        "this is not the credential of a contract with this cloud; send the one that the purchase answered"
    )
