"""TLS certificates of routes: objects with a name in a namespace, their orders at an ACME server, and what
edge nodes are told of them.

A `TlsCertificate` has neither chain nor private key: both are one sealed value of the kind `SecretKind.TLS`,
which edge nodes request. A certificate that Skerry gets by itself has the name of its domain (`name_of`). For
which domains certificates are needed is decided by routes: `WantedDomains`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Protocol

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId
from skerry.model.network_objects import NetworkObject
from skerry.model.secrets import SecretKind, SecretRef

MAX_NAME: Final = 253
MAX_DOMAINS: Final = 100  # of one certificate
MAX_CHAIN: Final = 64 * 1024  # bytes of PEM
MAX_KEY: Final = 16 * 1024
WILDCARD: Final = "*."
_WILDCARD_NAME: Final = "_wildcard."  # `*` is for neither paths nor keys, and no host name begins with `_`
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"(?:_wildcard\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class CertificateSource(enum.StrEnum):
    """Where a certificate comes from; of a domain, where it is to come from."""

    IMPORTED = "imported"
    ACME = "acme"
    OWN_CA = "own-ca"


class ChallengeKind(enum.StrEnum):
    """How an ACME server checks that we control a domain."""

    HTTP = "http-01"
    DNS = "dns-01"


class CertificateState(enum.StrEnum):
    """What can be done with it now."""

    READY = "READY"
    PENDING = "PENDING"  # there is none yet
    FAILED = "FAILED"  # there is none yet, and the last attempt failed
    EXPIRED = "EXPIRED"
    DELETING = "DELETING"


class PublishedChallenge(msgspec.Struct, frozen=True):
    """The challenge of an order, as it was published. None of it is secret."""

    kind: ChallengeKind
    token: str
    authorization: str  # the content of the file, or of the TXT record


class AcmeOrder(msgspec.Struct, frozen=True):
    """An order at an ACME server, as far as it has got. Its key is sealed as `SecretKind.TLS_KEY`."""

    directory: str
    version: int  # of the certificate, once it is there
    begun_at: float
    url: str = ""  # empty: it is not known whether the ACME server has it
    challenge: PublishedChallenge | None = None
    is_over: bool = False  # it has succeeded or failed, and what it has published is to be removed


class TlsCertificate(msgspec.Struct, frozen=True):
    """A certificate of routes. What describes its chain is that of `version`; 0: there is none yet."""

    id: str
    name: str
    created_at: float
    source: CertificateSource
    domains: tuple[str, ...]  # may begin with `*.`
    namespace: Namespace = DEFAULT_NAMESPACE
    version: int = 0
    issuer: str = ""
    serial: str = ""
    fingerprint: str = ""  # SHA-256 of the certificate
    key_type: str = ""
    not_before: float = 0.0
    not_after: float = 0.0
    renew_at: float = 0.0  # of an imported one 0: never
    is_requested: bool = False  # by a person, so that it stays without a route
    order: AcmeOrder | None = None
    attempts: int = 0  # since there was a certificate last
    retry_at: float = 0.0  # nothing is tried before
    error: str = ""  # of the last attempt
    failed_at: float = 0.0
    is_deleting: bool = False
    request_id: str = ""  # of the request that last changed it

    def __post_init__(self) -> None:
        check_name(self.name)
        ids.check_namespace(self.namespace)

    @property
    def ref(self) -> SecretRef:
        """Its chain and key."""
        return SecretRef(self.namespace, SecretKind.TLS, self.name, self.version)

    @property
    def is_automatic(self) -> bool:
        """Whether Skerry gets and renews it."""
        return self.source is not CertificateSource.IMPORTED

    def covers(self, domain: str) -> bool:
        return self.version > 0 and any(matches(each, domain) for each in self.domains)

    def state(self, now: float) -> CertificateState:
        if self.is_deleting:
            return CertificateState.DELETING
        if self.version:
            return CertificateState.EXPIRED if now >= self.not_after else CertificateState.READY
        return CertificateState.FAILED if self.error else CertificateState.PENDING


class AcmeAccount(msgspec.Struct, frozen=True):
    """The account at one ACME server. Its key is sealed as `SecretKind.ACME_ACCOUNT`."""

    directory: str
    created_at: float
    url: str = ""  # empty: it is not registered yet
    email: str = ""
    held_until: float = 0.0  # the server asked for no orders before


class RouteCertificate(NetworkObject, frozen=True, omit_defaults=True):
    """A certificate that an edge node serves: for `hosts` alone, which are host names of routes of the same
    namespace. Its chain and key are requested as `ref`."""

    kind: ClassVar[str] = "tls-certificate"
    namespace: Namespace
    name: str
    version: int
    domains: tuple[str, ...]
    hosts: tuple[str, ...]
    not_after: float

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ref(self) -> SecretRef:
        """Chain and key in PEM, the certificate first."""
        return SecretRef(self.namespace, SecretKind.TLS, self.name, self.version)


class HttpChallenge(NetworkObject, frozen=True, omit_defaults=True):
    """An answer that every edge node gives, at `/.well-known/acme-challenge/TOKEN`."""

    kind: ClassVar[str] = "acme-challenge"
    token: str
    authorization: str

    @property
    def key(self) -> str:
        return self.token


class WantedDomain(msgspec.Struct, frozen=True):
    """A host name of a route, and which certificate it is to have."""

    domain: str
    namespace: Namespace
    source: CertificateSource


class WantedDomains(Protocol):
    """What the routes of a cloud need; implemented by them."""

    def domains_wanted(self) -> Sequence[WantedDomain]:
        """All host names of routes with TLS."""
        ...

    def is_edge(self, node: NodeId) -> bool:
        """Whether the node serves routes."""
        ...

    def listen(self, changed: Callable[[], object]) -> object:
        """Call `changed` when an answer of these changes."""
        ...


class NoWantedDomains:
    """A cloud without routes."""

    def domains_wanted(self) -> Sequence[WantedDomain]:
        return ()

    def is_edge(self, node: NodeId) -> bool:
        return False

    def listen(self, changed: Callable[[], object]) -> object:
        return None


def check_name(name: str) -> str:
    """Raise `Invalid` unless a certificate can be called so."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise errors.Invalid(
            f"the name of a certificate is 1 to {MAX_NAME} lower-case letters, digits, '.' or '-', and "
            f"begins and ends with a letter or digit, not {name[:60]!r}",
            field="name",
        )
    return name


def check_domain(text: str) -> str:
    """Raise `Invalid` unless it is a domain in lower case, or `*.` and one."""
    labels = text.removeprefix(WILDCARD).split(".")
    is_address = labels[-1].isdecimal()
    if (
        len(name_of(text)) > MAX_NAME
        or len(labels) < 2
        or is_address
        or not all(map(_LABEL.fullmatch, labels))
    ):
        raise errors.Invalid(
            f"{text[:60]!r} is no domain: write it in lower case and with a dot, such as shop.example.org or "
            "*.example.org; other scripts as xn--",
            field="domain",
        )
    return text


def name_of(domain: str) -> str:
    """The name of the certificate that Skerry gets for a domain."""
    if domain.startswith(WILDCARD):
        return _WILDCARD_NAME + domain.removeprefix(WILDCARD)
    return domain


def domain_of(name: str) -> str | None:
    """The domain whose certificate has this name; None if it is no name of one."""
    text = name
    if name.startswith(_WILDCARD_NAME):
        text = WILDCARD + name.removeprefix(_WILDCARD_NAME)
    try:
        return check_domain(text)
    except errors.Invalid:
        return None


def matches(pattern: str, domain: str) -> bool:
    """Whether a certificate for `pattern` is one for `domain`: a wildcard stands for one label."""
    if pattern == domain:
        return True
    return pattern.startswith(WILDCARD) and pattern[1:] == "." + domain.partition(".")[2]


class InternalDomains(msgspec.Struct, frozen=True):
    """Below which domains names get certificates of the cloud's own CA."""

    own: str = "skerry"  # of services and instances (`network.domain`); empty: they have no names
    more: tuple[str, ...] = ()  # that an admin has added

    def has(self, domain: str) -> bool:
        return any(domain.endswith(f".{each}") for each in self._all)

    def check(self, domain: str, namespace: Namespace) -> None:
        """Raise `Unprocessable` unless the cloud's own CA may issue for the domain in this namespace.

        `web.shop.skerry` belongs to the namespace `shop`, and another must not be able to pose as it.
        """
        if not self.has(domain):
            shown = " and ".join(f"*.{each}" for each in self._all) or "no domain yet"
            raise errors.Unprocessable(
                f"the cloud's own CA issues for {shown} alone, not for {domain}; an admin can add a domain "
                "to tls.internal_domains"
            )
        own = self.own
        if own and domain.endswith(f".{own}") and not domain.endswith(f".{namespace}.{own}"):
            raise errors.Unprocessable(
                f"names of the namespace {namespace!r} end with .{namespace}.{own}; {domain} does not"
            )

    @property
    def _all(self) -> tuple[str, ...]:
        return (self.own, *self.more) if self.own else self.more
