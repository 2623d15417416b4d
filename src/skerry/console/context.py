"""The context of the console's endpoints: what pages read, and how they are rendered.

Everything is what the API's own endpoints use, so a page shows what the API would answer. The daemon makes it
(`skerry.daemon.console`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from skerry.console.hub import ChangeHub
from skerry.console.network_map import NetworkMap
from skerry.console.rendering import Renderer
from skerry.console.statistics import CallStatistics
from skerry.console.usage_history import UsageHistory
from skerry.console.view_cache import ViewCache
from skerry.control.context import ControlPlane
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.jobs.registry import JobRegistry
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.routes.registry import RouteRegistry
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.control.secrets.registry import SecretRegistry
from skerry.control.services.registry import ServiceRegistry
from skerry.control.tls.registry import TlsRegistry
from skerry.control.volumes.registry import VolumeRegistry
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.functions.invocation.call_history import CallHistory
from skerry.functions.invocation.invoker import PoolStatus
from skerry.functions.registry.registry import FunctionRegistry
from skerry.functions.service import RegistryFunctionService
from skerry.market.buyer.quotes import BuyerPort
from skerry.market.provider.ledger.ledger import Ledger
from skerry.model.calls import CallReport, CallRequest
from skerry.model.cell_reports import CellReport
from skerry.model.ids import CloudId, Namespace
from skerry.model.routes import Route
from skerry.transport.http.endpoints import RequestContext, StreamResponse, WebSocketResponse
from skerry.transport.limits import ConcurrencyLimit, shared_limit

MAX_STREAMS = 1024
EVERYTHING = 1_000_000  # the limit of lists that are searched and sorted here, in memory

# The output of an instance or a function, as the API's own endpoint gives it: id or name, namespace, lines
# from the end.
ReadLogs = Callable[[RequestContext, str, Namespace | None, int], Awaitable[StreamResponse]]
# A shell in an instance, as the API's own endpoint runs programs: id, namespace, rows and columns.
OpenTerminal = Callable[
    [RequestContext, str, Namespace | None, tuple[int, int]], Awaitable[WebSocketResponse]
]


# The cells of a node, by its id, as the API's own endpoint lists them.
ListCells = Callable[[str], Awaitable[Sequence[CellReport]]]


class MarketView(msgspec.Struct, frozen=True):
    """Both sides of the market."""

    ledger: Ledger
    buyer: BuyerPort
    cloud: CloudId  # this one
    purchases: ConcurrencyLimit


class FunctionCallsView(msgspec.Struct, frozen=True):
    """Calls of functions on this server."""

    service: RegistryFunctionService
    invoke: Callable[[CallRequest], Awaitable[CallReport]]
    pool: Callable[[], PoolStatus]
    history: CallHistory
    read_logs: ReadLogs


class JobsView(msgspec.Struct, frozen=True):
    """Jobs, and the schedules that start them."""

    jobs: JobRegistry
    schedules: ScheduleRegistry


class IdentityView(msgspec.Struct, frozen=True):
    """What proves who somebody is, beside the tokens and certificates of `ControlPlane.identity`."""

    route_certificates: TlsRegistry
    invitation: Callable[[str], str]  # that a machine joins with, for the text of a node's token


class ConsoleContext(msgspec.Struct, frozen=True):
    """The first argument of every endpoint of the console."""

    plane: ControlPlane
    renderer: Renderer
    hub: ChangeHub
    streams: ConcurrencyLimit
    nodes: NodeRegistry
    instances: InstanceRegistry
    workloads: WorkloadRegistry
    services: ServiceRegistry
    functions: FunctionRegistry
    calls: CallStatistics
    history: UsageHistory
    function_calls: FunctionCallsView
    jobs: JobsView
    identity: IdentityView
    overviews: ViewCache[Any]
    market: MarketView
    read_logs: ReadLogs
    volumes: VolumeRegistry
    secrets: SecretRegistry
    routes: RouteRegistry
    problem_of_route: Callable[[Route], str]
    network_map: Callable[[], Awaitable[NetworkMap]]
    open_terminal: OpenTerminal
    list_cells: ListCells

    @staticmethod
    def stream_limit() -> ConcurrencyLimit:
        return shared_limit(MAX_STREAMS, "open pages of the console")
