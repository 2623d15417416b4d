"""The program: standard input is a layer, standard output what became of it, in lines of JSON.

`{"bytes": N, "files": N}` now and then, while it works; then one line with `diff_id`, or with `fault` and
`message`. Anything else is a fault of the program, which its standard error tells of.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from skerry.kit.tar.byte_feed import ByteFeed
from skerry.kit.tar.errors import TarError
from skerry.kit.tar.reader import TarReader
from skerry.node.kernel import syscalls
from skerry.node.layers.unpacker import compressions, confinement, errors
from skerry.node.layers.unpacker.errors import UnpackError
from skerry.node.layers.unpacker.layer_writer import LayerWriter
from skerry.node.layers.unpacker.pipeline import CompressedInput, DecompressionPipeline

_TELL_EVERY_S: Final = 0.5


def main(root: int, agent: int, diff_id: str, most_bytes: int, most_files: int) -> NoReturn:
    """Unpack into the folder open as `root`, for the process `agent`, what hashes to `diff_id` if given."""
    syscalls.set_name(b"skerry-unpack")
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    try:
        source = CompressedInput(0)
        pipeline = DecompressionPipeline(source, compressions.choose(source.magic))
        _confine(root)
        answer = _unpack(pipeline, diff_id, most_bytes, most_files)
    except UnpackError as fault:
        answer = _answer_to(fault)
    except TarError as error:
        answer = _answer_to(errors.of_archive(error))
    except MemoryError:
        answer = {"fault": errors.TOO_LARGE, "message": "the layer takes more memory than unpacking may use"}
    _tell(answer)
    os._exit(0)  # without waiting for the thread that reads, or for memory to be tidied up


def _answer_to(fault: UnpackError) -> dict[str, Any]:
    return {"fault": fault.kind, "message": fault.message}


def _confine(root: int) -> None:
    try:
        confinement.enter(root)
    except (OSError, LookupError) as error:
        raise UnpackError(
            errors.BROKEN,
            f"the process that unpacks layers cannot be confined ({error}): run the node as root",
        ) from error


class _Progress:
    """Tells now and then that the process lives, and how far it is."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _TELL_EVERY_S

    def tell(self, bytes_in: int, files: int) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + _TELL_EVERY_S
            _tell({"bytes": bytes_in, "files": files})


def _unpack(
    pipeline: DecompressionPipeline, diff_id: str, most_bytes: int, most_files: int
) -> dict[str, Any]:
    progress = _Progress()

    def chunks() -> Iterator[bytes]:
        for chunk in pipeline.chunks():
            progress.tell(feed.bytes, tree.files)
            yield chunk

    pipeline.start()
    feed = ByteFeed(chunks(), most_bytes)
    tar = TarReader(feed)
    tree = LayerWriter(confinement.ROOT, most_files)
    try:
        for entry in tar.entries():
            tree.apply(entry, tar.content)
        digest = pipeline.digest()
        _check_is_whole(digest, diff_id, tar)
        for _ in tree.finish():
            progress.tell(feed.bytes, tree.files)
    finally:
        tree.close()
    return {"diff_id": digest, "bytes": feed.bytes, "files": tree.files}


def _check_is_whole(digest: str, diff_id: str, tar: TarReader) -> None:
    """A digest proves that nothing is missing; without one, only the mark at the end does."""
    if diff_id and digest != diff_id:
        raise UnpackError(
            errors.MALFORMED,
            f"the layer is not what the image says: its digest is {digest} and should be {diff_id}",
        )
    if not diff_id and not tar.has_end:
        raise UnpackError(errors.MALFORMED, "the layer has no end: it was cut off")


def _tell(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")
