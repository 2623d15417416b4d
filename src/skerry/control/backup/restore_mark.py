"""The mark of a restore that has not finished. Every start looks for it, so this imports nothing."""

from __future__ import annotations

from typing import Final

UNFINISHED: Final = "restore-unfinished"  # a file of the data folder, and a key of a store in etcd
