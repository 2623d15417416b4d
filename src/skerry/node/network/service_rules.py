"""The nftables rules of virtual addresses. Pure: texts for `nft -f`.

Maps lead from an address, or an address with a port, to a chain of its own for each service, which chooses a
copy at random by weight and translates the destination (`skerry.node.network.service_shares` has the
weights). A change of a service rewrites its chains and elements only. What is still addressed to a virtual
address behind the translation has no ready copy, or no such port, and is refused. There is a table for IPv4,
and one with the same rules for IPv6 where containers have it.

Replies between containers of one node would pass the bridge without being translated back. So frames from and
to copies are given to the node's IP layer by a table of the family `bridge`, and copies see the addresses of
their clients; only a copy that is connected to itself sees the node's. Where the kernel lacks that family,
`skerry.node.network.port_rules` masquerades such connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Final, NamedTuple

import msgspec

from skerry.model.network_objects import ServicePort
from skerry.model.ports import Protocol
from skerry.node.network.rule_families import (
    BRIDGE,
    IPV4,
    RuleFamily,
    address_families,
    table_families,
)
from skerry.node.network.subnets import KernelNames

BASE_SETS: Final = frozenset(("services", "service_ports", "itself"))
_MAX_CLIENTS: Final = 65_536  # of one copy whose affinity is remembered
_ANY_PROTOCOL: Final = f"meta l4proto {{ {', '.join(Protocol)} }}"


class BalancedService(NamedTuple):
    """A service on this node. `weights`: of the copies that get new connections, by address."""

    address: str
    weights: Mapping[str, int]
    ports: tuple[ServicePort, ...] = ()
    affinity_s: int = 0


class ServiceObjects(msgspec.Struct, frozen=True):
    """What a service is in the table, in text."""

    sets: Mapping[str, str] = msgspec.field(default_factory=dict)
    chains: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    elements: Mapping[tuple[str, str], str] = msgspec.field(default_factory=dict)  # verdicts by map and key


NO_OBJECTS: Final = ServiceObjects()


class ServiceTableContents(msgspec.Struct, frozen=True):
    """All services by their keys, and the copies on this node. `services6`: what they are for IPv6."""

    services: Mapping[str, ServiceObjects] = msgspec.field(default_factory=dict)
    local_copies: frozenset[str] = frozenset()
    services6: Mapping[str, ServiceObjects] = msgspec.field(default_factory=dict)

    def of(self, family: RuleFamily) -> Mapping[str, ServiceObjects]:
        return self.services if family is IPV4 else self.services6


class ServiceTableBase(msgspec.Struct, frozen=True):
    """What the rules depend on beside services. With `serves_node`, processes of the node itself reach
    services."""

    subnets: tuple[str, ...]
    bridge_mac: str
    serves_node: bool = True
    has_bridge_family: bool = True
    has_ipv6: bool = False

    @property
    def families(self) -> tuple[str, ...]:
        return table_families(has_ipv6=self.has_ipv6, has_bridge=self.has_bridge_family)


def compile_service(service: BalancedService, family: RuleFamily = IPV4) -> ServiceObjects:
    """The chains, sets and elements of a service; without ready copies there are none."""
    if not service.weights:
        return NO_OBJECTS
    virtual = family.address(IPv4Address(service.address))
    name = f"service_{_hex(service.address)}"
    sets: dict[str, str] = {}
    chains: dict[str, tuple[str, ...]] = {}
    elements: dict[tuple[str, str], str] = {}
    if service.affinity_s:
        # The time is part of the name: that of a set cannot change.
        sets = {
            f"clients_{_hex(service.address)}_{_hex(copy)}_{service.affinity_s}": (
                f"type {family.type}; size {_MAX_CLIENTS}; flags dynamic,timeout; "
                f"timeout {service.affinity_s}s;"
            )
            for copy in service.weights
        }
    for port in service.ports or (None,):
        chain = name if port is None else f"{name}_{port.protocol}_{port.port}"
        if port is None:
            elements["services", virtual] = f"goto {chain}"
        else:
            key = f"{virtual} . {port.protocol} . {port.port}"
            elements["service_ports", key] = f"goto {chain}"
        if sets:
            clients = dict(zip(service.weights, sets, strict=True))
            chains |= _affinity_chains(chain, service.weights, port, clients, family)
        else:
            chains[chain] = (_translation(service.weights, port, family),)
    return ServiceObjects(sets, chains, elements)


def _translation(weights: Mapping[str, int], port: ServicePort | None, family: RuleFamily) -> str:
    match = _ANY_PROTOCOL if port is None else f"meta l4proto {port.protocol}"
    copies = {copy: family.address(IPv4Address(copy)) for copy in weights}
    if len(weights) == 1:
        (copy,) = copies.values()
        bracketed = copy if family is IPV4 else f"[{copy}]"
        return f"{match} dnat {family.name} to {copy if port is None else f'{bracketed}:{port.target_port}'}"
    targets = {key: copy if port is None else f"{copy} . {port.target_port}" for key, copy in copies.items()}
    return f"{match} dnat {family.name} to {_choice(weights)} map {{ {_ranges(weights, targets)} }}"


def _affinity_chains(
    chain: str,
    weights: Mapping[str, int],
    port: ServicePort | None,
    clients: Mapping[str, str],
    family: RuleFamily,
) -> dict[str, tuple[str, ...]]:
    """A chain for each copy, which remembers the client, and one that chooses."""
    own = {copy: f"{chain}_{_hex(copy)}" for copy in weights}
    source = f"{family.name} saddr"
    known = [f"{source} @{clients[copy]} goto {own[copy]}" for copy in weights]
    verdicts = {copy: f"goto {own[copy]}" for copy in weights}
    return {
        **{
            own[copy]: (f"update @{clients[copy]} {{ {source} }}", _translation({copy: 1}, port, family))
            for copy in weights
        },
        chain: (*known, f"{_choice(weights)} vmap {{ {_ranges(weights, verdicts)} }}"),
    }


def _choice(weights: Mapping[str, int]) -> str:
    return f"numgen random mod {sum(weights.values())}"


def _ranges(weights: Mapping[str, int], values: Mapping[str, str]) -> str:
    """Consecutive ranges of numbers, each as long as the weight."""
    parts, first = [], 0
    for copy, weight in weights.items():
        numbers = str(first) if weight == 1 else f"{first}-{first + weight - 1}"
        parts.append(f"{numbers} : {values[copy]}")
        first += weight
    return ", ".join(parts)


def base_chains(
    names: KernelNames, base: ServiceTableBase, family: RuleFamily = IPV4
) -> dict[str, tuple[str, ...]]:
    """The chains that all services share, with their rules; a first line that names a hook is no rule."""
    ip, subnets = family.name, ", ".join(family.network(IPv4Network(each)) for each in base.subnets)
    bridge, virtual = f'"{names.bridge}"', f"{{ {subnets} }}"
    translated = f"oifname {bridge} ct status dnat ct original {ip} daddr {virtual}"
    chains: dict[str, tuple[str, ...]] = {
        "balance": (
            f"{ip} daddr . meta l4proto . th dport vmap @service_ports",
            f"{ip} daddr vmap @services",
        ),
        "refuse": ("meta l4proto tcp reject with tcp reset", "reject"),
        # Before published ports, whose chains have the usual priorities.
        "arriving": (
            "type nat hook prerouting priority -101; policy accept;",
            f"iifname {bridge} {ip} daddr {virtual} goto balance",
        ),
        # Behind them, and before routing: a redirect that the kernel sends would suppress the refusal.
        "arrived": (
            "type filter hook prerouting priority -99; policy accept;",
            f"iifname {bridge} {ip} daddr {virtual} goto refuse",
        ),
        "passing": (
            "type filter hook forward priority -1; policy accept;",
            f"oifname {bridge} {ip} daddr {virtual} goto refuse",
        ),
    }
    if base.has_bridge_family:
        # A translation to the same address keeps later chains from masquerading.
        chains["leaving"] = (
            "type nat hook postrouting priority 99; policy accept;",
            f"{translated} {ip} saddr . {ip} daddr @itself masquerade",
            f"{translated} snat to {ip} saddr",
        )
    if base.serves_node:
        chains |= {
            "dialling": (
                "type nat hook output priority -101; policy accept;",
                f"{ip} daddr {virtual} goto balance",
            ),
            "calling": (
                "type filter hook output priority -1; policy accept;",
                f"{ip} daddr {virtual} goto refuse",
            ),
        }
    return chains


def write_tables(names: KernelNames, base: ServiceTableBase, contents: ServiceTableContents) -> str:
    """All tables, replacing existing ones."""
    table = names.services_table
    text = write_removal(names, *base.families)
    for family in address_families(base.families):
        text += _write_base(names, base, contents, family)
    if base.has_bridge_family:
        text += f"""\
table bridge {table} {{
  set copies {{ type ipv4_addr; {_fill(", ".join(sorted(contents.local_copies)))} }}
  chain reroute {{
    ether daddr set {base.bridge_mac} meta pkttype set host
  }}
  chain arriving {{
    type filter hook prerouting priority dstnat; policy accept;
    iifname != "{names.link_prefix}*" accept
    meta pkttype != other accept
    ether type ip ip saddr @copies goto reroute
    ether type ip ip daddr @copies goto reroute
  }}
}}
"""
    for family in address_families(base.families):
        text += _write_services(f"{family.name} {table}", {}, contents.of(family))
    return text


def _write_base(
    names: KernelNames, base: ServiceTableBase, contents: ServiceTableContents, family: RuleFamily
) -> str:
    """The table of a family, without services."""
    kind = family.type
    chains = "".join(
        f"  chain {name} {{\n{''.join(f'    {line}{chr(10)}' for line in lines)}  }}\n"
        for name, lines in base_chains(names, base, family).items()
    )
    return f"""\
table {family.name} {names.services_table} {{
  map services {{ type {kind} : verdict; }}
  map service_ports {{ type {kind} . inet_proto . inet_service : verdict; }}
  set itself {{ type {kind} . {kind}; {_fill(_itself(contents.local_copies, family))} }}
{chains}}}
"""


def _itself(copies: Iterable[str], family: RuleFamily) -> str:
    addresses = [family.address(IPv4Address(copy)) for copy in sorted(copies)]
    return ", ".join(f"{each} . {each}" for each in addresses)


def write_changes(
    names: KernelNames,
    before: ServiceTableContents,
    after: ServiceTableContents,
    families: Sequence[str],
) -> str:
    """Commands that change tables with `before` to `after`; empty if they are equal."""
    table, present = names.services_table, address_families(families)
    text = "".join(
        _write_services(f"{family.name} {table}", before.of(family), after.of(family)) for family in present
    )
    for verb, copies in (
        ("delete", before.local_copies - after.local_copies),
        ("add", after.local_copies - before.local_copies),
    ):
        if copies:
            for family in present:
                text += f"{verb} element {family.name} {table} itself {{ {_itself(copies, family)} }}\n"
            if BRIDGE in families:
                text += f"{verb} element bridge {table} copies {{ {', '.join(sorted(copies))} }}\n"
    return text


def write_removal(names: KernelNames, *families: str) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return "".join(
        f"add table {family} {names.services_table}\ndelete table {family} {names.services_table}\n"
        for family in families
    )


def _write_services(
    table: str, before: Mapping[str, ServiceObjects], after: Mapping[str, ServiceObjects]
) -> str:
    """`table`: with its family."""
    changed = [
        (before.get(key, NO_OBJECTS), after.get(key, NO_OBJECTS))
        for key in {**before, **after}
        if before.get(key) is not after.get(key) and before.get(key) != after.get(key)
    ]
    # An order in which nothing is referred to before it exists, or deleted before it is referred to no more.
    steps: list[list[str]] = [[] for _ in range(8)]
    removal, new_sets, new_chains, emptying, rules, old_chains, old_sets, additions = steps
    removed: dict[str, list[str]] = {}
    added: dict[str, list[str]] = {}
    for old, new in changed:
        for (map_name, key), verdict in old.elements.items():
            if new.elements.get((map_name, key)) != verdict:
                removed.setdefault(map_name, []).append(key)
        for (map_name, key), verdict in new.elements.items():
            if old.elements.get((map_name, key)) != verdict:
                added.setdefault(map_name, []).append(f"{key} : {verdict}")
        new_sets += [
            f"add set {table} {name} {{ {new.sets[name]} }}" for name in _missing(new.sets, old.sets)
        ]
        old_sets += [f"delete set {table} {name}" for name in _missing(old.sets, new.sets)]
        new_chains += [f"add chain {table} {name}" for name in _missing(new.chains, old.chains)]
        for name in _missing(old.chains, new.chains):
            emptying.append(f"flush chain {table} {name}")
            old_chains.append(f"delete chain {table} {name}")
        for name, lines in new.chains.items():
            if old.chains.get(name) == lines:
                continue
            if name in old.chains:
                emptying.append(f"flush chain {table} {name}")
            rules += [f"add rule {table} {name} {line}" for line in lines]
    removal += [f"delete element {table} {name} {{ {', '.join(keys)} }}" for name, keys in removed.items()]
    additions += [f"add element {table} {name} {{ {', '.join(each)} }}" for name, each in added.items()]
    return "".join(f"{line}\n" for step in steps for line in step)


def _missing(names: Iterable[str], among: Mapping[str, object]) -> Sequence[str]:
    return [name for name in names if name not in among]


def _hex(address: str) -> str:
    return IPv4Address(address).packed.hex()


def _fill(elements: str) -> str:
    return f"elements = {{ {elements} }}" if elements else ""
