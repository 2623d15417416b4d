"""The folders and symbolic links of a layer so far, in memory, to resolve names of entries.

Symbolic links are resolved within the root, as in Docker and umoci, but here and not by the kernel: names are
resolved against what this layer has created, and the kernel gets only names whose every part is known to be a
folder. So the effect of an entry depends only on the entries before it.
"""

from __future__ import annotations

import os
from typing import Final

from skerry.kit.tar.errors import spell
from skerry.kit.tar.reader import TarEntry
from skerry.node.layers.unpacker import errors
from skerry.node.layers.unpacker.errors import UnpackError

_MOST_LINKS: Final = 40  # per name, as in the kernel
_MOST_OPEN: Final = 64
_MOST_PATH: Final = 3000  # bytes; the kernel's limit is 4096
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LayerFolder:
    """One folder of the layer; only folders and links in it are tracked here."""

    __slots__ = ("descriptor", "entry", "folders", "is_opaque", "links", "mode", "name", "parent")

    def __init__(self, name: bytes, parent: LayerFolder | None, mode: int) -> None:
        self.name = name
        self.parent = parent
        self.mode = mode  # at creation; -1: not created by us
        self.entry: TarEntry | None = None  # None: implied by its content
        self.is_opaque = False
        self.folders: dict[bytes, LayerFolder] = {}
        self.links: dict[bytes, bytes] = {}
        self.descriptor = -1


class LayerFolderTree:
    """The tree, with the most recently used folders open. `root` is the root of the layer."""

    def __init__(self, descriptor: int) -> None:
        self.root = LayerFolder(b"", None, -1)
        self.root.descriptor = descriptor
        self._open: dict[LayerFolder, None] = {}  # the most recently used is at the end

    def resolve(self, parts: list[bytes]) -> tuple[LayerFolder, list[bytes]]:
        """Resolve `parts`: the last existing folder, and the names below that do not exist."""
        todo = parts[::-1]
        folder, missing = self.root, list[bytes]()
        links = 0
        while todo:
            part = todo.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if missing:
                    missing.pop()
                else:
                    folder = folder.parent or folder
                continue
            if missing:
                missing.append(part)
            elif (child := folder.folders.get(part)) is not None:
                folder = child
            elif (target := folder.links.get(part)) is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise UnpackError(
                        errors.REFUSED, f"{spell(b'/'.join(parts))} has too many symbolic links"
                    )
                if target.startswith(b"/"):
                    folder = self.root
                todo += target.split(b"/")[::-1]
            else:
                missing.append(part)
        return folder, missing

    def descriptor(self, folder: LayerFolder) -> int:
        """The folder, open; valid until the next call."""
        if folder.descriptor < 0:
            folder.descriptor = self._open_folder(folder)
            if len(self._open) >= _MOST_OPEN:
                self._close(next(iter(self._open)))
        elif folder is self.root:
            return folder.descriptor
        else:
            del self._open[folder]
        self._open[folder] = None
        return folder.descriptor

    def forget(self, folder: LayerFolder) -> None:
        """Close it and all below it, before it is removed."""
        pending = [folder]
        while pending:
            one = pending.pop()
            pending += one.folders.values()
            if one in self._open:
                self._close(one)

    def _close(self, folder: LayerFolder) -> None:
        del self._open[folder]
        os.close(folder.descriptor)
        folder.descriptor = -1

    def _open_folder(self, folder: LayerFolder) -> int:
        """Open it from the nearest open ancestor, in as few steps as the limit of path lengths allows."""
        names = [folder.name]
        start = folder.parent
        while start is not None and start.descriptor < 0:
            names.append(start.name)
            start = start.parent
        assert start is not None, "the root is always open"
        descriptor, is_temporary = start.descriptor, False
        try:
            while names:
                path = names.pop()
                while names and len(path) + len(names[-1]) < _MOST_PATH:
                    path += b"/" + names.pop()
                opened = os.open(path, _OPEN, dir_fd=descriptor)
                if is_temporary:
                    os.close(descriptor)
                descriptor, is_temporary = opened, True
        except BaseException:
            if is_temporary:
                os.close(descriptor)
            raise
        return descriptor
