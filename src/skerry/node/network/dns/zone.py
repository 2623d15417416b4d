"""The names of this cloud, from network objects. Pure: objects in, answers out.

    web.shop.skerry                    the service `web` of the namespace `shop`, else that instance
    0.web.shop.skerry                  its copy with the index 0
    web.instances.shop.skerry          all of its ready copies
    ID.instances.shop.skerry           one instance by its id
    _http._tcp.web.shop.skerry         SRV: its ready copies, with the port called `http`
    hello.fn.shop.skerry               the function `hello`, at the node that is asked
    3.0.64.10.in-addr.arpa             PTR: which of them has an address; likewise in ip6.arpa

`skerry.node.network.dns.resolver` asks; `skerry.node.network.dns.messages` writes answers down.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Final, NamedTuple

from skerry.model.ids import Namespace
from skerry.model.ipv6_addresses import CLOUD_PREFIX
from skerry.model.network_objects import (
    EndpointState,
    InstanceAddress,
    NetworkKey,
    NetworkObject,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
)
from skerry.node.network.dns.views import ALL_NAMES, NameView

INSTANCES: Final = "instances"
FUNCTIONS: Final = "fn"
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_REVERSE_4: Final = ".in-addr.arpa"
_REVERSE_6: Final = ".ip6.arpa"
_STATES: Final = {EndpointState.READY: 0, EndpointState.NOT_READY: 1, EndpointState.DRAINING: 2}


class RecordType(enum.IntEnum):
    """Those that this zone has."""

    NONE = 0  # of a name that exists without records
    A = 1
    NS = 2
    SOA = 6
    PTR = 12
    AAAA = 28
    SRV = 33


ANY: Final = 255


class SrvTarget(NamedTuple):
    """The value of an SRV record."""

    port: int
    name: str


class Record(NamedTuple):
    """A record; `value` is an address, a name, or a target."""

    name: str  # without the final dot
    type: RecordType
    value: str | SrvTarget


class LookupStatus(enum.Enum):
    FOUND = "found"  # the name exists, with or without records of the type
    UNKNOWN = "unknown"  # the name would be in this zone and is not
    OUTSIDE = "outside"  # of no concern to this zone


class ZoneAnswer(NamedTuple):
    """The outcome of a lookup."""

    status: LookupStatus
    records: tuple[Record, ...] = ()
    extra: tuple[Record, ...] = ()  # addresses of SRV targets
    is_volatile: bool = False  # it may change without a change of the zone


class _Entry(NamedTuple):
    """One record of one object. Of all entries of a name, those of the lowest rank count."""

    rank: int
    type: RecordType
    value: str | SrvTarget
    namespace: Namespace


_OUTSIDE = ZoneAnswer(LookupStatus.OUTSIDE)
_UNKNOWN = ZoneAnswer(LookupStatus.UNKNOWN)
_NO_DATA = ZoneAnswer(LookupStatus.FOUND)
_Entries = dict[str, list[_Entry]]  # by name, without the domain


class Zone:
    """All names under `domain`, and the reverse names of this cloud's addresses."""

    def __init__(
        self,
        domain: str,
        ranges: Iterable[IPv4Network] = (),
        has_function: Callable[[Namespace, str], bool] = lambda namespace, name: False,
    ) -> None:
        """`ranges`: networks of this cloud; addresses in them have no other names."""
        self.domain = domain
        self.version = 0  # goes up with every change
        self.has_function = has_function
        self._suffix = f".{domain}"
        self._fixed_ranges = tuple(ranges)
        self._ranges: tuple[IPv4Network, ...] = self._fixed_ranges
        self._objects: dict[NetworkKey, NetworkObject] = {}
        self._entries: dict[str, dict[NetworkKey, list[_Entry]]] = {}
        self._parents: dict[str, int] = {}  # how many names are below a name
        self._by_address: dict[str, dict[NetworkKey, _Entry]] = {}

    def replace(self, kind: type[NetworkObject], objects: Mapping[str, NetworkObject]) -> None:
        """These are all objects of a kind from now on. Only those that changed are indexed again."""
        before = {key: value for key, value in self._objects.items() if key.kind == kind.kind}
        after = {NetworkKey(kind.kind, key): value for key, value in objects.items()}
        for key, old in before.items():
            if after.get(key) is not old:
                self._remove(key, old)
                del self._objects[key]
        for key, new in after.items():
            if before.get(key) is not new:
                self._objects[key] = new
                self._add(key, new)
        if kind is NodeLocation:
            self._ranges = (*self._fixed_ranges, *_node_ranges(after.values()))
        self.version += 1

    def namespace_of(self, address: str) -> Namespace | None:
        """The namespace of the instance with an address; None if it is none of the known ones."""
        entries = self._by_address.get(address)
        return min(entries.values()).namespace if entries else None

    def lookup(self, name: str, type: int, view: NameView = ALL_NAMES, here: str = "") -> ZoneAnswer:
        """The answer to a question. `name` is in lower case and without the final dot, `here` the address of
        the node that is asked."""
        if name.endswith(self._suffix):
            return self._lookup_inside(name.removesuffix(self._suffix), type, view, here)
        if name == self.domain:
            return self._apex(type)
        if name.endswith((_REVERSE_4, _REVERSE_6)):
            return self._lookup_reverse(name, type, view)
        return _OUTSIDE

    def _apex(self, type: int) -> ZoneAnswer:
        records = [
            Record(self.domain, each, f"ns.{self.domain}")
            for each in (RecordType.SOA, RecordType.NS)
            if type in (each, ANY)
        ]
        return ZoneAnswer(LookupStatus.FOUND, tuple(records))

    def _lookup_inside(self, name: str, type: int, view: NameView, here: str) -> ZoneAnswer:
        if name == "ns":  # this server, as in the records of the domain
            return self._at(name, type, [here])
        if self._may_be_function(name):
            return self._lookup_function(name, type, view, here)
        entries = self._visible(name, view)
        if entries is None:
            return _UNKNOWN if self._is_hidden_parent(name, view) else _NO_DATA
        lowest = min((each.rank for each in entries), default=0)
        chosen = [each for each in entries if each.rank == lowest]
        records = tuple(
            Record(f"{name}{self._suffix}", each.type, each.value)
            for each in dict.fromkeys(chosen)
            if each.type is not RecordType.NONE and type in (each.type, ANY)
        )
        return ZoneAnswer(LookupStatus.FOUND, records, tuple(self._extra(records, view)))

    def _visible(self, name: str, view: NameView) -> list[_Entry] | None:
        """The entries of a name; None if there is no such name for this client."""
        by_object = self._entries.get(name)
        if by_object is None:
            return None
        if view is not ALL_NAMES and not view.sees(_namespace_in(name)):
            return None
        return [entry for some in by_object.values() for entry in some]

    def _is_hidden_parent(self, name: str, view: NameView) -> bool:
        """True unless there are names below `name` that the client may see."""
        return name not in self._parents or (view is not ALL_NAMES and not view.sees(_namespace_in(name)))

    def _extra(self, records: Iterable[Record], view: NameView) -> Iterator[Record]:
        for record in records:
            if isinstance(record.value, SrvTarget):
                for type in (RecordType.A, RecordType.AAAA):
                    target = record.value.name.removesuffix(self._suffix)
                    yield from self._lookup_inside(target, type, view, "").records

    def _at(self, name: str, type: int, addresses: Iterable[str]) -> ZoneAnswer:
        records = [
            Record(f"{name}{self._suffix}", RecordType.A, address)
            for address in addresses
            if address and type in (RecordType.A, ANY)
        ]
        return ZoneAnswer(LookupStatus.FOUND, tuple(records), is_volatile=True)

    def _may_be_function(self, name: str) -> bool:
        labels = name.split(".")
        return (len(labels) == 3 and labels[1] == FUNCTIONS) or (len(labels) == 2 and labels[0] == FUNCTIONS)

    def _lookup_function(self, name: str, type: int, view: NameView, here: str) -> ZoneAnswer:
        """Calls of functions are served by every node, so its own address is the nearest."""
        *first, _, namespace = name.split(".")
        if not first:
            return _NO_DATA
        if view.sees(Namespace(namespace)) and self.has_function(Namespace(namespace), first[0]):
            return self._at(name, type, [here])
        return _UNKNOWN._replace(is_volatile=True)

    def _lookup_reverse(self, name: str, type: int, view: NameView) -> ZoneAnswer:
        address = _reverse_address(name)
        if address is None:
            return _OUTSIDE
        if by_object := self._by_address.get(str(address)):
            entries = sorted(each for each in by_object.values() if view.sees(each.namespace))
            if not entries:
                return _UNKNOWN
            has_records = type in (RecordType.PTR, ANY)
            records = (
                [Record(name, RecordType.PTR, f"{entries[0].value}{self._suffix}")] if has_records else []
            )
            return ZoneAnswer(LookupStatus.FOUND, tuple(records))
        is_own = (
            any(address in each for each in self._ranges)
            if isinstance(address, IPv4Address)
            else (address in CLOUD_PREFIX)
        )
        return _UNKNOWN if is_own else _OUTSIDE

    def _add(self, key: NetworkKey, value: NetworkObject) -> None:
        for name, entries in entries_of(value, self.domain).items():
            by_object = self._entries.get(name)
            if by_object is None:
                by_object = self._entries[name] = {}
                for parent in _parents(name):
                    self._parents[parent] = self._parents.get(parent, 0) + 1
            by_object[key] = entries
        for address, entry in addresses_of(value):
            self._by_address.setdefault(address, {})[key] = entry

    def _remove(self, key: NetworkKey, value: NetworkObject) -> None:
        for name in entries_of(value, self.domain):
            by_object = self._entries[name]
            del by_object[key]
            if not by_object:
                del self._entries[name]
                for parent in _parents(name):
                    self._parents[parent] -= 1
                    if not self._parents[parent]:
                        del self._parents[parent]
        for address, _ in addresses_of(value):
            by_address = self._by_address[address]
            by_address.pop(key, None)
            if not by_address:
                del self._by_address[address]


def entries_of(value: NetworkObject, domain: str) -> _Entries:
    """The names of an object."""
    if isinstance(value, ServiceAddress):
        return _of_service(value, domain)
    if isinstance(value, InstanceAddress):
        found: _Entries = {}
        _add_instance(found, value.endpoint, value.namespace)
        return found
    return {}


def _of_service(service: ServiceAddress, domain: str) -> _Entries:
    found: _Entries = {}
    namespace = service.namespace
    ready = [each for each in service.endpoints if each.state is EndpointState.READY]
    for endpoint in service.endpoints:
        _add_instance(found, endpoint, namespace)
    if (name := _label(service.name)) is None:
        return found
    copies = [entry for each in ready for entry in _addresses(each.address, each.address6, 0, namespace)]
    own = _addresses(service.address, service.address6, 0, namespace)
    marker = _Entry(
        0, RecordType.NONE, "", namespace
    )  # it hides an instance of its name, also without copies
    found.setdefault(f"{name}.{namespace}", []).extend(own or copies or [marker])
    found.setdefault(f"{name}.{INSTANCES}.{namespace}", []).extend(copies or [marker])
    for endpoint in service.endpoints:
        if endpoint.index is not None:
            rank = _STATES[endpoint.state]
            found.setdefault(f"{endpoint.index}.{name}.{namespace}", []).extend(
                _addresses(endpoint.address, endpoint.address6, rank, namespace)
            )
    for port in service.ports:
        if (label := _label(port.name)) is not None:
            found.setdefault(f"_{label}._{port.protocol}.{name}.{namespace}", []).extend(
                _Entry(
                    0,
                    RecordType.SRV,
                    SrvTarget(port.target_port, f"{_copy_name(each, name, namespace)}.{domain}"),
                    namespace,
                )
                for each in ready
                if each.address or each.address6
            )
    return found


def _add_instance(found: _Entries, endpoint: ServiceEndpoint, namespace: Namespace) -> None:
    """By its id, and by the name that people gave it, which a service may have, too."""
    if (id := _label(endpoint.instance)) is not None:
        found.setdefault(f"{id}.{INSTANCES}.{namespace}", []).extend(
            _addresses(endpoint.address, endpoint.address6, 0, namespace)
        )
    if (name := _label(endpoint.name)) is not None:
        rank = 1 + _STATES[endpoint.state]
        own = _addresses(endpoint.address, endpoint.address6, rank, namespace)
        found.setdefault(f"{name}.{namespace}", []).extend(own)
        found.setdefault(f"{name}.{INSTANCES}.{namespace}", []).extend(own)


def _addresses(address: str, address6: str, rank: int, namespace: Namespace) -> list[_Entry]:
    entries = []
    if _is_address(address, IPv4Address):
        entries.append(_Entry(rank, RecordType.A, address, namespace))
    if _is_address(address6, IPv6Address):
        entries.append(_Entry(rank, RecordType.AAAA, address6, namespace))
    return entries


def addresses_of(value: NetworkObject) -> Iterator[tuple[str, _Entry]]:
    """The addresses of an object, each with an entry whose value is its name, without the domain."""
    if isinstance(value, InstanceAddress):
        yield from _reverse_entries(value.endpoint, _instance_name(value.endpoint, value.namespace), value)
    if isinstance(value, ServiceAddress):
        service = _label(value.name)
        for endpoint in value.endpoints:
            name = (
                _instance_name(endpoint, value.namespace)
                if service is None
                else _copy_name(endpoint, service, value.namespace)
            )
            yield from _reverse_entries(endpoint, name, value)
        if service is not None:
            for address in (value.address, value.address6):
                if address:
                    yield (
                        address,
                        _Entry(0, RecordType.PTR, f"{service}.{value.namespace}", value.namespace),
                    )


def _reverse_entries(
    endpoint: ServiceEndpoint, name: str | None, owner: InstanceAddress | ServiceAddress
) -> Iterator[tuple[str, _Entry]]:
    for address in (endpoint.address, endpoint.address6):
        if address and name is not None:
            yield address, _Entry(1 + _STATES[endpoint.state], RecordType.PTR, name, owner.namespace)


def _copy_name(endpoint: ServiceEndpoint, service: str, namespace: Namespace) -> str:
    """The name of a copy, without the domain."""
    if endpoint.index is not None:
        return f"{endpoint.index}.{service}.{namespace}"
    return f"{_label(endpoint.instance) or endpoint.instance}.{INSTANCES}.{namespace}"


def _instance_name(endpoint: ServiceEndpoint, namespace: Namespace) -> str | None:
    if (name := _label(endpoint.name)) is not None:
        return f"{name}.{namespace}"
    id = _label(endpoint.instance)
    return None if id is None else f"{id}.{INSTANCES}.{namespace}"


def _label(text: str) -> str | None:
    """`text` as a part of a name; None if it cannot be one."""
    lower = text.lower()
    return lower if _LABEL.fullmatch(lower) else None


def _is_address(text: str, kind: type[IPv4Address] | type[IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _namespace_in(name: str) -> Namespace:
    return Namespace(name.rpartition(".")[2])


def _node_ranges(locations: Iterable[NetworkObject]) -> Iterator[IPv4Network]:
    for location in locations:
        for subnet in location.subnets if isinstance(location, NodeLocation) else ():
            try:
                yield IPv4Network(subnet)
            except ValueError:
                continue


def _reverse_address(name: str) -> IPv4Address | IPv6Address | None:
    """The address that a reverse name is for; None if it is for no single one."""
    if name.endswith(_REVERSE_4):
        labels: Sequence[str] = name.removesuffix(_REVERSE_4).split(".")
        text = ".".join(reversed(labels)) if len(labels) == 4 else ""
    else:
        digits = name.removesuffix(_REVERSE_6).split(".")[::-1]
        is_whole = len(digits) == 32 and all(len(each) == 1 for each in digits)
        text = ":".join("".join(digits[at : at + 4]) for at in range(0, 32, 4)) if is_whole else ""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def search_domains(namespace: str, domain: str) -> tuple[str, ...]:
    """Those of a container in a namespace; empty: in none."""
    return (f"{namespace}.{domain}", domain) if namespace else (domain,)
