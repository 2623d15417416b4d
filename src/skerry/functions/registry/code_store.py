"""The code of functions on this node's disk: each archive and its unpacked folder, by digest.

Both are written as drafts, synced, and renamed, the archive first, so that what has its final name is
complete. They stay while a function is registered with them, while they are held, and while a worker uses
them; others are garbage. The folder is for workers, the archive for other nodes; a missing folder, as after a
restore, is created again from the archive. An archive is verified when it is read, and a damaged one counts
as missing. The registry names the digests that count; others are removed at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Set
from pathlib import Path
from typing import Final

import structlog

from skerry.functions.registry import code_archives
from skerry.kit import files, tasks
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

_TREE_MODE: Final = 0o755
_MOST_AHEAD: Final = 32  # code that is kept for functions which are not known yet
_URLS: Final = (b"http://", b"https://")


def digest_of(archive: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(archive).hexdigest())


class CodeStore:
    """The folders below `folder`. `load` comes first."""

    def __init__(
        self, folder: Path, settings: FunctionSettings, failpoint: Callable[[str], None] = lambda step: None
    ) -> None:
        self._kept = files.private_folder(folder / "kept")
        self._archives = files.private_folder(folder / "archives")
        self._drafts = files.private_folder(folder / "drafts")
        self._trash = files.private_folder(folder / "trash")
        self._settings = settings
        self._failpoint = failpoint
        self._numbers = itertools.count()
        self._there: set[Digest] = set()
        self._archived: set[Digest] = set()
        self._changes = itertools.count()
        self._life = secrets.token_hex(8)
        self._stamp = f"{self._life}-{next(self._changes)}"
        self._named: Counter[Digest] = Counter()  # by registered functions
        self._pins: Counter[Digest] = Counter()  # for a function that is about to be registered
        self._ahead: dict[Digest, asyncio.TimerHandle] = {}  # held until they are named, or not needed
        self._spare: set[Digest] = set()  # there, and neither named nor held

    def load(self, named: Iterable[Digest]) -> None:
        """Find the stored code; leftovers of a crash and what is not `named` is removed. Blocking."""
        wanted = set(named)
        for left_over in (self._drafts, self._trash):
            _remove(left_over.iterdir())
        garbage = []
        for folder, found in ((self._archives, self._archived), (self._kept, self._there)):
            for path in folder.iterdir():
                digest = Digest(f"sha256:{path.name}")
                if digest in wanted:
                    found.add(digest)
                else:
                    garbage.append(path)
        _remove(garbage)
        self._spare = self._there | self._archived  # until `name` is called
        for digest in sorted(wanted - self._spare):
            log.warning("code.missing", digest=digest)

    def folder(self, digest: Digest) -> Path | None:
        """Where it is unpacked; None if it is not here."""
        return self._place(digest) if digest in self._there else None

    async def archive(self, digest: Digest) -> bytes:
        """As it came. Raises `NotFound` if it is not here, or not any more what it was."""
        if digest in self._archived:
            with contextlib.suppress(FileNotFoundError):
                archive, found = await asyncio.to_thread(_read, self._archive_path(digest))
                if found == digest:
                    return archive
                log.error("code.damaged", digest=digest, found=found)
                self._archive_path(digest).unlink(missing_ok=True)
            self._archived.discard(digest)
            self._changed()
        raise errors.NotFound(f"the code {digest} is not on this node; try another")

    def has_archive(self, digest: Digest) -> bool:
        """True if others can have it from here."""
        return digest in self._archived

    @property
    def stamp(self) -> str:
        """Another one whenever `archived` is, and in every process."""
        return self._stamp

    @property
    def archived(self) -> Set[Digest]:
        """All that others can have from here."""
        return self._archived

    def name(self, digest: Digest) -> None:
        """One function more is registered with this code."""
        self._named[digest] += 1
        self._spare.discard(digest)
        self.end_hold_ahead(digest)

    def forget(self, digest: Digest) -> None:
        """One function less is."""
        _count_down(self._named, digest)
        self._scan(digest)

    @contextlib.asynccontextmanager
    async def holding(self, archive: bytes, digest: Digest) -> AsyncIterator[Path]:
        """The folder of the archive's code, durable, and held for as long as the context is open.

        Raises `Invalid`, `TooLarge` or `Unavailable`, and leaves nothing behind then.
        """
        self.hold(digest)
        try:
            if digest not in self._there or digest not in self._archived:
                await self._unpack(archive, digest)
            # Also if it exists: the task that writes it may be at this very point.
            await tasks.in_thread(self._sync_folders)
            self._failpoint("code.kept")
            yield self._place(digest)
        finally:
            self.release(digest)

    def hold(self, digest: Digest) -> None:
        """Keep it until `release`, or the end of this process."""
        self._pins[digest] += 1
        self._spare.discard(digest)

    def hold_ahead(self, digest: Digest, for_s: float) -> None:
        """Keep it until a function is registered with it, or for so long if none is. Raises `Overloaded` if
        too much is kept so already."""
        self.end_hold_ahead(digest)
        if digest not in self._named:
            if len(self._ahead) >= _MOST_AHEAD:
                raise errors.Overloaded("too much code is kept here for functions that are not known yet")
            self.hold(digest)
            loop = asyncio.get_running_loop()
            self._ahead[digest] = loop.call_later(for_s, self.end_hold_ahead, digest)

    def end_hold_ahead(self, digest: Digest) -> None:
        """Keep it no longer for that."""
        if (timer := self._ahead.pop(digest, None)) is not None:
            timer.cancel()
            self.release(digest)

    def release(self, digest: Digest) -> None:
        """Release one hold."""
        _count_down(self._pins, digest)
        self._scan(digest)

    async def collect(self, in_use: Collection[Digest]) -> int:
        """Remove code that is not needed, and no worker uses; returns how many."""
        garbage = self._spare.difference(in_use)
        if not garbage:
            return 0
        # Renamed at once: a task that needs the same code from now on writes it again.
        places = [place for digest in garbage for place in self._discard(digest)]
        await tasks.in_thread(_remove, places)
        self._failpoint("code.removed")
        return len(garbage)

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
        draft = self._draft()
        archive_draft = self._draft()
        try:
            await tasks.in_thread(self._make, archive, archive_draft, draft)
            self._failpoint("code.synced")
            os.replace(archive_draft, self._archive_path(digest))
            self._archived.add(digest)
            self._changed()
            self._failpoint("code.archived")
            if digest not in self._there:  # another task with the same code may have been quicker
                os.rename(draft, self._place(digest))
                self._there.add(digest)
            self._failpoint("code.renamed")
        finally:
            await tasks.in_thread(_remove, [draft, archive_draft])

    def _make(self, archive: bytes, archive_draft: Path, draft: Path) -> None:
        if files.spare_bytes(self._drafts) < len(archive):
            raise errors.Unavailable(
                "the node's disk is nearly full, and it takes no code now; delete functions, or free space "
                "there"
            )
        draft.mkdir()
        draft.chmod(_TREE_MODE)
        code_archives.unpack(archive, draft, max_bytes=self._settings.max_unpacked_bytes)
        self._failpoint("code.unpacked")
        _write(archive_draft, archive)
        _sync(draft)

    def _sync_folders(self) -> None:
        for folder in (self._archives, self._kept):
            files.sync_folder(folder)

    def _discard(self, digest: Digest) -> Iterator[Path]:
        """Where it is out of the way."""
        self._there.discard(digest)
        self._spare.remove(digest)
        self._archived.discard(digest)
        self._changed()
        for place in (self._place(digest), self._archive_path(digest)):
            thrown = self._trash / str(next(self._numbers))
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, thrown)
                yield thrown
            self._failpoint("code.thrown")

    def _draft(self) -> Path:
        return self._drafts / str(next(self._numbers))

    def _place(self, digest: Digest) -> Path:
        return self._kept / digest.removeprefix("sha256:")

    def _archive_path(self, digest: Digest) -> Path:
        return self._archives / digest.removeprefix("sha256:")

    def _changed(self) -> None:
        self._stamp = f"{self._life}-{next(self._changes)}"

    def _scan(self, digest: Digest) -> None:
        is_here = digest in self._there or digest in self._archived
        if is_here and digest not in self._named and digest not in self._pins:
            self._spare.add(digest)


def _count_down(counts: Counter[Digest], digest: Digest) -> None:
    counts[digest] -= 1
    if counts[digest] <= 0:
        del counts[digest]


def _sync(folder: Path) -> None:
    try:
        files.sync_file_system(folder)
    except OSError as error:
        raise errors.Unavailable(
            "the code could not be written; check the node's disk", detail=str(error)
        ) from error


def _read(path: Path) -> tuple[bytes, Digest]:
    archive = path.read_bytes()
    return archive, digest_of(archive)


def _write(path: Path, archive: bytes) -> None:
    try:
        path.write_bytes(archive)
    except OSError as error:
        raise errors.Unavailable(
            f"the code could not be kept: {error.strerror}; look at the node's disk", detail=repr(error)
        ) from error


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("code.stays", path=str(path), error=repr(error))
