"""Request proofs: a signature by a buyer's key over one request to one provider, valid once.

`Authorization: Skerry-Proof <compact JWS>`. A proof is for one request (method, target, body) to one
provider, is valid for a minute at most, and can be used once. Uses are stored for requests that change
something, so that holds over restarts and for all servers of a cloud; a repeated read is refused by the
server that had it. `skerry.wire` decides what the sender may do.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.market.terms import canonical_json, signatures
from skerry.market.terms.keys import SigningKey
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.store.protocol import ABSENT, Expect, Put, Store
from skerry.store.tables.leases import SharedLease

SCHEME: Final = "Skerry-Proof"
TYPE: Final = "vnd.skerry.proof+jws"
LIFE_S: Final = 60
LEEWAY_S: Final = 10  # how far the clocks of buyer and provider may differ
MAX_BYTES: Final = 4096
PREFIX: Final = "proof/"
MAX_REMEMBERED: Final = 200_000  # used proofs in memory
# A proof from a clock that is ahead is valid until its own end plus the leeway.
_KEEP_S: Final = LIFE_S + 2 * LEEWAY_S
_SHARED_S: Final = 60


class ProofClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claims of a proof; the names are those of RFC 7519 and RFC 9449 where they have one."""

    iss: str  # the sender: the id of the key that signs
    aud: str  # the provider that the request is for
    htm: str  # its method
    htu: str  # its path, and its query if it has one, as on the request line
    sha256: str  # of its body, in hex
    iat: int
    exp: int
    jti: str  # chance, so that two proofs of the same request differ


class RequestSigner:
    """Makes proofs with one key."""

    def __init__(
        self, key: SigningKey, clock: Clock, new_jti: Callable[[], str] = lambda: secrets.token_hex(16)
    ) -> None:
        self._cloud = key.cloud
        self._signer = signatures.PayloadSigner(key, TYPE)
        self._clock = clock
        self._new_jti = new_jti

    def header(self, audience: CloudId, method: str, target: str, body: bytes = b"") -> str:
        """The value of `Authorization` for this request, valid for `LIFE_S` seconds and once."""
        now = int(self._clock.now())
        claims = ProofClaims(
            iss=self._cloud,
            aud=audience,
            htm=method,
            htu=target,
            sha256=hashlib.sha256(body).hexdigest(),
            iat=now,
            exp=now + LIFE_S,
            jti=self._new_jti(),
        )
        signed = self._signer.sign(canonical_json.encode(msgspec.to_builtins(claims)))
        return f"{SCHEME} {signed.decode('ascii')}"


def is_proof(authorization: str) -> bool:
    """Whether the value of an `Authorization` header is of this scheme."""
    return authorization.partition(" ")[0].lower() == SCHEME.lower()


def verify_proof(
    authorization: str, *, audience: CloudId, method: str, target: str, body: bytes, now: float
) -> ProofClaims:
    """The claims of the proof, if it is valid for this request now; else `Unauthenticated`.

    Pure, so it does not know whether the proof was used before.
    """
    text = authorization.partition(" ")[2].strip().encode("ascii", "replace")
    if len(text) > MAX_BYTES:
        raise errors.Unauthenticated(f"the proof is longer than {MAX_BYTES} bytes")
    try:
        signed = signatures.open_signed(text, TYPE, "the proof")
        claims = json_codec.convert(canonical_json.read(signed.payload), ProofClaims)
    except errors.Invalid as error:
        raise errors.Unauthenticated(error.message) from error
    except (canonical_json.NotCanonical, json_codec.InvalidJson) as error:
        raise errors.Unauthenticated(f"the claims of the proof cannot be read: {error}") from error
    if claims.iss != signed.signer.cloud:
        raise errors.Unauthenticated(
            f"the proof says that {claims.iss[:64]!r} sent it, but {signed.signer.cloud} signed it"
        )
    if claims.aud != audience:
        raise errors.Unauthenticated(f"the proof is for {claims.aud[:64]!r}, and this provider is {audience}")
    if (claims.htm, claims.htu) != (method, target):
        raise errors.Unauthenticated("the proof is for another request: sign the method, path and query sent")
    if claims.sha256 != hashlib.sha256(body).hexdigest():
        raise errors.Unauthenticated("the proof is for another body: sign the SHA-256 of the bytes sent")
    _check_times(claims, now)
    if not 16 <= len(claims.jti) <= 64 or not claims.jti.isascii() or not claims.jti.isalnum():
        raise errors.Unauthenticated("jti of the proof must be 16 to 64 letters and digits, made by chance")
    return claims


def _check_times(claims: ProofClaims, now: float) -> None:
    if not 0 < claims.exp - claims.iat <= LIFE_S:
        raise errors.Unauthenticated(f"a proof is valid for 1 to {LIFE_S} seconds: exp is iat and so many")
    if claims.iat > now + LEEWAY_S:
        raise errors.Unauthenticated(
            f"the proof was made {claims.iat - now:.0f} s from now by the provider's clock; set the clock"
        )
    if now >= claims.exp + LEEWAY_S:
        raise errors.Unauthenticated(
            f"the proof ended {now - claims.exp:.0f} s ago by the provider's clock; make one for each request"
        )


class ProofVerifier:
    """Checks proofs for one provider, each good once."""

    def __init__(self, store: Store, clock: Clock, audience: CloudId, *, most: int = MAX_REMEMBERED) -> None:
        self.audience = audience
        self._store = store
        self._clock = clock
        self._most = most
        self._seen: set[str] = set()
        self._order: deque[tuple[float, str]] = deque()
        self._lease = SharedLease(store, clock, keep_s=_KEEP_S, shared_s=_SHARED_S)

    async def check(
        self,
        authorization: str,
        *,
        method: str,
        target: str,
        body: bytes,
        is_read: bool,
        admit: Callable[[CloudId], None] = lambda _: None,
    ) -> CloudId:
        """The buyer of this request; else `Unauthenticated`.

        Whether it `is_read`, and so is not stored, follows from the route. `admit` raises for refused buyers:
        keys are free, and those must not cost a write.
        """
        claims = verify_proof(
            authorization,
            audience=self.audience,
            method=method,
            target=target,
            body=body,
            now=self._clock.now(),
        )
        sender, name = CloudId(claims.iss), f"{claims.iss}/{claims.jti}"
        admit(sender)
        self._note(name)
        if not is_read:
            await self._keep(name)
        return sender

    def _note(self, name: str) -> None:
        """Remember it in this process for as long as it could be good."""
        now = self._clock.monotonic()
        while self._order and self._order[0][0] <= now:
            self._seen.discard(self._order.popleft()[1])
        if name in self._seen:
            raise _used()
        if len(self._order) >= self._most:
            raise errors.Overloaded(f"too many signed requests at once; try again in {_KEEP_S} seconds")
        self._seen.add(name)
        self._order.append((now + _KEEP_S, name))

    async def _keep(self, name: str) -> None:
        """Remember it for all servers of this cloud, and over restarts."""
        key = PREFIX + name
        try:
            await self._commit(key)
        except errors.NotFound:
            self._lease.forget()  # what it kept was too old to count
            await self._commit(key)

    async def _commit(self, key: str) -> None:
        try:
            await self._store.commit([Put(key, b"", await self._lease.current())], [Expect(key, ABSENT)])
        except errors.Conflict as error:
            raise _used() from error


def _used() -> errors.Unauthenticated:
    return errors.Unauthenticated("this proof was used before; make one for each request")
