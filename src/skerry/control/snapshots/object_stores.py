"""The store with the API of S3 for snapshots, as the settings have it, with its credentials.

Credentials are read from their file whenever they are needed, so that they can be changed without a restart,
and are in no record: nodes get them with each task.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

from skerry.model import errors
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.snapshots import ObjectStore

_MAX_FILE = 4096


class StoreSource:
    """The configured store."""

    def __init__(self, settings: SnapshotSettings) -> None:
        self._settings = settings

    def get(self) -> ObjectStore:
        """Raises FailedPrecondition if there is none, or its credentials cannot be used."""
        settings = self._settings
        if not (settings.s3_endpoint and settings.s3_bucket and settings.s3_credentials):
            raise errors.FailedPrecondition(
                "this cloud has no store for snapshots; set snapshots.s3_endpoint, snapshots.s3_bucket and "
                "snapshots.s3_credentials on its servers, or choose another place"
            )
        parts = urlsplit(settings.s3_endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise errors.FailedPrecondition(
                f"snapshots.s3_endpoint {settings.s3_endpoint!r} must be a URL such as https://s3.example.org"
            )
        keys = _read_keys(Path(settings.s3_credentials))
        return ObjectStore(
            settings.s3_endpoint,
            settings.s3_bucket,
            settings.s3_region,
            keys["access_key"],
            keys["secret_key"],
            settings.s3_prefix.strip("/"),
        )


def _read_keys(path: Path) -> dict[str, str]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the credentials in {path} (snapshots.s3_credentials) cannot be read: {error.strerror}"
        ) from error
    with open(file, encoding="utf-8") as text:
        if stat.S_IMODE(os.fstat(file).st_mode) & 0o077:
            raise errors.FailedPrecondition(
                f"{path} (snapshots.s3_credentials) can be read by others; chmod 600 {path}"
            )
        lines = text.read(_MAX_FILE).splitlines()
    keys = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    if not keys.get("access_key") or not keys.get("secret_key"):
        raise errors.FailedPrecondition(
            f"{path} (snapshots.s3_credentials) must have the lines access_key=... and secret_key=..."
        )
    return keys
