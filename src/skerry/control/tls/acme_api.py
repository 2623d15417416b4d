"""What is said with an ACME server, in terms of our own: orders, authorizations, challenges and failures.

`skerry.control.tls.acme_client` implements `AcmeApi` with the library `acme`. `skerry.control.tls.orders`
uses it, and does not know the library.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from skerry.model.tls_certificates import ChallengeKind

VALID, READY, PENDING, PROCESSING = "valid", "ready", "pending", "processing"


class OfferedChallenge(msgspec.Struct, frozen=True):
    """A way to prove control of a domain. `authorization` is what is to be published."""

    kind: ChallengeKind
    url: str
    token: str
    authorization: str
    status: str


class AuthorizationView(msgspec.Struct, frozen=True):
    """Whether the server believes that we control a domain; `error` is why not."""

    status: str
    challenges: tuple[OfferedChallenge, ...]
    error: str = ""
    pause_s: float = 0.0  # that the server asks for before the next look


class OrderView(msgspec.Struct, frozen=True):
    """An order as the server has it."""

    url: str
    status: str
    authorizations: tuple[str, ...]
    finalize: str
    certificate: str = ""
    error: str = ""
    pause_s: float = 0.0


class AcmeFailure(Exception):
    """A request that failed.

    `is_temporary`: the order may go on later. `is_rate_limit`: no other order is to be placed either, for
    `retry_after_s`, if the server said so. `is_unknown_account`: it has to be registered anew.
    """

    def __init__(
        self,
        message: str,
        *,
        is_temporary: bool = False,
        is_rate_limit: bool = False,
        is_unknown_account: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.is_temporary = is_temporary
        self.is_rate_limit = is_rate_limit
        self.is_unknown_account = is_unknown_account
        self.retry_after_s = retry_after_s


class AcmeApi(Protocol):
    """One ACME server, for one account key. Every method raises `AcmeFailure`."""

    async def register(self, email: str) -> str:
        """The URL of the account of the key, which is made if there is none; it is used from now on."""
        ...

    async def place(self, domain: str) -> OrderView: ...

    async def order(self, url: str) -> OrderView: ...

    async def authorization(self, url: str) -> AuthorizationView: ...

    async def answer(self, challenge: OfferedChallenge) -> None:
        """Ask the server to check what was published."""
        ...

    async def finalize(self, url: str, request: bytes) -> None:
        """Send the signing request (DER)."""
        ...

    async def certificate(self, url: str) -> bytes:
        """The chain in PEM."""
        ...

    def close(self) -> None: ...


class AcmeConnector(Protocol):
    """Makes connections to the ACME server of the settings."""

    def connect(self, key_pem: bytes, account_url: str) -> AcmeApi:
        """For an account key; `account_url` is empty before it is registered."""
        ...
