"""Functions that nobody runs: what was asked is kept, and the answer is what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.cloud_calls import CloudCallCounts
from skerry.functions.continuum.code_replication import CodeCopies, ReplicationStatus
from skerry.functions.continuum.member_api import FunctionCalls
from skerry.functions.invocation.direct_calls import CallDone
from skerry.functions.invocation.invoker import PoolStatus
from skerry.functions.registry import runtimes
from skerry.functions.registry.registry import NewFunction
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest, CallResult, CallState
from skerry.model.cells import OutputChannel
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.members import ContinuumMember, MemberStatus
from skerry.model.resources import Megabytes
from skerry.model.settings import FunctionSettings
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.node_headers import NodeHeaders
from tests.support.waiting import eventually

DIGEST = Digest("sha256:" + "0" * 64)
DONE = CallReport(
    CallResult(0.003, b'{"IsPrime": false}'),
    response_s=0.75,
    is_warm=True,
    queueing_s=0.25,
    area="local",
    node="n1",
)
NEIGHBOUR = MemberStatus(
    ContinuumMember(NodeId("n2"), "edge-2", "harbour", address="192.0.2.2:7400", memory=512, cpus=2.0),
    is_up=True,
    rtt_s=0.004,
    heard_s=None,
    memory_free=128,
    cpus_free=1.5,
    waiting=3,
    done=7,
    refused=1,
)
POOL = PoolStatus(
    warm={FunctionName("isprime"): 1},
    total_memory_mb=4096,
    available_memory_mb=3072,
    free_memory_mb=2944,
    total_cpus=8.0,
    used_cpus=1.5,
    workers=3,
    queue_length=0,
)


class FakeFunctions:
    """A registry in memory."""

    def __init__(self) -> None:
        self.known: dict[str, Function] = {}
        self.asked: list[NewFunction] = []
        self.failing: errors.SkerryError | None = None

    def add(self, *names: str, environment: tuple[str, ...] = ()) -> None:
        for name in names:
            new = NewFunction(name, "python310", 128, handler="m.f", code=b"tar", environment=environment)
            self._put(new, 1)

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        if self.get(new.name) is not None:
            raise errors.AlreadyExists("there is one")
        return self._register(new, 1)

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        old = self.get(new.name)
        return self._register(new, old.version + 1 if old else 1)

    async def delete(self, name: str, *, actor: str) -> Function:
        if (function := self.known.pop(name, None)) is None:
            raise errors.NotFound(f"there is no function {name!r}")
        return function

    def get(self, name: str) -> Function | None:
        return self.known.get(name)

    def names(self) -> list[str]:
        return sorted(function.name for function in self.known.values())

    def runs(self, function: Function) -> str:
        if function.image:
            raise errors.Unavailable("this machine runs no containers")
        return "Python 3.11.2"

    def copies(self, function: Function) -> CodeCopies | None:
        return None if function.code is None else CodeCopies(1, 2)

    def replication(self) -> ReplicationStatus:
        return ReplicationStatus(under_replicated=("once",), missing=("nowhere",))

    def _register(self, new: NewFunction, version: int) -> Function:
        if self.failing is not None:
            raise self.failing
        self.asked.append(new)
        runtimes.find(new.runtime)
        if new.memory < 1:
            raise errors.Unprocessable("Invalid memory limit")
        return self._put(new, version)

    def _put(self, new: NewFunction, version: int) -> Function:
        function = Function(
            name=FunctionName(new.name),
            runtime=new.runtime,
            memory=Megabytes(new.memory),
            created_at=1_700_000_000.0,
            cpu=new.cpu,
            max_concurrency=new.max_concurrency,
            handler=new.handler,
            code=DIGEST if new.code else None,
            image=new.image,
            environment=new.environment,
            network=new.network,
            timeout_s=new.timeout_s,
            version=version,
            is_idempotent=new.is_idempotent,
            policy=new.policy,
            signature=new.signature,
        )
        self.known[new.name] = function
        return function


class FakeCall:
    """A call that was begun without a task."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def end(self) -> None:
        if not self.is_cancelled:
            self._report()


class FakeInvoker:
    """Answers every call with `report`, or raises what it is told to."""

    def __init__(self, functions: FakeFunctions) -> None:
        self._functions = functions
        self.asked: list[CallRequest] = []
        self.prewarmed: list[tuple[str, int, bool]] = []
        self.report: Callable[[CallRequest], CallReport] = lambda ask: DONE
        self.failing: errors.SkerryError | None = None
        self.pool = POOL
        self.seen: list[MemberStatus] = [NEIGHBOUR]
        self.measured = 0
        self.is_direct = False  # it takes calls without a task
        self.begun = 0
        self.holds = False  # what is begun ends when the test says so
        self.held: list[FakeCall] = []

    def begin(self, ask: CallRequest, done: CallDone) -> FakeCall | None:
        if not self.is_direct or self._functions.get(ask.function) is None:
            return None
        if self.failing is not None:
            raise self.failing
        self.asked.append(ask)
        self.begun += 1
        call = FakeCall(lambda: done(self.report(ask)))
        if self.holds:
            self.held.append(call)
        else:
            asyncio.get_running_loop().call_soon(call.end)
        return call

    async def invoke(self, ask: CallRequest) -> CallReport:
        if self._functions.get(ask.function) is None:
            raise errors.NotFound("Function unknown.")
        if self.failing is not None:
            raise self.failing
        self.asked.append(ask)
        return self.report(ask)

    async def prewarm(self, name: str, instances: int, *, force: bool = False) -> int:
        if self._functions.get(name) is None:
            raise errors.NotFound("Function unknown.")
        if self.failing is not None:
            raise self.failing
        self.prewarmed.append((name, instances, force))
        return min(instances, 2)

    def neighbours(self) -> Sequence[MemberStatus]:
        return self.seen

    def status(self) -> PoolStatus:
        self.measured += 1
        return self.pool


class FakeAsynchronous:
    """Accepts every call; where each is, the test says."""

    def __init__(self) -> None:
        self.asked: list[CallRequest] = []
        self.calls: dict[str, AsyncCallResult] = {}
        self.waits: list[float] = []
        self.failing: errors.SkerryError | None = None

    async def accept(self, ask: CallRequest) -> str:
        if self.failing is not None:
            raise self.failing
        self.asked.append(ask)
        id = f"{ask.function}-{len(self.asked)}"
        self.calls[id] = AsyncCallResult(CallState.QUEUED)
        return id

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None:
        """With `wait_s`, when it has ended: here nobody waits for less."""
        self.waits.append(wait_s)
        if wait_s:
            await eventually(lambda: id not in self.calls or not self.calls[id].state.is_pending)
        return self.calls.get(id)


class FakeCalls:
    """The calls of two members, of which one was not reached."""

    async def read(self) -> CloudCallCounts:
        counted = FunctionCalls(FunctionName("shop:pay"), 5, 2, 1, 0.25)
        return CloudCallCounts(1000.5, (counted,), 2, ("edge-2: it does not answer",))


class FakeLogs:
    """The same lines of every function, and with `follow` nothing more, for ever."""

    def __init__(self) -> None:
        self.lines = [
            FunctionLogLine(0, "w1", OutputChannel.STDOUT, text) for text in ("one", "two", "three")
        ]
        self.is_closed = False

    async def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        try:
            for line in self.lines if lines is None else self.lines[len(self.lines) - lines :]:
                yield line
            if follow:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


class Fakes:
    """All of them, and the bundle that the app gets."""

    def __init__(self, clock: Clock, settings: FunctionSettings | None = None) -> None:
        self.functions = FakeFunctions()
        self.invoker = FakeInvoker(self.functions)
        self.asynchronous = FakeAsynchronous()
        self.logs = FakeLogs()
        self.bundle = ServerledgeContext(
            self.functions,
            self.invoker,
            self.asynchronous,
            self.logs,
            settings or FunctionSettings(),
            clock,
            url="http://127.0.0.1:1323",
            node_headers=NodeHeaders(self.invoker, clock, "n1"),
            calls=FakeCalls(),
            load=lambda: (1.34, 1.43, 0.94),
        )


def failed(answer: CallResult) -> Callable[[CallRequest], CallReport]:
    return lambda ask: msgspec.structs.replace(DONE, answer=answer)


def echo(ask: CallRequest) -> CallReport:
    """Its parameters are its result."""
    json.loads(ask.params)
    return msgspec.structs.replace(DONE, answer=CallResult(0.0, ask.params))
