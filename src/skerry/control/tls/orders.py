"""Orders at an ACME server, from the intent to the certificate: on the leader, each step written before the
next, so that another leader goes on where one was killed.

    intend     the key of the certificate is sealed, and the time of the next attempt is written
    place      the URL of the order is written, or the order is lost and placed again at that time
    publish    the challenge is written, which edge nodes serve; or the DNS hook is called
    answer     the ACME server checks the challenge
    finalize   it gets the signing request, and issues
    install    chain and key are sealed as the next version, in one transaction with the record
    clean      what was published is removed

What the ACME server has of an order is read from it before each step, so a step that was done is not done
again. The present certificate is not touched before its successor is installed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from msgspec.structs import replace

from skerry.control.secrets import vault as vaults
from skerry.control.tls import certificate_pair
from skerry.control.tls.account import AcmeAccounts
from skerry.control.tls.acme_api import (
    PENDING,
    PROCESSING,
    READY,
    VALID,
    AcmeApi,
    AcmeFailure,
    AuthorizationView,
    OfferedChallenge,
    OrderView,
)
from skerry.control.tls.certificate_pair import CertificatePair
from skerry.control.tls.decisions import renewal_time, retry_time
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.dns_hook import DnsHook
from skerry.control.tls.tables import TlsRecord, order_key
from skerry.kit import metrics, pki
from skerry.kit.clock import iso
from skerry.model import errors
from skerry.model.tls_certificates import (
    WILDCARD,
    AcmeOrder,
    CertificateSource,
    ChallengeKind,
    PublishedChallenge,
    TlsCertificate,
)
from skerry.store.protocol import Expect, Op

log = structlog.get_logger(__name__)

ACTOR: Final = "skerry"
ORDERS: Final = metrics.counter("skerry_tls_orders_total", "Orders of certificates that ended", ["result"])
_POLL_S: Final = (1.0, 1.0, 2.0, 3.0, 5.0)  # and so on with the last
_MAX_POLL_S: Final = 60.0
_RUN_S: Final = 300.0  # for one run of an order; it goes on after a pause
_LIFE_S: Final = 86400.0  # of an order that never ends

Sleep = Callable[[float], Awaitable[None]]
_View = TypeVar("_View", OrderView, AuthorizationView)


class _OrderGone(Exception):
    """The certificate was deleted, imported or ordered anew meanwhile."""


class OrderRunner:
    """Runs orders, each until it ends or has to wait."""

    def __init__(
        self,
        deps: TlsDeps,
        accounts: AcmeAccounts,
        *,
        hook: DnsHook | None = None,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._table, self._vault, self._events, self._clock, self._settings, _ = deps
        self._accounts = accounts
        self._hook = hook or DnsHook(deps.settings)
        self._sleep = sleep
        self._chance = chance

    async def place(self, key: str, fence: Expect) -> None:
        """Begin an order, and run it."""
        record = await self._table.read(key)
        if record is None or record.value.order is not None:
            return
        order = AcmeOrder(
            self._settings.acme_directory, await self._table.next_version(record.value), self._clock.now()
        )
        private = await asyncio.to_thread(pki.new_key)
        write = await self._vault.seal(order_key(record.value, order), private)
        present = replace(record.value, order=order)
        await self._table.commit(
            [self._table.put(key, present), write.put], [self._table.expect(key, record), write.expect], fence
        )
        await self.resume(key, fence)

    async def resume(self, key: str, fence: Expect) -> None:
        """Run an order from where it is."""
        record = await self._table.read(key)
        if record is None or (order := record.value.order) is None:
            return
        if not self._is_current(record.value, order):
            await self._clean(key, record.value, order, fence)
            return
        run = _OrderRun(key, record.value, order, fence)
        try:
            pair = await self._run(run)
            await self._install(run, pair)
            ORDERS.labels("issued").inc()
        except _OrderGone:
            return  # the next pass cleans up
        except AcmeFailure as failure:
            await self._failed(run, failure)
        except (errors.Invalid, errors.TooLarge) as error:
            await self._failed(
                run, AcmeFailure(f"the ACME server issued what cannot be used: {error.message}")
            )
        except (errors.NotFound, errors.FailedPrecondition, errors.Internal) as error:
            await self._failed(run, AcmeFailure(error.message))

    async def remove(self, key: str, fence: Expect) -> None:
        """Delete a certificate, and what its order has published."""
        record = await self._table.read(key)
        if record is None:
            return
        if record.value.order is not None:
            await self._unpublish(record.value, record.value.order)
        ops, expect = await self._table.deletion(record)
        event = self._table.event(self._events, "deleted", record.value, actor=ACTOR)
        await self._table.commit([*ops, event], expect, fence)

    def _is_current(self, certificate: TlsCertificate, order: AcmeOrder) -> bool:
        return (
            not order.is_over
            and not certificate.is_deleting
            and certificate.source is CertificateSource.ACME
            and order.directory == self._settings.acme_directory
        )

    # The steps

    async def _run(self, run: _OrderRun) -> CertificatePair:
        api = await self._accounts.api(run.fence)
        until = self._clock.monotonic() + _RUN_S
        view = await self._placed(run, api)
        if view.status == PENDING:
            for url in view.authorizations:
                await self._authorize(run, api, url, until)
            view = await self._poll(lambda: api.order(view.url), (PENDING,), until)
        private = await self._vault.value(order_key(run.certificate, run.order))
        if view.status == READY:
            request = await asyncio.to_thread(certificate_pair.request_of, private, run.domain)
            await api.finalize(view.finalize, request)
            view = await self._poll(lambda: api.order(view.url), (READY, PROCESSING), until)
        elif view.status == PROCESSING:
            view = await self._poll(lambda: api.order(view.url), (PROCESSING,), until)
        if view.status != VALID or not view.certificate:
            raise AcmeFailure(f"the order is {view.status}: {view.error or 'without a reason'}")
        chain = await api.certificate(view.certificate)
        pair = await asyncio.to_thread(certificate_pair.read_pair, chain, private, self._clock.now())
        certificate_pair.check_covers(pair, run.domain)
        return pair

    async def _placed(self, run: _OrderRun, api: AcmeApi) -> OrderView:
        if run.order.url:
            return await api.order(run.order.url)
        # The time of the next attempt first: a leader that dies now is followed by one that waits.
        attempts = run.certificate.attempts + 1
        retry_at = retry_time(attempts, self._clock.now(), self._chance())
        await self._change(run, lambda present: replace(present, attempts=attempts, retry_at=retry_at))
        run.is_counted = True
        view = await api.place(run.domain)
        run.order = replace(run.order, url=view.url)
        await self._change(run, lambda present: replace(present, order=run.order, retry_at=0.0))
        return view

    async def _authorize(self, run: _OrderRun, api: AcmeApi, url: str, until: float) -> None:
        view = await api.authorization(url)
        if view.status == PENDING:
            offered = self._choose(run.domain, view)
            await self._publish(run, offered)
            if offered.status == PENDING:
                await self._sleep(self._settings.challenge_delay_s)
                await api.answer(offered)
            view = await self._poll(lambda: api.authorization(url), (PENDING,), until)
        if view.status != VALID:
            raise AcmeFailure(f"{run.domain} could not be verified: {view.error or view.status}")

    def _choose(self, domain: str, view: AuthorizationView) -> OfferedChallenge:
        is_wildcard = domain.startswith(WILDCARD)
        kind = ChallengeKind.DNS if is_wildcard else ChallengeKind(self._settings.challenge)
        for each in view.challenges:
            if each.kind is kind:
                return each
        raise AcmeFailure(f"the ACME server does not offer {kind} for {domain}; see tls.challenge")

    async def _publish(self, run: _OrderRun, offered: OfferedChallenge) -> None:
        challenge = PublishedChallenge(offered.kind, offered.token, offered.authorization)
        if run.order.challenge != challenge:
            run.order = replace(run.order, challenge=challenge)
            await self._change(run, lambda present: replace(present, order=run.order))
        if challenge.kind is ChallengeKind.DNS:
            await self._hook.present(run.domain, challenge.authorization)

    async def _poll(
        self, look: Callable[[], Awaitable[_View]], while_in: tuple[str, ...], until: float
    ) -> _View:
        turn = 0
        while (view := await look()).status in while_in:
            pause_s = max(_POLL_S[min(turn, len(_POLL_S) - 1)], min(view.pause_s, _MAX_POLL_S))
            if self._clock.monotonic() + pause_s > until:
                raise AcmeFailure("the ACME server is not done yet", is_temporary=True)
            await self._sleep(pause_s)
            turn += 1
        return view

    async def _install(self, run: _OrderRun, pair: CertificatePair) -> None:
        needs_cleaning = run.order.challenge is not None and run.order.challenge.kind is ChallengeKind.DNS
        before = run.certificate
        after = installed(before, pair, run.order.version, self._chance())
        after = replace(after, order=replace(run.order, is_over=True) if needs_cleaning else None)
        write = await self._vault.seal(after.ref, pair.pem)
        ops: list[Op] = [write.put, self._table.event(self._events, "issued", after, actor=ACTOR)]
        if before.version:
            ops.append(vaults.delete_value(before.ref))
        if not needs_cleaning:
            ops.append(vaults.delete_value(order_key(before, run.order)))
        await self._change(run, lambda present: _merged(present, after), ops, [write.expect])
        log.info("tls.issued", name=after.name, namespace=after.namespace, not_after=iso(after.not_after))
        if needs_cleaning and after.order is not None:
            await self._clean(run.key, after, after.order, run.fence)

    # The end of an order

    async def _failed(self, run: _OrderRun, failure: AcmeFailure) -> None:
        """Write why, and when to try again. A temporary failure keeps the order; another ends it."""
        now = self._clock.now()
        is_over = not failure.is_temporary or now - run.order.begun_at > _LIFE_S
        attempts = run.certificate.attempts + (0 if run.is_counted else 1)
        retry_at = retry_time(attempts, now, self._chance(), failure.retry_after_s)
        log.warning(
            "tls.order_failed",
            name=run.certificate.name,
            namespace=run.certificate.namespace,
            error=failure.message,
            retry_at=iso(retry_at),
        )
        if is_over:
            run.order = replace(run.order, is_over=True)
            ORDERS.labels("failed").inc()

        def fail(present: TlsCertificate) -> TlsCertificate:
            return replace(
                present,
                order=run.order,
                attempts=attempts,
                retry_at=retry_at,
                error=failure.message,
                failed_at=now,
            )

        event = self._table.event(
            self._events, "failed", run.certificate, actor=ACTOR, reason=failure.message
        )
        try:
            await self._accounts.failed(failure, run.fence)
            await self._change(run, fail, [event])
        except _OrderGone:
            return
        if is_over:
            await self._clean(run.key, run.certificate, run.order, run.fence)

    async def _clean(self, key: str, certificate: TlsCertificate, order: AcmeOrder, fence: Expect) -> None:
        """Remove what an order has published, and the order."""
        await self._unpublish(certificate, order)
        while (record := await self._table.read(key)) is not None and _is_same(record.value.order, order):
            ops: list[Op] = [
                self._table.put(key, replace(record.value, order=None)),
                vaults.delete_value(order_key(certificate, order)),
            ]
            try:
                await self._table.commit(ops, [self._table.expect(key, record)], fence)
            except errors.Conflict:
                continue
            return

    async def _unpublish(self, certificate: TlsCertificate, order: AcmeOrder) -> None:
        challenge = order.challenge
        if challenge is None or challenge.kind is not ChallengeKind.DNS:
            return  # edge nodes serve what is in the record
        try:
            await self._hook.cleanup(certificate.domains[0], challenge.authorization)
        except AcmeFailure as failure:
            # A record that stays does no harm, and an order must end.
            log.warning("tls.not_cleaned", domain=certificate.domains[0], error=failure.message)

    async def _change(
        self,
        run: _OrderRun,
        change: Callable[[TlsCertificate], TlsCertificate],
        ops: list[Op] | None = None,
        expect: list[Expect] | None = None,
    ) -> None:
        """Write a step; raises `_OrderGone` if the order is not ours to run any more."""
        while True:
            record: TlsRecord | None = await self._table.read(run.key)
            if record is None or not _is_same(record.value.order, run.order):
                raise _OrderGone
            if record.value.source is not CertificateSource.ACME or record.value.is_deleting:
                raise _OrderGone
            after = change(record.value)
            try:
                await self._table.commit(
                    [self._table.put(run.key, after), *(ops or [])],
                    [self._table.expect(run.key, record), *(expect or [])],
                    run.fence,
                )
            except errors.Conflict:
                if expect:
                    raise  # the key of the vault may have changed: the order goes on from the beginning
                continue
            run.certificate = after
            return


class _OrderRun:
    """One run of an order."""

    def __init__(self, key: str, certificate: TlsCertificate, order: AcmeOrder, fence: Expect) -> None:
        self.key = key
        self.certificate = certificate
        self.order = order
        self.fence = fence
        self.is_counted = False  # among the attempts

    @property
    def domain(self) -> str:
        return self.certificate.domains[0]


def installed(
    certificate: TlsCertificate, pair: CertificatePair, version: int, chance: float
) -> TlsCertificate:
    """The record of a certificate that Skerry has got, with nothing left to do before its renewal."""
    return replace(
        certificate,
        version=version,
        issuer=pair.issuer,
        serial=pair.serial,
        fingerprint=pair.fingerprint,
        key_type=pair.key_type,
        not_before=pair.not_before,
        not_after=pair.not_after,
        renew_at=renewal_time(pair.not_before, pair.not_after, chance),
        order=None,
        attempts=0,
        retry_at=0.0,
        error="",
        failed_at=0.0,
    )


def _merged(present: TlsCertificate, after: TlsCertificate) -> TlsCertificate:
    """`after`, with what requests may have changed meanwhile."""
    return replace(after, is_requested=present.is_requested, request_id=present.request_id)


def _is_same(present: AcmeOrder | None, order: AcmeOrder) -> bool:
    return present is not None and (present.version, present.begun_at) == (order.version, order.begun_at)
