"""Workers that are containers: functions of runtime `custom`, which have an image of their own.

Beside `skerry.node.workers.process_workers`, with the same interface for `skerry.functions`. Such a worker is
a container (`skerry.node.containers`) in the cell of all workers, and is called by a POST to its port 8080:
`container_protocol` defines the bodies, `port_connections` the connections. Containers outlive an agent and
workers must not: those of an earlier one are removed by `open`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from skerry.kit import files, tasks, ulid
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.response_stream import ResponseStream
from skerry.model import errors, web_calls
from skerry.model.calls import CallFailure, CallResult, CodeLoadError, WorkerExited
from skerry.model.cells import ExitStatus, OutputChannel
from skerry.model.containers import FUNCTION_PREFIX, ContainerSpec, ContainerView
from skerry.model.function_names import namespace_of
from skerry.model.functions import Function
from skerry.model.ids import CellName, FunctionName, Namespace
from skerry.model.images import ImageId
from skerry.model.network import Egress, Ingress, NetworkAccess
from skerry.model.resources import Gigabytes, Millicores, Resources
from skerry.model.settings import FunctionSettings
from skerry.model.web_calls import WebRequestHead, WebResponseHead
from skerry.node.containers.containers import Containers
from skerry.node.images.images import Images, NamespaceImages
from skerry.node.images.references import is_id
from skerry.node.logs.merge import LogSource
from skerry.node.logs.readers import LogRecord
from skerry.node.workers import container_protocol, log_copy
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.http_client import ClientLeft, HttpReplyTooLarge, MalformedHttpReply
from skerry.node.workers.lookups import ImageLookups
from skerry.node.workers.port_connections import PortClosed, PortConnections

log = structlog.get_logger(__name__)

PORT: Final = 8080
_PATH: Final = "/invoke"
_FIRST_CHECK_S: Final = 0.002  # until the first check of its port; the pause doubles
_SELDOM_S: Final = 0.05
_RETRY_S: Final = 1.0  # until a removal that failed is retried
_EXIT_NOTICE_S: Final = 0.5  # from the end of a connection to that of its process, if that was the cause
_EXIT_S: Final = 5.0  # from that to its exit status
_COPY_S: Final = 2.0  # for the rest of its output
_LAST_OUTPUT_BYTES: Final = 64 * 1024  # of a container's last output, for errors

_LOOKUP_BACKOFF: Final = Backoff(first_s=30.0, cap_s=3600.0)  # after a lookup that failed

# All other failures of an image are the function's fault.
_PASSING: Final = (errors.Unavailable, errors.TimedOut, errors.Overloaded)


class _FailedLookup(NamedTuple):
    """Consecutive failures to resolve the image of a function, and when the next try is allowed."""

    failures: int = 0
    again_at: float = 0.0


class ContainerWorkers:
    """Creates workers that are containers."""

    def __init__(
        self,
        containers: Containers,
        images: Images,
        settings: FunctionSettings,
        clock: Clock,
        logs: FunctionLogs,
        *,
        inside: str,
        folder: Path,
        images_of: Callable[[Namespace], NamespaceImages] | None = None,
    ) -> None:
        """`inside` is the cell of all workers, which must exist when one is created; `folder` stores what the
        next agent needs; `images_of` gives the images that a namespace may use, without it all."""
        self._images_of = images_of
        self._containers = containers
        self._images = images
        self._settings = settings
        self._clock = clock
        self._logs = logs
        self._inside = inside
        self._workers: dict[str, ContainerWorker] = {}
        self._functions: dict[str, FunctionName] = {}  # by worker
        self._lookups = ImageLookups(files.private_folder(folder) / "image-lookups.json")
        self._failed_lookups: dict[FunctionName, _FailedLookup] = {}

    async def open(self) -> ContainerWorkers:
        """Remove workers of an earlier agent, and start."""
        old_workers = [view.spec.name for view in self._containers.list() if view.spec.inside == self._inside]
        await asyncio.gather(*(_remove(self._containers, name) for name in old_workers))
        if old_workers:
            log.info("image_workers.removed", count=len(old_workers))
        return self

    async def spawn(self, function: Function, code: Path | None) -> ContainerWorker:
        """Create a worker whose server listens. `code` is not used. Raises CodeLoadError, ResourcesExhausted,
        Unavailable; then, and if the caller is cancelled, everything is undone."""
        began = self._clock.monotonic()
        spec = self._spec(function)
        try:
            with _translated_errors():
                # A caller that is cancelled here leaves nothing.
                image = await self._ensure_image(function)
                starting = self._containers.create(
                    spec,
                    image=image,
                    access=function.image_access,
                    network=NetworkAccess(Egress(self._settings.egress), namespace_of(function.name)),
                    starts=True,
                )
                view = await tasks.run_to_completion(starting)
            worker = ContainerWorker(
                self._containers, view, await self._connections(view), self._settings, self._clock
            )
        except BaseException:
            await tasks.run_to_completion(_remove(self._containers, spec.name))
            raise
        self._workers[worker.id] = worker
        self._functions[worker.id] = function.name
        worker.on_closed = lambda: self._closed(worker, function.name)
        try:
            worker.start_log_copy(self._logs, function.name)
            await worker.listens()
        except BaseException:
            await tasks.run_to_completion(worker.close())
            raise
        worker.init_s = self._clock.monotonic() - began
        return worker

    def _images_for(self, function: Function) -> Images | NamespaceImages:
        """The images that the namespace of `function` may use."""
        return self._images if self._images_of is None else self._images_of(namespace_of(function.name))

    async def _ensure_image(self, function: Function) -> ImageId:
        """Pull its image. The reference is resolved once per registration of the function. If that fails, an
        image that is here is used; then it is tried again later."""
        images, reference, access = self._images_for(function), function.image, function.image_access
        if self._lookups.is_resolved(function) or not self._has(function):
            await images.ensure(reference, access=access)
        elif not await self._resolve_image(function):
            return images.find(reference, access=access).id
        await self._lookups.mark_resolved(function)
        return images.find(reference, access=access).id

    async def _resolve_image(self, function: Function) -> bool:
        """False if it could not be resolved, now or a while ago."""
        failed = self._failed_lookups.get(function.name, _FailedLookup())
        if self._clock.monotonic() < failed.again_at:
            return False
        try:
            await self._images_for(function).pull(function.image, access=function.image_access)
        except errors.SkerryError as error:
            log.info("image.not_looked_up", reference=function.image, error=error.message)
            again_at = self._clock.monotonic() + _LOOKUP_BACKOFF.delay(failed.failures)
            self._failed_lookups[function.name] = _FailedLookup(failed.failures + 1, again_at)
            return False
        self._failed_lookups.pop(function.name, None)
        return True

    def _has(self, function: Function) -> bool:
        """True if there is an image of that name, which may be outdated."""
        if is_id(function.image):
            return False
        try:
            self._images_for(function).find(function.image, access=function.image_access)
        except errors.NotFound:
            return False
        return True

    def worker_cells(self) -> dict[CellName, FunctionName]:
        """The functions of all workers, by their cells."""
        found = {}
        for id, name in self._functions.items():
            with contextlib.suppress(errors.NotFound):  # it is being removed
                found[self._containers.cell(id)] = name
        return found

    async def _connections(self, view: ContainerView) -> PortConnections:
        try:
            group = self._containers.cell(view.spec.name)
            return PortConnections.to(view.pid or 0, view.address, PORT, self._clock, group=group)
        except (PortClosed, errors.NotFound):
            raise await _not_listening(self._containers, view.spec.name) from None

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Pull the image; with `force`, what its reference resolves to now. Raises CodeLoadError,
        ResourcesExhausted, Unavailable."""
        with _translated_errors():
            images = self._images_for(function)
            bring = images.pull if force else images.ensure
            await bring(function.image, access=function.image_access)

    @contextlib.asynccontextmanager
    async def provisional(self, name: str, image: str) -> AsyncIterator[None]:
        """While function `name` is tried with `image`: if that fails, everything is restored."""
        function_name = FunctionName(name)
        before = self._lookups.get(function_name)
        failed_before = self._failed_lookups.pop(function_name, None)  # a registration resolves it again
        try:
            async with self._images.provisional(image):
                yield
        except BaseException:
            if failed_before is not None:
                self._failed_lookups[function_name] = failed_before
            await self._lookups.put(function_name, before)
            raise

    def describe(self, runtime_kind: str) -> str:
        """The runtime's description."""
        return "an OCI image of its own"

    async def close(self) -> None:
        """End every worker."""
        await asyncio.gather(*(worker.close() for worker in list(self._workers.values())))

    def _closed(self, worker: ContainerWorker, name: FunctionName) -> None:
        del self._workers[worker.id]
        del self._functions[worker.id]
        self._logs.end(worker.id, name)

    def _spec(self, function: Function) -> ContainerSpec:
        disk = self._settings.image_disk_gb if self._containers.takes_disk_limits else 0
        return ContainerSpec(
            name=f"{FUNCTION_PREFIX}{ulid.new_id(self._clock.now())}",
            image=function.image,
            environment=function.environment,
            stop_grace_s=0.0,  # its resources are needed, and it has no calls
            resources=Resources(function.cpu or Millicores(0), function.memory, Gigabytes(disk)),
            network=function.network,
            inside=self._inside,
            ingress=Ingress.NODE,
            secrets=function.secrets,
            namespace=namespace_of(function.name) if function.secrets else "",
        )


class ContainerWorker:
    """One container worker."""

    def __init__(
        self,
        containers: Containers,
        view: ContainerView,
        connections: PortConnections,
        settings: FunctionSettings,
        clock: Clock,
    ) -> None:
        self._containers = containers
        self._connections = connections
        self._settings = settings
        self._clock = clock
        self._closing: asyncio.Task[None] | None = None
        self._end_callbacks: list[Callable[[], None]] = []
        self._is_server_gone = False
        self.id = view.spec.name
        self.runtime = f"image {view.spec.image} ({view.image[:19]})"
        self.init_s = 0.0
        self.start_phases = ()
        self.on_closed: Callable[[], None] = lambda: None
        self._copying: asyncio.Task[None] | None = None
        connections.ended.add_done_callback(lambda ended: None if ended.cancelled() else self._notify_end())

    @property
    def is_alive(self) -> bool:
        return self._closing is None and not self._is_server_gone and not self._connections.has_ended

    def start_log_copy(self, logs: FunctionLogs, name: FunctionName) -> None:
        """Copy its output to the logs of its function."""
        sources = [LogSource(stream, self._containers.logs(self.id, stream)) for stream in OutputChannel]
        folder = logs.begin(self.id, name)
        self._copying = asyncio.create_task(log_copy.copy(sources, folder, max_bytes=logs.ring_bytes))

    async def listens(self) -> None:
        """Return when its port accepts connections. Raises CodeLoadError if that takes too long, or it ends.

        The connection is closed: a server that handles one connection after the other would wait for it.
        """
        pause, within_s = _FIRST_CHECK_S, self._settings.image_start_s
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        self._connections.discard(await self._connections.acquire())
                        return
                    except PortClosed:
                        if self._connections.has_ended:
                            break
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _SELDOM_S)
        except TimeoutError:
            raise CodeLoadError(
                f"its container did not listen on port {PORT} in {within_s:g} s (functions.image_start_s)",
                output=await _last_output(self._containers, self.id),
            ) from None
        raise await _not_listening(self._containers, self.id)

    async def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> CallResult:
        """One POST. Failures inside the image are results; raises WorkerExited if it has ended."""
        body = container_protocol.request(params, wants_output=wants_output)
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(within_s):
                status, content = await self._exchange(body, traceparent)
        except TimeoutError:
            return self._failed(began, CallFailure.TIMEOUT, f"it did not respond within {within_s:g} s")
        except HttpReplyTooLarge:
            return container_protocol.reply_too_large(self._settings, self._clock.monotonic() - began)
        except PortClosed as error:
            self._is_server_gone = True
            self._notify_end()
            raise await self._exit_error(str(error), began) from None
        except MalformedHttpReply as error:
            if await self._ends_soon():
                raise await self._exit_error(str(error), began) from None
            return self._failed(began, CallFailure.HANDLER, f"it sent no response: {error}")
        duration_s = self._clock.monotonic() - began
        return container_protocol.parse_reply(
            status, content, duration_s=duration_s, wants_output=wants_output, settings=self._settings
        )

    async def call_web(
        self, request: bytes, response: ResponseStream[WebResponseHead], *, within_s: float
    ) -> CallResult:
        """An HTTP request as it came, to its port. Failures inside the image are results; raises
        WorkerExited if it has ended."""
        head, body = web_calls.decode_request(request)
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(within_s):
                await self._exchange_web(head, body, response)
        except TimeoutError:
            return self._failed(began, CallFailure.TIMEOUT, f"it did not respond within {within_s:g} s")
        except ClientLeft:
            pass  # its server saw that too, by the end of the connection
        except web_calls.InvalidResponse as error:
            return self._failed(began, CallFailure.RESULT, str(error))
        except PortClosed as error:
            self._is_server_gone = True
            self._notify_end()
            raise await self._exit_error(str(error), began) from None
        except MalformedHttpReply as error:
            if await self._ends_soon():
                raise await self._exit_error(str(error), began) from None
            return self._failed(began, CallFailure.RESULT, f"it sent no response: {error}")
        return CallResult(self._clock.monotonic() - began)

    async def _exchange_web(
        self, head: WebRequestHead, body: bytes, response: ResponseStream[WebResponseHead]
    ) -> None:
        connection = await self._connections.acquire()
        try:
            await connection.exchange(head, body, response)
        finally:
            self._connections.release(connection)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when it has ended without `close`, also if it has already."""
        self._end_callbacks.append(callback)
        if self._closing is None and not self.is_alive:
            asyncio.get_running_loop().call_soon(self._notify_end)

    async def close(self) -> None:
        """End it; it is removed on return. Its calls raise WorkerExited."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"end of {self.id}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._end_callbacks.clear()
        self._connections.close()
        with contextlib.suppress(errors.SkerryError):  # reported again when it is removed
            await self._containers.stop(self.id, grace_s=0)
        if self._copying is not None:  # its output is removed with it
            await asyncio.wait([self._copying], timeout=_COPY_S)
            await tasks.cancel_and_wait([self._copying])
        await _remove(self._containers, self.id)
        self.on_closed()

    async def _exchange(self, body: bytes, traceparent: str) -> tuple[int, bytes]:
        connection = await self._connections.acquire()
        try:
            most = container_protocol.max_reply(self._settings)
            return await connection.post(_PATH, body, most=most, traceparent=traceparent)
        finally:
            self._connections.release(connection)

    async def _ends_soon(self) -> bool:
        """True if it has ended: connections of a dying process end a little before it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_NOTICE_S):
                await asyncio.wait([self._connections.ended])
        return self._closing is not None or self._connections.has_ended

    async def _exit_error(self, error: str, began: float) -> WorkerExited:
        if self._closing is not None:
            return WorkerExited(CallFailure.DIED, "its worker was ended")
        failure = CallFailure.DIED
        if self._connections.has_ended:
            status = await _exit_status(self._containers, self.id)
            error = f"its container ended: {_describe_exit(status)}"
            failure = CallFailure.MEMORY if status is not None and status.oom else CallFailure.DIED
        since_ns = int((self._clock.now() - self._clock.monotonic() + began) * 1e9)
        return WorkerExited(failure, error, await _last_output(self._containers, self.id, since_ns))

    def _failed(self, began: float, failure: CallFailure, error: str) -> CallResult:
        return CallResult(self._clock.monotonic() - began, failure=failure, error=error)

    def _notify_end(self) -> None:
        callbacks, self._end_callbacks = self._end_callbacks, []
        for callback in callbacks:
            callback()


async def _remove(containers: Containers, name: str) -> None:
    """Until it is removed, however long that takes: its resources are in use until then."""
    while True:
        try:
            await containers.remove(name, force=True)
            return
        except errors.NotFound:
            return
        except errors.SkerryError as error:
            log.warning("image_worker.not_removed", container=name, error=error.message)
            await asyncio.sleep(_RETRY_S)


async def _not_listening(containers: Containers, name: str) -> CodeLoadError:
    status = await _exit_status(containers, name)
    return CodeLoadError(
        f"its container ended before it listened on port {PORT}: {_describe_exit(status)}",
        output=await _last_output(containers, name),
    )


async def _exit_status(containers: Containers, name: str) -> ExitStatus | None:
    """None if it is not known in time."""
    try:
        async with asyncio.timeout(_EXIT_S):
            return await containers.wait(name)
    except (TimeoutError, errors.SkerryError):
        return None


async def _last_output(containers: Containers, name: str, since_ns: int = 0) -> str:
    """Its last output, stderr after stdout."""
    try:
        readers = [containers.logs(name, stream) for stream in OutputChannel]
    except errors.NotFound:
        return ""

    def read() -> str:
        output = b""
        for reader in readers:
            for item in reader.read():
                if isinstance(item, LogRecord) and item.time_ns >= since_ns:
                    output = (output + item.data)[-_LAST_OUTPUT_BYTES:]
        return output.decode(errors="replace")

    return await asyncio.to_thread(read)


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate errors of an image for `skerry.functions`."""
    try:
        yield
    except (CodeLoadError, errors.ResourcesExhausted, errors.Unavailable):
        raise
    except _PASSING as error:
        raise errors.Unavailable(error.message, detail=error.detail) from error
    except errors.SkerryError as error:
        raise CodeLoadError(error.message) from error


def _describe_exit(status: ExitStatus | None) -> str:
    if status is None:
        return "its exit status is unknown"
    if status.oom:
        return "it was killed for memory; give the function more"
    return f"by signal {status.signal}" if status.signal is not None else f"with exit code {status.code}"
