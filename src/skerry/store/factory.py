"""From settings to an open store. The etcd client is imported only if the settings name etcd.

Its libraries are the extra `etcd` of the package, and may be missing.
"""

from __future__ import annotations

import os
from pathlib import Path

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.settings import StoreSettings
from skerry.store.protocol import Store
from skerry.store.sqlite.store import SqliteStore

FILE_NAME = "store.db"

_ACCEPTED = "`sqlite`, `etcd://HOST:PORT[,HOST:PORT...]`, or `etcds://HOST:PORT[,HOST:PORT...]` for TLS"


async def open_store(settings: StoreSettings, folder: Path, clock: Clock) -> Store:
    """The store that `settings.url` names; SQLite's file is in `folder`."""
    if settings.url == "sqlite":
        return await SqliteStore.open(folder / FILE_NAME, clock, history=settings.history)
    endpoints, tls = parse_url(settings.url)
    # The client's library would run code of its own in every child between fork and exec, which crashes while
    # its threads are busy. No child of ours is a client.
    os.putenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        from skerry.store.etcd.store import EtcdStore
    except ModuleNotFoundError as error:
        if error.name not in ("aetcd", "grpc"):
            raise
        raise errors.Invalid(
            f"the store {settings.url!r} needs the packages of the extra `etcd`, which are not installed;"
            " install them with `make etcd` in the folder of Skerry, or with `pip install 'skerry[etcd]'`",
            field="store.url",
        ) from error

    return await EtcdStore.open(endpoints, settings, tls=tls)


def parse_url(url: str) -> tuple[tuple[str, ...], bool]:
    """The endpoints of an etcd URL, and whether they use TLS."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("etcd", "etcds"):
        raise errors.Invalid(f"the store {url!r} is not known; accepted are {_ACCEPTED}", field="store.url")
    endpoints = tuple(part.strip() for part in rest.rstrip("/").split(","))
    for endpoint in endpoints:
        if not _is_endpoint(endpoint):
            raise errors.Invalid(
                f"{endpoint!r} in the store {url!r} is not HOST:PORT; accepted are {_ACCEPTED}",
                field="store.url",
            )
    return endpoints, scheme == "etcds"


def _is_endpoint(text: str) -> bool:
    host, separator, port = text.rpartition(":")
    if not separator or not host or any(c in host for c in "/@?# "):
        return False
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False  # an IPv6 address goes in brackets
    return port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
