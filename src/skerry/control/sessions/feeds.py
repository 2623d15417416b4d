"""Sources of what nodes are told: protocols of other parts of the control plane, for node sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from skerry.control.instance_index import InstanceRecord
from skerry.control.instances.report_rules import ReportOutcome
from skerry.model.callers import RevokedCertificate
from skerry.model.functions import Function
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.node_messages import SecretRequest, SecretValue
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.volumes import VolumeOrder, VolumeReport
from skerry.model.workloads import Instance


class OrderSource(Protocol):
    """The part of `skerry.control.instances.registry.InstanceRegistry` that is needed here."""

    def orders(self, node: NodeId) -> Sequence[InstanceOrder]: ...

    def order(self, instance: Instance) -> InstanceOrder: ...

    async def sync(self) -> None: ...

    def listen(
        self, changed: Callable[[InstanceRecord | None, InstanceRecord | None], None]
    ) -> Callable[[], None]: ...

    async def reported(
        self, node: NodeId | None, reports: Sequence[InstanceReport]
    ) -> Sequence[ReportOutcome]: ...


class ServerAddressSource(Protocol):
    """The part of `skerry.control.cluster.servers.ServerDirectory` that is needed here."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


class MemberListSource(Protocol):
    """The part of `skerry.control.cluster.members.MemberDirectory` that is needed here."""

    @property
    def all(self) -> tuple[ContinuumMember, ...]: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


class FunctionDirectory(Protocol):
    """The functions that are registered, as `skerry.functions.registry.registry.FunctionRegistry` knows
    them."""

    def all(self) -> Sequence[Function]: ...

    async def sync(self) -> None: ...

    def listen(self, changed: Callable[[FunctionName, Function | None], None]) -> None:
        """Call `changed` whenever the function of this name is changed or deleted."""
        ...


class RevocationFeed(Protocol):
    """The part of `skerry.control.identity.authenticator.Authenticator` that is needed here."""

    def revoked(self) -> Sequence[RevokedCertificate]: ...

    def listen_revoked(self, callback: Callable[[Sequence[RevokedCertificate]], None]) -> None: ...

    async def import_revoked(self, revoked: Sequence[RevokedCertificate], *, actor: str) -> None: ...


class SecretSource(Protocol):
    """The part of `skerry.control.secrets.delivery.SecretDeliveries` that is needed here."""

    async def values(self, node: NodeId, request: SecretRequest) -> Sequence[SecretValue]: ...


class VolumeFeed(Protocol):
    """Volumes of nodes, as `skerry.control.volumes.orders.VolumeOrders` knows them."""

    def orders(self, node: NodeId) -> Sequence[VolumeOrder]: ...

    def as_sent(self, node: NodeId, order: VolumeOrder) -> VolumeOrder:
        """With its receipt."""
        ...

    async def sync(self) -> None: ...

    def listen(self, changed: Callable[[NodeId, VolumeOrder], None]) -> None:
        """Call `changed` whenever the order for a volume of a node changes."""
        ...

    async def reported(self, node: NodeId, reports: Sequence[VolumeReport]) -> None: ...


class NetworkFeed(Protocol):
    """Network objects of nodes, as `skerry.control.network.feed.NetworkObjects` knows them."""

    def objects(self, node: NodeId) -> Sequence[NetworkObject]:
        """All that the node needs to know now."""
        ...

    def listen(self, changed: Callable[[NodeId | None, NetworkKey, NetworkObject | None], None]) -> None:
        """Call `changed` whenever an object of one node, or of all (None), changes or is removed (None)."""
        ...

    async def ready(self) -> None:
        """Wait until there is something to tell nodes; unlike orders, objects may be those of a while ago."""
        ...

    async def reported(self, node: NodeId, objects: Sequence[NetworkObject]) -> None: ...


class SessionFeeds(NamedTuple):
    """What nodes get beside their orders; None: nothing of it."""

    servers: ServerAddressSource | None = None  # where else to go
    members: MemberListSource | None = None  # members, for members
    functions: FunctionDirectory | None = None  # likewise
    certificates: RevocationFeed | None = None  # that were revoked
    secrets: SecretSource | None = None  # values for what runs on them, on request
    volumes: VolumeFeed | None = None  # of the node, if it has the feature
    network: NetworkFeed | None = None  # likewise


NO_FEEDS = SessionFeeds()
