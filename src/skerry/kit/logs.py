"""Structured logs: events with fields, readable on a terminal, JSON otherwise.

`setup` is called once by a starting daemon. The request id is bound with `request_context` at the edge and
then follows every line that is logged on that request's behalf, through awaits and child tasks.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

LEVELS = ("debug", "info", "warning", "error")


def setup(level: str, style: str = "auto") -> None:
    """Send logs of `level` and above to standard error; `style` is `auto`, `text` or `json`."""
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    number = getattr(logging, level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor
    if as_text:
        # Plain tracebacks: the renderer's own show local variables, and those may be secrets.
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        shared.append(structlog.processors.format_exc_info)
        last = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module; they come out in the same shape, from warnings upwards.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


@contextmanager
def request_context(request_id: str) -> Iterator[None]:
    """Every line logged inside carries `request_id`."""
    tokens = structlog.contextvars.bind_contextvars(request_id=request_id)
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**tokens)
