"""Workers that run nothing: a host that starts, answers, fails and dies as a test tells it to."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

from skerry.functions.invocation.invoker import Invoker
from skerry.kit.clock import Clock
from skerry.kit.response_stream import ResponseStream
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.calls import (
    CallFailure,
    CallReport,
    CallRequest,
    CallResult,
    CallWaiter,
    CodeLoadError,
    WorkerExited,
)
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.resources import Megabytes, Millicores
from skerry.model.settings import FunctionSettings
from skerry.model.web_calls import WebResponseHead
from skerry.sim import simulated_time
from skerry.sim.simulated_time import LoopClock

CODE = Digest("sha256:" + "0" * 64)


def function(
    name: str,
    *,
    memory: int = 128,
    cpu: int | None = None,
    seats: int = 1,
    version: int = 1,
    timeout_s: float | None = None,
) -> Function:
    return Function(
        FunctionName(name),
        "python310",
        Megabytes(memory),
        created_at=0.0,
        cpu=None if cpu is None else Millicores(cpu),
        max_concurrency=seats,
        handler="main.handler",
        code=CODE,
        version=version,
        timeout_s=timeout_s,
    )


class Registered:
    """A `skerry.functions.ports.FunctionLookup` that counts how often it is asked."""

    def __init__(self, *functions: Function) -> None:
        self.functions = {one.name.lower(): one for one in functions}
        self.lookups = 0

    def add(self, one: Function) -> Function:
        self.functions[one.name.lower()] = one
        return one

    def get(self, name: str) -> Function | None:
        self.lookups += 1
        return self.functions.get(name.lower())

    def code_folder(self, one: Function) -> Path | None:
        return Path("/code") / one.name


class FakeWorker:
    """Answers after `host.run_s` with its id, its version and the parameters."""

    runtime = "Fake 1.0"

    def __init__(self, host: FakeHost, id: str, function: Function, init_s: float) -> None:
        self.id = id
        self.function = function
        self.init_s = init_s
        self.start_phases: tuple[tuple[str, float], ...] = ()
        self.is_alive = True
        self.is_closed = False
        self.in_flight = 0
        self.calls = 0
        self._host = host
        self._numbers = 0
        self._begun: dict[int, asyncio.Task[CallResult]] = {}  # without a task of their caller's
        self._ended: list[asyncio.Future[None]] = []
        self._gone: WorkerExited | None = None
        self._tell: Callable[[], None] | None = None

    async def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> CallResult:
        self._accept(within_s)
        try:
            return await self._answer(params, within_s)
        finally:
            self.in_flight -= 1

    def _accept(self, within_s: float) -> None:
        self.in_flight += 1
        self.calls += 1
        self._host.check(self.is_alive, "a dead worker was handed a call")
        self._host.check(within_s > 0, "a call was begun that has no time left")
        self._host.check(self.in_flight <= self.function.max_concurrency, "too many calls in one worker")
        oldest = self._host.oldest.get(self.function.name, 0)
        self._host.check(self.function.version >= oldest, "a call was begun in a worker of an older version")

    async def _answer(self, params: bytes, within_s: float) -> CallResult:
        ended = asyncio.get_running_loop().create_future()
        self._ended.append(ended)
        run_s = self._host.run_s
        try:
            await asyncio.wait([ended], timeout=min(run_s, within_s))
            if self._gone is not None:
                raise self._gone
            if run_s > within_s:
                return CallResult(within_s, failure=CallFailure.TIMEOUT, error="too slow")
            return self._host.reply(self, params)
        finally:
            self._ended.remove(ended)
            ended.cancel()

    def begin_call(self, params: bytes, *, wants_output: bool, within_s: float, waiter: CallWaiter) -> int:
        self._numbers += 1
        number = self._numbers
        self._accept(within_s)
        task = asyncio.ensure_future(self._answer(params, within_s))

        def end(task: asyncio.Task[CallResult]) -> None:
            self.in_flight -= 1
            del self._begun[number]
            if task.cancelled() or waiter.done():
                return
            error = task.exception()
            if isinstance(error, Exception):
                waiter.set_exception(error)
            else:
                waiter.set_result(task.result())

        self._begun[number] = task
        task.add_done_callback(end)
        return number

    async def explain_end(self, error: Exception, *, began: float, within_s: float) -> CallResult:
        raise error

    def abandon_call(self, number: int) -> None:
        self._begun[number].cancel()

    async def call_web(
        self, request: bytes, response: ResponseStream[WebResponseHead], *, within_s: float
    ) -> CallResult:
        """Answers as a call, with the request as its body."""
        response.attach(lambda count: None, lambda: None)
        result = await self.call(request, wants_output=False, within_s=within_s)
        if result.failure is None:
            response.begin(WebResponseHead(200, (("content-type", "text/plain"),)))
            response.write(result.result)
        return result

    def on_end(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        if not self.is_alive:
            tell()

    def die(self, failure: CallFailure = CallFailure.DIED, error: str = "killed") -> None:
        """End by itself; the pool hears of it a moment later."""
        if self.is_alive:
            self._end(failure, error)
            if self._tell is not None:
                asyncio.get_running_loop().call_soon(self._tell)

    def _end(self, failure: CallFailure, error: str) -> None:
        self.is_alive = False
        self._gone = WorkerExited(failure, error, "last words")
        for ended in self._ended:
            if not ended.done():
                ended.set_result(None)

    async def close(self) -> None:
        if self.is_alive:
            self._end(CallFailure.DIED, "closed")
        if self._host.close_s:
            await asyncio.sleep(self._host.close_s)
        self.is_closed = True
        self._host.workers.discard(self)


class FakeHost:
    """A `skerry.functions.ports.WorkerHost`; what is public may be changed at any time."""

    def __init__(
        self, clock: Clock, *, init_s: float = 0.01, run_s: float = 0.001, close_s: float = 0.0
    ) -> None:
        self.init_s = init_s
        self.run_s = run_s
        self.close_s = close_s
        self.fault: Callable[[Function], Exception | None] = lambda _: None
        self.reply: Callable[[FakeWorker, bytes], CallResult] = self._echo
        self.kind = FakeWorker
        self.workers: set[FakeWorker] = set()
        self.oldest: dict[str, int] = {}  # versions that may still be called
        self.wrongs: list[str] = []  # what the pool did that no pool may do
        self.most_memory = 0
        self.spawned: list[FakeWorker] = []
        self.spawns = 0
        self.prepared: list[tuple[str, bool]] = []
        self._clock = clock
        self._ids = count(1)
        self._starting: list[Function] = []

    def check(self, is_right: bool, wrong: str) -> None:
        if not is_right:
            self.wrongs.append(wrong)

    def _echo(self, worker: FakeWorker, params: bytes) -> CallResult:
        return CallResult(self.run_s, params, f"{worker.id} v{worker.function.version}")

    @property
    def memory(self) -> int:
        """What all that are there or on their way take, counted here and not in the pool."""
        return sum(one.function.memory for one in self.workers) + sum(one.memory for one in self._starting)

    async def spawn(self, function: Function, code: Path | None) -> FakeWorker:
        assert code == Path("/code") / function.name
        self.spawns += 1
        self._starting.append(function)
        self.most_memory = max(self.most_memory, self.memory)
        try:
            began = self._clock.monotonic()
            await asyncio.sleep(self.init_s)
            error = self.fault(function)
            if error is not None:
                raise error
        finally:
            self._starting.remove(function)
        worker = self.kind(self, f"w{next(self._ids)}", function, self._clock.monotonic() - began)
        self.workers.add(worker)
        self.spawned.append(worker)
        return worker

    async def prepare(self, function: Function, *, force: bool) -> None:
        self.prepared.append((function.name, force))

    def describe(self, runtime_kind: str) -> str:
        return "Fake 1.0"

    def of(self, name: str) -> list[FakeWorker]:
        """The workers of one function, the oldest first."""
        return [one for one in self.spawned if one in self.workers and one.function.name == name]


def broken(_: Function) -> Exception:
    return CodeLoadError("no module named main", output="Traceback")


def without_room(_: Function) -> Exception:
    return errors.ResourcesExhausted("the machine is full")


class Site:
    """An `Invoker` over a `FakeHost`, in the time of the running loop."""

    is_direct = False  # calls have no task of their own where that is possible

    def __init__(
        self, *functions: Function, memory_mb: int = 1024, cpus: float = 4.0, **settings: Any
    ) -> None:
        self.begun = 0  # calls without a task of their own
        self.clock = LoopClock(asyncio.get_running_loop())
        self.host = FakeHost(self.clock)
        self.registry = Registered(*functions)
        self.settings = FunctionSettings(**settings)
        self.invoker = Invoker(
            self.host,
            self.registry,
            self.settings,
            self.clock,
            node="here",
            memory_mb=memory_mb,
            cpus=cpus,
        )

    async def __aenter__(self) -> Site:
        self._janitor = asyncio.ensure_future(self.invoker.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait([self._janitor])
        await self.invoker.close()
        status = self.invoker.status()
        assert (status.workers, status.free_memory_mb, status.used_cpus) == (0, status.total_memory_mb, 0.0)
        assert not self.host.workers
        assert self.host.wrongs == []
        assert self.host.most_memory <= status.total_memory_mb

    async def call(self, name: str, **ask: Any) -> CallReport:
        request = CallRequest(FunctionName(name), **ask)
        return await (self.call_directly(request) if self.is_direct else self.invoker.invoke(request))

    async def call_directly(self, request: CallRequest) -> CallReport:
        """By `Invoker.begin`, as far as that is possible."""
        ended: asyncio.Future[CallReport | errors.SkerryError] = asyncio.get_running_loop().create_future()
        call = self.invoker.begin(request, lambda outcome: ended.done() or ended.set_result(outcome))
        if call is None:
            return await self.invoker.invoke(request)
        self.begun += 1
        try:
            outcome = await ended
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not isinstance(outcome, CallReport):
            raise outcome
        return outcome

    def begin(self, name: str, **ask: Any) -> asyncio.Task[CallReport]:
        """A call on its way, in order: what is begun first arrives first."""
        return asyncio.ensure_future(self.call(name, **ask))


def in_simulated_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test where waiting takes no time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        simulated_time.run(test(*args, **kwargs))

    return run
