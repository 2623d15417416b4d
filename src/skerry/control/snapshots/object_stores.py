"""The store with the API of S3 for snapshots, as the settings have it, with its credentials.

Credentials are read from their file whenever they are needed, so that they can be changed without a restart,
and are in no record: nodes get them with each task.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from skerry.kit import credential_files
from skerry.model import errors
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.snapshots import ObjectStore


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
        keys = credential_files.read(path)
    except credential_files.UnusableCredentials as error:
        raise errors.FailedPrecondition(
            f"the credentials for snapshots (snapshots.s3_credentials): {error}"
        ) from error
    if not keys.get("access_key") or not keys.get("secret_key"):
        raise errors.FailedPrecondition(
            f"{path} (snapshots.s3_credentials) must have the lines access_key=... and secret_key=..."
        )
    return keys
