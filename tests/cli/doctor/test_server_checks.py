"""Checks of a server and its cloud."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.cli.doctor import server_checks as checks
from skerry.cli.doctor.facts import AddressFacts, EndpointFacts, EtcdFacts, ServerFacts
from skerry.cli.doctor.findings import Finding, FindingStatus

OK, WARNING, PROBLEM, SKIPPED = FindingStatus
DAY = 86400.0
ABOUT: dict[str, Any] = {"version": "1", "store": "sqlite", "lacking": [], "warnings": [], "unreachable": []}
SERVER = ServerFacts("http://x", about=ABOUT, checks={"store": "ok"})
ENDPOINT = EndpointFacts(
    "hub.example:1323", "hub.example", uses_tls=True, names=("hub.example", "192.0.2.1"), not_after=30 * DAY
)


def statuses(found: list[Finding]) -> list[FindingStatus]:
    return [each.status for each in found]


def node(name: str = "edge-1", **more: Any) -> dict[str, Any]:
    facts = {"disk_pressure": "", "warnings": []}
    return {"name": name, "liveness": "live", "reason": "", "facts": facts, **more}


def test_a_ready_server_is_ok_and_one_that_does_not_answer_a_problem() -> None:
    assert statuses(checks.check_server(SERVER)) == [OK]
    assert statuses(checks.check_server(ServerFacts("http://x", "Nothing answers"))) == [PROBLEM]


def test_a_failing_readiness_check_is_named() -> None:
    (finding,) = checks.check_server(SERVER._replace(checks={"store": "etcd is away", "disk": "ok"}))
    assert finding.status is PROBLEM
    assert "store: etcd is away" in finding.message


def test_what_a_server_lacks_or_warns_of_and_whom_it_cannot_dial_is_passed_on() -> None:
    about = {**ABOUT, "lacking": ["no cells"], "warnings": ["weak"], "unreachable": ["n1 at 192.0.2.1"]}
    found = checks.check_server(SERVER._replace(about=about))
    assert statuses(found) == [OK, PROBLEM, WARNING, WARNING]


def test_a_server_that_refuses_us_is_skipped() -> None:
    assert statuses(checks.check_server(SERVER._replace(about=None))) == [SKIPPED]
    assert checks.check_nodes(SERVER) == checks.check_mesh(SERVER) == checks.check_peers(SERVER) == []


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, [OK]),
        ({"liveness": "lost"}, [PROBLEM]),
        ({"liveness": "suspect"}, [WARNING]),
        ({"facts": {"disk_pressure": "the disk is full", "warnings": []}}, [OK, PROBLEM]),
        ({"facts": {"disk_pressure": "", "warnings": ["runc is old"]}}, [OK, WARNING]),
    ],
)
def test_nodes_are_judged_by_what_they_report(change: dict[str, Any], status: list[FindingStatus]) -> None:
    assert statuses(checks.check_nodes(SERVER._replace(nodes=[node(**change)]))) == status


def test_a_cloud_without_nodes_is_a_warning() -> None:
    assert statuses(checks.check_nodes(SERVER._replace(nodes=[]))) == [WARNING]


def test_a_hundred_lost_nodes_do_not_fill_the_screen() -> None:
    lost = [node(f"n{number}", liveness="lost") for number in range(100)]
    found = checks.check_nodes(SERVER._replace(nodes=lost))
    assert len(found) == 11
    assert "90 more" in found[-1].message


@pytest.mark.parametrize(
    ("path", "status"),
    [("direct", OK), ("relayed", OK), ("local", OK), ("trying", WARNING), ("none", PROBLEM)],
)
def test_pairs_of_the_mesh(path: str, status: FindingStatus) -> None:
    pair = {"from": "a", "to": "b", "path": path}
    mesh = {"encryption": "wireguard", "pairs": [pair], "absent": []}
    assert statuses(checks.check_mesh(SERVER._replace(mesh=mesh))) == [status]


def test_a_node_that_is_not_in_the_mesh_is_a_warning_unless_there_is_none() -> None:
    mesh = {"encryption": "wireguard", "pairs": [], "absent": ["a"]}
    assert statuses(checks.check_mesh(SERVER._replace(mesh=mesh))) == [WARNING]
    assert statuses(checks.check_mesh(SERVER._replace(mesh={**mesh, "encryption": "none"}))) == [OK]


def test_peers_of_the_market() -> None:
    peer = {"name": "north", "url": "https://north", "cloud": "key.x", "message": "timed out"}
    peers = [{**peer, "is_reached": reached} for reached in (True, False, None)]
    assert statuses(checks.check_peers(SERVER._replace(peers=peers))) == [OK, WARNING, SKIPPED]


def test_routes_need_targets_and_haproxy() -> None:
    route = {"name": "shop", "host": "shop.example", "path": "/", "problem": ""}
    good, bad = SERVER._replace(routes=[route]), SERVER._replace(routes=[{**route, "problem": "no copy"}])
    assert statuses(checks.check_routes(good, has_haproxy=True)) == [OK]
    assert statuses(checks.check_routes(good, has_haproxy=False)) == [WARNING]
    assert statuses(checks.check_routes(bad, has_haproxy=True)) == [PROBLEM]
    assert checks.check_routes(SERVER._replace(routes=[]), has_haproxy=False) == []


def check(*endpoints: EndpointFacts) -> list[Finding]:
    return checks.check_addresses(AddressFacts(False, endpoints, now=0.0))


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, OK, "30 days left"),
        ({"failure": "timed out"}, PROBLEM, "timed out"),
        ({"uses_tls": False}, WARNING, "without TLS"),
        ({"tls_failure": "self-signed certificate"}, PROBLEM, "self-signed"),
        ({"names": ("localhost",)}, PROBLEM, "does not contain hub.example"),
        ({"not_after": DAY}, WARNING, "expires in 1.0 days"),
        ({"not_after": -1.0}, PROBLEM, "has expired"),
    ],
)
def test_an_address_is_checked_as_another_machine_would_see_it(
    change: dict[str, Any], status: FindingStatus, words: str
) -> None:
    (finding,) = check(ENDPOINT._replace(**change))
    assert finding.status is status
    assert words in finding.message
    assert bool(finding.fix) is (status is not OK)


def test_an_address_that_is_not_reached_is_a_warning_while_another_is() -> None:
    assert statuses(check(ENDPOINT, ENDPOINT._replace(failure="refused"))) == [OK, WARNING]


def test_a_name_that_the_certificate_lacks_is_fixed_by_the_setting() -> None:
    (finding,) = check(ENDPOINT._replace(names=("other",)))
    assert finding.fix == "restart the server with --set http.names=hub.example"


def test_a_server_on_loopback_says_how_others_could_reach_it() -> None:
    (finding,) = checks.check_addresses(AddressFacts(True, (), 0.0))
    assert finding.status is OK
    assert "--http 0.0.0.0:1323 --tls" in finding.message


@pytest.mark.parametrize(
    ("names", "host", "is_covered"),
    [
        (("hub.example",), "HUB.example.", True),
        (("*.example",), "hub.example", True),
        (("*.example",), "a.hub.example", False),
        (("192.0.2.1",), "192.0.2.1", True),
        (("fd00::2",), "[fd00:0::2]", True),
        (("192.0.2.1",), "192.0.2.10", False),
        ((), "hub", False),
    ],
)
def test_a_certificate_covers_names_wildcards_and_addresses(
    names: tuple[str, ...], host: str, is_covered: bool
) -> None:
    assert checks.covers(names, host) is is_covered


def test_a_name_without_an_address_is_not_blamed_on_the_firewall() -> None:
    unknown = EndpointFacts("hub.invalid:1323", "hub.invalid", "not known", is_unknown_name=True)
    (finding,) = checks.check_addresses(AddressFacts(False, (unknown,), 0.0))
    assert finding.status is PROBLEM
    assert finding.fix.startswith("add hub.invalid to DNS")


def test_a_server_on_etcd_whose_endpoints_are_not_known_is_skipped_with_the_setting() -> None:
    server = SERVER._replace(about={**ABOUT, "store": "etcd"})
    (finding,) = checks.check_store(server, [])
    assert finding.status is SKIPPED
    assert "--set store.url=etcd://" in finding.fix
    assert checks.check_store(server, [EtcdFacts("127.0.0.1:2379")]) == []
    assert checks.check_store(SERVER, []) == []


def test_one_of_three_etcds_may_be_away_but_not_two() -> None:
    good, bad = EtcdFacts("a:2379"), EtcdFacts("b:2379", "does not answer")
    assert statuses(checks.check_etcd([good, good, bad])) == [WARNING, OK, OK]
    assert statuses(checks.check_etcd([good, bad, bad])) == [PROBLEM, PROBLEM, OK]
    assert statuses(checks.check_etcd([bad])) == [PROBLEM]
    assert checks.check_etcd([]) == []
