"""Settings of scheduled backups."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class BackupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Backups that the leading server takes by itself."""

    schedule: Annotated[
        str,
        Meta(
            description="Cron expression in UTC, such as `30 3 * * *`: when a backup is taken. Empty: never"
        ),
    ] = ""
    target: Annotated[
        str,
        Meta(
            description="Where scheduled backups go: an absolute folder of every server, such as a "
            "mounted network "
            "file system, or `s3://BUCKET/PREFIX` at `snapshots.s3_endpoint`"
        ),
    ] = ""
    keep: Annotated[int, Meta(ge=1, le=10_000, description="Scheduled backups kept; the oldest go first")] = (
        14
    )
    passphrase_file: Annotated[
        str,
        Meta(
            description="File with the passphrase that encrypts scheduled backups, which only its owner "
            "can read; "
            "the one that decrypts them must be kept elsewhere, too"
        ),
    ] = ""
    recipient: Annotated[
        str,
        Meta(
            description="Public key (`skerry backup key`) that they are encrypted for, instead of a "
            "passphrase"
        ),
    ] = ""
    plain: Annotated[
        bool, Meta(description="Do not encrypt them, though they hold the keys of the cloud")
    ] = False
