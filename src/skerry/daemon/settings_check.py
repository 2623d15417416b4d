"""Settings that can be checked without the store: all of them, before anything is written.

A process that takes over stamps the store and its data folder, and from then on the former one of an earlier
version cannot continue. What is wrong with its settings is therefore raised before, while the former serves.
"""

from __future__ import annotations

from skerry.daemon import log_forwarding, node_agent, node_http, node_runtime
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.enforcement import Isolation
from skerry.model.settings import Settings
from skerry.node.network.mesh import mesh
from skerry.transport import addresses, unix_sockets
from skerry.transport.access import peers
from skerry.transport.trace_export import exporter


def check(role: str, settings: Settings, clock: Clock) -> None:
    """Raise `Invalid` for a setting with which `role` (up, server, node) could not start."""
    log_forwarding.check_targets(settings.log)
    if settings.traces.endpoint:
        exporter.check_endpoint(settings.traces)
    unix_sockets.permissions_of(settings.grpc)
    if settings.node.isolation == Isolation.NONE:
        _check_without_isolation(role, settings)
    if role != "node":
        _check_server(settings, clock)
    if role != "server":
        node_agent.parse_labels(settings.node.labels)
        node_runtime.check_cell_paths(settings.node.cell_paths)
        mesh.configured_endpoints(settings.mesh.endpoints)
    if role == "node":
        node_http.check_settings(settings.node)


def _check_without_isolation(role: str, settings: Settings) -> None:
    """What runs is as good as this user: nobody else may bring anything to run."""
    if role != "up":
        raise errors.Invalid(
            "node.isolation: none is for 'skerry up' alone, to try things out; a server, and a node of a "
            "cloud, run what others send"
        )
    if addresses.is_exposed(settings):
        raise errors.Invalid(
            "node.isolation: none listens on loopback only (--http, --grpc, market.plain_listen): who "
            "reaches Skerry can do what its user can"
        )
    if settings.functions.neighbours not in ("", "auto"):  # which is where gRPC listens
        host, _ = addresses.split_host_port(settings.functions.neighbours, "functions.neighbours")
        if not peers.is_loopback(host):
            raise errors.Invalid(
                "node.isolation: none takes no calls of other members; leave functions.neighbours as it is"
            )
    if settings.market.sell_percent or settings.market.plain_listen:
        raise errors.Invalid("node.isolation: none sells nothing on the market: what is bought runs here")


def _check_server(settings: Settings, clock: Clock) -> None:
    # A node has none of these.
    from skerry.control.backup import schedule
    from skerry.control.identity import edge_names
    from skerry.control.network.service_subnet import ServiceAddressPool
    from skerry.control.nodes.subnets import SubnetPool
    from skerry.market import plain
    from skerry.market.provider import node_offers

    schedule.check_settings(settings.backup, clock.now())
    addresses.check_names(settings.http.names)
    edge_names.parse_allowed(settings.identity.edge_names)
    SubnetPool(settings.fleet.subnets, 0)
    ServiceAddressPool(settings.fleet.service_subnet, settings.fleet.subnets)
    if settings.market.plain_listen:
        plain.networks_of(settings.market)
    if settings.market.sell_percent:
        node_offers.price_of(settings.market)
