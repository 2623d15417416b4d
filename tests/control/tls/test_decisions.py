"""Decisions on certificates: properties that hold for all of them, and examples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.named_table import key_of, key_of_name
from skerry.control.tls import decisions
from skerry.control.tls.decisions import (
    Action,
    ChangeSource,
    ContinueOrder,
    Create,
    IssueInternal,
    OrderLimits,
    PlaceOrder,
    Remove,
    decide,
)
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.tls_certificates import (
    AcmeOrder,
    CertificateSource,
    InternalDomains,
    TlsCertificate,
    WantedDomain,
    matches,
    name_of,
)

NOW = 1_000_000.0
SHOP = Namespace("shop")
ACME, OWN_CA, IMPORTED = CertificateSource.ACME, CertificateSource.OWN_CA, CertificateSource.IMPORTED
DOMAINS = ("a.example.org", "b.example.org", "*.example.org", "c.shop.skerry", "not a domain")

times = st.sampled_from((NOW - 500, NOW, NOW + 500))


@st.composite
def certificate_sets(draw: st.DrawFn) -> list[TlsCertificate]:
    found: dict[str, TlsCertificate] = {}
    for _ in range(draw(st.integers(0, 6))):
        domain = draw(st.sampled_from(DOMAINS[:4]))
        version = draw(st.integers(0, 2))
        has_order = draw(st.booleans())
        one = TlsCertificate(
            "id",
            name_of(domain),
            NOW - 5000,
            draw(st.sampled_from(CertificateSource)),
            (domain,),
            draw(st.sampled_from((DEFAULT_NAMESPACE, SHOP))),
            version=version,
            not_before=NOW - 4000,
            not_after=draw(times) if version else 0.0,
            renew_at=draw(times) if version else 0.0,
            is_requested=draw(st.booleans()),
            order=AcmeOrder("dir", version + 1, NOW - 10) if has_order else None,
            retry_at=draw(times),
            is_deleting=draw(st.booleans()),
        )
        found[key_of(one)] = one
    return list(found.values())


wanted_lists = st.lists(
    st.builds(
        WantedDomain,
        st.sampled_from(DOMAINS),
        st.sampled_from((DEFAULT_NAMESPACE, SHOP)),
        st.sampled_from(CertificateSource),
    ),
    max_size=6,
)
limits = st.builds(
    OrderLimits,
    can_order=st.booleans(),
    held_until=times,
    orders_at_once=st.integers(0, 3),
)


@given(certificate_sets(), wanted_lists, limits)
def test_nothing_is_tried_before_its_time_and_no_more_orders_than_allowed(
    certificates: list[TlsCertificate], wanted: list[WantedDomain], limits: OrderLimits
) -> None:
    present = {key_of(each): each for each in certificates}
    plan = decide(certificates, wanted, NOW, limits)
    keys = [action.key for action in plan.actions]
    assert len(keys) == len(set(keys)), "one thing about one certificate"
    placed = [action for action in plan.actions if isinstance(action, PlaceOrder)]
    if placed:
        assert limits.can_order
        assert limits.held_until <= NOW
        under_way = sum(each.order is not None for each in certificates)
        assert len(placed) + under_way <= max(limits.orders_at_once, under_way)
    for action in plan.actions:
        one = present.get(action.key)
        if isinstance(action, PlaceOrder | ContinueOrder | IssueInternal):
            assert one is not None
            assert one.retry_at <= NOW
        if isinstance(action, PlaceOrder | IssueInternal):
            assert one is not None
            assert not one.version or one.renew_at <= NOW, "what is valid for long is not renewed"
            assert one.order is None
        if isinstance(action, Create):
            assert one is None
    assert plan.again_at is None or plan.again_at > NOW


@given(certificate_sets(), wanted_lists, limits)
def test_what_was_imported_is_never_changed_and_what_is_in_use_never_removed(
    certificates: list[TlsCertificate], wanted: list[WantedDomain], limits: OrderLimits
) -> None:
    present = {key_of(each): each for each in certificates}
    routes = {key_of_name(name_of(each.domain), each.namespace) for each in wanted if each.source is ACME}
    for action in decide(certificates, wanted, NOW, limits).actions:
        one = present.get(action.key)
        if one is None or one.is_deleting:
            continue
        if one.source is IMPORTED:
            assert isinstance(action, ContinueOrder), "the order of its predecessor is ended"
        if isinstance(action, Remove):
            assert not one.is_requested
            assert action.key not in routes
            assert not one.version or one.renew_at <= NOW


@given(certificate_sets(), wanted_lists)
def test_what_is_running_is_left_alone(
    certificates: list[TlsCertificate], wanted: list[WantedDomain]
) -> None:
    keys = {action.key for action in decide(certificates, wanted, NOW).actions}
    for key in keys:
        assert key not in {each.key for each in decide(certificates, wanted, NOW, running={key}).actions}


@given(certificate_sets(), wanted_lists)
def test_doing_what_is_decided_comes_to_an_end(
    certificates: list[TlsCertificate], wanted: list[WantedDomain]
) -> None:
    present = {key_of(each): each for each in certificates}
    for _ in range(6):
        actions = decide(present.values(), wanted, NOW, OrderLimits(orders_at_once=100)).actions
        if not actions:
            return
        for action in actions:
            apply(present, action)
    raise AssertionError(f"it goes on for ever: {actions}")


def apply(present: dict[str, TlsCertificate], action: Action) -> None:
    """What the controller does, if all goes well."""
    match action:
        case Create(domain, namespace, source):
            present[action.key] = TlsCertificate("id", name_of(domain), NOW, source, (domain,), namespace)
        case ChangeSource(key, source):
            present[key] = replace(present[key], source=source, renew_at=0.0, retry_at=0.0)
        case Remove(key):
            del present[key]
        case ContinueOrder(key) if present[key].source is not ACME:
            present[key] = replace(present[key], order=None)
        case PlaceOrder(key) | ContinueOrder(key) | IssueInternal(key):
            present[key] = replace(
                present[key], order=None, version=1, not_after=NOW + 9000, renew_at=NOW + 6000
            )


@given(certificate_sets(), wanted_lists)
def test_a_host_is_served_by_one_certificate_of_its_own_namespace(
    certificates: list[TlsCertificate], wanted: list[WantedDomain]
) -> None:
    hosts = {(each.namespace, each.domain) for each in wanted}
    seen = set()
    for served in decisions.served(certificates, wanted, NOW):
        for host in served.hosts:
            assert (served.namespace, host) in hosts
            assert (served.namespace, host) not in seen
            seen.add((served.namespace, host))
            assert any(matches(each, host) for each in served.domains)
    for namespace, host in hosts - seen:
        assert not any(
            each.namespace == namespace and each.covers(host) and not each.is_deleting
            for each in certificates
        )


def certificate(domain: str = "a.example.org", **more: object) -> TlsCertificate:
    return TlsCertificate("id", name_of(domain), NOW, ACME, (domain,), **more)  # type: ignore[arg-type]


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_or_a_little_before() -> None:
    life = 90 * 86400.0
    assert decisions.renewal_time(0, life, 0.0) == life * 2 / 3
    assert 0.64 * life < decisions.renewal_time(0, life, 0.999) < life * 2 / 3


def test_pauses_between_attempts_grow_to_a_day_and_respect_the_server() -> None:
    pauses = [decisions.retry_time(attempts, 0.0, 0.5) for attempts in range(1, 9)]
    assert pauses == [60, 240, 960, 3840, 15360, 61440, 86400, 86400]
    assert decisions.retry_time(1, 0.0, 0.5, retry_after_s=7200) == 7200
    assert decisions.retry_time(5, 0.0, 0.5, retry_after_s=10) == 15360


def test_hosts_without_a_certificate_are_first() -> None:
    some = [
        certificate("a.example.org", version=1, not_after=NOW + 10, renew_at=NOW - 5),
        certificate("b.example.org", version=1, not_after=NOW + 5, renew_at=NOW - 5),
        certificate("c.example.org"),
    ]
    wanted = [WantedDomain(each.name, DEFAULT_NAMESPACE, ACME) for each in some]
    plan = decide(some, wanted, NOW, OrderLimits(orders_at_once=2))
    assert plan.actions == (PlaceOrder("default/c.example.org"), PlaceOrder("default/b.example.org"))


def test_a_certificate_without_a_route_stays_until_it_would_be_renewed() -> None:
    one = certificate(version=1, not_after=NOW + 10, renew_at=NOW + 5)
    assert decide([one], [], NOW) == decisions.TlsPlan((), NOW + 5)
    assert decide([one], [], NOW + 6).actions == (Remove(key_of(one)),)


def test_the_own_ca_issues_for_no_name_of_another_namespace() -> None:
    wanted = [
        WantedDomain("web.shop.skerry", SHOP, OWN_CA),
        WantedDomain("web.other.skerry", SHOP, OWN_CA),
        WantedDomain("web.example.org", SHOP, OWN_CA),
        WantedDomain("web.corp.internal", SHOP, OWN_CA),
    ]
    plan = decide([], wanted, NOW, OrderLimits(internal_domains=InternalDomains(more=("corp.internal",))))
    assert [each.key for each in plan.actions] == ["shop/web.shop.skerry", "shop/web.corp.internal"]
    own = OrderLimits(internal_domains=InternalDomains("example.org"))
    wanted.append(WantedDomain("web.shop.example.org", SHOP, OWN_CA))
    assert [each.key for each in decide([], wanted, NOW, own).actions] == ["shop/web.shop.example.org"]
    assert decide([], wanted, NOW, OrderLimits(internal_domains=InternalDomains(""))).actions == ()


def test_an_imported_certificate_of_the_name_of_the_host_is_served_before_others() -> None:
    imported = certificate(version=3, not_after=NOW + 5)
    wildcard = certificate("*.example.org", version=1, not_after=NOW + 500)
    wanted = [WantedDomain("a.example.org", DEFAULT_NAMESPACE, ACME)]
    imported = replace(imported, source=IMPORTED)
    (served,) = decisions.served([wildcard, imported], wanted, NOW)
    assert served.name == "a.example.org"
    (served,) = decisions.served([wildcard, imported], wanted, NOW + 6)  # it has expired
    assert served.name == "_wildcard.example.org"
