"""The CAs of a cloud, as nodes are told of them while one is replaced by another, and as they report it."""

from __future__ import annotations

from typing import ClassVar

from skerry.model.network_objects import NetworkObject


class AuthorityBundle(NetworkObject, frozen=True, omit_defaults=True):
    """What a node trusts: the certificates in `pem`, and no others.

    A node whose certificate is not of the CA with the fingerprint `issuing` renews it. Offline tokens may
    name any of `issuers` as their cloud.
    """

    kind: ClassVar[str] = "authorities"
    pem: str
    issuing: str
    issuers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return "ca"


class TrustedAuthorities(NetworkObject, frozen=True, omit_defaults=True):
    """The fingerprints of the CAs that a node trusts now, and the id of the key of the CA that issued the
    certificate that it has; it reports them."""

    kind: ClassVar[str] = "trusted-authorities"
    fingerprints: tuple[str, ...]
    issuer: str = ""

    @property
    def key(self) -> str:
        return "ca"
