"""Port mappings: a total parser and the one spelling that we write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors, ports
from skerry.model.ports import PortMapping, Protocol

PORTS = st.integers(1, 65535)
MAPPINGS = st.builds(PortMapping, PORTS, PORTS, st.sampled_from(Protocol))


@given(MAPPINGS)
def test_what_is_written_is_read_back(mapping: PortMapping) -> None:
    assert ports.parse(str(mapping)) == mapping


@given(st.text() | st.text(alphabet="0123456789:/tcpud -+"))
def test_every_text_is_a_mapping_or_invalid(text: str) -> None:
    try:
        mapping = ports.parse(text)
    except errors.Invalid:
        return
    assert ports.parse(str(mapping)) == mapping


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ("80", PortMapping(80, 80)),
        ("8080:80", PortMapping(8080, 80)),
        ("8080:80/tcp", PortMapping(8080, 80)),
        ("8080:80/udp", PortMapping(8080, 80, Protocol.UDP)),
        ("53/udp", PortMapping(53, 53, Protocol.UDP)),
        ("65535:1", PortMapping(65535, 1)),
    ],
)
def test_the_forms_that_are_understood(text: str, mapping: PortMapping) -> None:
    assert ports.parse(text) == mapping


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "65536",
        "080",
        "-1",
        "80:",
        ":80",
        "1:2:3",
        "80/sctp",
        "80/",
        "80\n",
        " 80",
        "٨٠",
        "1.5",
        "99999:1",
    ],
)
def test_the_forms_that_are_not(text: str) -> None:
    with pytest.raises(errors.Invalid):
        ports.parse(text)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [(PortMapping(80, 80), "80:80"), (PortMapping(8080, 80, Protocol.UDP), "8080:80/udp")],
)
def test_tcp_goes_without_saying(mapping: PortMapping, text: str) -> None:
    assert str(mapping) == text


def test_a_hundred_ports_are_enough() -> None:
    ports.check_all(tuple(PortMapping(n, 80) for n in range(1, 101)))
    with pytest.raises(errors.Invalid, match="at most 100"):
        ports.check_all(tuple(PortMapping(n, 80) for n in range(1, 102)))


def test_one_door_leads_to_one_place_but_tcp_and_udp_are_two_doors() -> None:
    ports.check_all((PortMapping(53, 53), PortMapping(53, 53, Protocol.UDP)))
    with pytest.raises(errors.Invalid, match="53/tcp is mapped twice"):
        ports.check_all((PortMapping(53, 53), PortMapping(53, 54)))
