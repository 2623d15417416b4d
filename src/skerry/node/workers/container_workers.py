"""Workers that are containers: functions of runtime `custom`, which bring an image of their own.

Beside `skerry.node.workers.process_workers`, to the same contract: `skerry.functions` knows both as its host.
Such a worker is a container like any other (`skerry.node.containers`), made in the cell that holds all
workers, and is called by a POST to port 8080 of itself: what is said in it is `container_protocol`'s, the way
there is `port_connections`'. Containers outlive an agent and these must not: what an earlier one left is
removed when this is opened.
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
from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult, CodeLoadError, WorkerExited
from skerry.model.cells import ExitStatus, OutputChannel
from skerry.model.containers import FUNCTION_PREFIX, ContainerSpec, ContainerView
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.images import ImageAccess
from skerry.model.network import Egress, Ingress
from skerry.model.resources import Gigabytes, Millicores, Resources
from skerry.model.settings import FunctionSettings
from skerry.node.containers.containers import Containers
from skerry.node.images.images import Images
from skerry.node.images.references import is_id
from skerry.node.logs.merge import LogSource
from skerry.node.logs.readers import LogRecord
from skerry.node.workers import container_protocol, log_copy
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.http_client import HttpReplyTooLarge, MalformedHttpReply
from skerry.node.workers.lookups import ImageLookups
from skerry.node.workers.port_connections import PortClosed, PortConnections

log = structlog.get_logger(__name__)

PORT: Final = 8080
_PATH: Final = "/invoke"
_FIRST_LOOK_S: Final = 0.002  # at whether it listens; the pause doubles
_SELDOM_S: Final = 0.05
_AGAIN_S: Final = 1.0  # until a removal that failed is tried again
_NOTICE_S: Final = 0.5  # from the end of a connection to that of its process, if that was why
_EXIT_S: Final = 5.0  # from that to the word of how it ended
_COPY_S: Final = 2.0  # for the last of what it printed
_WORDS: Final = 64 * 1024  # what a container has printed last, for whoever must find out why it ended

_LOOK_UP_AGAIN: Final = Backoff(first_s=30.0, cap_s=3600.0)  # after a lookup that failed

# Whatever else keeps an image from running, the function is to blame for.
_PASSING: Final = (errors.Unavailable, errors.TimedOut, errors.Overloaded)


class _FailedLookup(NamedTuple):
    """How often in a row the image of a function could not be looked up, and when it may be again."""

    failures: int = 0
    again_at: float = 0.0


class ContainerWorkers:
    """Makes workers of images."""

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
    ) -> None:
        """`inside` is the cell of all workers, which must be there when one is made; `folder` is for what the
        next agent has to know."""
        self._containers = containers
        self._images = images
        self._settings = settings
        self._clock = clock
        self._logs = logs
        self._inside = inside
        self._workers: dict[str, ContainerWorker] = {}
        self._lookups = ImageLookups(files.private_folder(folder) / "image-lookups.json")
        self._failed_lookups: dict[FunctionName, _FailedLookup] = {}

    async def open(self) -> ContainerWorkers:
        """Remove what an earlier agent left, and begin."""
        left = [view.spec.name for view in self._containers.list() if view.spec.inside == self._inside]
        await asyncio.gather(*(_remove(self._containers, name) for name in left))
        if left:
            log.info("image_workers.removed", count=len(left))
        return self

    async def spawn(self, function: Function, code: Path | None) -> ContainerWorker:
        """A worker whose server listens. `code` is of no use to it. Raises CodeLoadError, ResourcesExhausted,
        Unavailable; whatever was begun is undone then, and also if the caller is cancelled."""
        began = self._clock.monotonic()
        spec = self._spec(function)
        try:
            with _blamed():
                # Here a caller that goes away ends it.
                await self._bring(function)
                starting = self._containers.create(
                    spec,
                    access=function.image_access,
                    egress=Egress(self._settings.egress),
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
        worker.on_closed = lambda: self._closed(worker, function.name)
        try:
            worker.keep_output(self._logs, function.name)
            await worker.listens()
        except BaseException:
            await tasks.run_to_completion(worker.close())
            raise
        worker.init_s = self._clock.monotonic() - began
        return worker

    async def _bring(self, function: Function) -> None:
        """Have its image here. What the reference means is looked up once for each registration of the
        function. What is here already will do if it cannot be; then it is looked up again later."""
        reference, access = function.image, function.image_access
        if self._lookups.is_known(function) or not self._has(reference, access):
            await self._images.ensure(reference, access=access)
        elif not await self._look_up(function):
            return
        await self._lookups.note(function)

    async def _look_up(self, function: Function) -> bool:
        """False if it could not be looked up, now or a while ago."""
        failed = self._failed_lookups.get(function.name, _FailedLookup())
        if self._clock.monotonic() < failed.again_at:
            return False
        try:
            await self._images.pull(function.image, access=function.image_access)
        except errors.SkerryError as error:
            log.info("image.not_looked_up", reference=function.image, error=error.message)
            again_at = self._clock.monotonic() + _LOOK_UP_AGAIN.delay(failed.failures)
            self._failed_lookups[function.name] = _FailedLookup(failed.failures + 1, again_at)
            return False
        self._failed_lookups.pop(function.name, None)
        return True

    def _has(self, reference: str, access: ImageAccess) -> bool:
        """Whether something is here by that name, which could mean something else by now."""
        if is_id(reference):
            return False
        try:
            self._images.find(reference, access=access)
        except errors.NotFound:
            return False
        return True

    async def _connections(self, view: ContainerView) -> PortConnections:
        try:
            group = self._containers.cell(view.spec.name)
            return PortConnections.to(view.pid or 0, view.address, PORT, self._clock, group=group)
        except (PortClosed, errors.NotFound):
            raise await _not_listening(self._containers, view.spec.name) from None

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Have the image here; with `force`, what its reference means now. Raises CodeLoadError,
        ResourcesExhausted, Unavailable."""
        with _blamed():
            bring = self._images.pull if force else self._images.ensure
            await bring(function.image, access=function.image_access)

    @contextlib.asynccontextmanager
    async def provisional(self, name: str, image: str) -> AsyncIterator[None]:
        """Where function `name` is tried with `image`: if that fails, all is as it was before."""
        known = FunctionName(name)
        before = self._lookups.get(known)
        failed_before = self._failed_lookups.pop(known, None)  # whoever registers it wants it looked up
        try:
            async with self._images.provisional(image):
                yield
        except BaseException:
            if failed_before is not None:
                self._failed_lookups[known] = failed_before
            await self._lookups.put(known, before)
            raise

    def describe(self, runtime_kind: str) -> str:
        """What really runs."""
        return "an OCI image of its own"

    async def close(self) -> None:
        """End every worker."""
        await asyncio.gather(*(worker.close() for worker in list(self._workers.values())))

    def _closed(self, worker: ContainerWorker, name: FunctionName) -> None:
        del self._workers[worker.id]
        self._logs.end(worker.id, name)

    def _spec(self, function: Function) -> ContainerSpec:
        disk = self._settings.image_disk_gb if self._containers.takes_disk_limits else 0
        return ContainerSpec(
            name=f"{FUNCTION_PREFIX}{ulid.new_id(self._clock.now())}",
            image=function.image,
            environment=function.environment,
            stop_grace_s=0.0,  # its room is wanted, and no call is in it
            resources=Resources(function.cpu or Millicores(0), function.memory, Gigabytes(disk)),
            network=function.network,
            inside=self._inside,
            ingress=Ingress.NODE,
        )


class ContainerWorker:
    """One container that takes calls."""

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
        self._tells: list[Callable[[], None]] = []
        self._has_lost_its_server = False
        self.id = view.spec.name
        self.runtime = f"image {view.spec.image} ({view.image[:19]})"
        self.init_s = 0.0
        self.on_closed: Callable[[], None] = lambda: None
        self._copying: asyncio.Task[None] | None = None
        connections.ended.add_done_callback(lambda ended: None if ended.cancelled() else self._tell())

    @property
    def is_alive(self) -> bool:
        return self._closing is None and not self._has_lost_its_server and not self._connections.has_ended

    def keep_output(self, logs: FunctionLogs, name: FunctionName) -> None:
        """Copy what it prints to where that of its function is kept."""
        sources = [LogSource(stream, self._containers.logs(self.id, stream)) for stream in OutputChannel]
        folder = logs.begin(self.id, name)
        self._copying = asyncio.create_task(log_copy.copy(sources, folder, max_bytes=logs.ring_bytes))

    async def listens(self) -> None:
        """Returns when its port takes connections. Raises CodeLoadError if that takes too long, or it ends.

        The connection is closed: a server that answers one connection after the other would wait for it.
        """
        pause, within_s = _FIRST_LOOK_S, self._settings.image_start_s
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        self._connections.discard(await self._connections.enter())
                        return
                    except PortClosed:
                        if self._connections.has_ended:
                            break
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _SELDOM_S)
        except TimeoutError:
            raise CodeLoadError(
                f"its container did not listen on port {PORT} in {within_s:g} s (functions.image_start_s)",
                output=await _last_words(self._containers, self.id),
            ) from None
        raise await _not_listening(self._containers, self.id)

    async def call(self, params: bytes, *, wants_output: bool, within_s: float) -> CallResult:
        """One POST. What goes wrong inside the image is an answer; raises WorkerExited if it has ended."""
        body = container_protocol.request(params, wants_output=wants_output)
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(within_s):
                status, said = await self._exchange(body)
        except TimeoutError:
            return self._failed(began, CallFailure.TIMEOUT, f"it did not answer within {within_s:g} s")
        except HttpReplyTooLarge:
            return container_protocol.too_much(self._settings, self._clock.monotonic() - began)
        except PortClosed as error:
            self._has_lost_its_server = True
            self._tell()
            raise await self._gone(str(error), began) from None
        except MalformedHttpReply as error:
            if await self._ends_soon():
                raise await self._gone(str(error), began) from None
            return self._failed(began, CallFailure.HANDLER, f"it gave no answer: {error}")
        duration_s = self._clock.monotonic() - began
        return container_protocol.answer(
            status, said, duration_s=duration_s, wants_output=wants_output, settings=self._settings
        )

    def on_end(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once when it has ended without `close`, also if it has already."""
        self._tells.append(tell)
        if self._closing is None and not self.is_alive:
            asyncio.get_running_loop().call_soon(self._tell)

    async def close(self) -> None:
        """End it; nothing of it is left when this returns. Calls in it raise WorkerExited."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"end of {self.id}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._tells.clear()
        self._connections.close()
        with contextlib.suppress(errors.SkerryError):  # said again when it is removed
            await self._containers.stop(self.id, grace_s=0)
        if self._copying is not None:  # its output goes with it
            await asyncio.wait([self._copying], timeout=_COPY_S)
            await tasks.cancel_and_wait([self._copying])
        await _remove(self._containers, self.id)
        self.on_closed()

    async def _exchange(self, body: bytes) -> tuple[int, bytes]:
        connection = await self._connections.enter()
        try:
            return await connection.post(_PATH, body, most=container_protocol.max_reply(self._settings))
        finally:
            self._connections.give_back(connection)

    async def _ends_soon(self) -> bool:
        """Whether it has ended: of a process that dies, connections end a little before it has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NOTICE_S):
                await asyncio.wait([self._connections.ended])
        return self._closing is not None or self._connections.has_ended

    async def _gone(self, error: str, began: float) -> WorkerExited:
        if self._closing is not None:
            return WorkerExited(CallFailure.DIED, "its worker was ended")
        failure = CallFailure.DIED
        if self._connections.has_ended:
            how = await _how_it_ended(self._containers, self.id)
            error = f"its container ended: {_in_words(how)}"
            failure = CallFailure.MEMORY if how is not None and how.oom else CallFailure.DIED
        since_ns = int((self._clock.now() - self._clock.monotonic() + began) * 1e9)
        return WorkerExited(failure, error, await _last_words(self._containers, self.id, since_ns))

    def _failed(self, began: float, failure: CallFailure, error: str) -> CallResult:
        return CallResult(self._clock.monotonic() - began, failure=failure, error=error)

    def _tell(self) -> None:
        tells, self._tells = self._tells, []
        for tell in tells:
            tell()


async def _remove(containers: Containers, name: str) -> None:
    """Until it is gone, however long that takes: its room is nobody's until then."""
    while True:
        try:
            await containers.remove(name, force=True)
            return
        except errors.NotFound:
            return
        except errors.SkerryError as error:
            log.warning("image_worker.not_removed", container=name, error=error.message)
            await asyncio.sleep(_AGAIN_S)


async def _not_listening(containers: Containers, name: str) -> CodeLoadError:
    how = await _how_it_ended(containers, name)
    return CodeLoadError(
        f"its container ended before it listened on port {PORT}: {_in_words(how)}",
        output=await _last_words(containers, name),
    )


async def _how_it_ended(containers: Containers, name: str) -> ExitStatus | None:
    """None if nobody says so in time."""
    try:
        async with asyncio.timeout(_EXIT_S):
            return await containers.wait(name)
    except (TimeoutError, errors.SkerryError):
        return None


async def _last_words(containers: Containers, name: str, since_ns: int = 0) -> str:
    """What it has printed last, errors after output."""
    try:
        readers = [containers.logs(name, stream) for stream in OutputChannel]
    except errors.NotFound:
        return ""

    def read() -> str:
        words = b""
        for reader in readers:
            for item in reader.read():
                if isinstance(item, LogRecord) and item.time_ns >= since_ns:
                    words = (words + item.data)[-_WORDS:]
        return words.decode(errors="replace")

    return await asyncio.to_thread(read)


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
    """What goes wrong with an image, told as the contract of hosts has it."""
    try:
        yield
    except (CodeLoadError, errors.ResourcesExhausted, errors.Unavailable):
        raise
    except _PASSING as error:
        raise errors.Unavailable(error.message, detail=error.detail) from error
    except errors.SkerryError as error:
        raise CodeLoadError(error.message) from error


def _in_words(how: ExitStatus | None) -> str:
    if how is None:
        return "nobody knows how"
    if how.oom:
        return "it was killed for memory; give the function more"
    return f"by signal {how.signal}" if how.signal is not None else f"with exit code {how.code}"
