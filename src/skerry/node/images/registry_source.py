"""Images in registries: the distribution protocol, version 2, as a client that only pulls.

Documents are asked for again when that may help; a layer whose connection breaks goes on where it stopped.
What is sent is bounded by what was announced. `registry_http` has the exchanges, `auth` the proofs; `puller`
checks the digests of layers.
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
from skerry.model.images import Platform
from skerry.model.settings import ImageSettings
from skerry.node.images import challenges, credentials, oci_documents, registry_http, sources
from skerry.node.images.auth import RegistryAuthorizer
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
_PATIENCE = 4  # a document may take this many times the longest silence


class RegistrySource:
    """One image of one repository. Connects when it is first asked for something."""

    def __init__(
        self,
        reference: RegistryReference,
        settings: ImageSettings,
        clock: Clock,
        *,
        backoff: Backoff = BACKOFF,
        reach: RegistryPolicy | None = None,
    ) -> None:
        """With `reach` it is for a stranger: no login is shown, and nobody spoken to who is not in it."""
        self._reach = reach
        self._reference = reference
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._what = str(reference)
        self._transport = RegistryHttpClient(
            reference.host,
            insecure=settings.insecure,
            ca=settings.ca,
            timeout_s=settings.timeout_s,
            internal=settings.internal_hosts,
            reach=reach,
        )
        self._base: URL | None = None
        self._authorizer: RegistryAuthorizer | None = None
        self._connecting = asyncio.Lock()

    async def version(self) -> str:
        """By HEAD, which registries do not count against anybody's allowance. Empty if it says too little."""
        return await self._persist(self._head)

    async def find(self, machine: Platform) -> ResolvedImage:
        wanted = self._reference.digest
        data, media_type = await self._persist(lambda: self._manifest(self._reference.version, wanted))
        document = oci_documents.read_document(data, media_type, self._what)
        return await sources.find_in(self, document, oci_documents.digest_of(data), machine, self._what)

    async def document(self, descriptor: OciDescriptor) -> OciManifest | OciIndex:
        digest = Digest(descriptor.digest)
        data, media_type = await self._persist(lambda: self._manifest(digest, digest))
        return oci_documents.read_document(data, media_type, self._what)

    async def configuration(self, descriptor: OciDescriptor) -> bytes:
        return await self._persist(lambda: self._configuration(descriptor))

    async def close(self) -> None:
        await self._transport.close()

    async def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        assert blob.digest is not None, "a registry names everything by digest"
        got = failures = 0
        while got < blob.size:
            try:
                async with self._ask_for_rest(blob, got) as rest, aclosing(rest) as pieces:
                    async for piece in pieces:
                        got += len(piece)
                        failures = 0
                        yield piece
                if got < blob.size:  # it ended in good order, and did not say how much there is
                    raise TransientFailure(oci_documents.truncated(self._of(blob), got, blob.size))
            except TransientFailure as passing:
                failures += 1
                await self._wait(passing, failures)

    @asynccontextmanager
    async def _ask_for_rest(self, blob: LayerBlob, got: int) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """What follows the first `got` bytes of `blob`, as one answer has it."""
        headers = {"Range": f"bytes={got}-"} if got else {}
        async with self._send("GET", f"blobs/{blob.digest}", headers) as answer:
            if answer.status == 416:
                raise oci_documents.truncated(self._of(blob), got, blob.size)
            await self._expect(answer, (200, 206), self._of(blob))
            start, total = _extent(answer)
            if start > got:
                raise TransientFailure(
                    errors.Unavailable(f"{self._reference.host} sent another part than it was asked for")
                )
            if total is not None and total != blob.size:
                if total < blob.size:
                    raise oci_documents.truncated(self._of(blob), total, blob.size)
                raise _too_long(self._of(blob), blob.size)
            yield self._pieces(answer, blob, start, got)

    async def _pieces(
        self, answer: aiohttp.ClientResponse, blob: LayerBlob, start: int, got: int
    ) -> AsyncGenerator[bytes, None]:
        skip = got - start  # a server that does not know parts sends all of it again
        left = blob.size - got
        async for piece in answer.content.iter_any():
            if skip:
                skipped = min(skip, len(piece))
                skip -= skipped
                piece = piece[skipped:]
                if not piece:
                    continue
            left -= len(piece)
            if left < 0:
                raise _too_long(self._of(blob), blob.size)
            yield piece

    async def _head(self) -> str:
        async with self._send("HEAD", f"manifests/{self._reference.version}", {"Accept": _ACCEPT}) as answer:
            if answer.status in (400, 405, 501):
                return ""  # it does not know HEAD
            await self._expect(answer, (200,), self._what)
            said = answer.headers.get(_DIGEST_HEADER, "")
            return said if _DIGEST.fullmatch(said) else ""

    async def _manifest(self, version: str, wanted: Digest | None) -> tuple[bytes, str]:
        what = f"the manifest of {self._what}"
        async with self._send("GET", f"manifests/{version}", {"Accept": _ACCEPT}) as answer:
            await self._expect(answer, (200,), self._what)
            data = await registry_http.read(answer, oci_documents.MAX_MANIFEST_BYTES, what)
            said = answer.headers.get(_DIGEST_HEADER, "")
            media_type = answer.headers.get("Content-Type", "")
        if wanted is not None:
            oci_documents.check_digest(data, wanted, what)
        elif said.startswith("sha256:"):
            oci_documents.check_digest(data, Digest(said), what)
        return data, media_type

    async def _configuration(self, descriptor: OciDescriptor) -> bytes:
        what = f"the configuration of {self._what}"
        async with self._send("GET", f"blobs/{descriptor.digest}", {}) as answer:
            await self._expect(answer, (200,), what)
            data = await registry_http.read(answer, oci_documents.MAX_CONFIG_BYTES, what)
        if len(data) < descriptor.size:
            raise oci_documents.truncated(what, len(data), descriptor.size)
        oci_documents.check_digest(data, Digest(descriptor.digest), what)
        return data

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request in the repository, with a proof if one is wanted; if that is refused, a fresh one."""
        base, authorizer = await self._connect()
        url = base / self._reference.repository / path
        shown = await authorizer.header()
        async with self._transport.exchange(method, url, _with(headers, shown)) as answer:
            if answer.status != 401:
                yield answer
                return
            wanted = self._challenges(answer)
        await authorizer.answer(wanted, shown)
        shown = await authorizer.header()
        async with self._transport.exchange(method, url, _with(headers, shown)) as answer:
            if answer.status == 401:
                raise authorizer.refusal(self._challenges(answer))
            yield answer

    async def _connect(self) -> tuple[URL, RegistryAuthorizer]:
        async with self._connecting:
            if self._base is None or self._authorizer is None:
                self._base, self._authorizer = await self._greet()
            return self._base, self._authorizer

    async def _greet(self) -> tuple[URL, RegistryAuthorizer]:
        """Find out how the registry is spoken to, and what it wants to see."""
        from yarl import URL

        reference, plain = self._reference, self._transport.may_be_plain(self._reference.host)
        known = (
            await in_thread(credentials.load, self._settings.credentials, reference)
            if self._reach is None
            else credentials.ANONYMOUS_CREDENTIALS
        )
        scheme, wanted = await self._ping(plain)
        base = URL(f"{scheme}://{reference.host}/v2")
        authorizer = RegistryAuthorizer(
            self._transport,
            self._clock,
            known,
            base,
            registry=reference.registry,
            repository=reference.repository,
        )
        if wanted is not None:
            await authorizer.answer(wanted, "")
        return base, authorizer

    async def _ping(self, plain: bool) -> tuple[str, list[challenges.AuthChallenge] | None]:
        """The scheme that is spoken, and the challenges if there are any; without TLS only if it may be."""
        if not plain:
            return "https", await self._hello("https")
        try:
            return "http", await self._hello("http")
        except errors.Unavailable as error:
            # Something is there that is no registry in plain HTTP. It may well be one with TLS.
            try:
                return "https", await self._hello("https")
            except (registry_http.TlsNotOffered, TransientFailure):
                raise error from None

    async def _hello(self, scheme: str) -> list[challenges.AuthChallenge] | None:
        from yarl import URL

        host = self._reference.host
        async with self._transport.exchange("GET", URL(f"{scheme}://{host}/v2/"), {}) as answer:
            if answer.status == 200:
                return None
            if answer.status == 401:
                return self._challenges(answer)
            raise errors.Unavailable(f"{host} is no registry: it answers {answer.status} to /v2/")

    def _challenges(self, answer: aiohttp.ClientResponse) -> list[challenges.AuthChallenge]:
        """What the registry wants to see. What is for it is shown to nobody else, wherever it sends us."""
        host = registry_http.host_of(answer.url)
        if host.lower() != self._reference.host:
            raise errors.FailedPrecondition(
                f"{self._reference.host} sends us to {host}, which wants proof of who calls; none is shown "
                "there"
            )
        return challenges.parse(answer.headers.getall("WWW-Authenticate", ()))

    async def _expect(self, answer: aiohttp.ClientResponse, statuses: tuple[int, ...], what: str) -> None:
        if answer.status in statuses:
            return
        host, reason = self._reference.host, _spell(await _error_body(answer))
        match answer.status:
            case 404:
                raise errors.NotFound(f"{host} has no {what}{reason}; check its name, or push it again")
            case 403:
                raise errors.FailedPrecondition(f"{host} does not let us pull {what}{reason}")
        raise errors.Unavailable(f"{host} answers {answer.status} when asked for {what}{reason}")

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The outcome of `attempt`, made again while that may help. One takes a bounded time."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(_PATIENCE * self._settings.timeout_s):
                    return await attempt()
            except TransientFailure as passing:
                failures += 1
                await self._wait(passing, failures)
            except TimeoutError:
                failures += 1
                await self._wait(
                    TransientFailure(errors.TimedOut(f"{self._reference.host} answers too slowly")), failures
                )

    async def _wait(self, passing: TransientFailure, failures: int) -> None:
        """Let some time pass before trying again; raise what went wrong if it was tried often enough."""
        if failures >= TRIES:
            raise passing.error
        after_s = passing.after_s
        await asyncio.sleep(self._backoff.delay(failures - 1) if after_s is None else after_s)

    def _of(self, blob: LayerBlob) -> str:
        return f"layer {blob.digest} of {self._what}"


def _with(headers: dict[str, str], shown: str) -> dict[str, str]:
    return {**headers, "Authorization": shown} if shown else headers


def _extent(answer: aiohttp.ClientResponse) -> tuple[int, int | None]:
    """From where on the answer has the content, and how large the whole is, if that is said."""
    if answer.status != 206:
        return 0, answer.content_length
    said = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if said is None:
        raise TransientFailure(errors.Unavailable("a part was sent that does not say which part it is"))
    return int(said[1]), int(said[2]) if said[2] else None


def _too_long(what: str, size: int) -> errors.Unprocessable:
    return errors.Unprocessable(f"{what} is longer than the {size} bytes that its manifest says")


class _Complaint(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Complaints(msgspec.Struct):
    errors: list[_Complaint] | None = None


async def _error_body(answer: aiohttp.ClientResponse) -> str:
    """What the registry says is wrong, if it says it in the usual form."""
    try:
        said = json_codec.decode(await registry_http.read(answer, _MAX_ERROR_BYTES, "it"), _Complaints)
    except (json_codec.InvalidJson, errors.TooLarge):
        return ""
    return "; ".join(each.message or each.code for each in said.errors or ())


def _spell(reason: str) -> str:
    return f" ({reason[:200]})" if reason and reason.isprintable() else ""
