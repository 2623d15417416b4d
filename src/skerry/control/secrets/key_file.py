"""The keys of secrets, in a file beside the store and never in it: `pki/secrets.key`, for its owner alone.

Every server of a cloud needs the same file, as with `ca.key`. A file holds several keys during a rotation
(`skerry.control.secrets.rotation`); which of them seals is in the store (`skerry.control.secrets.vault`). The
file is read again when a key is missing, so that one copied here is found without a restart.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

import msgspec

from skerry.kit import envelope, files, json_codec
from skerry.model import errors

NAME = "secrets.key"


class StoredKey(msgspec.Struct, frozen=True):
    """A key in the file."""

    id: str
    key: bytes
    created_at: float


class _KeyFileContent(msgspec.Struct, frozen=True):
    keys: tuple[StoredKey, ...]


class SecretKeyFile:
    """The keys of this server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: dict[str, StoredKey] = {}

    def load(self) -> None:
        """Read the file, if there is one. Raises `FailedPrecondition` for one that cannot be used."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._keys = {}
            return
        except OSError as error:
            raise errors.FailedPrecondition(f"{self.path} cannot be read: {error.strerror}") from None
        with open(descriptor, "rb") as file:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
                raise errors.FailedPrecondition(
                    f"{self.path} has the keys of all secrets, and others may read it; run: "
                    f"chmod 600 {self.path}"
                )
            data = file.read()
        try:
            content = json_codec.decode(data, _KeyFileContent)
        except json_codec.InvalidJson:
            content = None  # its error could quote the file
        if content is None or not all(
            len(one.key) == envelope.KEY_BYTES and envelope.key_id(one.key) == one.id for one in content.keys
        ):
            raise errors.FailedPrecondition(
                f"{self.path} is damaged; restore it from a backup, or copy it from another server"
            )
        self._keys = {one.id: one for one in content.keys}

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys that are here, the oldest first."""
        return tuple(self._keys)

    def get(self, id: str) -> bytes:
        """Raises `FailedPrecondition` if it is not here."""
        if id not in self._keys:
            self.load()
        found = self._keys.get(id)
        if found is None:
            raise errors.FailedPrecondition(
                f"this server has no key {id} of the secrets; copy {NAME} in the folder pki of a server that "
                f"has it to {self.path}, for its owner alone (0600), or restore it from a backup; if "
                "nobody has it, `skerry secret rotate-key --discard-lost` begins anew without its values"
            )
        return found.key

    def add(self, at: float) -> str:
        """Make another key, durably; returns its id."""
        key = envelope.new_key()
        id = envelope.key_id(key)
        self._save((*self._keys.values(), StoredKey(id, key, at)))
        return id

    def drop(self, ids: Collection[str]) -> None:
        """Forget keys that seal nothing any more, durably."""
        if not set(ids).isdisjoint(self._keys):
            self._save(tuple(one for one in self._keys.values() if one.id not in ids))

    def _save(self, keys: tuple[StoredKey, ...]) -> None:
        files.private_folder(self.path.parent)
        files.write_atomically(self.path, json_codec.encode(_KeyFileContent(keys)), files.PRIVATE)
        self._keys = {one.id: one for one in keys}
