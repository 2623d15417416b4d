"""Callers: roles, tokens and certificates, and the caller that they authenticate.

Secrets are not here: a token record holds only the hash of its secret, a certificate record only its serial.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.images import ImageAccess
from skerry.model.namespace_scope import NamespaceScope

# In the certificate of every node, whatever its address: what clients of the node runtime verify. It stands
# in certificates that were given out, so it stays.
NODE_TLS_NAME = "server.unsafe.aurae.io"


class Role(enum.StrEnum):
    """The role of a caller. `skerry.transport.access.rules` has, route by route, which roles may do what."""

    ADMIN = "admin"  # everything
    DEPLOYER = "deployer"  # workloads, instances, functions, cells
    INVOKER = "invoker"  # calling functions and reading their results
    VIEWER = "viewer"  # reading
    NODE = "node"  # a machine of this cloud: its own session and its own certificate


_CLOCKS_DIFFER_S = 3600.0
_BOUND = "bound-"  # before the role in certificates that are bound to namespaces
MARKET = "market"  # the actor in what is done for contracts; no caller is called so
LOCAL_ADMIN = "local-admin"  # the name in the certificate of the client on a server's own machine
SERVER = "server"  # on a listener's own certificate; no caller has it
EDGE = "edge"  # on the certificate of a node's HTTPS listener; no caller has it


class AuthMethod(enum.StrEnum):
    """How the caller was authenticated."""

    LOOPBACK = "loopback"  # same user on this machine, by the kernel's evidence
    TOKEN = "token"  # noqa: S105 - the word, not a secret
    CERTIFICATE = "certificate"
    KEY = "key"  # a buyer that signed this request; it has no role
    ADDRESS = (
        "address"  # a buyer without credentials, on the listener for configured addresses; it has no role
    )
    NONE = "none"  # it did not


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request. `role` is None without credentials; `name` is for logs and events."""

    origin: AuthMethod
    name: str
    role: Role | None = None
    node: str = ""  # the node id, if it is a node
    token: str = ""  # the token id, if it showed one
    serial: str = ""  # the certificate's serial number in hex, if it showed one
    namespaces: tuple[Namespace, ...] | None = (
        None  # that its token or certificate is bound to; None: unbound
    )

    @property
    def scope(self) -> NamespaceScope:
        """The namespaces that it may see and touch."""
        return NamespaceScope(self.namespaces)

    @property
    def tenant(self) -> str:
        """Whose share of what all callers have together it takes; empty: it is bound to no namespaces."""
        return ",".join(sorted(self.namespaces or ()))

    @property
    def image_access(self) -> ImageAccess:
        """Which images the references that it gives may lead to."""
        return ImageAccess.ALL if self.role is Role.ADMIN else ImageAccess.REGISTRIES


ANONYMOUS = Caller(origin=AuthMethod.NONE, name="anonymous")


class Token(msgspec.Struct, frozen=True):
    """A token as it is stored: `digest` is the SHA-256 of its secret, in hex."""

    id: str
    role: Role
    digest: str
    created_at: float
    expires_at: float | None = None
    note: str = ""
    used_at: float | None = None  # node tokens are valid for one join
    used_by: str = ""  # the serial of the certificate that it gave
    namespaces: tuple[Namespace, ...] | None = None  # that it is bound to; None: unbound
    key: str = ""  # the id of the key that signed it, of an offline token, which has no secret
    revoked_at: float | None = None  # of an offline token, which nodes refuse until it has expired

    @property
    def is_offline(self) -> bool:
        return bool(self.key)

    @property
    def kind(self) -> str:
        if self.is_offline:
            return "offline"
        return "join" if self.role is Role.NODE else "secret"


def certificate_role(role: Role, namespaces: tuple[Namespace, ...] | None) -> str:
    """The role as it stands in a certificate, whose units are its namespaces. A program that knows of no
    bindings does not know this role either, and refuses the certificate."""
    return role if namespaces is None else f"{_BOUND}{role}"


def read_certificate_role(text: str, units: tuple[str, ...]) -> tuple[Role, tuple[Namespace, ...] | None]:
    """The role and the namespaces of a certificate; `ValueError` for a role that is unknown."""
    role = Role(text.removeprefix(_BOUND))
    if text == role and not units:
        return role, None
    if role in (Role.ADMIN, Role.NODE):
        raise ValueError(f"{role} cannot be bound")
    return role, tuple(Namespace(unit) for unit in units)


def check_may_bind(role: Role) -> None:
    """Raises Invalid for a role that cannot be bound to namespaces: what admins and nodes do concerns the
    whole cloud."""
    if role in (Role.ADMIN, Role.NODE):
        raise errors.Invalid(
            f"the role {role} is of the whole cloud and cannot be bound to namespaces; bind a "
            f"{Role.DEPLOYER}, {Role.INVOKER} or {Role.VIEWER}",
            field="namespaces",
        )


def is_past(not_after: float, now: float) -> bool:
    """Whether a certificate has expired, also by a clock that is a little behind."""
    return not_after + _CLOCKS_DIFFER_S <= now


class RevokedCertificate(msgspec.Struct, frozen=True):
    """A revoked certificate, for other processes: it is refused until it would have expired."""

    serial: str
    not_after: float
    proof: bytes = b""  # proof that a server of this cloud revoked it, for servers with a restored store


class Certificate(msgspec.Struct, frozen=True):
    """A certificate that the CA gave out, kept until it expires so that it can be listed and revoked."""

    serial: str
    role: str  # a Role, SERVER or EDGE
    name: str
    node: str
    not_before: float
    not_after: float
    revoked_at: float | None = None
    key: str = ""  # SHA-256 of its public key, in hex
    renewed_by: str = ""  # the serial of the certificate that followed it
    namespaces: tuple[Namespace, ...] | None = None  # that it is bound to; None: unbound
    hosts: tuple[str, ...] = ()  # of a listener: its names and addresses
    issuer: str = ""  # the id of the CA's key; empty: of before there were ids
