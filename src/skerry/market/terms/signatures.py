"""Signatures on texts, and the two signatures on a contract.

Everything signed is a compact JWS (RFC 7515) by an Ed25519 key in the header, with a `typ` for its use, so
that a text signed for one use is never valid for another. A contract is signed by the seller, and then by the
buyer over the seller's whole text: it can be verified offline, without another party. The ids in the terms
determine the keys (`skerry.market.terms.keys`); whether the seller is trusted is the reader's decision.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.util import urlsafe_b64decode

from skerry.kit.clock import iso
from skerry.market.terms import canonical_json, contract_document, keys
from skerry.market.terms.keys import PublicKey, SigningKey
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import Contract

ALGORITHM: Final = "Ed25519"  # RFC 9864; `EdDSA` is less specific, and deprecated by it
CONTRACT: Final = "vnd.skerry.contract+jws"
COUNTERSIGNED: Final = "vnd.skerry.countersigned-contract+jws"
MAX_BYTES: Final = 64 * 1024
_NAMES: Final = {CONTRACT: "a contract", COUNTERSIGNED: "a contract signed by both sides"}
_HEADERS: Final = frozenset({"alg", "jwk", "typ"})

_registry = jws.JWSRegistry(algorithms=[ALGORITHM])


class VerifiedPayload(msgspec.Struct, frozen=True):
    """A text with a valid signature, and its key."""

    payload: bytes
    signer: PublicKey


class PayloadSigner:
    """Signs texts of one use with one key."""

    def __init__(self, key: SigningKey, typ: str) -> None:
        self._key = key.jwk
        self._algorithm = _registry.get_alg(ALGORITHM)
        # The header is the same for every text, so it is written once.
        header = canonical_json.encode({"alg": ALGORITHM, "jwk": key.public.as_jwk(), "typ": typ})
        self._start = _base64(header) + b"."

    def sign(self, payload: bytes) -> bytes:
        """The compact JWS of `payload`. The same payload gives the same bytes."""
        text = self._start + _base64(payload)
        return text + b"." + _base64(self._algorithm.sign(text, self._key))


class ContractSigner:
    """Signs contracts as their seller."""

    def __init__(self, key: SigningKey) -> None:
        self.cloud = key.cloud
        self._signer = PayloadSigner(key, CONTRACT)

    def sign(self, contract: Contract) -> bytes:
        """The contract, signed; `FailedPrecondition` if this key is not its seller's."""
        if contract.seller != self.cloud:
            raise errors.FailedPrecondition(f"{self.cloud} cannot sign as the seller {contract.seller}")
        return self._signer.sign(contract_document.write(contract))


class VerifiedContract(msgspec.Struct, frozen=True):
    """A contract with valid signatures: the seller's, and the buyer's if there is one."""

    contract: Contract
    seller: PublicKey
    buyer: PublicKey | None
    by_seller: bytes  # the text that the seller signed, without the buyer's signature around it


def open_signed(text: bytes, typ: str, name: str) -> VerifiedPayload:
    """The payload of `text`, signed for the use `typ`; else `Invalid`. `name` is for error messages."""
    header = _read_header(text, name)
    _check_header(header, typ, name)
    signer = PublicKey.parse(header.get("jwk"))
    try:
        found = jws.deserialize_compact(text, signer.jwk, registry=_registry)
    except JoseError as error:
        raise errors.Invalid(
            f"the signature of {name} is not good: it was changed after it was signed, or its key is not "
            "the one that signed it"
        ) from error
    return VerifiedPayload(found.payload, signer)


def verify(
    text: bytes, *, seller: CloudId | None = None, buyer: CloudId | None = None, now: float | None = None
) -> VerifiedContract:
    """Verify a contract, signed by the seller or by both; else `Invalid`.

    `seller` and `buyer` are the expected ids, `now` is when it must be in force; None: any.
    """
    text = text.strip()
    outer = None
    if _read_header(text, "the contract").get("typ") == COUNTERSIGNED:
        outer = open_signed(text, COUNTERSIGNED, "the contract")
        text = outer.payload
    inner = open_signed(text, CONTRACT, "the contract")
    contract = contract_document.read(inner.payload)
    if inner.signer.cloud != contract.seller:
        raise errors.Invalid(
            f"the contract names the seller {contract.seller}, but {inner.signer.cloud} signed it"
        )
    if outer is not None and outer.signer.cloud != contract.buyer:
        raise errors.Invalid(
            f"the contract names the buyer {contract.buyer}, but {outer.signer.cloud} signed as the buyer"
        )
    _check_parties(contract, seller, buyer)
    _check_time(contract, now)
    return VerifiedContract(contract, inner.signer, None if outer is None else outer.signer, text)


def countersign(key: SigningKey, text: bytes) -> bytes:
    """The contract that the seller signed in `text`, signed by its buyer too."""
    verified = verify(text)
    if verified.contract.buyer != key.cloud:
        raise errors.Forbidden(
            f"only its buyer {verified.contract.buyer} signs this contract, and this key is {key.cloud}"
        )
    return PayloadSigner(key, COUNTERSIGNED).sign(verified.by_seller)


def check_countersigned(text: bytes, by_seller: bytes) -> VerifiedContract:
    """The contract in `text` if both sides signed it, and the seller's part is `by_seller`."""
    verified = verify(text)
    if not keys.is_key_id(verified.contract.buyer):
        raise errors.FailedPrecondition(
            f"the buyer of this contract is the account {verified.contract.buyer} of its seller, not a key; "
            "to sign contracts, buy with a key"
        )
    if verified.buyer is None:
        raise errors.Invalid("the contract lacks the buyer's signature around the seller's")
    if verified.by_seller != by_seller:
        raise errors.Invalid("the buyer signed other terms than those of this contract")
    return verified


def _read_header(text: bytes, name: str) -> dict[str, canonical_json.Json]:
    if len(text) > MAX_BYTES:
        raise errors.Invalid(f"{name} is longer than {MAX_BYTES} bytes")
    parts = text.split(b".")
    if len(parts) != 3:
        raise errors.Invalid(
            f"{name} is no compact JWS, which is three parts with dots between; it may have been cut off"
        )
    try:
        header = canonical_json.read(urlsafe_b64decode(parts[0]))
    except (canonical_json.NotCanonical, ValueError) as error:
        why = str(error) or "it is not base64url"
        raise errors.Invalid(
            f"the header of {name} cannot be read: {why}; give all of it, as it was signed"
        ) from error
    if not isinstance(header, dict):
        raise errors.Invalid(f"the header of {name} is no JSON object")
    return header


def _check_header(header: dict[str, canonical_json.Json], typ: str, name: str) -> None:
    algorithm = header.get("alg")
    if isinstance(algorithm, str) and algorithm.lower() == "none":
        raise errors.Invalid(f"{name} is not signed at all: its alg is none")
    if algorithm != ALGORITHM:
        raise errors.Invalid(f"the alg of {name} is {str(algorithm)[:32]!r}; only {ALGORITHM} is accepted")
    if header.get("typ") != typ:
        found = header.get("typ")
        kind = _NAMES.get(found) if isinstance(found, str) else None
        raise errors.Invalid(
            f"{name} was signed as {kind or repr(str(found)[:64])}, not as {_NAMES.get(typ, repr(typ))}"
        )
    if "crit" in header:
        raise errors.Invalid(f"the header of {name} demands what is not understood here: crit")
    if unknown := sorted(header.keys() - _HEADERS):
        raise errors.Invalid(f"the header of {name} holds {unknown[0][:64]!r}, which is not understood here")


def _check_parties(contract: Contract, seller: CloudId | None, buyer: CloudId | None) -> None:
    if seller is not None and contract.seller != seller:
        raise errors.Invalid(f"the seller is {contract.seller}, not {seller}")
    if buyer is not None and contract.buyer != buyer:
        raise errors.Invalid(f"the contract is for the buyer {contract.buyer}, not for {buyer}")


def _check_time(contract: Contract, now: float | None) -> None:
    if now is not None and now < contract.starts_at:
        raise errors.Invalid(f"the contract begins only at {iso(contract.starts_at)}")
    if now is not None and now >= contract.ends_at:
        raise errors.Invalid(f"the contract ended at {iso(contract.ends_at)}")


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
