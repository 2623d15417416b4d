"""This machine's place in a cloud: its key, its certificate, and keeping that certificate fresh.

The folder holds `node.key` (made once, never sent), `node.crt`, `ca.crt` and `join.json`, which is written
last. Since the key stays and only the certificate is exchanged, no reader ever finds a pair that does not
belong together. How a renewal travels is not known here: the caller of `run` passes that in. The token is
shown to the server once and never written or logged.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, jsonio, pki, renewal, tls
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.identity import Role
from skerry.model.tokens import Malformed, TokenText, pin_of
from skerry.node import enrolment

log = structlog.get_logger(__name__)

Renew = Callable[[bytes], Awaitable[bytes]]

_RENEW_TIMEOUT_S = 30.0


class Place(msgspec.Struct, frozen=True):
    """Which node this machine is, and of which cloud."""

    node: str
    name: str
    url: str
    grpc: str  # HOST:PORT to dial


class Membership:
    """One machine in one cloud."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        sleep: renewal.Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._folder = folder
        self._key_file = folder / "node.key"
        self._certificate_file = folder / "node.crt"
        self._authority_file = folder / "ca.crt"
        self._place_file = folder / "join.json"
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None  # to dial, to serve
        self._due = 0.0
        self._not_after = 0.0

    @property
    def context(self) -> ssl.SSLContext:
        """For dialling the server, with this node's certificate; the same object for ever."""
        assert self._contexts is not None, "join first"
        return self._contexts[0]

    @property
    def serving_context(self) -> ssl.SSLContext:
        """For serving on this node's own socket to clients with a certificate; the same object for ever."""
        assert self._contexts is not None, "join first"
        return self._contexts[1]

    @property
    def authority_file(self) -> Path:
        return self._authority_file

    @property
    def certificate_file(self) -> Path:
        return self._certificate_file

    @property
    def key_file(self) -> Path:
        return self._key_file

    async def join(self, urls: str, token: str, name: str) -> Place:
        """Become a node of the cloud at `urls`; one that is a node already stays it, with or without token.

        Of several servers, with commas between them, the first that can be reached is asked. May be repeated
        after any failure, with the same token: the key stays, and a server that has already used the token
        up for this key answers again.
        """
        place = await asyncio.to_thread(self._find_place, token)
        if place is None:
            place = await asyncio.to_thread(self._enrol_at_one, urls, token, name)
            log.info("node.joined", node=place.node, name=name, url=place.url)
        else:
            log.info("node.joined-before", node=place.node, url=place.url)
        self._put_to_use()
        return place

    async def run(self, renew: Renew) -> None:
        """Renew in time, for ever. `renew` takes a signing request to the server and brings a certificate."""

        async def renew_now() -> None:
            if self._not_after <= self._clock.now():
                # The server will not talk to us, and TLS gives the reason to the server's log, not to ours.
                log.error(
                    "certificate.expired",
                    at=iso(self._not_after),
                    hint="make a join token and start again: skerry node --join URL --token TOKEN",
                )
            async with asyncio.timeout(_RENEW_TIMEOUT_S):
                pem = await renew(pki.make_request(self._key_file.read_bytes()))
            issued = await asyncio.to_thread(self._keep_renewed, pem)
            self._put_to_use()
            log.info("certificate.renewed", serial=issued.serial, not_after=iso(issued.not_after))

        await renewal.renew_when_due(
            lambda: self._due, renew_now, clock=self._clock, sleep=self._sleep, what="node certificate"
        )

    def _find_place(self, token: str) -> Place | None:
        """Where this machine already is, if its certificate still serves."""
        files.private_folder(self._folder)
        try:
            place = jsonio.decode(self._place_file.read_bytes(), Place)
            authority_pem = self._authority_file.read_bytes()
            issued = self._check(self._certificate_file.read_bytes(), place.node, authority_pem)
        except FileNotFoundError:
            return None
        except (jsonio.Malformed, pki.BadCertificate) as error:
            log.warning("membership.unusable", folder=str(self._folder), error=str(error))
            return None
        if issued.not_after <= self._clock.now():
            log.warning("membership.expired", node=place.node, at=iso(issued.not_after))
            return None
        if token and _parse(token).pin != pin_of(pki.fingerprint(authority_pem)):
            raise errors.Refused(
                f"this machine is node {place.node} of {place.url}, and the token is of another cloud: "
                f"use another data folder, or remove {self._folder} to leave the present one"
            )
        return place

    def _enrol_at_one(self, urls: str, token: str, name: str) -> Place:
        *others, last = [url.strip() for url in urls.split(",")]
        for url in others:
            try:
                return self._enrol(url, token, name)
            except (errors.Unavailable, errors.TimedOut) as error:
                log.warning("node.not-joined", url=url, reason=error.message)
        return self._enrol(last, token, name)

    def _enrol(self, url: str, token: str, name: str) -> Place:
        server = enrolment.Server.parse(url)
        shown = _parse(token)
        key_pem = self._make_key()
        authority_pem = enrolment.fetch_authority(server, shown.pin, self._clock)
        request = pki.make_request(key_pem)
        answer = enrolment.ask(server, authority_pem, shown, request, name, self._clock)
        place = Place(node=answer.node, name=name, url=url, grpc=answer.grpc)
        try:
            issued = self._check(answer.certificate.encode(), place.node, authority_pem)
        except pki.BadCertificate as error:
            raise errors.Refused(f"{url} gave a certificate that cannot be used: {error}") from None
        files.write_atomically(self._authority_file, authority_pem)
        files.write_atomically(self._certificate_file, issued.pem)
        files.write_atomically(self._place_file, jsonio.encode(place))
        return place

    def _make_key(self) -> bytes:
        try:
            return pki.load_or_create_key(self._key_file)
        except pki.BrokenFiles as error:
            raise errors.Refused(f"{error}, or remove {self._folder} and join anew") from None

    def _keep_renewed(self, pem: bytes) -> pki.Issued:
        place = jsonio.decode(self._place_file.read_bytes(), Place)
        issued = self._check(pem, place.node, self._authority_file.read_bytes())
        if issued.not_after <= self._clock.now():
            raise pki.BadCertificate("it has expired already; compare the clocks of the two machines")
        files.write_atomically(self._certificate_file, issued.pem)
        return issued

    def _check(self, pem: bytes, node: str, authority_pem: bytes) -> pki.Issued:
        """The certificate in `pem`, if it is this node's, for this key, and of this CA."""
        issued = pki.read_certificate(pem)
        if not pki.is_issued_by(pem, authority_pem):
            raise pki.BadCertificate("it was issued by another CA")
        if issued.role != Role.NODE or issued.name != node:
            raise pki.BadCertificate("it is for somebody else")
        if issued.key != pki.key_digest(self._make_key()):
            raise pki.BadCertificate("it is for another key")
        return issued

    def _put_to_use(self) -> None:
        if self._contexts is None:
            authority_pem = self._authority_file.read_bytes()
            self._contexts = (tls.client(authority_pem), tls.mutual_server(authority_pem))
        for context in self._contexts:
            tls.load(context, self._certificate_file, self._key_file)
        issued = pki.read_certificate(self._certificate_file.read_bytes())
        self._not_after = issued.not_after
        self._due = renewal.due_at(issued.issued_at, issued.not_after, self._chance())


def _parse(token: str) -> TokenText:
    if not token:
        raise errors.Unauthenticated(
            "this machine is not a node yet: give it a join token with --token; "
            "an admin makes one with `skerry token create --role node`"
        )
    try:
        shown = TokenText.parse(token.strip())
    except Malformed as error:
        raise errors.Unauthenticated(str(error)) from None
    if not shown.pin:
        raise errors.Unauthenticated(
            "this token cannot join a machine; an admin makes one that can with "
            "`skerry token create --role node`"
        )
    return shown
