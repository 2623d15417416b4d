"""A continuum member that says how it is and does nothing else; benchmarks override what they measure."""

from __future__ import annotations

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CodeList,
    ForwardedCall,
    FunctionCalls,
    MemberLoad,
    ResultCopy,
)
from skerry.model import errors
from skerry.model.calls import CallReport
from skerry.model.ids import Digest, FunctionName, NodeId


class IdleMember:
    """Implements `skerry.functions.continuum.member_api.MemberService`."""

    def __init__(self, load: MemberLoad) -> None:
        self._load = load

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
        raise errors.ResourcesExhausted("this member only listens; send calls to another one")

    def has_warm(self, function: FunctionName) -> bool:
        return False

    def load(self) -> MemberLoad:
        return self._load

    def load_reported(self, node: NodeId, load: MemberLoad) -> None: ...

    async def code(self, digest: Digest) -> bytes:
        raise errors.NotFound(f"this member has no code {digest}")

    async def poll(self, id: str) -> AsyncCallResult | None:
        return None

    async def store_code(self, digest: Digest, source: NodeId) -> None:
        raise errors.ResourcesExhausted("this member keeps no code; ask another one")

    def list_code(self, known: str) -> CodeList:
        return CodeList("idle", ())

    async def store_result(self, copy: ResultCopy) -> None:
        raise errors.ResourcesExhausted("this member keeps no results; ask another one")

    def calls(self) -> tuple[FunctionCalls, ...]:
        return ()
