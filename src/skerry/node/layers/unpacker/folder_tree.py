"""The folders and symbolic links of a layer so far, in memory: where a name of the layer really leads.

Symbolic links are followed as Docker and umoci do, within the root, but here and not by the kernel: names are
resolved against what this layer has made, and the kernel only ever gets names whose every part is known to be
a folder. So what an entry does depends on the entries before it and on nothing else.
"""

from __future__ import annotations

import os
from typing import Final

from skerry.kit.tar.errors import spell
from skerry.kit.tar.reader import TarEntry
from skerry.node.layers.unpacker import errors
from skerry.node.layers.unpacker.errors import UnpackError

_MOST_LINKS: Final = 40  # followed for one name, as in the kernel
_MOST_OPEN: Final = 64
_MOST_PATH: Final = 3000  # bytes; the kernel takes 4096
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LayerFolder:
    """One folder of the layer; what is in it and is neither folder nor link is known to the disk only."""

    __slots__ = ("descriptor", "entry", "folders", "is_opaque", "links", "mode", "name", "parent")

    def __init__(self, name: bytes, parent: LayerFolder | None, mode: int) -> None:
        self.name = name
        self.parent = parent
        self.mode = mode  # that it was made with; -1: not by us
        self.entry: TarEntry | None = None  # None: implied by what is in it
        self.is_opaque = False
        self.folders: dict[bytes, LayerFolder] = {}
        self.links: dict[bytes, bytes] = {}
        self.descriptor = -1


class LayerFolderTree:
    """The tree, with the folders used last kept open. `root` is the root of the layer."""

    def __init__(self, descriptor: int) -> None:
        self.root = LayerFolder(b"", None, -1)
        self.root.descriptor = descriptor
        self._open: dict[LayerFolder, None] = {}  # the one used last is at the end

    def resolve(self, parts: list[bytes]) -> tuple[LayerFolder, list[bytes]]:
        """The folder that `parts` lead to: the last one that is there, and the names of what is not."""
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
                        errors.REFUSED, f"{spell(b'/'.join(parts))} goes through too many links"
                    )
                if target.startswith(b"/"):
                    folder = self.root
                todo += target.split(b"/")[::-1]
            else:
                missing.append(part)
        return folder, missing

    def descriptor(self, folder: LayerFolder) -> int:
        """The folder, open; good until the next call."""
        if folder.descriptor < 0:
            folder.descriptor = self._reach(folder)
            if len(self._open) >= _MOST_OPEN:
                self._close(next(iter(self._open)))
        elif folder is self.root:
            return folder.descriptor
        else:
            del self._open[folder]
        self._open[folder] = None
        return folder.descriptor

    def forget(self, folder: LayerFolder) -> None:
        """Close it and all below it, as far as that is ours to close: it is about to go."""
        gone = [folder]
        while gone:
            one = gone.pop()
            gone += one.folders.values()
            if one in self._open:
                self._close(one)

    def _close(self, folder: LayerFolder) -> None:
        del self._open[folder]
        os.close(folder.descriptor)
        folder.descriptor = -1

    def _reach(self, folder: LayerFolder) -> int:
        """Open it from the nearest open folder above it, by as few steps as the length of paths allows."""
        names = [folder.name]
        start = folder.parent
        while start is not None and start.descriptor < 0:
            names.append(start.name)
            start = start.parent
        assert start is not None, "the root is always open"
        descriptor, is_ours = start.descriptor, False
        try:
            while names:
                path = names.pop()
                while names and len(path) + len(names[-1]) < _MOST_PATH:
                    path += b"/" + names.pop()
                opened = os.open(path, _OPEN, dir_fd=descriptor)
                if is_ours:
                    os.close(descriptor)
                descriptor, is_ours = opened, True
        except BaseException:
            if is_ours:
                os.close(descriptor)
            raise
        return descriptor
