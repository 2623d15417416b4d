"""A client of one provider: REAR in the document's dialect, with each request signed by our key.

Implements `skerry.market.buyer.provider_client.ProviderClient`, and opens contract tunnels
(`skerry.transport.tunnels.websocket_tunnel`). Responses have size limits
(`skerry.wire.rear.client_documents`); the caller verifies contracts. Redirects are not followed and proxies
of the environment are not used, because a proof is for one provider. Uses aiohttp, which is imported with the
first request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

import skerry
from skerry.kit import json_codec, tls
from skerry.kit.clock import iso
from skerry.market.buyer.borrowed_node_session import PING_S
from skerry.market.buyer.provider_client import RemoteContract, RemoteContractStatus, RemoteHold
from skerry.market.buyer.quotes import CapacityRequest, MarketPeer
from skerry.market.terms import contract_credentials
from skerry.market.terms.request_proofs import RequestSigner
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model import errors, ids
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.node_messages import TunnelRequest
from skerry.model.resources import Resources
from skerry.transport.tunnels import tunnel_codec
from skerry.transport.tunnels.websocket_tunnel import MAX_MESSAGE, WebSocketTunnel
from skerry.wire.rear import client_documents
from skerry.wire.rear.contract_status import PROTOCOL

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

T = TypeVar("T")

MAX_RESPONSE: Final = 8 * 1024 * 1024
_MAX_ERROR: Final = 4096
_CLOSE_S: Final = 2.0
_ONCE: Final = "Idempotency-Key"
_LIST: Final = "/api/listflavors"
_FORBIDDEN: Final = 403


class RearClient:
    """The client of `peer`. `timeout_s` is the limit of a request, and of opening a tunnel."""

    def __init__(self, peer: MarketPeer, prover: RequestSigner, *, timeout_s: float) -> None:
        self.peer = peer
        self._cloud = CloudId(peer.cloud)
        self._base = peer.url.rstrip("/")
        self._prover = prover
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None

    @property
    def _is_encrypted(self) -> bool:
        return self._base.startswith("https:")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check(self) -> None:
        """Request one offer: a server that accepts our proof is the peer, also if it refuses us as a
        buyer."""
        status, text = await self._exchange("POST", _LIST, {"Limit": 1})
        if status not in (200, _FORBIDDEN):
            raise client_documents.decode_error(self.peer.name, status, text)

    # Trading

    async def offers(self, request: CapacityRequest) -> Sequence[OfferSnapshot]:
        """Offers that can supply exactly the requested amount, and those that can supply a larger one."""
        found: dict[OfferId, OfferSnapshot] = {}
        selectors = client_documents.selectors(request)
        for answer in await asyncio.gather(*(self._select(selector) for selector in selectors)):
            found |= {offer.flavor.id: offer for offer in answer}
        return list(found.values())

    async def _select(self, selector: Mapping[str, Any]) -> list[OfferSnapshot]:
        answer = await self._request("POST", _LIST, client_documents.FlavorListReply, selector)
        with self._map_decode_errors():
            return [client_documents.decode_offer(item, self._cloud) for item in answer.items]

    async def reserve(
        self, flavor: OfferId, resources: Resources, count: int, duration_s: float | None, *, key: str
    ) -> RemoteHold:
        body = client_documents.reservation(flavor, resources, count, duration_s)
        answer = await self._request(
            "POST", "/api/reserveflavor", client_documents.TransactionReply, body, headers={_ONCE: key}
        )
        with self._map_decode_errors():
            return client_documents.decode_hold(answer)

    async def purchase(self, hold: HoldId) -> RemoteContract:
        answer = await self._request(
            "POST", "/api/purchaseflavor", client_documents.ContractReply, {"TransactionID": hold}
        )
        with self._map_decode_errors():
            return client_documents.decode_contract(answer)

    async def cancel(self, hold: HoldId) -> None:
        await self._request("DELETE", f"/api/reservations/{_segment(hold)}", client_documents.EmptyReply)

    async def sign(self, contract: ContractId, document: bytes) -> None:
        body = {"Document": document.decode("ascii")}
        await self._request(
            "POST", f"/api/contracts/{_segment(contract)}/signature", client_documents.EmptyReply, body
        )

    async def release(self, contract: str) -> None:
        await self._request(
            "POST", f"/api/contracts/{_segment(contract)}/release", client_documents.EmptyReply
        )

    async def renew(self, contract: ContractId, until: float) -> bytes:
        body = {"ExpirationTime": iso(until)}
        path = f"/api/contracts/{_segment(contract)}/renew"
        answer = await self._request("POST", path, client_documents.ContractReply, body)
        with self._map_decode_errors():
            return client_documents.decode_contract(answer).document

    async def contract_state(self, contract: ContractId) -> RemoteContractStatus:
        """The state of the contract, without a tunnel."""
        answer = await self._request(
            "GET", f"/api/contracts/{_segment(contract)}", client_documents.ContractStateReply
        )
        with self._map_decode_errors():
            return client_documents.decode_contract_state(answer)

    # What was bought

    @asynccontextmanager
    async def contract_tunnel(
        self, contract: ContractId, credential: str, on_status: Callable[[RemoteContractStatus], None]
    ) -> AsyncIterator[WebSocketTunnel]:
        """Frames of the node session of a contract's cell; `on_status` is called with the provider's status
        messages."""

        def read_status(text: str) -> None:
            on_status(client_documents.decode_status_message(text))

        async with self._socket(f"/api/contracts/{_segment(contract)}/door", credential) as socket:
            yield WebSocketTunnel(socket, self.peer.name, read_status)

    @asynccontextmanager
    async def tunnel(
        self, contract: ContractId, credential: str, tunnel: TunnelRequest
    ) -> AsyncIterator[WebSocketTunnel]:
        """Our end of a tunnel to an instance in the contract's cell."""
        request = tunnel_codec.encode_tunnel(msgspec.structs.replace(tunnel, id=""))
        async with self._socket(f"/api/contracts/{_segment(contract)}/tunnel", credential) as socket:
            end = WebSocketTunnel(socket, self.peer.name)
            await end.notify(request)
            yield end

    @asynccontextmanager
    async def _socket(self, path: str, credential: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        session, context = await self._opened()
        headers = {"Authorization": f"{contract_credentials.SCHEME} {credential}"}
        with self._reaching():
            async with asyncio.timeout(self._timeout_s):
                socket = await session.ws_connect(
                    self._url(path),
                    protocols=(PROTOCOL,),
                    headers=headers,
                    ssl=context,
                    heartbeat=PING_S,
                    max_msg_size=MAX_MESSAGE,
                )
        try:
            if socket.protocol != PROTOCOL:
                raise errors.FailedPrecondition(
                    f"peer {self.peer.name} opens no contract tunnels: it does not support {PROTOCOL}; buy "
                    "of another one"
                )
            yield socket
        finally:
            # The library waits for the other side's close frame for as long as anything else comes.
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await socket.close()

    # Asking

    async def _request(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """The response to one signed request; raises the provider's error, with its message."""
        status, text = await self._exchange(method, path, body, headers)
        if status != 200:
            raise client_documents.decode_error(self.peer.name, status, text)
        with self._map_decode_errors():
            return json_codec.decode(text, kind)

    async def _exchange(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """The status and the body of a response."""
        data = b"" if body is None else json_codec.encode(body)
        proof = self._prover.header(self._cloud, method, path, data)
        session, context = await self._opened()
        with self._reaching():
            async with (
                asyncio.timeout(self._timeout_s),
                session.request(
                    method,
                    self._url(path),
                    data=data,
                    headers={**(headers or {}), "Authorization": proof, "Content-Type": "application/json"},
                    ssl=context,
                    allow_redirects=False,
                ) as answer,
            ):
                return answer.status, await self._read(answer)

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if len(data) > MAX_RESPONSE:
                raise errors.TooLarge(
                    f"peer {self.peer.name} answers with more than {MAX_RESPONSE} bytes; buy of another one"
                )
        return bytes(data)

    async def _opened(self) -> tuple[aiohttp.ClientSession, ssl.SSLContext | bool]:
        import aiohttp

        if self._context is None and self._is_encrypted:
            self._context = await asyncio.to_thread(_tls_context, self.peer.ca)
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_redirect.append(self._refuse_redirect)
            trace.on_request_end.append(self._raise_refusal)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # every contract has a tunnel that stays open
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"skerry/{skerry.__version__}", "Accept-Encoding": "identity"},
                trust_env=False,
                trace_configs=[trace],
            )
        return self._session, self._context or True

    async def _refuse_redirect(
        self, session: aiohttp.ClientSession, context: object, params: aiohttp.TraceRequestRedirectParams
    ) -> None:
        raise errors.FailedPrecondition(
            f"peer {self.peer.name} sends us elsewhere; set the URL that it is at"
        )

    async def _raise_refusal(
        self, session: aiohttp.ClientSession, context: object, params: aiohttp.TraceRequestEndParams
    ) -> None:
        """For a refused WebSocket the library keeps only the status, and not the reason."""
        answer = params.response
        if "Upgrade" in params.headers and answer.status >= 400:
            text = await answer.content.read(_MAX_ERROR)
            answer.close()
            raise client_documents.decode_error(self.peer.name, answer.status, text)

    def _url(self, path: str) -> URL:
        from yarl import URL

        return URL(self._base + path, encoded=True)  # as it is signed

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raise a message for every way in which the peer cannot be reached."""
        import aiohttp

        try:
            yield
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreached(error) from None

    def _unreached(self, error: Exception) -> errors.SkerryError:
        import aiohttp

        peer = f"peer {self.peer.name}"
        match error:
            case aiohttp.WSServerHandshakeError():
                return errors.FailedPrecondition(
                    f"{peer} opens no WebSocket: it answers {error.status}; set its URL to that of the "
                    "server, or let what is in between pass WebSockets on"
                )
            case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLError() as reason):
                return errors.FailedPrecondition(
                    f"{peer} is not trusted: {tls.explain(reason)}; set its CA anew if that is right"
                )
            case aiohttp.ClientSSLError() | ssl.SSLError():
                return errors.FailedPrecondition(
                    f"{peer} cannot be spoken to with TLS; set its URL anew if it is one of plain http"
                )
            case aiohttp.ServerDisconnectedError() | ConnectionResetError() if not self._is_encrypted:
                return errors.FailedPrecondition(
                    f"{peer} hangs up on plain http; set its URL anew with https if it speaks TLS"
                )
            case TimeoutError():
                return errors.TimedOut(
                    f"{peer} did not answer within {self._timeout_s:g} s; try again, or set its URL anew"
                )
            case _:
                return errors.Unavailable(
                    f"{peer} cannot be reached at {self._base}; set its URL anew if it is another by now",
                    detail=repr(error),
                )

    @contextmanager
    def _map_decode_errors(self) -> Iterator[None]:
        """Raise a message that names the peer for a response that cannot be decoded."""
        try:
            yield
        except (errors.Invalid, json_codec.InvalidJson) as error:
            raise errors.FailedPrecondition(
                f"peer {self.peer.name} answers what makes no sense: "
                f"{client_documents.to_one_line(str(error))}; "
                "set its URL anew if that is not where it sells, or else tell who runs it"
            ) from error


class RearClientPool:
    """A client for each peer, created when it is needed: `clients(peer)`."""

    def __init__(self, prover: RequestSigner, *, timeout_s: float) -> None:
        self._prover = prover
        self._timeout_s = timeout_s
        self._clients: dict[str, RearClient] = {}
        self._old: list[RearClient] = []  # of peers that were changed; tunnels may still be open with them

    def __call__(self, peer: MarketPeer) -> RearClient:
        client = self._clients.get(peer.name)
        if client is not None and client.peer == peer:
            return client
        if client is not None:
            self._old.append(client)
        client = self._clients[peer.name] = RearClient(peer, self._prover, timeout_s=self._timeout_s)
        return client

    async def close(self) -> None:
        for client in (*self._clients.values(), *self._old):
            await client.close()


def _segment(id: str) -> str:
    """An id, escaped for a path."""
    return ids.check_id(id)


def _tls_context(ca: str) -> ssl.SSLContext:
    """An SSL context that trusts the peer's own CA only or, without one, the CAs of this machine."""
    return tls.client(ca.encode("ascii"), tls.HTTP1) if ca else ssl.create_default_context()
