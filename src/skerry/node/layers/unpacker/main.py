"""The unpacker program: stdin is a layer, stdout is progress and the result, in lines of JSON.

`{"bytes": N, "files": N}` now and then; then one line with `diff_id`, or with `fault` and `message`. Anything
else is a bug, which stderr explains.
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
from skerry.node.layers.unpacker.layer_writer import LayerWriter, MappedIds
from skerry.node.layers.unpacker.pipeline import CompressedInput, DecompressionPipeline

_PROGRESS_S: Final = 0.5


def main(
    root: int, agent: int, diff_id: str, most_bytes: int, most_files: int, users: int = 0, groups: int = 0
) -> NoReturn:
    """Unpack into the folder open as `root`, for the process `agent`; the digest must be `diff_id` if
    given. `users` and `groups` are mapped, or 0: all are, as for root of the machine."""
    syscalls.set_name(b"skerry-unpack")
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    try:
        source = CompressedInput(0)
        pipeline = DecompressionPipeline(source, compressions.choose(source.magic))
        _confine(root)
        tree = LayerWriter(confinement.ROOT, most_files, MappedIds(users, groups) if users else None)
        result = _unpack(pipeline, tree, diff_id, most_bytes)
    except UnpackError as fault:
        result = _fault_line(fault)
    except TarError as error:
        result = _fault_line(errors.of_archive(error))
    except MemoryError:
        result = {"fault": errors.TOO_LARGE, "message": "unpacking the layer exceeds its memory limit"}
    _write_line(result)
    os._exit(0)  # without waiting for the reading thread, or for deallocation


def _fault_line(fault: UnpackError) -> dict[str, Any]:
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
    """Reports progress now and then."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_S

    def report(self, bytes_in: int, files: int) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + _PROGRESS_S
            _write_line({"bytes": bytes_in, "files": files})


def _unpack(
    pipeline: DecompressionPipeline, tree: LayerWriter, diff_id: str, most_bytes: int
) -> dict[str, Any]:
    progress = _Progress()

    def chunks() -> Iterator[bytes]:
        for chunk in pipeline.chunks():
            progress.report(feed.bytes, tree.files)
            yield chunk

    pipeline.start()
    feed = ByteFeed(chunks(), most_bytes)
    tar = TarReader(feed)
    try:
        for entry in tar.entries():
            tree.apply(entry, tar.content)
        digest = pipeline.digest()
        _check_is_whole(digest, diff_id, tar)
        for _ in tree.finish():
            progress.report(feed.bytes, tree.files)
    finally:
        tree.close()
    return {
        "diff_id": digest,
        "bytes": feed.bytes,
        "files": tree.files,
        "changed_owners": tree.changed_owners,
        "devices": tree.devices,
    }


def _check_is_whole(digest: str, diff_id: str, tar: TarReader) -> None:
    """A digest proves that the tar is complete; without one, only the end-of-archive mark does."""
    if diff_id and digest != diff_id:
        raise UnpackError(
            errors.MALFORMED,
            f"the layer is not what the image says: its digest is {digest} and should be {diff_id}",
        )
    if not diff_id and not tar.has_end:
        raise UnpackError(errors.MALFORMED, "the layer is truncated")


def _write_line(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")
