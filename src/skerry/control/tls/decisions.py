"""What is to be done about certificates now: pure, for the leader's controller.

Each host name of a route has one certificate, called as the host (`name_of`). One that was imported under
that name is left alone. A certificate is renewed after two thirds of its life while a route, or a person,
wants it; one that nobody wants any more is not renewed but removed at that time, so that a route that comes
back soon finds it and places no order. Nothing is tried before `retry_at`, and no order is placed while the
ACME server has asked for a pause, or while `orders_at_once` are under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from skerry.control.named_table import key_of, key_of_name
from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.tls_certificates import (
    CertificateSource,
    InternalDomains,
    RouteCertificate,
    TlsCertificate,
    WantedDomain,
    check_domain,
    matches,
    name_of,
)

# Let's Encrypt permits five failed checks of a host in an hour: this makes four in the first.
RETRY: Final = Backoff(first_s=60.0, factor=4.0, cap_s=86400.0)
RATE_LIMIT_S: Final = 3600.0  # the pause after "too many orders" without a time
_RENEW_AFTER: Final = 2 / 3  # of the life
_SPREAD: Final = 0.02  # of the life: certificates of one time are not renewed at one time


class Create(msgspec.Struct, frozen=True):
    """Make the record of a certificate that a route needs."""

    domain: str
    namespace: Namespace
    source: CertificateSource

    @property
    def key(self) -> str:
        return key_of_name(name_of(self.domain), self.namespace)


class ChangeSource(msgspec.Struct, frozen=True):
    """Get the next certificate from elsewhere; the present one stays until then."""

    key: str
    source: CertificateSource


class PlaceOrder(msgspec.Struct, frozen=True):
    key: str


class ContinueOrder(msgspec.Struct, frozen=True):
    """Go on with an order, perhaps of an earlier leader."""

    key: str


class IssueInternal(msgspec.Struct, frozen=True):
    """Issue by the cloud's own CA."""

    key: str


class Remove(msgspec.Struct, frozen=True):
    """Delete a certificate, with its chain and key and what its order has published."""

    key: str


Action = Create | ChangeSource | PlaceOrder | ContinueOrder | IssueInternal | Remove


class OrderLimits(msgspec.Struct, frozen=True):
    """When orders may be placed."""

    can_order: bool = True  # ACME is configured
    held_until: float = 0.0  # the ACME server asked for a pause
    orders_at_once: int = 5
    internal_domains: InternalDomains = InternalDomains()


class TlsPlan(msgspec.Struct, frozen=True):
    """What to do, each about another certificate, and when to decide again if nothing changes before."""

    actions: tuple[Action, ...]
    again_at: float | None


def decide(
    certificates: Iterable[TlsCertificate],
    wanted: Iterable[WantedDomain],
    now: float,
    limits: OrderLimits = OrderLimits(),  # noqa: B008 - frozen
    running: Collection[str] = (),
) -> TlsPlan:
    """`running` are the keys of certificates about which something is being done."""
    present = {key_of(each): each for each in certificates}
    sources = _wanted_sources(wanted, limits)
    actions: list[Action] = [
        Create(each.domain, each.namespace, each.source)
        for key, each in sources.items()
        if key not in present and key not in running
    ]
    times: list[float] = []
    due: list[TlsCertificate] = []
    # One that runs may be about to place its order.
    under_way = sum(each.order is not None or key in running for key, each in present.items())
    for key, each in present.items():
        if key in running:
            continue
        at = _time_of(each, sources.get(key), now)
        if at is None:
            continue
        if at > now:
            times.append(at)
        elif each.source is CertificateSource.ACME and _needs_order(each, sources.get(key)):
            due.append(each)
        else:
            actions.append(_action(each, sources.get(key)))
    if limits.can_order and due:
        if limits.held_until > now:
            times.append(limits.held_until)
        else:
            # First what has no certificate, then what ends first.
            due.sort(key=lambda each: (each.not_after, each.created_at, key_of(each)))
            free = max(0, limits.orders_at_once - under_way)
            actions += [PlaceOrder(key_of(each)) for each in due[:free]]
    return TlsPlan(tuple(actions), min(times, default=None))


def _wanted_sources(wanted: Iterable[WantedDomain], limits: OrderLimits) -> dict[str, WantedDomain]:
    """Those that Skerry gets, by the key of their certificate."""
    found: dict[str, WantedDomain] = {}
    for each in wanted:
        if each.source is CertificateSource.IMPORTED:
            continue
        try:
            check_domain(each.domain)
            if each.source is CertificateSource.OWN_CA:
                limits.internal_domains.check(each.domain, each.namespace)
        except (errors.Invalid, errors.Unprocessable):
            continue  # nobody would issue it
        found.setdefault(key_of_name(name_of(each.domain), each.namespace), each)
    return found


def _is_wanted(certificate: TlsCertificate, wanted: WantedDomain | None) -> bool:
    return certificate.is_requested or wanted is not None


def _needs_order(certificate: TlsCertificate, wanted: WantedDomain | None) -> bool:
    return (
        not certificate.is_deleting
        and certificate.order is None
        and _is_wanted(certificate, wanted)
        and not _has_other_source(certificate, wanted)
    )


def _has_other_source(certificate: TlsCertificate, wanted: WantedDomain | None) -> bool:
    return wanted is not None and certificate.source is not wanted.source


def _time_of(certificate: TlsCertificate, wanted: WantedDomain | None, now: float) -> float | None:
    """When something is to be done about a certificate; None: never."""
    if certificate.is_deleting:
        return max(now, certificate.retry_at)
    if not certificate.is_automatic:
        # What an order of its earlier source has published is still to be removed.
        return None if certificate.order is None else max(now, certificate.retry_at)
    if certificate.order is not None:
        return max(now, certificate.retry_at)
    if not certificate.version:
        # Without a certificate and without a user there is nothing to wait for.
        return max(now, certificate.retry_at if _is_wanted(certificate, wanted) else now)
    if _has_other_source(certificate, wanted):
        return now
    return max(now, certificate.renew_at, certificate.retry_at)


def _action(certificate: TlsCertificate, wanted: WantedDomain | None) -> Action:
    """What to do about a certificate whose time has come, and that needs no new order."""
    key = key_of(certificate)
    if certificate.is_deleting:
        return Remove(key)
    if certificate.order is not None:
        return ContinueOrder(key)
    if not _is_wanted(certificate, wanted):
        return Remove(key)
    if wanted is not None and certificate.source is not wanted.source:
        return ChangeSource(key, wanted.source)
    return IssueInternal(key)


def renewal_time(not_before: float, not_after: float, chance: float) -> float:
    """After two thirds of the life, or a little before; `chance` is in [0, 1)."""
    return not_before + (not_after - not_before) * (_RENEW_AFTER - _SPREAD * chance)


def retry_time(attempts: int, now: float, chance: float, retry_after_s: float = 0.0) -> float:
    """After so many attempts without a certificate; not before the ACME server asks for it."""
    return now + max(RETRY.delay(max(0, attempts - 1), lambda: chance), retry_after_s)


def served(
    certificates: Iterable[TlsCertificate], wanted: Sequence[WantedDomain], now: float
) -> list[RouteCertificate]:
    """The certificates that edge nodes serve, each for the hosts for which it is the best one.

    Only certificates of the host's own namespace count: a tenant cannot serve another's host with its own.
    """
    by_namespace: dict[Namespace, list[TlsCertificate]] = {}
    for each in certificates:
        if each.version and not each.is_deleting:
            by_namespace.setdefault(each.namespace, []).append(each)
    hosts: dict[str, set[str]] = {}
    chosen: dict[str, TlsCertificate] = {}
    for host in wanted:
        fitting = [each for each in by_namespace.get(host.namespace, ()) if each.covers(host.domain)]
        if not fitting:
            continue
        best = max(fitting, key=lambda each: _rank(each, host, now))
        chosen[key_of(best)] = best
        hosts.setdefault(key_of(best), set()).add(host.domain)
    return [
        RouteCertificate(
            each.namespace, each.name, each.version, each.domains, tuple(sorted(hosts[key])), each.not_after
        )
        for key, each in sorted(chosen.items())
    ]


def _rank(certificate: TlsCertificate, host: WantedDomain, now: float) -> tuple[bool, bool, bool, float, str]:
    return (
        certificate.not_after > now,
        certificate.name == name_of(host.domain),  # its own; an imported one of that name replaces it
        certificate.source is host.source,
        certificate.not_after,
        certificate.name,
    )


def serves(certificate: TlsCertificate, wanted: Iterable[WantedDomain]) -> list[str]:
    """The hosts of routes that it could serve."""
    return [
        each.domain
        for each in wanted
        if each.namespace == certificate.namespace
        and any(matches(one, each.domain) for one in certificate.domains)
    ]
