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

from skerry.node.launcher import kernel
from skerry.node.layers.unpacker import compressions, confinement, faults
from skerry.node.layers.unpacker.faults import Fault
from skerry.node.layers.unpacker.feeds import Feed
from skerry.node.layers.unpacker.pipelines import Pipeline, Source
from skerry.node.layers.unpacker.tars import Tar
from skerry.node.layers.unpacker.trees import Tree

_TELL_EVERY_S: Final = 0.5


def main(root: int, agent: int, diff_id: str, most_bytes: int, most_files: int) -> NoReturn:
    """Unpack into the folder open as `root`, for the process `agent`, what hashes to `diff_id` if given."""
    kernel.set_name(b"skerry-unpack")
    kernel.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    try:
        source = Source(0)
        pipeline = Pipeline(source, compressions.choose(source.magic))
        _confine(root)
        answer = _unpack(pipeline, diff_id, most_bytes, most_files)
    except Fault as fault:
        answer = {"fault": fault.kind, "message": fault.message}
    except MemoryError:
        answer = {"fault": faults.TOO_LARGE, "message": "the layer takes more memory than unpacking may use"}
    _tell(answer)
    os._exit(0)  # without waiting for the thread that reads, or for memory to be tidied up


def _confine(root: int) -> None:
    try:
        confinement.enter(root)
    except (OSError, LookupError) as error:
        raise Fault(
            faults.BROKEN,
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


def _unpack(pipeline: Pipeline, diff_id: str, most_bytes: int, most_files: int) -> dict[str, Any]:
    progress = _Progress()

    def chunks() -> Iterator[bytes]:
        for chunk in pipeline.chunks():
            progress.tell(feed.bytes, tree.files)
            yield chunk

    pipeline.start()
    feed = Feed(chunks(), most_bytes)
    tar = Tar(feed)
    tree = Tree(confinement.ROOT, most_files)
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


def _check_is_whole(digest: str, diff_id: str, tar: Tar) -> None:
    """A digest proves that nothing is missing; without one, only the mark at the end does."""
    if diff_id and digest != diff_id:
        raise Fault(
            faults.MALFORMED,
            f"the layer is not what the image says: its digest is {digest} and should be {diff_id}",
        )
    if not diff_id and not tar.has_end:
        raise Fault(faults.MALFORMED, "the layer has no end: it was cut off")


def _tell(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")
