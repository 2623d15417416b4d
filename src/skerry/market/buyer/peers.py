"""Peers: the clouds that this one buys from, by name, as an operator set them.

Each is one record of the store, `market-peer/NAME`, mirrored in memory, and changed with an event. A peer's
`cloud` is what everything that it signs is checked against; the URL is only its address.
`skerry.wire.rear.client` is the client of a peer; `skerry.market.buyer.search` keeps the result of the last
request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from skerry.control.events.log import EventLog
from skerry.market.buyer.quotes import MarketPeer
from skerry.market.terms import keys
from skerry.model import errors, ids
from skerry.model.ids import CloudId
from skerry.store.protocol import Store
from skerry.store.tables.table import Table, Write, json_of

PREFIX: Final = "market-peer/"
MAX_PEERS: Final = 256
MAX_URL: Final = 512
MAX_CA: Final = 32 * 1024
_THUMBPRINT = re.compile(r"[A-Za-z0-9_-]{43}")


class MarketPeerTable:
    """`run` for ever; read once it is `ready`. A cloud is no peer of its own: `own` is refused."""

    def __init__(self, store: Store, events: EventLog, *, own: CloudId) -> None:
        self._events = events
        self._own = own
        self._table = Table(store, PREFIX, json_of(MarketPeer))

    async def run(self) -> None:
        await self._table.run()

    async def ready(self) -> None:
        await self._table.ready()

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when a peer is added, changed or removed; the result ends that."""
        return self._table.subscribe(lambda changes: changed())

    def all(self) -> Sequence[MarketPeer]:
        """By name."""
        return self._table.values()

    def get(self, name: str) -> MarketPeer:
        """Raises `NotFound`."""
        peer = self._table.value(name)
        if peer is None:
            raise _unknown(name)
        return peer

    def check(self, peer: MarketPeer) -> None:
        """Raise `Invalid` unless it may be a peer of this cloud."""
        check(peer)
        if peer.cloud == self._own:
            raise errors.Invalid("this cloud is no peer of its own; name the id of another", field="cloud")

    async def put(self, peer: MarketPeer, *, actor: str) -> None:
        """Add or change it; `Invalid` if it is not valid."""
        self.check(peer)
        known = self._table.value(peer.name)
        if known == peer:
            return
        if known is None and len(self._table) >= MAX_PEERS:
            raise errors.TooLarge(f"there are {MAX_PEERS} peers, the most; remove some")
        event = self._events.put(
            "peer.set", f"peer/{peer.name}", actor=actor, url=peer.url, cloud=str(peer.cloud)
        )
        await self._table.commit([self._table.put(peer.name, peer), event])

    async def remove(self, name: str, *, actor: str) -> None:
        """Forget it; raises `NotFound`."""
        self.get(name)
        event = self._events.put("peer.removed", f"peer/{name}", actor=actor)
        await self._table.update(
            name, lambda peer: Write(peer.value, [event], is_delete=True), missing=_unknown(name)
        )


def check(peer: MarketPeer) -> None:
    """Raise `Invalid` unless it can be reached and verified."""
    ids.check_id(peer.name, "name")
    is_encrypted = _check_url(peer.url)
    if not keys.is_key_id(peer.cloud) or not _THUMBPRINT.fullmatch(peer.cloud.removeprefix(keys.PREFIX)):
        raise errors.Invalid(
            f"cloud must be the peer's id on the market, `{keys.PREFIX}` and 43 letters, digits, '-' or '_'; "
            "its operator finds it in `skerry market`",
            field="cloud",
        )
    if peer.ca:
        if not is_encrypted:
            raise errors.Invalid("a CA is of no use without https; use a URL with https", field="ca")
        _check_ca(peer.ca)


def _check_url(text: str) -> bool:
    """Whether it is one of https; `Invalid` if it is none of a server."""
    nothing = errors.Invalid(
        f"url must be that of a server, such as `https://north.example:1323`; at most {MAX_URL} characters",
        field="url",
    )
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise nothing
    try:
        url = urlsplit(text)
        is_address = bool(url.hostname) and url.port != 0
    except ValueError:
        raise nothing from None
    if not is_address:
        raise nothing
    if url.scheme not in ("http", "https"):
        raise errors.Invalid(f"url must begin with https:// or http://, not {url.scheme[:16]!r}", field="url")
    if url.username is not None or url.password is not None:
        raise errors.Invalid(
            "url must not hold a user or a password: requests are signed instead", field="url"
        )
    if url.path not in ("", "/") or text.rstrip("/").endswith(("?", "#")) or url.query or url.fragment:
        raise errors.Invalid("url must end after the host and the port", field="url")
    return url.scheme == "https"


def _check_ca(pem: str) -> None:
    if len(pem) > MAX_CA:
        raise errors.Invalid(f"ca has more than {MAX_CA} characters; give the peer's CA alone", field="ca")
    try:
        x509.load_pem_x509_certificates(pem.encode("ascii"))
    except ValueError:
        raise errors.Invalid(
            "ca must be a certificate in PEM, which begins with `-----BEGIN CERTIFICATE-----`", field="ca"
        ) from None


def _unknown(name: str) -> errors.NotFound:
    return errors.NotFound(f"there is no peer {name[: ids.MAX_ID]!r}; list peers to see their names")
