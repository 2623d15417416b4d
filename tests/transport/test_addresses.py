"""Addresses to listen on, and what is said of those that cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.callers import NODE_TLS_NAME
from skerry.model.settings import GrpcSettings, HttpSettings, Settings
from skerry.transport import addresses, host_identity
from skerry.transport.host_identity import HostIdentity
from tests.support.shares import free_port


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address_is_taken_apart(text: str, parts: tuple[str, int]) -> None:
    assert addresses.split_host_port(text, "--http") == parts


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "h:-1", "h:٣"]
)
def test_what_is_no_address_is_refused_with_the_flag_and_an_example(text: str) -> None:
    with pytest.raises(errors.Invalid, match=r"--http: .* 127\.0\.0\.1:1323"):
        addresses.split_host_port(text, "--http")


def test_port_0_takes_a_free_port() -> None:
    with addresses.bind("127.0.0.1:0", "--http") as bound:
        host, _, port = addresses.display_address(bound).rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0


def test_ipv6_is_shown_in_brackets() -> None:
    with addresses.bind("[::1]:0", "--http") as bound:
        assert addresses.display_address(bound).startswith("[::1]:")


def test_a_taken_port_says_what_to_do() -> None:
    with addresses.bind("127.0.0.1:0", "--grpc") as bound:
        taken = addresses.display_address(bound)
        with pytest.raises(errors.AlreadyExists, match=f"--grpc: {taken} is in use .* 0 for any free one"):
            addresses.bind(taken, "--grpc")


def test_an_address_of_another_machine_is_told_apart_from_a_taken_one() -> None:
    with pytest.raises(errors.Invalid, match=r"192\.0\.2\.1:0 is no address of this machine"):
        addresses.bind("192.0.2.1:0", "--http")


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(errors.Invalid, match=r"'no-such-host\.invalid' is not known"):
        addresses.bind("no-such-host.invalid:0", "--http")


def test_the_socket_is_where_it_is_told_to_be(tmp_path: Path) -> None:
    assert addresses.unix_socket("/x/y.sock", tmp_path) == Path("/x/y.sock")
    expected = Path("/var/run/aurae/aurae.sock") if os.geteuid() == 0 else tmp_path / "aurae.sock"
    assert addresses.unix_socket("", tmp_path) == expected


@pytest.mark.parametrize(
    ("http", "grpc", "listens"),
    [
        ("127.0.0.1:1323", "", "127.0.0.1:50052"),
        ("0.0.0.0:1323", "", "0.0.0.0:50052"),
        ("[::]:443", "", "[::]:50052"),
        ("192.0.2.7:0", "", "192.0.2.7:50052"),
        ("0.0.0.0:1323", "127.0.0.1:7", "127.0.0.1:7"),
    ],
)
def test_grpc_listens_where_http_does_unless_it_is_told_otherwise(http: str, grpc: str, listens: str) -> None:
    settings = Settings(http=HttpSettings(listen=http), grpc=GrpcSettings(listen=grpc))
    assert addresses.grpc_listen(settings) == listens


HUB = HostIdentity("hub", "hub.example", ("192.0.2.1", "2001:db8::1"))


@pytest.mark.parametrize(
    ("listens", "told"),
    [
        ("127.0.0.1:1", ["127.0.0.1:1"]),
        ("192.0.2.7:1", ["192.0.2.7:1", "cloud.example:1"]),
        ("0.0.0.0:1", ["cloud.example:1", "192.0.2.1:1", "[2001:db8::1]:1", "hub.example:1", "hub:1"]),
    ],
)
def test_others_are_told_every_way_to_a_listener_and_the_best_first(listens: str, told: list[str]) -> None:
    settings = Settings(http=HttpSettings(names=("cloud.example",)))
    assert addresses.advertised_addresses(listens, settings, HUB) == told


def test_a_machine_of_many_addresses_tells_a_few_and_all_its_names() -> None:
    many = replace(HUB, addresses=tuple(f"192.0.2.{number}" for number in range(1, 65)))
    told = addresses.advertised_addresses("0.0.0.0:1", Settings(), many)
    assert told == [*(f"192.0.2.{number}:1" for number in range(1, 9)), "hub.example:1", "hub:1"]


def test_who_is_to_join_is_told_of_other_servers_however_many_ways_there_are_to_this_one() -> None:
    own = [f"https://own-{number}:1" for number in range(40)]
    others = [own[0], "https://b:1", "https://c:1"]
    assert addresses.to_join(own[:3], others, 32) == [*own[:3], "https://b:1", "https://c:1"]
    assert addresses.to_join(own, others, 32) == [*own[:30], "https://b:1", "https://c:1"]
    crowd = [f"https://other-{number}:1" for number in range(40)]
    assert addresses.to_join(own, crowd, 32) == [*own[:16], *crowd[:16]]


def test_only_addresses_that_another_machine_can_dial_are_counted_and_the_default_one_is_first() -> None:
    found = [
        "127.0.0.1",
        "::1",
        "fe80::1",
        "169.254.3.4",
        "2001:db8::1",
        "192.0.2.9",
        "192.0.2.1",
        "10.0.0.1",
    ]
    assert host_identity.choose(found, first=["192.0.2.1", ""]) == (
        "192.0.2.1",
        "10.0.0.1",
        "192.0.2.9",
        "2001:db8::1",
    )


def test_of_several_ports_the_first_is_taken_that_nobody_uses() -> None:
    port = free_port()
    with addresses.bind(f"127.0.0.1:{port}", "--http"):
        with addresses.bind_first_free("127.0.0.1", [port, 0], "--http") as bound:
            assert bound.getsockname()[1] not in (0, port)
        with pytest.raises(errors.AlreadyExists, match="in use"):
            addresses.bind_first_free("127.0.0.1", [port], "--http")
    with addresses.bind_first_free("127.0.0.1", [port, 0], "--http") as bound:
        assert bound.getsockname()[1] == port
    with addresses.bind_first_free("::1", [0], "--http") as bound:
        assert addresses.display_address(bound).startswith("[::1]:")


def test_the_address_towards_a_server_is_one_of_this_machine() -> None:
    assert addresses.local_address("127.0.0.1:50052") == "127.0.0.1"
    assert addresses.local_address("[::1]:50052") == "::1"
    assert addresses.local_address("no.such.host.invalid:50052") == "0.0.0.0"


def test_the_certificate_names_every_way_to_call_the_server() -> None:
    settings = Settings(
        http=HttpSettings(listen="192.0.2.7:1323", names=("Cloud.Example.", "2001:DB8::1")),
        grpc=GrpcSettings(listen="[::]:50052"),
    )
    machine = HostIdentity("Edge-1", "edge-1.example", ("192.0.2.8",))
    assert addresses.server_names(settings, machine).hosts == {
        "localhost",
        "127.0.0.1",
        "::1",
        "server.unsafe.aurae.io",
        "192.0.2.7",
        "cloud.example",
        "2001:db8::1",
        "edge-1",
        "edge-1.example",
        "192.0.2.8",
    }


def test_a_server_for_its_own_machine_alone_does_not_name_addresses_that_may_change() -> None:
    machine = HostIdentity("edge-1", "edge-1.example", ("192.0.2.8",))
    assert addresses.server_names(Settings(), machine).hosts == {
        "localhost",
        "127.0.0.1",
        "::1",
        NODE_TLS_NAME,
        "edge-1",
    }


def test_a_name_that_no_certificate_can_hold_is_refused_if_it_was_asked_for() -> None:
    machine = HostIdentity("not a name", "not a name")
    assert "not a name" not in addresses.server_names(Settings(), machine).hosts
    for name in ("not a name", "", "ü.example", "*", "0.0.0.0"):
        with pytest.raises(errors.Invalid, match=r"http\.names"):
            addresses.server_names(Settings(http=HttpSettings(names=(name,))), machine)
