"""Which name servers containers get."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.node.network import nameservers
from skerry.node.network.nameservers import ResolverConfig


def test_the_machines_own_servers_are_used_with_search_and_options() -> None:
    servers = "nameserver 192.0.2.1\nnameserver 192.0.2.2\n"
    text = f"# made by hand\n{servers}search a.example b.example\noptions ndots:2\n"
    found = nameservers.choose((), [text])
    assert found == ResolverConfig(("192.0.2.1", "192.0.2.2"), ("a.example", "b.example"), ("ndots:2",))
    assert str(found) == (
        "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch a.example b.example\noptions ndots:2\n"
    )


def test_servers_that_a_container_cannot_reach_are_left_out() -> None:
    servers = ("127.0.0.53", "::1", "fe80::1%eth0", "fd00::1", "192.0.2.1")
    text = "".join(f"nameserver {server}\n" for server in servers)
    assert nameservers.choose((), [text]).servers == ("192.0.2.1",)


def test_behind_a_resolver_on_loopback_are_the_servers_that_it_asks() -> None:
    stub = "nameserver 127.0.0.53\noptions edns0\nsearch a.example\n"
    behind = "nameserver 192.0.2.1\nsearch b.example\n"
    assert nameservers.choose((), [stub, behind]) == ResolverConfig(
        ("192.0.2.1",), ("a.example",), ("edns0",)
    )


def test_servers_of_the_settings_come_in_place_of_the_machines() -> None:
    text = "nameserver 192.0.2.1\nsearch a.example\n"
    assert nameservers.choose(("192.0.2.53",), [text]) == ResolverConfig(("192.0.2.53",), ("a.example",))


@pytest.mark.parametrize("texts", [[], [""], ["nameserver 127.0.0.1"], ["nameserver", "nameserver ::1"]])
def test_without_any_the_file_says_so(texts: list[str]) -> None:
    found = nameservers.choose((), texts)
    assert found.servers == ()
    assert "setting network.dns" in str(found)
    assert nameservers.parse(str(found)) == found


def test_no_more_servers_than_the_c_library_reads() -> None:
    text = "".join(f"nameserver 192.0.2.{last}\n" for last in range(1, 9))
    assert len(nameservers.choose((), [text]).servers) == 3


def test_the_last_of_search_and_domain_counts() -> None:
    assert nameservers.parse("search a b\ndomain c\n").search == ("c",)


@given(st.text())
def test_whatever_the_file_holds_what_is_made_of_it_is_one(text: str) -> None:
    found = nameservers.choose((), [text])
    assert nameservers.parse(str(found)) == found


def test_files_that_are_missing_or_no_text_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\xff\xfe\nnameserver 192.0.2.1\n")
    assert nameservers.read((), [tmp_path / "none", tmp_path / "odd"]).servers == ("192.0.2.1",)


@pytest.mark.parametrize(
    "server", ["", "dns.example", "127.0.0.1", "127.8.8.8", "::1", "2001:db8::1", "0.0.0.0"]
)
def test_a_setting_that_no_container_could_use_is_refused(server: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        nameservers.check(("192.0.2.1", server))
    assert caught.value.field == "network.dns"


def test_resolvers_of_the_machine_include_its_loopback(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    machine = nameservers.MachineResolvers((), path)
    assert machine.servers() == ()
    path.write_text("nameserver 127.0.0.53\nnameserver nonsense\nnameserver ::1\nnameserver 0.0.0.0\n")
    assert machine.servers() == ("127.0.0.53", "::1")
    path.write_text("nameserver 192.0.2.1\n")
    assert machine.servers() == ("192.0.2.1",)
    assert nameservers.MachineResolvers(("192.0.2.53",), path).servers() == ("192.0.2.53",)


def test_a_container_that_asks_the_node_has_its_domains_before_the_machines(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text("nameserver 127.0.0.53\nsearch lan skerry\noptions edns0\n")
    found = nameservers.of_node("10.99.0.1", ("shop.skerry", "skerry"), [path])
    assert found == ResolverConfig(("10.99.0.1",), ("shop.skerry", "skerry", "lan"), ("edns0",))
