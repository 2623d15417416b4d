"""What `skerry install` has made on a machine: where it puts files, and its record of them.

The record is written before the files, so that an interrupted installation can be removed. `skerry uninstall`
removes only what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

import click
import msgspec

from skerry.cli.install import units
from skerry.kit import files, json_codec

MAX_RECORD_BYTES: Final = 1 << 20


class Installation(msgspec.Struct, frozen=True):
    """The record of an installation. Paths are those of the machine, without `--root`."""

    role: str
    version: str  # of the Skerry that wrote it
    data: str
    files: tuple[str, ...]  # that were made, links among them
    folders: tuple[str, ...]  # that were made, the deepest last
    sockets: tuple[str, ...] = ()  # names of their units


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is, below `root`."""

    root: Path

    settings: ClassVar[PurePosixPath] = PurePosixPath("/etc/skerry/skerry.toml")
    invitation: ClassVar[PurePosixPath] = PurePosixPath("/etc/skerry/invitation")
    record: ClassVar[PurePosixPath] = PurePosixPath("/etc/skerry/installation.json")
    units: ClassVar[PurePosixPath] = PurePosixPath("/etc/systemd/system")
    command: ClassVar[PurePosixPath] = PurePosixPath("/usr/local/bin/skerry")

    def on_disk(self, path: PurePosixPath | str) -> Path:
        """A path of the machine, as this process reaches it."""
        return self.root / str(path).lstrip("/")

    def unit(self, name: str) -> PurePosixPath:
        return self.units / name

    def want(self, name: str, target: str) -> PurePosixPath:
        return self.units / f"{target}.wants" / name

    def read_record(self) -> Installation | None:
        path = self.on_disk(self.record)
        try:
            with path.open("rb") as file:
                return json_codec.decode(file.read(MAX_RECORD_BYTES), Installation)
        except FileNotFoundError:
            return None
        except (OSError, json_codec.InvalidJson) as error:
            raise click.ClickException(
                f"The record of the installation, {path}, cannot be read: {error}. "
                f"Remove {units.SERVICE} and its sockets from {self.units} by hand, then this file."
            ) from None

    def write_record(self, record: Installation) -> None:
        files.write_atomically(self.on_disk(self.record), json_codec.encode(record) + b"\n", files.PRIVATE)
