"""Names of scheduled backups: `skerry-CLOUD-TIME-REVISION.backup`.

CLOUD tells the clouds apart that write to the same place, so that none removes the backups of another. It
stays the same when the CA is replaced, and in a cloud that was restored. Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from skerry.control.backup.archive import BackupHeader
from skerry.kit.pki import CertificateAuthority

_DIGITS: Final = 12
_NAME: Final = re.compile(r"skerry-(?P<cloud>[0-9a-f]{12})-[0-9]{8}T[0-9]{6}Z-[0-9]+\.backup")
_DRAFT: Final = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.part")


def cloud_of(authority: CertificateAuthority) -> str:
    """What the names of a cloud have in common: of the secret that all its servers keep, and reveals nothing
    of it."""
    return authority.derive(b"skerry names of backups").hex()[:_DIGITS]


def name_of(cloud: str, header: BackupHeader) -> str:
    """The names of a cloud are in the order of time."""
    at = datetime.fromtimestamp(header.created_at, UTC)
    return f"skerry-{cloud}-{at:%Y%m%dT%H%M%SZ}-{header.revision}.backup"


def cloud_in(name: str) -> str | None:
    """The cloud of a scheduled backup; None if the name is another."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["cloud"]


def draft_of(name: str, suffix: str) -> str:
    """The name of a file while it is written; `suffix` is of eight hexadecimal digits."""
    return f".{name}.{suffix}.part"


def drafted(name: str) -> str:
    """What a file is a draft of; empty if it is none."""
    found = _DRAFT.fullmatch(name)
    return "" if found is None else found["name"]
