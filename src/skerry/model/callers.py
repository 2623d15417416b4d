"""Who may speak to Skerry: roles, tokens, certificates, and the caller that they make.

Secrets are not here: a token record holds only the hash of its secret, a certificate record only its serial.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model.images import ImageAccess

# In the certificate of every node, whatever its address: what clients of the node runtime verify. It stands
# in certificates that were given out, so it stays.
NODE_TLS_NAME = "server.unsafe.aurae.io"


class Role(enum.StrEnum):
    """What a caller is for. `skerry.transport.access.rules` says, route by route, which roles may do what."""

    ADMIN = "admin"  # everything
    DEPLOYER = "deployer"  # workloads, instances, functions, cells
    INVOKER = "invoker"  # calling functions and reading their results
    VIEWER = "viewer"  # reading
    NODE = "node"  # a machine of this cloud: its own session and its own certificate


_CLOCKS_DIFFER_S = 3600.0
MARKET = "market"  # the actor in what is done for contracts; no caller is called so
SERVER = "server"  # on a listener's own certificate; no caller has it


class AuthMethod(enum.StrEnum):
    """How the caller showed who it is."""

    LOOPBACK = "loopback"  # same user on this machine, told by the kernel
    TOKEN = "token"  # noqa: S105 - the word, not a secret
    CERTIFICATE = "certificate"
    KEY = "key"  # a buyer that signed this request; it has no role
    ADDRESS = "address"  # a buyer that showed nothing, where named addresses are let in; it has no role
    NONE = "none"  # it did not


class Caller(msgspec.Struct, frozen=True):
    """Somebody who sent a request. `role` is None if it showed nothing; `name` is for logs and events."""

    origin: AuthMethod
    name: str
    role: Role | None = None
    node: str = ""  # the node id, if it is a node
    token: str = ""  # the token id, if it showed one
    serial: str = ""  # the certificate's serial number in hex, if it showed one

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
    used_at: float | None = None  # node tokens are good for one join
    used_by: str = ""  # the serial of the certificate that it gave


def is_past(not_after: float, now: float) -> bool:
    """Whether a certificate has expired for everybody, also by a clock that is a little behind."""
    return not_after + _CLOCKS_DIFFER_S <= now


class RevokedCertificate(msgspec.Struct, frozen=True):
    """What others must know of a certificate that was revoked: it is refused until it would have expired."""

    serial: str
    not_after: float
    proof: bytes = b""  # that a server of this cloud said so, for servers that have forgotten it


class Certificate(msgspec.Struct, frozen=True):
    """A certificate that the CA gave out, kept until it expires so that it can be listed and revoked."""

    serial: str
    role: str  # a Role, or SERVER
    name: str
    node: str
    not_before: float
    not_after: float
    revoked_at: float | None = None
    key: str = ""  # SHA-256 of its public key, in hex
    renewed_by: str = ""  # the serial of the certificate that followed it
