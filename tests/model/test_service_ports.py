"""Ports of virtual addresses, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors, service_ports
from skerry.model.network_objects import ServicePort
from skerry.model.ports import Protocol


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("80", ServicePort(80)),
        ("80:80", ServicePort(80)),
        ("80:8080", ServicePort(80, 8080)),
        ("53/udp", ServicePort(53, protocol=Protocol.UDP)),
        ("80:8080/tcp=http", ServicePort(80, 8080, name="http")),
    ],
)
def test_a_port_is_read_and_written_in_one_way(text: str, port: ServicePort) -> None:
    assert service_ports.parse(text) == port
    assert service_ports.parse(service_ports.write(port)) == port


@pytest.mark.parametrize(
    "text",
    ["", "0", "65536", "80:0", "80:65536", "80/sctp", "80=", "80=Http", "80=-x", "80=80", "a:b", "80 "],
)
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        service_ports.parse(text)
    assert refused.value.field == "service_ports"


@given(st.text())
def test_any_text_is_a_port_or_refused(text: str) -> None:
    try:
        port = service_ports.parse(text)
    except errors.Invalid:
        return
    assert service_ports.parse(service_ports.write(port)) == port


@pytest.mark.parametrize(
    "ports",
    [
        (ServicePort(80), ServicePort(80, 8080)),
        (ServicePort(80, name="http"), ServicePort(81, name="http")),
        tuple(map(ServicePort, range(1, 102))),
        (ServicePort(0),),
    ],
)
def test_ports_that_conflict_are_refused(ports: tuple[ServicePort, ...]) -> None:
    with pytest.raises(errors.Invalid):
        service_ports.check_all(ports)


def test_one_port_may_have_both_protocols_and_ports_no_names() -> None:
    service_ports.check_all((ServicePort(53), ServicePort(53, protocol=Protocol.UDP)))
