"""An ACME server that is played in memory, for failures that a real one does not make at will.

It keeps the states of RFC 8555, refuses what is out of order, checks challenges where they are published, and
signs what it is asked to sign. `stop` ends the world around a request: before it, or after it has happened.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skerry.control.tls.acme_api import (
    PENDING,
    READY,
    VALID,
    AcmeFailure,
    AuthorizationView,
    OfferedChallenge,
    OrderView,
)
from skerry.kit import pki
from skerry.kit.clock import Clock
from skerry.model.tls_certificates import ChallengeKind

Look = Callable[[str, OfferedChallenge], bool]


class StopPoint:
    """Blocks for ever at a step, as if the process were killed there: `reached` says that it is."""

    def __init__(self, at: int | str | None = None, *, after: bool = False) -> None:
        """`at` is the number of a step, the first is 1, or its name."""
        self._at = at
        self._after = after
        self.steps: list[str] = []
        self.reached = asyncio.Event()

    async def before(self, step: str) -> None:
        if self.reached.is_set():
            await asyncio.Future()  # it is dead
        self.steps.append(step)
        if not self._after:
            await self._stop()

    async def done(self) -> None:
        if self._after:
            await self._stop()

    async def _stop(self) -> None:
        if self._at in (len(self.steps), self.steps[-1]):
            self.reached.set()
            await asyncio.Future()


class _Order:
    def __init__(self, number: int, domain: str) -> None:
        self.url = f"https://acme/order/{number}"
        self.domain = domain
        self.status = PENDING
        self.authorization = PENDING
        self.token = f"token-{number}"
        self.error = ""
        self.chain = b""


class PlayedAcme:
    """The server with its accounts and orders. `is_published` looks for a challenge of a domain."""

    def __init__(self, clock: Clock, is_published: Look, *, life_s: float = 90 * 86400) -> None:
        self._clock = clock
        self._is_published = is_published
        self._life_s = life_s
        self._numbers = count(1)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.accounts: dict[str, str] = {}  # URL by key
        self.orders: dict[str, _Order] = {}
        self.checks: list[str] = []  # domains
        self.failures: list[AcmeFailure] = []  # of the next requests for orders
        self.stop = StopPoint()

    def connect(self, key_pem: bytes, account_url: str) -> PlayedConnection:
        return PlayedConnection(self, key_pem, account_url)

    def _order_view(self, order: _Order) -> OrderView:
        return OrderView(
            order.url,
            order.status,
            (f"{order.url}/authorization",),
            f"{order.url}/finalize",
            f"{order.url}/certificate" if order.status == VALID else "",
            order.error,
        )

    def check(self, order: _Order, challenge: OfferedChallenge) -> None:
        self.checks.append(order.domain)
        is_valid = self._is_published(order.domain, challenge)
        order.authorization = VALID if is_valid else "invalid"
        order.status = READY if is_valid else "invalid"
        order.error = "" if is_valid else "the challenge was not found"

    def sign(self, order: _Order, request: bytes) -> None:
        csr = x509.load_der_x509_csr(request)
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not csr.is_signature_valid or names.get_values_for_type(x509.DNSName) != [order.domain]:
            raise AcmeFailure("badCSR")
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "played ACME CA")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(issuer)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=10))
            .not_valid_after(now + timedelta(seconds=self._life_s))
            .add_extension(names, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        order.chain = certificate.public_bytes(serialization.Encoding.PEM)
        order.status = VALID


class PlayedConnection:
    """Implements `AcmeApi`."""

    def __init__(self, server: PlayedAcme, key_pem: bytes, account_url: str) -> None:
        self._server = server
        self._key = pki.key_digest(key_pem)
        self._account_url = account_url

    async def register(self, email: str) -> str:
        await self._server.stop.before("register")
        url = self._server.accounts.setdefault(
            self._key, f"https://acme/account/{len(self._server.accounts)}"
        )
        self._account_url = url
        await self._server.stop.done()
        return url

    async def place(self, domain: str) -> OrderView:
        self._check_account()
        await self._server.stop.before("place")
        if self._server.failures:
            raise self._server.failures.pop(0)
        order = _Order(next(self._server._numbers), domain)
        self._server.orders[order.url] = order
        await self._server.stop.done()
        return self._server._order_view(order)

    async def order(self, url: str) -> OrderView:
        self._check_account()
        await self._server.stop.before("order")
        if (order := self._server.orders.get(url)) is None:
            raise AcmeFailure("there is no such order")
        await self._server.stop.done()
        return self._server._order_view(order)

    async def authorization(self, url: str) -> AuthorizationView:
        self._check_account()
        await self._server.stop.before("authorization")
        order = self._server.orders[url.removesuffix("/authorization")]
        offered = tuple(
            OfferedChallenge(
                kind,
                f"{order.url}/{kind}",
                order.token,
                f"{order.token}.{hashlib.sha256(self._key.encode()).hexdigest()}",
                order.authorization,
            )
            for kind in ChallengeKind
        )
        await self._server.stop.done()
        return AuthorizationView(order.authorization, offered, order.error)

    async def answer(self, challenge: OfferedChallenge) -> None:
        self._check_account()
        await self._server.stop.before("answer")
        order = self._server.orders[challenge.url.rpartition("/")[0]]
        if order.authorization != PENDING:
            raise AcmeFailure(f"a challenge that is {order.authorization} cannot be answered")
        self._server.check(order, challenge)
        await self._server.stop.done()

    async def finalize(self, url: str, request: bytes) -> None:
        self._check_account()
        await self._server.stop.before("finalize")
        order = self._server.orders[url.removesuffix("/finalize")]
        if order.status != READY:
            raise AcmeFailure("orderNotReady")
        self._server.sign(order, request)
        await self._server.stop.done()

    async def certificate(self, url: str) -> bytes:
        self._check_account()
        await self._server.stop.before("certificate")
        await self._server.stop.done()
        return self._server.orders[url.removesuffix("/certificate")].chain

    def close(self) -> None:
        pass

    def _check_account(self) -> None:
        if self._server.accounts.get(self._key) != self._account_url:
            raise AcmeFailure("accountDoesNotExist", is_unknown_account=True)
