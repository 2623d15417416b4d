"""Files of secrets and configs as one container or worker sees them, in memory.

`write` makes them before a run begins, `remove` removes them after it. What a container gets is mounted
read-only, without devices, programs and set-user-ID files. Values for environment variables are only
returned; the configuration of the runtime, which holds them, is written here too, and not to a disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.secrets import SecretRef, SecretUse
from skerry.node.secrets.memory_folder import SIZE_MB, MemoryFolder

_MOUNTS: Final = "mounts"
_FILES: Final = "files"  # each becomes a file elsewhere
_NAMESPACE: Final = "namespace"  # whose they are; not mounted
_SHARE_BYTES: Final = SIZE_MB * 2**20 // 4  # that the files of one namespace beside the default one may have


class FileOwner(msgspec.Struct, frozen=True):
    """The user whose files they are by default, and the id on the node of user 0."""

    uid: int = 0
    gid: int = 0
    first_id: int = 0


class SecretFiles(msgspec.Struct, frozen=True):
    """What to mount, and what to set in the environment."""

    mounts: tuple[tuple[str, Path], ...] = ()  # path in the container, path on the node
    environment: tuple[str, ...] = ()  # KEY=VALUE
    folder: Path | None = None  # for the configuration of the runtime, if there is an environment

    def __repr__(self) -> str:
        return f"SecretFiles({self.mounts!r}, {len(self.environment)} variables)"


NO_FILES: Final = SecretFiles()


class SecretFileWriter:
    """Makes and removes them, by the name of the container or worker."""

    def __init__(self, memory: MemoryFolder) -> None:
        self._memory = memory

    def write(
        self,
        name: str,
        uses: Sequence[SecretUse],
        namespace: str,
        values: Mapping[SecretRef, bytes],
        owner: FileOwner,
    ) -> SecretFiles:
        """Replaces what is there under `name`. Raises Invalid for a variable that cannot hold its value,
        ResourcesExhausted if the memory for secrets is full."""
        environment = []
        files: list[tuple[SecretUse, bytes]] = []
        for use in uses:
            data = values[use.ref(Namespace(namespace))]
            if use.variable:
                environment.append(f"{use.variable}={_text(use, data)}")
            else:
                files.append((use, data))
        self.remove(name)
        self._check_share(namespace, sum(len(data) for _, data in files))
        folder = self._memory.child(_MOUNTS) / name
        try:
            folder.mkdir(mode=0o700)
            (folder / _NAMESPACE).write_text(namespace)
            mounts = _write_files(folder, files, owner)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise errors.ResourcesExhausted(
                f"the memory for secrets of this node takes no more: {error.strerror}", detail=repr(error)
            ) from error
        return SecretFiles(mounts, tuple(environment), folder if environment else None)

    def _check_share(self, namespace: str, more: int) -> None:
        """Raise ResourcesExhausted if the files of a namespace would take what others need."""
        if namespace == DEFAULT_NAMESPACE:
            return
        used = 0
        for folder in self._memory.child(_MOUNTS).iterdir():
            with contextlib.suppress(FileNotFoundError):  # it is being removed, or is of an earlier version
                if (folder / _NAMESPACE).read_text() == namespace:
                    used += sum(path.stat().st_size for path in folder.glob("*/*"))
        if used + more > _SHARE_BYTES:
            raise errors.ResourcesExhausted(
                f"the files of secrets and configs of the namespace {namespace} have {used} bytes on this "
                f"node, and {more} more exceed its share of {_SHARE_BYTES}; use fewer or smaller ones, or "
                "other nodes"
            )

    def remove(self, name: str) -> None:
        """Does nothing if there are none."""
        mounts = self._memory.existing(_MOUNTS)
        if mounts is not None and (mounts / name).exists():
            shutil.rmtree(mounts / name)

    def private_file(self, name: str, file: str) -> Path:
        """A path beside the files of `name`, which nothing but the node's root can read."""
        folder = self._memory.child(_MOUNTS) / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / file

    def keep_only(self, names: set[str]) -> None:
        """Remove those of all others."""
        mounts = self._memory.existing(_MOUNTS)
        for path in mounts.iterdir() if mounts is not None else ():
            if path.name not in names:
                shutil.rmtree(path)


def _write_files(
    folder: Path, files: Sequence[tuple[SecretUse, bytes]], owner: FileOwner
) -> tuple[tuple[str, Path], ...]:
    mounts: list[tuple[str, Path]] = []
    elsewhere = folder / _FILES
    for number, (use, data) in enumerate(files):
        if not use.target.startswith("/"):
            inside = folder / use.kind  # becomes the folder of that kind
            if not inside.exists():
                inside.mkdir()
                os.chown(inside, owner.first_id, owner.first_id)
                inside.chmod(0o755)
                mounts.append((use.folder, inside))
            path = inside / (use.target or use.name)
        else:
            elsewhere.mkdir(mode=0o700, exist_ok=True)
            path = elsewhere / str(number)
            mounts.append((use.path, path))
        _write(path, data, use, owner)
    return tuple(mounts)


def _write(path: Path, data: bytes, use: SecretUse, owner: FileOwner) -> None:
    uid = owner.uid if use.uid is None else use.uid
    gid = owner.gid if use.gid is None else use.gid
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        os.fchown(descriptor, owner.first_id + uid, owner.first_id + gid)
        os.fchmod(descriptor, use.file_mode)


def _text(use: SecretUse, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise errors.Invalid(
            f"secret {use.name} is no text, and a variable holds nothing else; use it as a file",
            field="secrets",
        )
    return text
