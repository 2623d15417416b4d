"""Rules of network policies, as text for nft: parts of the tables that `port_rules` writes. Pure.

An isolated container (`Ingress.NAMESPACE`) accepts connections from nodes, and from containers of its own
namespace and of those that it allows. Addresses of containers on this node are known from their attachments,
those of other nodes from network objects (`CloudNetwork`); an address that is in neither is refused. Every
isolated namespace with a container here has a chain, and a set with the addresses that may connect, so that
containers that come and go change elements only. Egress is decided on the node of the container that
connects, ingress on that of the other. Every rule is written for IPv4 and IPv6 alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network

import msgspec

from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.node.network.rule_families import RuleFamily
from skerry.node.network.subnets import BridgeSubnets

Policies = Mapping[IPv4Address, NetworkPolicy]  # of containers on this node


class CloudNetwork(msgspec.Struct, frozen=True):
    """What a node knows of the network beyond itself."""

    subnets: tuple[IPv4Network, ...] = ()  # of other nodes, without overlaps
    services: frozenset[IPv4Address] = frozenset()  # virtual addresses
    allow_from: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)  # of isolated namespaces
    containers: Mapping[str, frozenset[IPv4Address]] = msgspec.field(
        default_factory=dict
    )  # of other nodes, by namespace


NO_CLOUD = CloudNetwork()


def isolated_namespaces(policies: Policies) -> tuple[str, ...]:
    """The namespaces that have chains and sets of their own in the table."""
    return tuple(sorted({each.namespace for each in policies.values() if each.ingress is Ingress.NAMESPACE}))


def admitted_sources(namespace: str, policies: Policies, cloud: CloudNetwork) -> list[IPv4Address]:
    """The containers that may connect to an isolated namespace."""
    admitted = {namespace, *cloud.allow_from.get(namespace, ())} - {""}
    found = {address for address, policy in policies.items() if policy.namespace in admitted}
    return sorted(found.union(*(cloud.containers.get(each, ()) for each in admitted)))


def rerouted(policies: Policies) -> list[IPv4Address]:
    """Containers whose packets to and from others on the bridge pass through the node, where rules apply."""
    return sorted(
        address
        for address, policy in policies.items()
        if policy.ingress is not Ingress.ALL or policy.egress is Egress.NONE
    )


def elements(policies: Policies, cloud: CloudNetwork, family: RuleFamily) -> dict[str, dict[str, str]]:
    """The elements of every set and map, by key."""
    isolated = [
        (family.address(address), policy.namespace)
        for address, policy in sorted(policies.items())
        if policy.ingress is Ingress.NAMESPACE
    ]
    addresses = family.address
    return {
        "internet_only": _keys(map(addresses, _of_egress(policies, Egress.INTERNET))),
        "mesh_only": _keys(map(addresses, _of_egress(policies, Egress.MESH))),
        "no_egress": _keys(map(addresses, _of_egress(policies, Egress.NONE))),
        "mesh_subnets": _keys(map(family.network, cloud.subnets)),
        "mesh_services": _keys(map(addresses, sorted(cloud.services))),
        "mesh_nodes": _keys(addresses(subnet.network_address + 1) for subnet in cloud.subnets),
        "isolated": {
            address: f"{address} : jump {_ingress_chain(namespace)}" for address, namespace in isolated
        },
        "isolated_replies": {
            address: f"{address} : jump {_reply_chain(namespace)}" for address, namespace in isolated
        },
        **{
            _source_set(namespace): _keys(map(addresses, admitted_sources(namespace, policies, cloud)))
            for namespace in isolated_namespaces(policies)
        },
    }


def write_sets(policies: Policies, cloud: CloudNetwork, family: RuleFamily) -> str:
    """The sets and maps, and the chains that they refer to."""
    contents = elements(policies, cloud, family)
    kinds = {
        **dict.fromkeys(contents, f"type {family.type}"),
        **dict.fromkeys(_INTERVALS, f"type {family.type}; flags interval"),
    }
    sets = "".join(
        f"  set {name} {{ {kinds[name]}; {_fill(values.values())} }}\n"
        for name, values in contents.items()
        if name not in _MAPS
    )
    chains = "".join(_write_chains(namespace, family) for namespace in isolated_namespaces(policies))
    maps = "".join(
        f"  map {name} {{ type {family.type} : verdict; {_fill(contents[name].values())} }}\n"
        for name in _MAPS
    )
    return sets + chains + maps


_MAPS = ("isolated", "isolated_replies")
_INTERVALS = ("mesh_subnets",)
# Their elements are not as simple as those of the others: intervals, and jumps to chains.
CHANGED_BY_NFT = frozenset((*_MAPS, *_INTERVALS))


def _write_chains(namespace: str, family: RuleFamily) -> str:
    # Packets that conntrack does not know have no direction, and so they are refused. What comes from outside
    # to a published port is accepted; a container of this cloud is not outside, whichever address it calls.
    sources, ip = _source_set(namespace), family.name
    return f"""\
  chain {_ingress_chain(namespace)} {{
    ct direction reply return
    ct state related meta l4proto {family.icmp} return
    {ip} saddr @{sources} return
    {ip} saddr @mesh_nodes return
    goto from_outside
  }}
  chain {_reply_chain(namespace)} {{
    {ip} daddr @{sources} return
    reject with tcp reset
    drop
  }}
"""


def write_from_outside(own_networks: str, family: RuleFamily) -> str:
    """The chain for packets to isolated containers that come from no container that may connect."""
    ip = family.name
    # A reset, since a client on the same machine misses an ICMP message that comes before `connect` waits.
    return f"""\
  chain from_outside {{
    {ip} saddr != {own_networks} {ip} saddr != @mesh_subnets ct status dnat \
ct original {ip} daddr != @mesh_services return
    reject with tcp reset
    reject with {family.icmp} type admin-prohibited
  }}
"""


def write_egress(dns: str, family: RuleFamily) -> str:
    """Rules of the chain for packets from containers, before those that are the same for all of them."""
    return f"""\
    {family.name} saddr @no_egress drop
    {dns} accept
    {family.name} saddr @mesh_only goto mesh_egress
"""


def write_internet_egress(family: RuleFamily) -> str:
    """Rules of the chain for packets from containers, before those for private networks: the mesh has private
    addresses, and those of its nodes are as closed as their others."""
    ip = family.name
    return f"""\
    {ip} saddr @internet_only {ip} daddr @mesh_nodes drop
    {ip} daddr @mesh_subnets accept
    {ip} daddr @mesh_services accept
"""


def write_mesh_egress(own_networks: str, family: RuleFamily) -> str:
    """The chain for what `Egress.MESH` may reach."""
    ip = family.name
    return f"""\
  chain mesh_egress {{
    {ip} daddr @mesh_nodes drop
    {ip} daddr {own_networks} accept
    {ip} daddr @mesh_subnets accept
    {ip} daddr @mesh_services accept
    drop
  }}
"""


def write_ingress(bridge: str, family: RuleFamily) -> str:
    """Rules of the chain for packets to containers."""
    ip = family.name
    # Connections that are older than an isolation end too. Those on the bridge may not have been tracked, and
    # then the first packet that the node sees of one may be a reply.
    picked_up = f"iifname {bridge} ct state new tcp flags & (fin | syn | rst | ack) != syn"
    return f"""\
    {ip} daddr vmap @isolated
    iifname {bridge} ct direction reply {ip} saddr vmap @isolated_replies
    {picked_up} {ip} saddr vmap @isolated_replies
    {picked_up} {ip} daddr @no_egress reject with tcp reset
"""


def own_networks_text(subnets: BridgeSubnets, family: RuleFamily) -> str:
    """The networks of this node's containers, as an operand."""
    networks = ", ".join(map(family.network, subnets.networks))
    return networks if len(subnets.networks) == 1 else f"{{ {networks} }}"


def _of_egress(policies: Policies, egress: Egress) -> list[IPv4Address]:
    return [address for address, policy in sorted(policies.items()) if policy.egress is egress]


def _source_set(namespace: str) -> str:
    return f"sources-{namespace}"


def _ingress_chain(namespace: str) -> str:
    return f"ingress-{namespace}"


def _reply_chain(namespace: str) -> str:
    return f"replies-{namespace}"


def _keys(elements: Iterable[str]) -> dict[str, str]:
    return {element: element for element in elements}


def _fill(elements: Iterable[str]) -> str:
    filled = ", ".join(elements)
    return f"elements = {{ {filled} }}" if filled else ""
