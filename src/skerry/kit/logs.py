"""Structured logs: events with fields, readable on a terminal, JSON otherwise.

`setup` is called once by a starting daemon. The request id is bound with `request_context` at the edge and
then follows every line that is logged on that request's behalf, through awaits and child tasks. The last
lines are also kept in `log_buffer`, for clients that read this process's log. A line that cannot be written,
as on a full disk, is dropped and counted: logging never fails. `show_only` keeps lines off the screen of a
person, and nowhere else.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

import structlog

from skerry.kit import metrics, terminal_text
from skerry.kit.log_buffer import LogBuffer

LEVELS = ("debug", "info", "warning", "error")

recent = LogBuffer()
_is_shown: Callable[[str, str], bool] | None = None
_copy: Callable[[str, str], None] | None = None

LINES_LOST = metrics.counter("skerry_log_lines_lost_total", "Log lines that could not be written")


class _LossyStream(io.TextIOBase):
    """Writes to `stream` what that takes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            LINES_LOST.inc()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            LINES_LOST.inc()


def show_only(is_shown: Callable[[str, str], bool] | None) -> None:
    """Write only lines for which `is_shown(level, event)`, from now on; `recent` gets all of them."""
    global _is_shown
    _is_shown = is_shown


def copy_to(add: Callable[[str, str], None] | None) -> None:
    """Call `add` with the level and text of every line, from now on and from any thread; None: no longer."""
    global _copy
    _copy = add


def setup(level: str, style: str = "auto") -> None:
    """Send logs of `level` and above to standard error; `style` is `auto`, `text` or `json`."""
    is_terminal = sys.stderr.isatty()
    as_text = style == "text" or (style == "auto" and is_terminal)
    number = getattr(logging, level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        # A person at a terminal wants the time of their own clock.
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        if as_text and is_terminal
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Plain tracebacks: the text renderer's own show local variables, and those may be secrets.
        structlog.processors.format_exc_info,
    ]
    last: list[structlog.typing.Processor]
    if as_text:
        last = [_make_visible] if is_terminal else []
        last.append(structlog.dev.ConsoleRenderer(colors=is_terminal))
    else:
        last = [structlog.processors.JSONRenderer()]
    drawn_on = cast(TextIO, _LossyStream(terminal_text.unfiltered(sys.stderr)))  # the colours are ours
    structlog.configure(
        processors=[*shared, _keep, _drop_unless_shown, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(drawn_on),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module; they come out in the same shape, from warnings upwards.
    handler = logging.StreamHandler(drawn_on)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _keep,
                *last,  # from warnings upwards
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


def _keep(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The processor that puts each line into `recent`, as text."""
    fields = [f"{key}={_plain(value)}" for key, value in event.items() if key not in _NOT_FIELDS]
    line = " ".join([str(event["event"]), *fields])
    if trace := event.get("exception"):
        line = f"{line}\n{trace}"
    recent.add(event["level"], line)
    if _copy is not None:
        _copy(event["level"], line)
    return event


def _drop_unless_shown(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The processor of `show_only`."""
    if _is_shown is not None and not _is_shown(event["level"], event["event"]):
        raise structlog.DropEvent
    return event


def _make_visible(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The processor for terminals: what others had us log controls none."""
    return {
        key: terminal_text.visible(value) if isinstance(value, str) else value for key, value in event.items()
    }


_NOT_FIELDS = frozenset({"event", "level", "timestamp", "exception"})


def _plain(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)


@contextmanager
def request_context(request_id: str) -> Iterator[None]:
    """Every line logged inside carries `request_id`, if there is one."""
    tokens = structlog.contextvars.bind_contextvars(request_id=request_id) if request_id else {}
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**tokens)


def request_id() -> str:
    """The id of the present request; empty if there is none."""
    bound: str = structlog.contextvars.get_contextvars().get("request_id", "")
    return bound
