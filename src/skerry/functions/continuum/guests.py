"""What this member does for its neighbours: it runs their calls, tells how it is, and gives out code.

Keeps `skerry.functions.continuum.neighbours.Serves`, over what `entries` knows; `skerry.wire.neighbours`
brings what they ask. A call that was not run here, and will not be, is refused by an error, so that whoever
sent it may try elsewhere; every other one gets a report.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from skerry.functions.continuum.entries import Continuum
from skerry.functions.continuum.journeys import Once
from skerry.functions.continuum.neighbours import Begins, FarCall, Stale, Standing
from skerry.functions.invoking import Invoker
from skerry.functions.results import Polled
from skerry.model import errors
from skerry.model.calls import Failure, Report
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName, NodeId

# Failures of a call that never came to a worker which are this node's and not the function's.
_OURS: Final = frozenset({Failure.INTERNAL, Failure.INTERRUPTED})


class Mirror(Protocol):
    """The functions as this member knows them, and the code of those that it has."""

    def get(self, name: str) -> Function | None: ...

    async def archive(self, digest: Digest) -> bytes:
        """Of a function's code, as it came. Raises `NotFound` if it is not here."""
        ...

    def catch_up(self) -> None:
        """Somebody knows of a newer function: look for it. Returns at once."""
        ...


class Polls(Protocol):
    """Who knows the async calls that were accepted here, such as `skerry.functions.asynchronous`."""

    async def poll(self, id: str) -> Polled | None: ...


class Guests:
    """Neighbours, as this member sees them."""

    def __init__(self, continuum: Continuum, invoker: Invoker, registry: Mirror, polls: Polls) -> None:
        self._continuum = continuum
        self._invoker = invoker
        self._registry = registry
        self._polls = polls

    async def invoke(self, call: FarCall, *, begins: Begins | None) -> Report:
        self._check_known(call)
        ask = call.ask if call.deadline_s is None else replace(call.ask, max_response_s=call.deadline_s)
        if begins is None:
            return _checked(await self._invoker.invoke(ask), is_begun=True)
        once = Once(begins)
        if call.hops_left:
            report = await self._continuum.settle(ask, once, call.hops_left)
        else:
            report = await self._continuum.run_here(ask, once)
        return _checked(report, is_begun=once.is_done)

    def _check_known(self, call: FarCall) -> None:
        name = call.ask.function
        function = self._registry.get(name)
        if function is not None and function.version >= call.version:
            return
        self._registry.catch_up()
        known = "no such function" if function is None else f"version {function.version}"
        raise Stale(f"version {call.version} of {name} is asked for, and this node knows {known} so far")

    def has_warm(self, function: FunctionName) -> bool:
        known = self._registry.get(function)
        return known is not None and self._invoker.has_warm(known)

    def standing(self) -> Standing:
        return self._continuum.standing()

    def heard(self, node: NodeId, standing: Standing) -> None:
        self._continuum.measuring.heard(node, standing)

    async def code(self, digest: Digest) -> bytes:
        return await self._registry.archive(digest)

    async def poll(self, id: str) -> Polled | None:
        return await self._polls.poll(id)


def _checked(report: Report, *, is_begun: bool) -> Report:
    """The report of a call that was run; raises for one that was not, and may be elsewhere."""
    answer = report.answer
    if answer.failure is Failure.NO_ROOM:  # there is none in the report of a call that came to a worker
        raise errors.NoRoom(answer.error)
    if answer.failure in _OURS and not is_begun:
        raise errors.Unavailable(answer.error)
    return report
