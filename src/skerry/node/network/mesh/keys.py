"""The keys of this node in the mesh: made here, kept in a private file, and replaced after a while.

A new key is announced before it is used: peers accept it beside the present one, and this node switches when
they do. Private keys are in this file and in the interface, nowhere else.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import msgspec
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from skerry.kit import files, json_codec

log = structlog.get_logger(__name__)

_SWITCH_AFTER_S: Final = 600.0  # though a peer that is away does not know the new key


class _KeyFile(msgspec.Struct, frozen=True, omit_defaults=True):
    private: str
    made_at: float
    next_private: str = ""
    next_made_at: float = 0.0


class MeshKeys:
    """The present key, and the next one while there is one."""

    def __init__(self, path: Path, now: float) -> None:
        """Read the file, or make a key. Blocks."""
        self._path = path
        try:
            self._file = json_codec.decode(path.read_bytes(), _KeyFile)
            public_key(self._file.private)
        except FileNotFoundError:
            self._save(_KeyFile(_new_key(), now))
        except (json_codec.InvalidJson, ValueError) as error:
            log.warning("mesh.key_unreadable", file=str(path), error=type(error).__name__)
            self._save(_KeyFile(_new_key(), now))

    @property
    def private(self) -> str:
        return self._file.private

    @property
    def public(self) -> str:
        return public_key(self._file.private)

    @property
    def next_public(self) -> str:
        """The key that is announced; empty if there is none."""
        return public_key(self._file.next_private) if self._file.next_private else ""

    def announce_next(self, now: float, max_age_s: float) -> bool:
        """Make the next key if the present one is older than `max_age_s`; true if it was made. Blocks."""
        if self._file.next_private or 0 <= now - self._file.made_at < max_age_s:
            return False
        self._save(msgspec.structs.replace(self._file, next_private=_new_key(), next_made_at=now))
        return True

    def may_switch(self, now: float, *, is_known: bool) -> bool:
        """True if there is a next key, and peers know it (`is_known`), or have had time to."""
        waited_s = now - self._file.next_made_at
        return bool(self._file.next_private) and (is_known or waited_s >= _SWITCH_AFTER_S)

    def switch(self) -> None:
        """The next key is the present one from now on. Blocks."""
        self._save(_KeyFile(self._file.next_private, self._file.next_made_at))

    def _save(self, file: _KeyFile) -> None:
        files.write_atomically(self._path, json_codec.encode(file), files.PRIVATE)
        self._file = file


def _new_key() -> str:
    raw = serialization.Encoding.Raw
    key = X25519PrivateKey.generate().private_bytes(
        raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
    )
    return base64.b64encode(key).decode()


def public_key(private: str) -> str:
    """The public key of a private one, both as `wg` writes them. Raises ValueError."""
    key = X25519PrivateKey.from_private_bytes(base64.b64decode(private, validate=True))
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()
