"""Images in registries: the distribution protocol, version 2, pulls only.

Requests of documents are retried where that may help; a layer whose connection breaks is resumed. Response
sizes are bounded by the announced ones. `registry_http` sends requests, `auth` authenticates; `puller` checks
the digests of layers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from skerry.kit import json_codec
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import in_thread
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.image_settings import ImageSettings
from skerry.model.images import Platform
from skerry.node.images import challenges, oci_documents, registry_http, sources
from skerry.node.images import credentials as node_credentials
from skerry.node.images.auth import RegistryAuthorizer
from skerry.node.images.credentials import RegistryCredentials
from skerry.node.images.oci_documents import OciDescriptor, OciIndex, OciManifest
from skerry.node.images.references import RegistryReference
from skerry.node.images.registry_http import RegistryHttpClient, TransientFailure
from skerry.node.images.registry_policy import RegistryPolicy
from skerry.node.images.sources import LayerBlob, ResolvedImage

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

T = TypeVar("T")

TRIES = 5
BACKOFF = Backoff(first_s=0.25, cap_s=10.0)
_ACCEPT = ", ".join(sorted(oci_documents.MANIFESTS | oci_documents.INDEXES))
_DIGEST_HEADER = "Docker-Content-Digest"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/(?:([0-9]{1,18})|\*)")
_MAX_ERROR_BYTES = 64 * 1024
_DOCUMENT_TIMEOUTS = 4  # a document may take this many times the read timeout


class RegistrySource:
    """One image of one repository. Connects on first use."""

    def __init__(
        self,
        reference: RegistryReference,
        settings: ImageSettings,
        clock: Clock,
        *,
        backoff: Backoff = BACKOFF,
        policy: RegistryPolicy | None = None,
        credentials: RegistryCredentials | None = None,
    ) -> None:
        """With `policy` it is for a guest: no login is sent, and no hosts outside the policy are contacted.
        With `credentials` these are used instead of the node's."""
        self._credentials = credentials
        self._reach = policy
        self._reference = reference
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._label = str(reference)
        self._transport = RegistryHttpClient(
            reference.host,
            insecure=settings.insecure,
            ca=settings.ca,
            timeout_s=settings.timeout_s,
            internal=settings.internal_hosts,
            policy=policy,
        )
        self._base: URL | None = None
        self._authorizer: RegistryAuthorizer | None = None
        self._connecting = asyncio.Lock()

    @property
    def granted_to(self) -> str:
        """The namespace whose login the registry, or its token server, got: without it, it may not have
        answered. Empty: none did."""
        has_sent = self._authorizer is not None and self._authorizer.sent_login
        return self._credentials.namespace if has_sent and self._credentials is not None else ""

    async def version(self) -> str:
        """By HEAD, which does not count against rate limits. Empty if the response has no digest."""
        return await self._with_retries(self._head)

    async def find(self, machine: Platform) -> ResolvedImage:
        expected = self._reference.digest
        data, media_type = await self._with_retries(lambda: self._manifest(self._reference.version, expected))
        document = oci_documents.read_document(data, media_type, self._label)
        return await sources.find_in(self, document, oci_documents.digest_of(data), machine, self._label)

    async def document(self, descriptor: OciDescriptor) -> OciManifest | OciIndex:
        digest = Digest(descriptor.digest)
        data, media_type = await self._with_retries(lambda: self._manifest(digest, digest))
        return oci_documents.read_document(data, media_type, self._label)

    async def configuration(self, descriptor: OciDescriptor) -> bytes:
        return await self._with_retries(lambda: self._configuration(descriptor))

    async def close(self) -> None:
        await self._transport.close()

    async def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        assert blob.digest is not None, "a registry refers to blobs by digest"
        got = failures = 0
        while got < blob.size:
            try:
                async with self._request_rest(blob, got) as rest, aclosing(rest) as pieces:
                    async for piece in pieces:
                        got += len(piece)
                        failures = 0
                        yield piece
                if got < blob.size:  # it ended regularly, without a length
                    raise TransientFailure(oci_documents.truncated(self._of(blob), got, blob.size))
            except TransientFailure as passing:
                failures += 1
                await self._wait(passing, failures)

    @asynccontextmanager
    async def _request_rest(self, blob: LayerBlob, got: int) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """The rest of `blob` after the first `got` bytes, as one response."""
        headers = {"Range": f"bytes={got}-"} if got else {}
        async with self._send("GET", f"blobs/{blob.digest}", headers) as response:
            if response.status == 416:
                raise oci_documents.truncated(self._of(blob), got, blob.size)
            await self._expect(response, (200, 206), self._of(blob))
            start, total = _extent(response)
            if start > got:
                raise TransientFailure(
                    errors.Unavailable(f"{self._reference.host} sent another range than requested")
                )
            if total is not None and total != blob.size:
                if total < blob.size:
                    raise oci_documents.truncated(self._of(blob), total, blob.size)
                raise _too_long(self._of(blob), blob.size)
            yield self._pieces(response, blob, start, got)

    async def _pieces(
        self, response: aiohttp.ClientResponse, blob: LayerBlob, start: int, got: int
    ) -> AsyncGenerator[bytes, None]:
        skip = got - start  # a server without ranges sends all of it again
        remaining = blob.size - got
        async for piece in response.content.iter_any():
            if skip:
                skipped = min(skip, len(piece))
                skip -= skipped
                piece = piece[skipped:]
                if not piece:
                    continue
            remaining -= len(piece)
            if remaining < 0:
                raise _too_long(self._of(blob), blob.size)
            yield piece

    async def _head(self) -> str:
        async with self._send(
            "HEAD", f"manifests/{self._reference.version}", {"Accept": _ACCEPT}
        ) as response:
            if response.status in (400, 405, 501):
                return ""  # it does not support HEAD
            await self._expect(response, (200,), self._label)
            declared = response.headers.get(_DIGEST_HEADER, "")
            return declared if _DIGEST.fullmatch(declared) else ""

    async def _manifest(self, version: str, expected: Digest | None) -> tuple[bytes, str]:
        label = f"the manifest of {self._label}"
        async with self._send("GET", f"manifests/{version}", {"Accept": _ACCEPT}) as response:
            await self._expect(response, (200,), self._label)
            data = await registry_http.read(response, oci_documents.MAX_MANIFEST_BYTES, label)
            declared = response.headers.get(_DIGEST_HEADER, "")
            media_type = response.headers.get("Content-Type", "")
        if expected is not None:
            oci_documents.check_digest(data, expected, label)
        elif declared.startswith("sha256:"):
            oci_documents.check_digest(data, Digest(declared), label)
        return data, media_type

    async def _configuration(self, descriptor: OciDescriptor) -> bytes:
        label = f"the configuration of {self._label}"
        async with self._send("GET", f"blobs/{descriptor.digest}", {}) as response:
            await self._expect(response, (200,), label)
            data = await registry_http.read(response, oci_documents.MAX_CONFIG_BYTES, label)
        if len(data) < descriptor.size:
            raise oci_documents.truncated(label, len(data), descriptor.size)
        oci_documents.check_digest(data, Digest(descriptor.digest), label)
        return data

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request in the repository, authenticated if required; on a 401 once more with a new header."""
        base, authorizer = await self._connect()
        url = base / self._reference.repository / path
        authorization = await authorizer.header()
        async with self._transport.exchange(method, url, _with(headers, authorization)) as response:
            if response.status != 401:
                yield response
                return
            required = self._challenges(response)
        await authorizer.handle_challenges(required, authorization)
        authorization = await authorizer.header()
        async with self._transport.exchange(method, url, _with(headers, authorization)) as response:
            if response.status == 401:
                raise authorizer.access_error(self._challenges(response))
            yield response

    async def _connect(self) -> tuple[URL, RegistryAuthorizer]:
        async with self._connecting:
            if self._base is None or self._authorizer is None:
                self._base, self._authorizer = await self._probe_registry()
            return self._base, self._authorizer

    async def _probe_registry(self) -> tuple[URL, RegistryAuthorizer]:
        """Determine the scheme of the registry, and authenticate if required."""
        from yarl import URL

        reference, allows_plain = self._reference, self._transport.allows_plain_http(self._reference.host)
        registry_credentials = self._credentials
        if registry_credentials is None:
            registry_credentials = (
                await in_thread(node_credentials.load, self._settings.credentials, reference)
                if self._reach is None
                else node_credentials.ANONYMOUS_CREDENTIALS
            )
        scheme, required = await self._probe_scheme(allows_plain)
        base = URL(f"{scheme}://{reference.host}/v2")
        authorizer = RegistryAuthorizer(
            self._transport,
            self._clock,
            registry_credentials,
            base,
            registry=reference.registry,
            repository=reference.repository,
            token_servers=self._settings.token_servers,
        )
        if required is not None:
            await authorizer.handle_challenges(required, "")
        return base, authorizer

    async def _probe_scheme(self, allows_plain: bool) -> tuple[str, list[challenges.AuthChallenge] | None]:
        """The scheme, and the challenges if there are any; plain HTTP only where it is allowed."""
        if not allows_plain:
            return "https", await self._get_v2("https")
        try:
            return "http", await self._get_v2("http")
        except errors.Unavailable as error:
            # A server that is no registry in plain HTTP. It may be one with TLS.
            try:
                return "https", await self._get_v2("https")
            except (registry_http.TlsNotOffered, TransientFailure):
                raise error from None

    async def _get_v2(self, scheme: str) -> list[challenges.AuthChallenge] | None:
        from yarl import URL

        host = self._reference.host
        async with self._transport.exchange("GET", URL(f"{scheme}://{host}/v2/"), {}) as response:
            if response.status == 200:
                return None
            if response.status == 401:
                return self._challenges(response)
            raise errors.Unavailable(f"{host} is not a registry: it returned {response.status} for /v2/")

    def _challenges(self, response: aiohttp.ClientResponse) -> list[challenges.AuthChallenge]:
        """The challenges of the registry. Credentials are sent to the registry's own host only."""
        host = registry_http.host_of(response.url)
        if host.lower() != self._reference.host:
            raise errors.FailedPrecondition(
                f"{self._reference.host} redirects to {host}, which requires a login; none is sent there"
            )
        return challenges.parse(response.headers.getall("WWW-Authenticate", ()))

    async def _expect(self, response: aiohttp.ClientResponse, statuses: tuple[int, ...], label: str) -> None:
        if response.status in statuses:
            return
        host, reason = self._reference.host, _spell(await _error_body(response))
        match response.status:
            case 404:
                raise errors.NotFound(f"{host} has no {label}{reason}; check its name, or push it again")
            case 403:
                raise errors.FailedPrecondition(f"{host} denies access to {label}{reason}")
        raise errors.Unavailable(f"{host} returned {response.status} for {label}{reason}")

    async def _with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, retried while that may help, with a timeout for each."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(_DOCUMENT_TIMEOUTS * self._settings.timeout_s):
                    return await attempt()
            except TransientFailure as passing:
                failures += 1
                await self._wait(passing, failures)
            except TimeoutError:
                failures += 1
                await self._wait(
                    TransientFailure(errors.TimedOut(f"{self._reference.host} responds too slowly")), failures
                )

    async def _wait(self, passing: TransientFailure, failures: int) -> None:
        """Wait before a retry; raise the failure after too many."""
        if failures >= TRIES:
            raise passing.error
        after_s = passing.after_s
        await asyncio.sleep(self._backoff.delay(failures - 1) if after_s is None else after_s)

    def _of(self, blob: LayerBlob) -> str:
        return f"layer {blob.digest} of {self._label}"


def _with(headers: dict[str, str], authorization: str) -> dict[str, str]:
    return {**headers, "Authorization": authorization} if authorization else headers


def _extent(response: aiohttp.ClientResponse) -> tuple[int, int | None]:
    """The start of the response's range, and the size of the whole blob, if it is declared."""
    if response.status != 206:
        return 0, response.content_length
    range_ = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if range_ is None:
        raise TransientFailure(errors.Unavailable("a partial response has no Content-Range"))
    return int(range_[1]), int(range_[2]) if range_[2] else None


def _too_long(label: str, size: int) -> errors.Unprocessable:
    return errors.Unprocessable(f"{label} is longer than the {size} bytes in its manifest")


class _ErrorDetail(msgspec.Struct):
    code: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct):
    errors: list[_ErrorDetail] | None = None


async def _error_body(response: aiohttp.ClientResponse) -> str:
    """The registry's error message, if it has the usual form."""
    try:
        body = json_codec.decode(await registry_http.read(response, _MAX_ERROR_BYTES, "it"), _ErrorBody)
    except (json_codec.InvalidJson, errors.TooLarge):
        return ""
    return "; ".join(each.message or each.code for each in body.errors or ())


def _spell(reason: str) -> str:
    return f" ({reason[:200]})" if reason and reason.isprintable() else ""
