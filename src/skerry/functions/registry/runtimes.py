"""Runtimes: their names, and the kind of worker that runs them.

One table. The names are those of Serverledge's document and of its program, old and new; what really runs
behind a name is the node's own interpreter, whose version `skerry.functions.ports.WorkerHost.describe`
returns. A new runtime is a row here and a kind of worker on the node; names are compared only here.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from skerry.model import errors
from skerry.model.functions import CUSTOM

PYTHON: Final = "python"
NODEJS: Final = "nodejs"
GO: Final = "go"


class FunctionRuntime(msgspec.Struct, frozen=True):
    """A kind of worker, and all names of its runtime."""

    kind: str
    names: re.Pattern[str]
    handlers: re.Pattern[str]
    handler_example: str  # for error messages
    needs_code: bool = True
    takes_web_requests: bool = True

    def check_handler(self, handler: str) -> None:
        """Raise `Invalid` unless a handler of this runtime can read so."""
        if not self.handlers.fullmatch(handler):
            raise errors.Invalid(
                f"handler {handler[:100]!r} is none of runtime {self.kind}; write {self.handler_example}",
                field="handler",
            )


RUNTIMES: Final = (
    FunctionRuntime(
        PYTHON,
        names=re.compile(r"python(?:3(?:\.?[0-9]+)?)?(?:ml)?"),
        handlers=re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+"),
        handler_example="`module.function`, or `folder.module.function`",
    ),
    FunctionRuntime(
        NODEJS,
        names=re.compile(r"nodejs[0-9]*(?:ng)?"),
        handlers=re.compile(r"(?!/)(?!.*\.\.)[\w./@-]+"),
        handler_example="`module` or `module.function`",
    ),
    FunctionRuntime(
        GO,
        names=re.compile(r"go[0-9]*(?:\.[0-9]+)?"),
        handlers=re.compile(r".*"),
        handler_example="anything or nothing: the executable knows what to do",
        takes_web_requests=False,
    ),
    FunctionRuntime(
        CUSTOM,
        names=re.compile(CUSTOM),
        handlers=re.compile(r".*"),
        handler_example="anything or nothing: the image knows what to do",
        needs_code=False,
    ),
)


def find(name: str) -> FunctionRuntime:
    """The runtime that answers to `name`; raises `NotFound`."""
    for runtime in RUNTIMES:
        if runtime.names.fullmatch(name):
            return runtime
    raise errors.NotFound(f"there is no runtime {name[:100]!r}")
