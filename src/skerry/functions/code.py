"""The code of functions on this node's disk: one folder per archive, named by its digest.

A folder is made as a draft, brought to the disk, and renamed into its place, so that what has its place is
whole. It stays while a function is registered with it, while somebody holds it, and while a worker uses it;
what is none of these is garbage. Nothing here is on any other disk and nothing needs to be: the store names
the digests that count, and what it does not name when we start is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import structlog

from skerry.functions import archives
from skerry.kit import files, tasks
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

_TREE_MODE: Final = 0o755
_URLS: Final = (b"http://", b"https://")
_libc = ctypes.CDLL(None, use_errno=True)


def digest_of(archive: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(archive).hexdigest())


class Code:
    """The folders below `folder`. `load` comes first."""

    def __init__(
        self, folder: Path, settings: FunctionSettings, reached: Callable[[str], None] = lambda step: None
    ) -> None:
        self._kept = files.private_folder(folder / "kept")
        self._drafts = files.private_folder(folder / "drafts")
        self._trash = files.private_folder(folder / "trash")
        self._settings = settings
        self._reached = reached
        self._numbers = itertools.count()
        self._there: set[Digest] = set()
        self._named: Counter[Digest] = Counter()  # by registered functions
        self._held: Counter[Digest] = Counter()  # by who is about to register one
        self._spare: set[Digest] = set()  # there, and neither named nor held

    def load(self, named: Iterable[Digest]) -> None:
        """Find out what is there; what a crash left and what is not `named` goes. Waits for the disk."""
        wanted = set(named)
        for left_over in (self._drafts, self._trash):
            _remove(left_over.iterdir())
        garbage = []
        for path in self._kept.iterdir():
            digest = Digest(f"sha256:{path.name}")
            if digest in wanted:
                self._there.add(digest)
                self._spare.add(digest)  # until `name` says whose it is
            else:
                garbage.append(path)
        _remove(garbage)
        for digest in sorted(wanted - self._there):
            log.warning("code.missing", digest=digest)

    def folder(self, digest: Digest) -> Path | None:
        """Where it is unpacked; None if it is not here."""
        return self._place(digest) if digest in self._there else None

    def name(self, digest: Digest) -> None:
        """One function more is registered with this code."""
        self._named[digest] += 1
        self._spare.discard(digest)

    def unname(self, digest: Digest) -> None:
        """One function less is."""
        _count_down(self._named, digest)
        self._look(digest)

    @contextlib.asynccontextmanager
    async def keeping(self, archive: bytes, digest: Digest) -> AsyncIterator[Path]:
        """The folder of the archive's code, durable, and held for as long as the context is open.

        Raises `Invalid`, `TooLarge` or `Unavailable`, and leaves nothing behind then.
        """
        self.hold(digest)
        try:
            if digest not in self._there:
                await self._unpack(archive, digest)
            # Also if it was there: who put it there may be at this very point.
            await tasks.finish(asyncio.to_thread(files.sync_folder, self._kept))
            self._reached("code.kept")
            yield self._place(digest)
        finally:
            _count_down(self._held, digest)
            self._look(digest)

    def hold(self, digest: Digest) -> None:
        """Keep it; only the end of `keeping`, or of this process, lets go of it."""
        self._held[digest] += 1
        self._spare.discard(digest)

    async def collect(self, in_use: Collection[Digest]) -> int:
        """Remove what nobody needs, and no worker uses; how many."""
        garbage = self._spare.difference(in_use)
        if not garbage:
            return 0
        # Out of the way at once: whoever needs the same code from now on makes it anew.
        places = [self._throw_away(digest) for digest in garbage]
        await tasks.finish(asyncio.to_thread(_remove, places))
        self._reached("code.removed")
        return len(places)

    def check(self, archive: bytes) -> None:
        """Raise for what need not be unpacked to be refused."""
        if archive.lstrip()[:8].lower().startswith(_URLS):
            raise errors.Invalid(
                "the code is a URL, and this node fetches no code; send the tar archive itself", field="code"
            )
        if len(archive) > self._settings.max_code_bytes:
            raise errors.TooLarge(
                f"the code has {len(archive)} bytes and at most {self._settings.max_code_bytes} are taken; "
                "leave out what it does not need, or raise functions.max_code_bytes"
            )

    async def _unpack(self, archive: bytes, digest: Digest) -> None:
        draft = self._drafts / str(next(self._numbers))
        try:
            await tasks.finish(asyncio.to_thread(self._make, archive, draft))
            self._reached("code.synced")
            if digest not in self._there:  # somebody with the same code may have been quicker
                os.rename(draft, self._place(digest))
                self._there.add(digest)
            self._reached("code.renamed")
        finally:
            await tasks.finish(asyncio.to_thread(_remove, [draft]))

    def _make(self, archive: bytes, draft: Path) -> None:
        draft.mkdir()
        draft.chmod(_TREE_MODE)
        archives.unpack(archive, draft, max_bytes=self._settings.max_unpacked_bytes)
        self._reached("code.unpacked")
        _sync(draft)

    def _throw_away(self, digest: Digest) -> Path:
        place = self._trash / str(next(self._numbers))
        os.rename(self._place(digest), place)
        self._there.remove(digest)
        self._spare.remove(digest)
        self._reached("code.thrown")
        return place

    def _place(self, digest: Digest) -> Path:
        return self._kept / digest.removeprefix("sha256:")

    def _look(self, digest: Digest) -> None:
        if digest in self._there and digest not in self._named and digest not in self._held:
            self._spare.add(digest)


def _count_down(counts: Counter[Digest], digest: Digest) -> None:
    counts[digest] -= 1
    if counts[digest] <= 0:
        del counts[digest]


def _sync(folder: Path) -> None:
    """Bring everything in `folder` to the disk: one call for thousands of files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise errors.Unavailable(
                "the code could not be brought to the disk; look at the node's disk",
                detail=os.strerror(number),
            )
    finally:
        os.close(descriptor)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("code.stays", path=str(path), error=repr(error))
