"""Settings of snapshots: where they can be sent beside the node on which they are taken."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class SnapshotSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Snapshots of volumes, and other places for them than their node."""

    folder: Annotated[
        str,
        Meta(
            description="Folder of this node for snapshots `--to folder`, such as a mounted network file "
            "system; to restore them on another node it must have the same one. Empty: there is none"
        ),
    ] = ""
    freeze_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Longest time for which a snapshot on this node stops the writers of a volume; one "
            "that takes longer fails",
        ),
    ] = 60.0
    s3_endpoint: Annotated[
        str,
        Meta(
            description="On servers: URL of a store with the API of S3 for snapshots `--to s3`, to which "
            "nodes connect. Empty: there is none"
        ),
    ] = ""
    s3_bucket: Annotated[str, Meta(description="Its bucket, which must exist")] = ""
    s3_region: Annotated[str, Meta(description="Its region, which is part of signatures")] = "us-east-1"
    s3_prefix: Annotated[str, Meta(description="Before the name of every object in the bucket")] = ""
    s3_credentials: Annotated[
        str,
        Meta(
            description="File with the lines `access_key=...` and `secret_key=...`, which only its owner can "
            "read; it is read for every operation"
        ),
    ] = ""
