"""Untrusted text on a terminal: control characters are shown, not interpreted.

A name, a log line or an error may hold sequences that clear the screen, hide text, set the title or type for
the person. `protect` puts a filter before standard output and error where those are terminals, so that no
printing can avoid it; what we draw ourselves (colours, progress) goes to the `unfiltered` stream, with the
text in it made `visible`. Files and pipes get every byte as it is.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Callable
from typing import BinaryIO, Final, TextIO

_CONTROLS: Final = (
    *(code for code in range(0x20) if chr(code) not in "\n\t"),  # C0
    *range(0x7F, 0xA0),  # DEL and C1
    *range(0x202A, 0x202F),  # embeddings and overrides of direction
    *range(0x2066, 0x206A),  # isolates
)
# As terminals echo them, and the others as JSON spells them.
_SHOWN: Final = {code: f"^{chr(code + 0x40)}" if code < 0x20 else f"\\u{code:04x}" for code in _CONTROLS}


def visible(text: str) -> str:
    """`text` with its control characters spelled out, but for line ends and tabs."""
    return text.translate(_SHOWN)


class VisibleBytes:
    """`visible` for bytes that come in pieces; what is no text in `encoding` is spelled out too."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("backslashreplace")

    def __call__(self, data: bytes) -> bytes:
        return visible(self._decoder.decode(data)).encode(self._encoding, "backslashreplace")


class _VisibleBuffer(io.BufferedIOBase):
    def __init__(self, terminal: BinaryIO, encoding: str) -> None:
        self._terminal = terminal
        self._visible = VisibleBytes(encoding)

    @property
    def name(self) -> str:
        return self._terminal.name

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        self._terminal.write(self._visible(bytes(data)))
        return len(data)

    def flush(self) -> None:
        self._terminal.flush()


class TerminalStream(io.TextIOWrapper):
    """A terminal on which control characters are shown. `unfiltered` is for what we draw ourselves."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(
            _VisibleBuffer(terminal.buffer, terminal.encoding),
            encoding=terminal.encoding,
            errors=terminal.errors,
            line_buffering=True,
            write_through=True,
        )
        self.unfiltered = terminal


def protect() -> None:
    """Show control characters from now on, wherever our output is a terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, TerminalStream(stream))


def unprotect() -> None:
    """Pass control characters on again, as the user requested."""
    sys.stdout, sys.stderr = unfiltered(sys.stdout), unfiltered(sys.stderr)


def unfiltered(stream: TextIO) -> TextIO:
    """The stream for our own drawing; untrusted text in it has to be `visible`."""
    return stream.unfiltered if isinstance(stream, TerminalStream) else stream


def filter_for(descriptor: int) -> Callable[[bytes], bytes]:
    """What bytes have to go through that are written to standard output (1) or error (2) directly."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    return VisibleBytes(stream.encoding) if isinstance(stream, TerminalStream) else bytes
