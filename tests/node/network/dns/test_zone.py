"""Names of services, copies, instances and functions, as answers of the zone."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address

from hypothesis import given
from hypothesis import strategies as st

from skerry.model.ids import Namespace, NodeId
from skerry.model.network_objects import (
    EndpointState,
    InstanceAddress,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
)
from skerry.model.ports import Protocol
from skerry.node.network.dns.views import NameViews, hide_isolated
from skerry.node.network.dns.zone import ANY, LookupStatus, RecordType, SrvTarget, Zone, search_domains
from tests.node.network.dns.objects import endpoint, instance, keyed, put, service

WEB = service(
    "web",
    endpoint("10.64.0.2", 0, name="web-0"),
    endpoint("10.64.1.2", 1, name="web-1"),
    address="10.63.0.1",
    ports=[ServicePort(80, 8080, name="http"), ServicePort(53, protocol=Protocol.UDP, name="dns")],
)


def made(*objects: ServiceAddress | InstanceAddress) -> Zone:
    return put(Zone("skerry", [IPv4Network("10.64.0.0/10")]), *objects)


def addresses(zone: Zone, name: str, type: int = RecordType.A) -> list[str]:
    answer = zone.lookup(name, type)
    assert answer.status is LookupStatus.FOUND, name
    return sorted(str(each.value) for each in answer.records)


def status(zone: Zone, name: str, type: int = RecordType.A) -> LookupStatus:
    return zone.lookup(name, type).status


def test_a_service_has_its_virtual_address() -> None:
    assert addresses(made(WEB), "web.shop.skerry") == ["10.63.0.1"]


def test_a_service_without_an_address_yet_has_those_of_its_ready_copies() -> None:
    gone = endpoint("10.64.0.9", 2, state=EndpointState.NOT_READY)
    zone = made(service("web", endpoint("10.64.0.2", 0), endpoint("10.64.0.3", 1), gone))
    assert addresses(zone, "web.shop.skerry") == ["10.64.0.2", "10.64.0.3"]


def test_a_service_hides_an_instance_of_its_name_even_without_copies() -> None:
    zone = made(service("web"), instance("web", "10.64.0.7"))
    assert addresses(zone, "web.shop.skerry") == []
    assert addresses(put(zone, instance("web", "10.64.0.7")), "web.shop.skerry") == ["10.64.0.7"]


def test_an_instance_has_its_own_address_ready_or_not() -> None:
    zone = made(
        InstanceAddress(Namespace("shop"), endpoint("10.64.0.7", name="Db_1", state=EndpointState.NOT_READY))
    )
    assert addresses(zone, "db_1.shop.skerry") == ["10.64.0.7"]


def test_copies_by_index_by_id_and_together() -> None:
    zone = made(WEB)
    assert addresses(zone, "1.web.shop.skerry") == ["10.64.1.2"]
    assert addresses(zone, "web.instances.shop.skerry") == ["10.64.0.2", "10.64.1.2"]
    assert addresses(zone, "0110x64x0x2.instances.shop.skerry") == ["10.64.0.2"]
    assert addresses(zone, "web-1.shop.skerry") == ["10.64.1.2"]
    assert status(zone, "2.web.shop.skerry") is LookupStatus.UNKNOWN


def test_of_two_copies_with_one_index_the_ready_one_counts() -> None:
    old = endpoint("10.64.0.2", 0, state=EndpointState.DRAINING)
    starting = endpoint("10.64.0.3", 0, state=EndpointState.NOT_READY)
    assert addresses(made(service("web", old)), "0.web.shop.skerry") == ["10.64.0.2"]
    assert addresses(made(service("web", old, starting)), "0.web.shop.skerry") == ["10.64.0.3"]
    zone = made(service("web", old, starting, endpoint("10.64.0.4", 0)))
    assert addresses(zone, "0.web.shop.skerry") == ["10.64.0.4"]


def test_srv_records_name_ready_copies_with_the_port_of_the_copies() -> None:
    zone = made(WEB)
    answer = zone.lookup("_http._tcp.web.shop.skerry", RecordType.SRV)
    assert {each.value for each in answer.records} == {
        SrvTarget(8080, "0.web.shop.skerry"),
        SrvTarget(8080, "1.web.shop.skerry"),
    }
    assert {each.value for each in answer.extra} == {"10.64.0.2", "10.64.1.2"}
    assert status(zone, "_http._udp.web.shop.skerry", RecordType.SRV) is LookupStatus.UNKNOWN
    found = zone.lookup("_dns._udp.web.shop.skerry", RecordType.SRV).records
    assert {each.value.port for each in found if isinstance(each.value, SrvTarget)} == {53}


def test_a_copy_without_an_index_is_named_by_its_id_in_srv_records() -> None:
    zone = made(service("web", endpoint("10.64.0.2"), ports=[ServicePort(80, name="http")]))
    (record,) = zone.lookup("_http._tcp.web.shop.skerry", RecordType.SRV).records
    assert record.value == SrvTarget(80, "0110x64x0x2.instances.shop.skerry")
    assert addresses(zone, "0110x64x0x2.instances.shop.skerry") == ["10.64.0.2"]


def test_an_ipv6_address_is_answered_where_there_is_one_and_is_no_data_elsewhere() -> None:
    zone = made(WEB, instance("six", "10.64.0.8", address6="fd00::8"))
    assert addresses(zone, "six.shop.skerry", RecordType.AAAA) == ["fd00::8"]
    assert addresses(zone, "web.shop.skerry", RecordType.AAAA) == []
    assert addresses(zone, "six.shop.skerry", ANY) == ["10.64.0.8", "fd00::8"]
    reverse = "8." + "0." * 27 + "0.0.d.f.ip6.arpa"
    assert addresses(zone, reverse, RecordType.PTR) == ["six.shop.skerry"]


def test_reverse_names_of_ipv6_addresses_of_a_cloud_are_sent_to_nobody() -> None:
    zone = put(Zone("skerry"), instance("six", "10.64.0.8", address6="fda8:5e7c:f8fa::a40:8"))
    known, unknown, other = (
        ip_address(each).reverse_pointer
        for each in ("fda8:5e7c:f8fa::a40:8", "fda8:5e7c:f8fa::a40:9", "2001:db8::1")
    )
    assert zone.lookup(known, RecordType.PTR).records[0].value == "six.shop.skerry"
    assert zone.lookup(unknown, RecordType.PTR).status is LookupStatus.UNKNOWN
    assert zone.lookup(other, RecordType.PTR).status is LookupStatus.OUTSIDE


def test_names_above_others_exist_without_records() -> None:
    zone = made(WEB)
    for name in ("shop.skerry", "instances.shop.skerry", "_tcp.web.shop.skerry", "fn.shop.skerry"):
        assert addresses(zone, name) == [], name
    put(zone)
    assert status(zone, "shop.skerry") is LookupStatus.UNKNOWN


def test_unknown_names_of_the_domain_are_unknown_and_others_are_outside() -> None:
    zone = made(WEB)
    for name in (
        "web.skerry",
        "web.other.skerry",
        "x.web.shop.skerry",
        "a.b.c.d.e.skerry",
        "web\\.shop.skerry",
    ):
        assert status(zone, name) is LookupStatus.UNKNOWN, name
    for name in ("example.org", "web.shop", "skerry.org", "myskerry", "", "in-addr.arpa"):
        assert status(zone, name) is LookupStatus.OUTSIDE, name


def test_the_domain_itself_has_an_authority() -> None:
    zone = made()
    assert [each.type for each in zone.lookup("skerry", RecordType.SOA).records] == [RecordType.SOA]
    assert addresses(zone, "skerry", RecordType.NS) == ["ns.skerry"]
    assert [each.value for each in zone.lookup("ns.skerry", RecordType.A, here="10.64.0.1").records] == [
        "10.64.0.1"
    ]


def test_addresses_have_names() -> None:
    zone = made(WEB, instance("db", "10.64.0.7"))
    assert addresses(zone, "1.0.63.10.in-addr.arpa", RecordType.PTR) == ["web.shop.skerry"]
    assert addresses(zone, "2.1.64.10.in-addr.arpa", RecordType.PTR) == ["1.web.shop.skerry"]
    assert addresses(zone, "7.0.64.10.in-addr.arpa", RecordType.PTR) == ["db.shop.skerry"]
    assert status(zone, "8.0.64.10.in-addr.arpa") is LookupStatus.UNKNOWN
    for outside in ("1.2.0.192.in-addr.arpa", "64.10.in-addr.arpa", "01.0.64.10.in-addr.arpa", "x.ip6.arpa"):
        assert status(zone, outside, RecordType.PTR) is LookupStatus.OUTSIDE, outside


def test_subnets_of_nodes_are_ranges_of_the_cloud() -> None:
    zone = Zone("skerry")
    assert status(zone, "9.0.0.172.in-addr.arpa") is LookupStatus.OUTSIDE
    zone.replace(
        NodeLocation, keyed(NodeLocation(NodeId("n"), "north", subnets=("172.0.0.0/24", "nonsense")))
    )
    assert status(zone, "9.0.0.172.in-addr.arpa") is LookupStatus.UNKNOWN


def test_a_function_is_at_the_node_that_is_asked() -> None:
    zone = Zone("skerry", has_function=lambda namespace, name: (namespace, name) == ("shop", "hello"))
    answer = zone.lookup("hello.fn.shop.skerry", RecordType.A, here="10.64.0.1")
    assert [each.value for each in answer.records] == ["10.64.0.1"]
    assert zone.lookup("hello.fn.shop.skerry", RecordType.AAAA).status is LookupStatus.FOUND
    assert zone.lookup("hello.fn.other.skerry", RecordType.A).status is LookupStatus.UNKNOWN


def test_names_that_cannot_be_names_are_left_out() -> None:
    odd = instance("a.b", "10.64.0.7")
    zone = made(odd, service("x" * 64, endpoint("10.64.0.8", 0)), service("bad", endpoint("nonsense", 0)))
    assert status(zone, "a.b.shop.skerry") is LookupStatus.UNKNOWN
    assert addresses(zone, "0110x64x0x7.instances.shop.skerry") == ["10.64.0.7"]
    assert addresses(zone, "0.bad.shop.skerry") == []


def test_a_view_hides_the_names_and_addresses_of_other_namespaces() -> None:
    zone = made(WEB, instance("db", "10.64.0.7", "bank"))
    zone.has_function = lambda namespace, name: True
    views = NameViews(zone.namespace_of)
    views.use(lambda client, namespace: client == namespace)
    shop = views.of("10.64.0.2")
    assert shop.namespace == "shop"
    assert zone.lookup("web.shop.skerry", RecordType.A, shop).status is LookupStatus.FOUND
    for name in ("db.bank.skerry", "bank.skerry", "7.0.64.10.in-addr.arpa", "hello.fn.bank.skerry"):
        assert zone.lookup(name, RecordType.A, shop).status is LookupStatus.UNKNOWN, name
    nobody = views.of("10.64.0.99")
    assert zone.lookup("web.shop.skerry", RecordType.A, nobody).status is LookupStatus.UNKNOWN
    views.use(None)
    assert zone.lookup("db.bank.skerry", RecordType.A, views.of("10.64.0.2")).status is LookupStatus.FOUND


def test_names_of_isolated_namespaces_are_hidden_from_those_that_may_not_connect() -> None:
    clients = {"shop": Namespace("shop"), "front": Namespace("front"), "none": Namespace(""), "node": None}
    views = NameViews(lambda client: clients[client])
    shop, front, bank = Namespace("shop"), Namespace("front"), Namespace("bank")
    views.use(hide_isolated({bank: (front,), shop: ()}))
    seen = {
        client: [name for name in (shop, front, bank) if views.of(client).sees(name)] for client in clients
    }
    assert seen == {
        "shop": [shop, front],
        "front": [front, bank],
        "none": [front],
        "node": [shop, front, bank],
    }
    assert hide_isolated({}) is None


def test_search_domains_of_a_container() -> None:
    assert search_domains("shop", "skerry") == ("shop.skerry", "skerry")
    assert search_domains("", "skerry") == ("skerry",)


_names = st.sampled_from(["web", "db", "0", "instances", "fn"])
_endpoints = st.builds(
    lambda number, index, name, state: endpoint(f"10.64.0.{number}", index, name=name, state=state),
    st.integers(2, 6),
    st.none() | st.integers(0, 2),
    _names,
    st.sampled_from(EndpointState),
)


def _unique(endpoints: list[ServiceEndpoint]) -> list[ServiceEndpoint]:
    return list({each.instance: each for each in endpoints}.values())


_objects = st.lists(
    st.builds(
        lambda name, some: service(name, *_unique(some), address="10.63.0.1"), _names, st.lists(_endpoints)
    )
    | st.builds(lambda some: InstanceAddress(Namespace("shop"), some), _endpoints),
    max_size=6,
)


@given(st.lists(_objects, min_size=1, max_size=4))
def test_a_zone_that_followed_changes_is_the_one_made_of_the_last_state(
    states: list[list[ServiceAddress | InstanceAddress]],
) -> None:
    followed = made()
    for objects in states:
        put(followed, *objects)
    fresh = made(*states[-1])
    for index in ("_entries", "_parents", "_by_address"):
        assert getattr(followed, index) == getattr(fresh, index)
    put(followed)
    assert (followed._entries, followed._parents, followed._by_address) == ({}, {}, {})
