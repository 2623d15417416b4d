"""The devices of this machine: read from the CDI files in some folders, and again when those change.

A file that cannot be used is left out, with a warning for people; it never takes away the devices of others.
Hooks are programs that run as root, so a file counts only if root alone can write it and its folder. A later
folder takes precedence over an earlier one; two devices of the same name in one folder cancel each other, as
CDI has it. Vendors also list one device under several names, and all devices together as one (`all`): what
contains the device nodes of another is not reported, because it cannot be given to one container alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from skerry.kit import inotify
from skerry.model import errors
from skerry.model.devices import MAX_DEVICES
from skerry.node.devices.cdi_files import CdiSpec, ContainerEdits, InvalidCdiFile, parse_file

log = structlog.get_logger(__name__)

FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_MAX_FILES = 256
_MAX_BYTES = 1024 * 1024
_MAX_WARNINGS = 8
_MAX_WARNING = 600  # characters
# Changes that matter: a file was written, moved in or out, or deleted; the folder itself is gone.
_CHANGES: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x4 | 0x400 | 0x800
_LOOK_AGAIN_S = 30.0  # for folders that do not exist yet
_SETTLE_S = 0.2  # a vendor's tool writes several files
_NUMBERS: Final = re.compile(r"(\d+)")


class DeviceEdits(NamedTuple):
    """What gives a container a device: the edits of its file, which all devices there share, and its own."""

    of_file: ContainerEdits
    own: ContainerEdits


class DeviceSet(NamedTuple):
    """What was read: the edits of each device by its full name, those that are reported, and warnings."""

    edits: Mapping[str, DeviceEdits] = {}
    reported: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class DeviceCatalog:
    """The devices of this machine; `open` reads them, `run` follows changes."""

    def __init__(self, folders: Sequence[Path] = FOLDERS) -> None:
        self._folders = folders
        self._devices = DeviceSet()

    def open(self) -> DeviceCatalog:
        """Read all files."""
        self._devices = read_folders(self._folders)
        for warning in self._devices.warnings:
            log.warning("devices.invalid_file", reason=warning)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All devices that can be given to a container, by their full names."""
        return self._devices.reported

    @property
    def warnings(self) -> tuple[str, ...]:
        """Files that cannot be used, in sentences."""
        return self._devices.warnings

    def edits(self, names: Iterable[str]) -> list[ContainerEdits]:
        """What gives a container these devices. Raises `FailedPrecondition` for one that is not there."""
        found: list[ContainerEdits] = []
        for name in names:
            edits = self._devices.edits.get(name)
            if edits is None:
                raise errors.FailedPrecondition(
                    f"this node has no device {name} any more: no usable file in "
                    f"{' or '.join(map(str, self._folders))} describes it"
                )
            found += [each for each in edits if each not in found]  # those of a file once
        return found

    async def run(self) -> None:
        """Follow the folders for ever."""
        while True:
            watches = [watch for folder in self._folders if (watch := _watch(folder)) is not None]
            try:
                await self._read_again()  # what changed before the watches were there
                await _any_change(watches)
            finally:
                for watch in watches:
                    watch.close()
            await asyncio.sleep(_SETTLE_S)

    async def _read_again(self) -> None:
        before = self._devices
        now = await asyncio.to_thread(read_folders, self._folders)
        if now == before:
            return
        self._devices = now
        log.info("devices.changed", devices=len(now.reported))
        for warning in now.warnings:
            if warning not in before.warnings:
                log.warning("devices.invalid_file", reason=warning)


NO_DEVICES: Final = DeviceCatalog(())


def read_folders(folders: Sequence[Path]) -> DeviceSet:
    """The devices that the files in `folders` describe, the last one taking precedence."""
    edits: dict[str, DeviceEdits] = {}
    warnings: list[str] = []
    for folder in folders:
        found, wrong = _read_folder(folder)
        edits.update(found)
        warnings += wrong
    if len(warnings) > _MAX_WARNINGS:
        warnings[_MAX_WARNINGS - 1 :] = [f"and {len(warnings) - _MAX_WARNINGS + 1} more CDI files or devices"]
    return DeviceSet(edits, tuple(_exclusive(edits)[:MAX_DEVICES]), tuple(map(_printable, warnings)))


def _read_folder(folder: Path) -> tuple[dict[str, DeviceEdits], list[str]]:
    edits: dict[str, DeviceEdits] = {}
    warnings: list[str] = []
    twice: set[str] = set()
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIXES))
        if names:
            _check_writers(os.stat(folder), f"the folder {folder}")
    except FileNotFoundError:
        return {}, []
    except (OSError, InvalidCdiFile) as error:
        return {}, [f"devices of {folder} are not used: {_text(error)}"]
    for name in names[:_MAX_FILES]:
        try:
            spec = _read_file(folder / name)
        except (OSError, InvalidCdiFile) as error:
            warnings.append(f"the CDI file {folder / name} is not used: {_text(error)}")
            continue
        for device in spec.devices:
            full_name = f"{spec.kind}={device.name}"
            if full_name in edits:
                twice.add(full_name)
            edits[full_name] = DeviceEdits(spec.container_edits, device.container_edits)
    for full_name in sorted(twice):
        del edits[full_name]
        warnings.append(f"the device {full_name} is in two CDI files of {folder}, and not used")
    return edits, warnings


def _read_file(path: Path) -> CdiSpec:
    # Not a link to elsewhere, whose owner would count for nothing.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidCdiFile("it is no regular file")
        _check_writers(facts, "it")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise InvalidCdiFile(f"it has more than {_MAX_BYTES // 1024} KB")
    return parse_file(data, is_yaml=path.suffix != ".json")


def _check_writers(facts: os.stat_result, what: str) -> None:
    """Raise unless only root, or whoever runs this process, can write it."""
    if facts.st_uid not in (0, os.geteuid()):
        raise InvalidCdiFile(f"{what} belongs to user {facts.st_uid}; make root its owner")
    if stat.S_IMODE(facts.st_mode) & 0o022:
        raise InvalidCdiFile(f"{what} can be written by others than its owner; chmod go-w")


def _exclusive(edits: Mapping[str, DeviceEdits]) -> list[str]:
    """The devices that do not contain another: neither a second name of it, nor several together."""
    nodes = {name: frozenset(node.source for node in each.own.device_nodes) for name, each in edits.items()}
    kept: list[str] = []
    for name in sorted(edits, key=lambda name: (len(nodes[name]), _natural(name))):
        kind = name.partition("=")[0]
        if nodes[name] and any(
            other.partition("=")[0] == kind and nodes[other] and nodes[other] <= nodes[name] for other in kept
        ):
            continue
        kept.append(name)
    return sorted(kept, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """`gpu=2` before `gpu=10`."""
    parts = _NUMBERS.split(name)
    return [(int(part), "") if position % 2 else (0, part) for position, part in enumerate(parts)]


def _text(error: Exception) -> str:
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:_MAX_WARNING]


def _watch(folder: Path) -> inotify.DirectoryWatch | None:
    try:
        return inotify.DirectoryWatch(folder, _CHANGES)
    except OSError:
        return None  # it does not exist, or there are no watches left


async def _any_change(watches: Sequence[inotify.DirectoryWatch]) -> None:
    """Wait for a change in one of the folders, at most for a while."""
    if not watches:
        await asyncio.sleep(_LOOK_AGAIN_S)
        return
    waits = [asyncio.ensure_future(watch.changed(_LOOK_AGAIN_S)) for watch in watches]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
