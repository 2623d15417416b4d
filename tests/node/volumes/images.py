"""Image files for these tests: a few chunks of data among holes."""

from __future__ import annotations

import os
from pathlib import Path

from skerry.node.volumes import image_files
from skerry.node.volumes.manifests import CHUNK_BYTES, ImageManifest
from skerry.node.volumes.operation_folders import OperationFolder
from skerry.node.volumes.work_progress import WorkProgress

CHUNKS = 5
WRITTEN = (0, 2, 4)


def make_image(path: Path, *, size: int = CHUNKS * CHUNK_BYTES - 4096, seed: bytes = b"skerry") -> Path:
    """A sparse file with data in the chunks of `WRITTEN`."""
    with open(path, "xb") as file:
        file.truncate(size)
        for chunk in WRITTEN:
            file.seek(chunk * CHUNK_BYTES + 100)
            file.write(seed * (chunk + 1) * 50)
    return path


def made_operation(folder: Path, seed: bytes = b"skerry") -> tuple[OperationFolder, ImageManifest]:
    """The folder of an operation that has copied its image."""
    operation = OperationFolder(folder)
    operation.make()
    make_image(operation.part, seed=seed)
    operation.complete()
    manifest = image_files.scan(operation.image, 5.0, WorkProgress())
    operation.save_manifest(manifest)
    return operation, manifest


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def blocks(path: Path) -> int:
    return os.stat(path).st_blocks * 512
