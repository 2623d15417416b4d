"""Reads, decompresses and hashes a layer in a thread beside the one that writes files.

All three release the interpreter lock; a short queue keeps the thread at most a few steps ahead.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import Final

from skerry.node.layers.unpacker import compressions
from skerry.node.layers.unpacker.compressions import Decompress

_READ_BYTES: Final = 1 << 18
_STEPS_AHEAD: Final = 8


class CompressedInput:
    """The compressed layer, from a file or a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._first = b""
        while len(self._first) < compressions.MAGIC_BYTES and (more := self._read()):
            self._first += more

    @property
    def magic(self) -> bytes:
        return self._first[: compressions.MAGIC_BYTES]

    def chunks(self) -> Iterator[bytes]:
        """All of it; once."""
        chunk, self._first = self._first, b""
        while chunk:
            yield chunk
            chunk = self._read()

    def _read(self) -> bytes:
        return os.read(self._descriptor, _READ_BYTES)


class DecompressionPipeline:
    """The uncompressed layer, and its digest when it has been read completely."""

    def __init__(self, source: CompressedInput, decompress: Decompress) -> None:
        self._source = source
        self._decompress = decompress
        self._hash = hashlib.sha256()
        self._queue: queue.Queue[bytes | BaseException] = queue.Queue(_STEPS_AHEAD)
        self._has_ended = False

    def start(self) -> None:
        """Start the thread. It ends with the process at the latest; nobody waits for it."""
        threading.Thread(target=self._run, name="reading", daemon=True).start()

    def chunks(self) -> Iterator[bytes]:
        """Raises UnpackError if the stream is damaged or truncated."""
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            if not item:
                self._has_ended = True
                return
            yield item

    def digest(self) -> str:
        assert self._has_ended, "the stream has not been read to its end"
        return f"sha256:{self._hash.hexdigest()}"

    def _run(self) -> None:
        try:
            for chunk in self._decompress(self._source.chunks()):
                if chunk:
                    self._hash.update(chunk)
                    self._queue.put(chunk)
            self._queue.put(b"")
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that reads the queue
            self._queue.put(error)
