"""Secrets of a control plane without files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from skerry.control.secrets.key_file import SecretKeyFile, StoredKey
from skerry.model.ids import Namespace
from skerry.model.secrets import SecretKind, SecretUse


class MemoryKeyFile(SecretKeyFile):
    """Keys that are nowhere else."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere/secrets.key"))

    def load(self) -> None:
        pass

    def _save(self, keys: tuple[StoredKey, ...]) -> None:
        self._keys = {one.id: one for one in keys}


class KnownVersions:
    """Versions that a test says there are."""

    def __init__(self, **versions: int) -> None:
        self.versions = versions

    def current(self, namespace: Namespace, kind: SecretKind, name: str) -> int | None:
        return self.versions.get(name)

    async def catch_up(self, namespace: Namespace, uses: Iterable[SecretUse]) -> None:
        pass
