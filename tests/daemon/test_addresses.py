"""Addresses to listen on, and what is said of those that cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.daemon import addresses
from skerry.model import errors


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address_is_taken_apart(text: str, parts: tuple[str, int]) -> None:
    assert addresses.split(text, "--http") == parts


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "h:-1", "h:٣"]
)
def test_what_is_no_address_is_refused_with_the_flag_and_an_example(text: str) -> None:
    with pytest.raises(errors.Invalid, match=r"--http: .* 127\.0\.0\.1:1323"):
        addresses.split(text, "--http")


def test_port_0_takes_a_free_port() -> None:
    with addresses.bind("127.0.0.1:0", "--http") as bound:
        host, _, port = addresses.shown(bound).rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0


def test_ipv6_is_shown_in_brackets() -> None:
    with addresses.bind("[::1]:0", "--http") as bound:
        assert addresses.shown(bound).startswith("[::1]:")


def test_a_taken_port_says_what_to_do() -> None:
    with addresses.bind("127.0.0.1:0", "--grpc") as bound:
        taken = addresses.shown(bound)
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
