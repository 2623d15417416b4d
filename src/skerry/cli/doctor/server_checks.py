"""Checks of the server and its cloud: readiness, addresses, certificates, nodes, mesh, peers, store. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from skerry.cli.doctor.facts import AddressFacts, EndpointFacts, EtcdFacts, ServerFacts
from skerry.cli.doctor.findings import Finding, ok, problem, skipped, warning

_DAY_S: Final = 86400.0
_SOON_DAYS: Final = 3.0  # the server renews its certificate long before
_MOST: Final = 10  # of one kind, so many are listed


def check_server(facts: ServerFacts) -> list[Finding]:
    if facts.failure:
        return [
            problem("server", facts.failure, "skerry up, or 'skerry context use NAME' for another server")
        ]
    found: list[Finding] = []
    for name, result in (facts.checks or {}).items():
        if result != "ok":
            found.append(problem("server", f"{facts.url} is not ready: {name}: {result}", "skerry status"))
    about = facts.about
    if about is None:
        fix = "sudo skerry doctor, or give a --token"
        found.append(skipped("server", f"{facts.url} does not let you read its state", fix))
        return found
    if not found:
        found.append(
            ok("server", f"{facts.url} is ready: version {about['version']}, store {about['store']}")
        )
    found += [problem("server", text, "skerry get nodes") for text in about.get("unreachable", ())]
    found += [warning("server", f"unavailable there: {text}", "sudo skerry up") for text in about["lacking"]]
    found += [warning("server", text) for text in about["warnings"]]
    return found


def check_nodes(facts: ServerFacts) -> list[Finding]:
    if facts.nodes is None:
        return []
    if not facts.nodes:
        return [warning("nodes", "there is no node: nothing can run", "skerry token create --role node")]
    found = []
    for node in facts.nodes:
        name, pressure = node["name"], node["facts"]["disk_pressure"]
        if node["liveness"] == "lost":
            message = f"{name} is lost: {node['reason'] or 'no heartbeat'}"
            fix = f"start Skerry there; or, if it does not return: skerry node remove {name} --force"
            found.append(problem("nodes", message, fix))
        elif node["liveness"] != "live":
            found.append(
                warning("nodes", f"{name} is {node['liveness']}: no recent heartbeat", "skerry events -f")
            )
        if pressure:
            found.append(problem("nodes", f"{name}: {pressure}", f"free disk space on {name}"))
        enforcement = node["facts"].get("enforcement") or {}  # older servers and nodes have none
        reasons = (*enforcement.get("reasons", ()), *node["facts"]["warnings"])
        found += [warning("nodes", f"{name}: {text}") for text in reasons]
    live = sum(node["liveness"] == "live" for node in facts.nodes)
    all_live = [ok("nodes", f"all are live: {live}")] if live == len(facts.nodes) else []
    return [*all_live, *_shortened(found, "nodes")]


def check_mesh(facts: ServerFacts) -> list[Finding]:
    mesh = facts.mesh
    if mesh is None:
        return []
    if mesh["encryption"] == "none":
        return [ok("mesh", "there is none: mesh.encryption is none")]
    found = []
    for pair in mesh["pairs"]:
        ends = f"{pair['from']} and {pair['to']}"
        if pair["path"] == "none":
            fix = "open UDP between them, or have a public node relay: skerry mesh status"
            found.append(problem("mesh", f"{ends} do not reach each other", fix))
        elif pair["path"] == "trying":
            found.append(
                warning("mesh", f"whether {ends} reach each other is not known yet", "skerry mesh status")
            )
    found += [
        warning("mesh", f"{name} is not in the mesh", f"skerry describe node {name}")
        for name in mesh["absent"]
    ]
    pairs = len(mesh["pairs"])
    return _shortened(found, "mesh") or [ok("mesh", f"every pair of nodes is connected: {pairs}")]


def check_peers(facts: ServerFacts) -> list[Finding]:
    found = []
    for peer in facts.peers or ():
        if peer["is_reached"] is False:
            fix = (
                f"skerry market peers add {peer['name']} URL --cloud {peer['cloud']}, if its address changed"
            )
            found.append(warning("market", f"{peer['name']} ({peer['url']}): {peer['message']}", fix))
        elif peer["is_reached"]:
            found.append(ok("market", f"{peer['name']} ({peer['url']}) answers"))
        else:
            found.append(skipped("market", f"{peer['name']} ({peer['url']}) has not been tried yet"))
    return found


def check_routes(facts: ServerFacts, *, has_haproxy: bool) -> list[Finding]:
    routes = facts.routes
    if not routes:
        return []
    found = [
        problem(
            "routes",
            f"{route['host']}{route['path']}: {route['problem']}",
            f"skerry route describe {route['name']}",
        )
        for route in routes
        if route["problem"]
    ]
    if not has_haproxy:
        message = "there are routes, and HAProxy is not installed: this machine serves none"
        found.append(warning("routes", message, "apt-get install haproxy"))
    return _shortened(found, "routes") or [ok("routes", f"all have a target that answers: {len(routes)}")]


def check_addresses(facts: AddressFacts) -> list[Finding]:
    """Names, addresses and certificates, as other machines see them."""
    if facts.is_loopback:
        message = "only this machine can reach the server, which listens on loopback"
        return [ok("addresses", f"{message}; for others: skerry up --http 0.0.0.0:1323 --tls")]
    # Other machines try all of them, so that one is enough.
    unreached = warning if any(not each.failure for each in facts.endpoints) else problem
    found: list[Finding] = []
    for endpoint in facts.endpoints:
        if endpoint.failure:
            fix = "open the port in the firewall, or listen on one address: skerry up --http ADDRESS:PORT"
            if endpoint.is_unknown_name:
                fix = f"add {endpoint.host} to DNS or /etc/hosts, or take it out of the setting http.names"
            found.append(
                unreached("addresses", f"{endpoint.address} cannot be reached: {endpoint.failure}", fix)
            )
        else:
            found += _check_endpoint(endpoint, facts.now)
    return found


def _check_endpoint(endpoint: EndpointFacts, now: float) -> list[Finding]:
    address = endpoint.address
    if not endpoint.uses_tls:
        message = f"{address} is served without TLS: tokens pass in the clear"
        return [warning("addresses", message, "skerry up --tls")]
    if endpoint.tls_failure:
        message = f"the certificate at {address} is not valid: {endpoint.tls_failure}"
        return [
            problem(
                "addresses", message, "give the CA of the server with --ca: pki/ca.crt in its data folder"
            )
        ]
    found = []
    if not covers(endpoint.names, endpoint.host):
        fix = f"restart the server with --set http.names={endpoint.host}"
        message = f"the certificate does not contain {endpoint.host}: other machines refuse {address}"
        found.append(problem("addresses", message, fix))
    days = None if endpoint.not_after is None else (endpoint.not_after - now) / _DAY_S
    if days is not None and days < 0:
        found.append(problem("addresses", f"the certificate at {address} has expired", "restart the server"))
    elif days is not None and days < _SOON_DAYS:
        message = f"the certificate at {address} expires in {days:.1f} days and was not renewed"
        found.append(
            warning("addresses", message, "look for certificate.not_renewed in the log of the server")
        )
    left = "" if days is None else f", {days:.0f} days left"
    return found or [ok("addresses", f"{address} is reached, and its certificate is valid for it{left}")]


def covers(names: Sequence[str], host: str) -> bool:
    """Whether a certificate with `names` (DNS names and addresses) is valid for `host`."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        wanted = host.lower().rstrip(".")
        parent = wanted.partition(".")[2]
        return any(name.lower() in (wanted, f"*.{parent}") for name in names)
    return any(address == _address(name) for name in names)


def _address(name: str) -> object:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def check_store(facts: ServerFacts, endpoints: Sequence[EtcdFacts]) -> list[Finding]:
    """Of a server that says that its store is etcd, without the settings that name its endpoints."""
    if endpoints or facts.about is None or facts.about["store"] != "etcd":
        return []
    message = "the server has its store in etcd, whose endpoints are not known here"
    return [skipped("store", message, "skerry doctor --set store.url=etcd://HOST:PORT, or --config FILE")]


def check_etcd(endpoints: Sequence[EtcdFacts]) -> list[Finding]:
    found = []
    bad = [one for one in endpoints if one.failure]
    for one in bad:
        # A majority suffices.
        judge = problem if len(bad) * 2 > len(endpoints) else warning
        found.append(
            judge(
                "store",
                f"etcd at {one.endpoint}: {one.failure}",
                f"systemctl start etcd, there; etcdctl --endpoints {one.endpoint} alarm list",
            )
        )
    found += [ok("store", f"etcd at {one.endpoint} is healthy") for one in endpoints if not one.failure]
    return found


def _shortened(found: list[Finding], area: str) -> list[Finding]:
    more = len(found) - _MOST
    return found if more <= 0 else [*found[:_MOST], warning(area, f"and {more} more findings like these")]
