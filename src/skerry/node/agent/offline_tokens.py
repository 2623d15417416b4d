"""Verifies offline tokens on a node, without its control plane.

A token is valid if a key that a server sent has signed it, it is of this cloud and of the present time, and
neither it nor its key is on the list of revoked ones (`skerry.node.agent.revoked_tokens`). The list may be
old: `node.offline_s` after the last contact with a server no token is accepted any more. Certificates are
verified as on the node's own socket, but a node's is refused: what calls over the network is no part of this
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from skerry.kit import signing
from skerry.kit.clock import iso
from skerry.model import errors, offline_tokens
from skerry.model.authority_bundle import AuthorityBundle
from skerry.model.callers import Caller, Role
from skerry.model.offline_tokens import RevokedToken, TokenKey
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.network_state import NetworkState
from skerry.node.agent.revoked_tokens import RevokedTokenList
from skerry.node.agent.server_contact import ServerContact

_CACHED = 1024  # signatures: verifying one costs more than all the rest


class OfflineTokenVerifier:
    """Authenticates callers of the node's HTTP listener. `issuers` are the names of the cloud in tokens."""

    def __init__(
        self,
        issuers: Collection[str],
        certificates: CertificateVerifier,
        revoked: RevokedTokenList,
        contact: ServerContact,
        offline_s: float,
    ) -> None:
        self.issuers = frozenset(issuers)
        self._certificates = certificates
        self._revoked = revoked
        self._contact = contact
        self._offline_s = offline_s
        self._keys: dict[str, bytes] = {}
        self._read_signed = lru_cache(maxsize=_CACHED)(
            lambda text: offline_tokens.read_signed(text, self._keys.get)
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """Ids of the keys that it knows."""
        return tuple(self._keys)

    def follow(self, network: NetworkState) -> None:
        """Take keys and revocations from `network`, now and whenever they change."""
        network.subscribe(RevokedToken, lambda revoked: self._revoked.add(revoked.values()))
        network.subscribe(TokenKey, self._set_keys)
        network.subscribe(AuthorityBundle, self._set_issuers)

    def listen(self, changed: Callable[[], None]) -> None:
        self._certificates.listen(changed)

    def caller_from_token(self, text: str) -> Caller:
        """The caller of a token; `Unauthenticated` if it is not valid, `Unavailable` if that is not known."""
        if not offline_tokens.is_offline_token(text):
            raise errors.Unauthenticated(
                "a node accepts offline tokens only: an admin makes one with `skerry token create "
                "--offline`; others are for the server"
            )
        claims, key = self._read_signed(text)
        offline_tokens.check_claims(claims, self.issuers, self._contact.now())
        if self._revoked.is_revoked(claims.id) or self._revoked.is_revoked(key):
            raise errors.Unauthenticated(
                "this token was revoked; an admin makes a new one with `skerry token create --offline`"
            )
        if self._offline_s and self._contact.age_s > self._offline_s:
            raise errors.Unavailable(
                f"this node has had no contact with a server since {iso(self._contact.at)}, and does not "
                "know whether this token was revoked; it accepts tokens again when a server can be reached "
                "(node.offline_s)"
            )
        return offline_tokens.caller_of(claims)

    def caller_from_certificate(self, der: bytes) -> Caller:
        caller = self._certificates.caller_from_certificate(der)
        if caller.role is Role.NODE or caller.node:
            raise errors.Forbidden(
                "the certificate of a node is not accepted here; use a client's, or a token"
            )
        return caller

    def _set_issuers(self, bundles: Mapping[str, AuthorityBundle]) -> None:
        for bundle in bundles.values():
            self.issuers = frozenset(bundle.issuers)

    def _set_keys(self, keys: Mapping[str, TokenKey]) -> None:
        self._keys = {id: public for id, key in keys.items() if (public := _public(key)) is not None}
        self._read_signed.cache_clear()  # a key that is gone verifies nothing


def _public(key: TokenKey) -> bytes | None:
    """The key, if its id is its own."""
    try:
        public = bytes.fromhex(key.public)
    except ValueError:
        return None
    return public if signing.key_id(public) == key.id else None
