"""Files of the console that browsers keep: our own, and those of others that `scripts/assets` fetches.

Each is read once and served under the hash of the content of all, so that a browser may keep it for ever and
never has an old one, and modules find each other by relative names; compressed once, too. The folder of
third-party files is not in the repository: without it pages say which command fetches it.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "assets"
THIRD_PARTY = "third_party"
REMEDY = "scripts/assets"
_MEDIA = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NEEDED = ("htmx.js", "uplot.js", "uplot.css", "xterm.js", "xterm.css")


class Asset(msgspec.Struct, frozen=True):
    """A file as it is served."""

    name: str
    hash: str
    media: str
    content: bytes
    compressed: bytes

    @property
    def href(self) -> str:
        return f"/console/assets/{self.hash}/{self.name}"


class AssetCatalog:
    """All files, read when the first page is."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @cached_property
    def assets(self) -> Mapping[str, Asset]:
        files = [*self._folder.iterdir(), *(self._folder / THIRD_PARTY).glob("*")]
        contents = {path.name: path.read_bytes() for path in sorted(files) if path.suffix in _MEDIA}
        whole = hashlib.sha256()
        for name, content in contents.items():
            whole.update(f"{name} {len(content)} ".encode() + content)
        hash = whole.hexdigest()[:16]
        return {name: _asset(name, hash, content) for name, content in contents.items()}

    def get(self, name: str, hash: str) -> Asset | None:
        asset = self.assets.get(name)
        return asset if asset is not None and asset.hash == hash else None

    def href(self, name: str) -> str:
        """Where `name` is; one that is missing has an address that is not found, and the page says why."""
        asset = self.assets.get(name)
        return asset.href if asset is not None else f"/console/assets/missing/{name}"

    @property
    def missing(self) -> tuple[str, ...]:
        """Third-party files that are not there."""
        return tuple(name for name in _NEEDED if name not in self.assets)


def _asset(name: str, hash: str, content: bytes) -> Asset:
    media = _MEDIA[Path(name).suffix]
    return Asset(name, hash, media, content, gzip.compress(content, 9, mtime=0))
