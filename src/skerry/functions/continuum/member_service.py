"""The service of this member for its neighbours: it runs their calls, reports its load, sends and stores
code.

Implements `skerry.functions.continuum.member_api.MemberService`, with the state of `router`;
`skerry.transport.links.members` brings the requests. A call that was not run here, and will not be, is
refused by an error, so that its sender may try another member; every other one gets a report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Final, Protocol

from msgspec.structs import replace

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum import replica_placement
from skerry.functions.continuum.async_locator import LocalAsyncCalls
from skerry.functions.continuum.cloud_calls import count_calls
from skerry.functions.continuum.forwarding import StartOnce
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CodeList,
    ForwardedCall,
    FunctionCalls,
    MemberLoad,
    ResultCopy,
    StaleFunction,
)
from skerry.functions.continuum.router import CallRouter
from skerry.functions.invocation.invoker import Invoker
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName, NodeId

_CATCH_UP_S: Final = 1.0  # a newer function is known here within this time, or the call is refused
# Failures of a call that never came to a worker which are this node's and not the function's.
_OURS: Final = frozenset({CallFailure.INTERNAL, CallFailure.INTERRUPTED})


class FunctionView(Protocol):
    """The functions as this member knows them, and the code of those that it has."""

    def get(self, name: str) -> Function | None: ...

    async def archive(self, digest: Digest) -> bytes:
        """Of a function's code, as it came. Raises `NotFound` if it is not here."""
        ...

    async def catch_up(self, name: str, version: int) -> None:
        """A neighbour knows a newer function: wait until it is known here too, for a short time."""
        ...


class LocalCode(Protocol):
    """The code that this member has, such as `skerry.functions.registry.code_store.CodeStore`."""

    @property
    def stamp(self) -> str: ...

    @property
    def archived(self) -> Collection[Digest]: ...


class CodeStorer(Protocol):
    """Has code here that is elsewhere, such as `skerry.functions.continuum.code_fetcher.CodeFetcher`."""

    async def store(self, digest: Digest, source: NodeId) -> None: ...


class LocalMemberService:
    """Neighbours, as this member sees them."""

    def __init__(
        self,
        continuum: CallRouter,
        invoker: Invoker,
        registry: FunctionView,
        polls: LocalAsyncCalls,
        code: LocalCode,
        stores: CodeStorer,
    ) -> None:
        self._continuum = continuum
        self._invoker = invoker
        self._registry = registry
        self._polls = polls
        self._code = code
        self._stores = stores

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
        if not self._is_known(call):
            await self._catch_up(call)
        request = (
            call.request if call.deadline_s is None else replace(call.request, max_response_s=call.deadline_s)
        )
        if begins is None:
            return _checked(await self._invoker.invoke(request), is_begun=True)
        once = StartOnce(begins)
        if call.hops_left:
            report = await self._continuum.route(request, once, call.hops_left)
        else:
            report = await self._continuum.run_here(request, once)
        return _checked(report, is_begun=once.is_done)

    def _is_known(self, call: ForwardedCall) -> bool:
        function = self._registry.get(call.request.function)
        return function is not None and function.version >= call.version

    async def _catch_up(self, call: ForwardedCall) -> None:
        """What was registered a moment ago is on its way here: wait for it. Raises `StaleFunction` if it does
        not come soon."""
        name = call.request.function
        with contextlib.suppress(TimeoutError, errors.Unavailable):
            async with asyncio.timeout(min(_CATCH_UP_S, call.deadline_s or _CATCH_UP_S)):
                await self._registry.catch_up(name, call.version)
        if not self._is_known(call):
            function = self._registry.get(name)
            known = "no such function" if function is None else f"version {function.version}"
            raise StaleFunction(
                f"version {call.version} of {name} is asked for, and this node knows {known} so far"
            )

    def has_warm(self, function: FunctionName) -> bool:
        known = self._registry.get(function)
        return known is not None and self._invoker.has_warm(known)

    def load(self) -> MemberLoad:
        return self._continuum.load()

    def load_reported(self, node: NodeId, load: MemberLoad) -> None:
        self._continuum.measuring.load_reported(node, load)

    async def code(self, digest: Digest) -> bytes:
        return await self._registry.archive(digest)

    async def poll(self, id: str) -> AsyncCallResult | None:
        return await self._polls.poll(id)

    async def store_code(self, digest: Digest, source: NodeId) -> None:
        await self._stores.store(digest, source)

    def list_code(self, known: str) -> CodeList:
        stamp = self._code.stamp
        return CodeList(stamp, None if stamp == known else tuple(self._code.archived))

    def calls(self) -> tuple[FunctionCalls, ...]:
        return count_calls(self._invoker.metrics.groups())

    async def store_result(self, copy: ResultCopy) -> None:
        await self._polls.keep_copy(
            copy.id, copy.state, copy.ended_at, copy.body, holder=replica_placement.origin_holder(copy.id)
        )


def _checked(report: CallReport, *, is_begun: bool) -> CallReport:
    """The report of a call that was run; raises for one that was not, and may be elsewhere."""
    answer = report.answer
    if answer.failure is CallFailure.NO_ROOM:  # the report of a call that a worker got has none
        raise errors.ResourcesExhausted(answer.error)
    if answer.failure in _OURS and not is_begun:
        raise errors.Unavailable(answer.error)
    return report
