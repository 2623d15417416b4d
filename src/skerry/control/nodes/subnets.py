"""The subnets of nodes: a /24 each out of one pool, a node's own for as long as it is registered.

`SubnetPool` chooses, in memory; `SubnetAllocator` keeps it in line with the store, where
`subnet/10.64.3.0-24` names the node that has it. A node that leaves keeps its subnet for a while, under a
lease: if it comes back, its containers' addresses are unchanged; otherwise caches have expired before another
node gets them. A **former** subnet, which a node had before its present one, is kept back for as long as
containers have addresses of it. `skerry.control.nodes.registry` writes the records, in the transaction that
registers the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network

import msgspec

from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.store.protocol import NO_LEASE, Delete, Expect, LeaseId, Put, Store
from skerry.store.tables.table import Record, RecordChange, Table, json_of

PREFIX = "subnet/"
_EACH = 24
_TIGHTEST = 30  # of a node that brings its own
_WIDEST, _NARROWEST = 8, 23


class SubnetRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which node has a subnet, or had it before; with a lease, for a while."""

    node: NodeId
    is_former: bool = False


class SubnetPool:
    """Which subnets are free. `start` is any number: clouds on one network begin in different places."""

    def __init__(self, text: str, start: int) -> None:
        try:
            self._network = IPv4Network(text)
        except ValueError as error:
            raise errors.Invalid(
                f"fleet.subnets is no IPv4 network: {error}; write one such as 10.64.0.0/10",
                field="fleet.subnets",
            ) from None
        if not _WIDEST <= self._network.prefixlen <= _NARROWEST:
            raise errors.Invalid(
                f"fleet.subnets must be a /{_WIDEST} to a /{_NARROWEST}, not a /{self._network.prefixlen}",
                field="fleet.subnets",
            )
        self._size = 1 << _EACH - self._network.prefixlen
        self._start = start % self._size
        self._taken: set[int] = set()  # places, counted from the start
        self._next = 0  # all places before this one are taken

    def is_free(self, subnet: str) -> bool:
        """True if `subnet` is in the pool and not allocated."""
        position = self._position(subnet)
        return position is not None and position not in self._taken

    def choose(self, occupied: Sequence[IPv4Network] = ()) -> str:
        """The first that is free and overlaps none of `occupied`; raises `ResourcesExhausted` if none is."""
        while self._next in self._taken:
            self._next += 1
        for position in range(self._next, self._size):
            if position not in self._taken and not _overlaps(network := self._at(position), occupied):
                return str(network)
        if self._next < self._size:
            raise errors.ResourcesExhausted(
                f"every free subnet of {self._network} overlaps a network that the node reaches already; "
                "set fleet.subnets to another network"
            )
        raise errors.ResourcesExhausted(
            f"all {self._size} subnets of {self._network} are taken; unregister nodes that are gone, "
            "or set fleet.subnets to a wider network"
        )

    def _at(self, position: int) -> IPv4Network:
        number = (self._start + position) % self._size
        return IPv4Network((self._network.network_address + (number << 32 - _EACH), _EACH))

    def overlaps(self, network: IPv4Network) -> bool:
        return network.overlaps(self._network)

    def take(self, subnet: str) -> None:
        """It is allocated now; a subnet outside of the pool, as after a change of the setting, is ignored."""
        if (position := self._position(subnet)) is not None:
            self._taken.add(position)

    def free(self, subnet: str) -> None:
        if (position := self._position(subnet)) is not None:
            self._taken.discard(position)
            self._next = min(self._next, position)

    def _position(self, subnet: str) -> int | None:
        network = _network(subnet)
        if network is None or network.prefixlen != _EACH or not network.subnet_of(self._network):
            return None
        number = int(network.network_address) - int(self._network.network_address) >> 32 - _EACH
        return (number - self._start) % self._size


class SubnetAllocator:
    """The allocation of subnets, as in the store."""

    def __init__(self, store: Store, pool: str, fingerprint: str) -> None:
        self._pool = SubnetPool(pool, int(fingerprint[:8], 16))
        self._of: dict[NodeId, str] = {}
        self._former: dict[NodeId, dict[str, Record[SubnetRecord]]] = {}
        self.table = Table(store, PREFIX, json_of(SubnetRecord))
        self.table.subscribe(self._records_changed)

    def of(self, node: NodeId) -> str | None:
        """The subnet that the node has, or had until a moment ago."""
        return self._of.get(node)

    def former_of(self, node: NodeId) -> Mapping[str, Record[SubnetRecord]]:
        """Subnets that the node had before, and that are kept back."""
        return dict(self._former.get(node, {}))

    def put(self, subnet: str, node: NodeId, lease: LeaseId = NO_LEASE, *, is_former: bool = False) -> Put:
        """The record that `node` has it, or had it before; with a lease, until that ends."""
        return self.table.put(_id_of(subnet), SubnetRecord(node, is_former), lease)

    def delete(self, subnet: str) -> Delete:
        return self.table.delete(_id_of(subnet))

    def expect(self, subnet: str) -> Expect:
        """The expectation that its record is as known here."""
        return self.table.expect(_id_of(subnet), self.table.get(_id_of(subnet)))

    def claim(self, node: NodeId, present: str, proposal: str, occupied: Sequence[str] = ()) -> str:
        """The subnet of a node that has `present`, none if that is empty, and would like `proposal`, which it
        gets if that is free, or was its own before.

        One that overlaps `occupied`, which the machine uses otherwise, cannot be used. The result is not
        given to another node here until it is released. A node with a subnet in its own settings may have one
        outside of the pool.
        """
        networks = [network for network in map(_network, occupied) if network is not None]
        is_free = proposal in self._former.get(node, {}) or self._is_free(proposal)
        if proposal != present and is_free and not _overlaps(_network(proposal), networks):
            subnet = proposal
        elif present and not _overlaps(_network(present), networks):
            return present
        else:
            subnet = self._pool.choose(networks)
        self._pool.take(subnet)
        return subnet

    def _is_free(self, proposal: str) -> bool:
        return self._pool.is_free(proposal) or self._is_outside_pool(proposal)

    def _is_outside_pool(self, proposal: str) -> bool:
        network = _network(proposal)
        if network is None or not _WIDEST <= network.prefixlen <= _TIGHTEST or not network.is_private:
            return False
        taken = (_network(_subnet_of(id)) for id, _ in self.table.items())
        return not self._pool.overlaps(network) and not _overlaps(network, filter(None, taken))

    def release(self, subnet: str) -> None:
        """The claim is over: what was not written is free again."""
        if self.table.get(_id_of(subnet)) is None:
            self._pool.free(subnet)

    def _records_changed(self, changes: Sequence[RecordChange[SubnetRecord]]) -> None:
        for id, before, after in changes:
            subnet = _subnet_of(id)
            if before is not None:
                self._forget(subnet, before.value)
            if after is None:
                self._pool.free(subnet)
                continue
            self._pool.take(subnet)
            if after.value.is_former:
                self._former.setdefault(after.value.node, {})[subnet] = after
            else:
                self._of[after.value.node] = subnet

    def _forget(self, subnet: str, record: SubnetRecord) -> None:
        if not record.is_former:
            if self._of.get(record.node) == subnet:
                del self._of[record.node]
            return
        others = self._former[record.node]
        del others[subnet]
        if not others:
            del self._former[record.node]


def _overlaps(network: IPv4Network | None, others: Iterable[IPv4Network]) -> bool:
    return network is not None and any(network.overlaps(each) for each in others)


def _network(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text)
    except ValueError:
        return None


def _id_of(subnet: str) -> str:
    return subnet.replace("/", "-")


def _subnet_of(id: str) -> str:
    return id.replace("-", "/")
