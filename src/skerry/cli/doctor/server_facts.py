"""Gathers facts from the server, from the addresses that it advertises, from etcd and from peers.

Every connection has a timeout; what does not answer is a fact, not an error.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import socket
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from skerry.cli.doctor import gathering, machine_facts
from skerry.cli.doctor.facts import AddressFacts, ClockOffset, EndpointFacts, EtcdFacts, ServerFacts
from skerry.client import discovery
from skerry.client.api import ApiClient
from skerry.client.errors import ApiError, ClientError

if TYPE_CHECKING:
    from skerry.client.discovery import ServerTarget, TargetOptions
    from skerry.model.settings import Settings

TIMEOUT_S: Final = 2.0
_WITHIN_S: Final = 4.0  # for several connections at once, names included
_MOST_ENDPOINTS: Final = 8
_PAGE: Final = "1000"


def server(target: ServerTarget) -> ServerFacts:
    """What the server says of itself and of its cloud."""
    api = ApiClient(target, timeout_s=TIMEOUT_S)
    try:
        _, ready = api.get_with_status("readyz")
    except ClientError as error:
        return ServerFacts(target.url, error.message)
    checks = ready.get("checks", {}) if isinstance(ready, dict) else {}
    answers = {
        "about": partial(_read, api, "about"),
        "nodes": partial(_read, api, "node", limit=_PAGE),
        "mesh": partial(_read, api, "mesh"),
        "peers": partial(_read, api, "market", "peers"),
        "routes": partial(_read, api, "route", limit=_PAGE, namespace="*"),
    }
    found = gathering.gather(answers, _WITHIN_S).facts
    lists = {name: (found.get(name) or {}).get(name) for name in ("nodes", "peers", "routes")}
    return ServerFacts(target.url, "", found.get("about"), dict(checks), mesh=found.get("mesh"), **lists)


def _read(api: ApiClient, *path: str, **query: str) -> Any:
    """None if the server refuses, or does not have it."""
    try:
        return api.get(*path, **query)
    except (ApiError, ClientError):
        return None


def find_target(options: TargetOptions) -> tuple[ServerTarget | None, str]:
    """The server that commands would use, or why there is none."""
    try:
        return discovery.find(options), ""
    except ClientError as error:
        return None, error.message


def addresses(target: ServerTarget, settings: Settings) -> AddressFacts:
    """The addresses that other machines dial. Of a server elsewhere, the one that we use."""
    from skerry.transport import addresses as dialling
    from skerry.transport import host_identity
    from skerry.transport.access import peers

    split = target.split
    if split is None or split.hostname is None:
        return AddressFacts(True, (), time.time())
    default = 443 if split.scheme == "https" else 80
    port = split.port or default
    listener = machine_facts.find_listener(port) if peers.is_loopback(split.hostname) else None
    if listener is not None:  # on this machine
        listening = dialling.join_host_port(listener.address, port)
        found = dialling.advertised_addresses(listening, settings, host_identity.resolve())
    else:
        found = [dialling.join_host_port(split.hostname, port)]
    if all(peers.is_loopback(_host(each)) or _host(each) == "localhost" for each in found):
        return AddressFacts(True, (), time.time())
    uses_tls = split.scheme == "https"
    chosen = {each: partial(_endpoint, each, uses_tls, target) for each in found[:_MOST_ENDPOINTS]}
    checked = gathering.gather(chosen, _WITHIN_S)
    endpoints = [
        checked.facts.get(each) or EndpointFacts(each, _host(each), checked.failures[each], uses_tls=uses_tls)
        for each in chosen
    ]
    return AddressFacts(False, tuple(endpoints), time.time())


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _endpoint(address: str, uses_tls: bool, target: ServerTarget) -> EndpointFacts:
    host, port = _host(address), int(address.rpartition(":")[2])
    try:
        connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    except (socket.gaierror, UnicodeError) as error:
        return EndpointFacts(address, host, f"{error}", is_unknown_name=True, uses_tls=uses_tls)
    except OSError as error:
        return EndpointFacts(address, host, str(error) or type(error).__name__, uses_tls=uses_tls)
    with connection:
        if not uses_tls:
            return EndpointFacts(address, host)
        try:
            context = ssl.create_default_context(cafile=target.ca, cadata=target.ca_text or None)
            context.check_hostname = False  # checked against all names, below
            with context.wrap_socket(connection, server_hostname=host) as secured:
                certificate = secured.getpeercert() or {}
        except ssl.SSLCertVerificationError as error:
            return EndpointFacts(address, host, uses_tls=True, tls_failure=error.verify_message)
        except (OSError, ValueError) as error:
            return EndpointFacts(address, host, uses_tls=True, tls_failure=str(error))
    # Pairs of a kind and a value, as Python has them.
    pairs: Any = certificate.get("subjectAltName", ())
    names = tuple(str(value) for kind, value in pairs if kind in ("DNS", "IP Address"))
    not_after = ssl.cert_time_to_seconds(str(certificate["notAfter"])) if "notAfter" in certificate else None
    return EndpointFacts(address, host, uses_tls=True, names=names, not_after=not_after)


def clock_offset(name: str, url: str) -> ClockOffset | None:
    """The clock of a server elsewhere, by the Date of its answer; None if it does not answer.

    Its certificate is not verified: nothing is sent, and only the time is read.
    """
    split = urlsplit(url)
    if split.hostname is None or is_here(split.hostname):
        return None
    try:
        if split.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                split.hostname, split.port or 443, timeout=TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(split.hostname, split.port or 80, timeout=TIMEOUT_S)
        try:
            connection.connect()
            began = time.time()
            connection.request("GET", "/healthz")
            dated = connection.getresponse().headers.get("Date", "")
            ended = time.time()
        finally:
            connection.close()
        theirs = email.utils.parsedate_to_datetime(dated).timestamp() + 0.5  # it is in whole seconds
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return None
    return ClockOffset(name, theirs - (began + ended) / 2, 0.5 + (ended - began) / 2)


def is_here(host: str) -> bool:
    """Whether it is this machine, as far as the name says."""
    return host in ("localhost", "::1") or host.startswith("127.")


def etcd(settings: Settings) -> list[EtcdFacts]:
    """The health of every endpoint of the store, if that is etcd."""
    if not settings.store.url.startswith("etcd"):
        return []
    from skerry.store.factory import parse_url

    endpoints, uses_tls = parse_url(settings.store.url)
    checks = {each: partial(_etcd, each, settings, uses_tls=uses_tls) for each in endpoints}
    checked = gathering.gather(checks, _WITHIN_S)
    return [checked.facts.get(each) or EtcdFacts(each, checked.failures[each]) for each in endpoints]


def _etcd(endpoint: str, settings: Settings, *, uses_tls: bool) -> EtcdFacts:
    host, port = _host(endpoint), int(endpoint.rpartition(":")[2])
    try:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        if uses_tls:
            store = settings.store
            context = ssl.create_default_context(cafile=store.etcd_ca or None)
            if store.etcd_cert:
                context.load_cert_chain(store.etcd_cert, store.etcd_key or None)
            connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        try:
            connection.request("GET", "/health")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return EtcdFacts(endpoint, f"does not answer: {error or type(error).__name__}")
    if isinstance(answer, dict) and str(answer.get("health")).lower() == "true":
        return EtcdFacts(endpoint)
    reason = answer.get("reason") if isinstance(answer, dict) else ""
    return EtcdFacts(endpoint, f"is not healthy: {reason or 'it gives no reason'}")
