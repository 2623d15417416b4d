"""The context of web functions, which their routes get when the application is built."""

from __future__ import annotations

from typing import Protocol

import msgspec

from skerry.model.calls import CallReport, CallRequest
from skerry.model.functions import Function


class FunctionSource(Protocol):
    """The functions as this process knows them."""

    def get(self, name: str) -> Function | None: ...


class CallInvoker(Protocol):
    """Runs calls, here or elsewhere."""

    async def invoke(self, request: CallRequest) -> CallReport:
        """Raises `NotFound`, `Overloaded`, `Unavailable`; a failure of the function is in the report."""
        ...


class WebFunctionContext(msgspec.Struct, frozen=True):
    """What routes of web functions need."""

    functions: FunctionSource
    invoker: CallInvoker
