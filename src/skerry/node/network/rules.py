"""The rules of the firewall, as text for nft. Pure.

Everything is in one table of the family `ip`, whose name nobody else has; nothing outside it is read or
changed. `write_table` is the whole table, which replaces the one before in one transaction; `write_changes`
is the way from some published ports to others. `skerry.node.network.firewall` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from skerry.model.ports import PortMapping, Protocol
from skerry.node.network.subnets import Names, Subnet

Door = tuple[int, Protocol]  # a port of the machine
Room = tuple[IPv4Address, int]  # where it leads to
Doors = Mapping[Door, Room]


def doors_of(address: IPv4Address, mappings: Iterable[PortMapping]) -> dict[Door, Room]:
    return {(each.source, each.protocol): (address, each.destination) for each in mappings}


def write_table(names: Names, subnet: Subnet, doors: Doors) -> str:
    """The table with `doors` published, in place of whatever it was before."""
    bridge = f'"{names.bridge}"'
    publish = "".join(
        f"fib daddr type local dnat ip to {protocol} dport map @{_map_name(protocol)}\n    "
        for protocol in Protocol
    ).rstrip()
    maps = "".join(_write_map(protocol, doors) for protocol in Protocol)
    # Adding the table first makes deleting it no error where there is none.
    return f"""\
add table ip {names.table}
delete table ip {names.table}
table ip {names.table} {{
{maps}\
  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname {bridge} ip saddr != {subnet} drop
    iifname {bridge} ip daddr 127.0.0.0/8 drop
  }}
  chain arriving {{
    type nat hook prerouting priority dstnat; policy accept;
    {publish}
  }}
  chain dialling {{
    type nat hook output priority -100; policy accept;
    {publish}
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {subnet} oifname != {bridge} masquerade
    ip saddr {{ {subnet}, 127.0.0.0/8 }} oifname {bridge} ct status dnat masquerade
  }}
  chain entering {{
    type filter hook forward priority filter; policy accept;
    oifname != {bridge} accept
    iifname {bridge} accept
    ct state established,related accept
    ct status dnat accept
    drop
  }}
}}
"""


def write_changes(names: Names, before: Doors, after: Doors) -> str:
    """What makes of a table with `before` one with `after`; empty if they are the same."""
    lines = []
    for protocol in Protocol:
        old, new = _of(protocol, before), _of(protocol, after)
        gone = [str(port) for port, room in old.items() if new.get(port) != room]
        come = [_write_element(port, room) for port, room in new.items() if old.get(port) != room]
        for verb, elements in (("delete", gone), ("add", come)):
            if elements:
                lines.append(
                    f"{verb} element ip {names.table} {_map_name(protocol)} {{ {', '.join(elements)} }}\n"
                )
    return "".join(lines)


def write_removal(names: Names) -> str:
    return f"add table ip {names.table}\ndelete table ip {names.table}\n"


def _map_name(protocol: Protocol) -> str:
    return f"{protocol}_ports"


def _write_map(protocol: Protocol, doors: Doors) -> str:
    elements = ", ".join(_write_element(port, room) for port, room in _of(protocol, doors).items())
    filled = f"\n    elements = {{ {elements} }}" if elements else ""
    return f"  map {_map_name(protocol)} {{\n    type inet_service : ipv4_addr . inet_service{filled}\n  }}\n"


def _of(protocol: Protocol, doors: Doors) -> dict[int, Room]:
    return {port: room for (port, kind), room in sorted(doors.items()) if kind is protocol}


def _write_element(port: int, room: Room) -> str:
    return f"{port} : {room[0]} . {room[1]}"
