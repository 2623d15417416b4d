"""The stamp of a data folder: `version.json`, which version of Skerry wrote it last.

`skerry.daemon.process` checks it before it writes anything, the lock included; the roles write it, once
everything else that could refuse this version has been checked. A restore writes that of the backup. The
rules are in `skerry.model.versions`; a store has a stamp of its own (`skerry.store.stamp`), since it may be
elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import files, json_codec
from skerry.model import errors, versions
from skerry.model.versions import DataStamp

FILE_NAME: Final = "version.json"
_MAX_BYTES: Final = 4096
# A folder with one of these has been used by a version without stamps. `pki` is none: its files are copied
# from another server before the first start.
_SIGNS: Final = ("store.db", "node", "node.id", "cells")

OURS: Final = versions.stamp_of()
_decode = msgspec.json.Decoder(DataStamp).decode


def read(folder: Path) -> DataStamp | None:
    """The stamp; None if the folder is new. Raises `FailedPrecondition` for one that cannot be read."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            return _decode(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return versions.UNSTAMPED if any((folder / name).exists() for name in _SIGNS) else None
    except (NotADirectoryError, PermissionError):
        return None  # a folder that cannot be used at all is reported by who uses it
    except (OSError, msgspec.DecodeError) as error:
        raise errors.FailedPrecondition(
            f"{path}, which says what version wrote the data folder, cannot be read: {error}; restore it from"
            " a backup"
        ) from error


def check(folder: Path) -> None:
    """Refuse a folder of a version that ours does not take over from. Writes nothing."""
    if (stamp := read(folder)) is not None:
        versions.check_data(stamp, f"the data folder {folder}")


def write_if_new(folder: Path) -> None:
    """Stamp a folder that nothing was written to yet."""
    if read(folder) is None:
        write(folder)


def write(folder: Path, stamp: DataStamp = OURS) -> None:
    """Stamp the folder, unless it has this stamp."""
    if read(folder) != stamp:
        files.write_atomically(folder / FILE_NAME, json_codec.encode(stamp) + b"\n")
