"""Elements of maps, changed without nft, as nft lists them afterwards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from skerry.node.network import nft_elements
from skerry.node.network.nft_elements import ElementChange, SetElement, port_key, port_target
from tests.node.network.machines import Ground, run

pytestmark = pytest.mark.root

TABLE = "ports_test"
TABLES = f"""\
table ip {TABLE} {{
  map tcp_ports {{ type inet_service : ipv4_addr . inet_service; elements = {{ 99 : 10.0.0.9 . 9 }} }}
}}
table ip6 {TABLE} {{
  map tcp_ports {{ type inet_service : ipv6_addr . inet_service; }}
}}
"""


def port_element(port: int, address: str, target: int) -> SetElement:
    return SetElement(port_key(port), port_target(ip_address(address), target))


WEB = port_element(8080, "10.0.0.2", 80)


def elements(family: str) -> dict[int, list[object]]:
    listing = subprocess.check_output(["nft", "-j", "list", "map", family, TABLE, "tcp_ports"])
    (found,) = [each["map"] for each in json.loads(listing)["nftables"] if "map" in each]
    return {port: data["concat"] for port, data in found.get("elem", [])}


@pytest.fixture(autouse=True)
def tables(ground: Ground) -> Iterator[None]:
    """Two tables on a machine of the test's own."""
    subprocess.run(["nft", "-f", "-"], input=TABLES, text=True, check=True)
    yield
    run("nft", "flush", "ruleset")


def test_a_transaction_changes_the_maps_of_both_families() -> None:
    other = port_element(65535, "10.0.0.3", 1)
    web6 = port_element(8080, "fd00::2", 80)
    changes = [
        ElementChange("ip", "tcp_ports", (port_key(99),), (WEB, other)),
        ElementChange("ip6", "tcp_ports", (), (web6,)),
    ]
    nft_elements.apply(TABLE, changes)
    assert elements("ip") == {8080: ["10.0.0.2", 80], 65535: ["10.0.0.3", 1]}
    assert elements("ip6") == {8080: ["fd00::2", 80]}


def test_a_port_goes_to_another_address_in_one_transaction() -> None:
    moved = port_element(99, "10.0.0.5", 7)
    nft_elements.apply(TABLE, [ElementChange("ip", "tcp_ports", (port_key(99),), (moved,))])
    assert elements("ip") == {99: ["10.0.0.5", 7]}


def test_as_many_as_are_allowed_fit_a_transaction() -> None:
    many = tuple(port_element(port, "fd00::9", port) for port in range(1, nft_elements.MOST + 1))
    nft_elements.apply(TABLE, [ElementChange("ip6", "tcp_ports", (), many)])
    assert len(elements("ip6")) == nft_elements.MOST


@pytest.mark.parametrize(
    "refused",
    [
        ElementChange("ip6", "tcp_ports", (port_key(77),)),
        ElementChange("ip6", "no_such_map", (), (port_element(5, "fd00::2", 80),)),
        ElementChange("ip", "tcp_ports", (), (port_element(99, "10.0.0.7", 80),)),
    ],
    ids=["no such element", "no such map", "the port is another's"],
)
def test_one_that_the_kernel_refuses_undoes_the_others(refused: ElementChange) -> None:
    with pytest.raises(OSError):
        nft_elements.apply(TABLE, [ElementChange("ip", "tcp_ports", (), (WEB,)), refused])
    assert elements("ip") == {99: ["10.0.0.9", 9]}
    assert elements("ip6") == {}


def test_a_table_that_is_gone_is_an_error() -> None:
    run("nft", "delete", "table", "ip", TABLE)
    with pytest.raises(FileNotFoundError):
        nft_elements.apply(TABLE, [ElementChange("ip", "tcp_ports", (), (WEB,))])
