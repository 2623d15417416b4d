"""Writes entries of a layer as files, in overlayfs format.

A whiteout (`.wh.NAME`) becomes a character device 0:0, an opaque folder an attribute, so no entry of the
layer may itself be such a device or have such an attribute. Existing files are never written through: they
are removed and created again. Owner, mode and time of folders are set at the very end, since creating a file
in one changes its time.

In a user namespace of an ordinary user (`MappedIds`) only some owners exist: files of others belong to root
there, and device nodes, which only root of the machine can create, are left out. Both are counted.

Runs confined to the layer's folder, but does not rely on that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from skerry.kit.tar import reader as tar_reader
from skerry.kit.tar.errors import spell
from skerry.kit.tar.reader import TarEntry
from skerry.node.kernel import tree_removal
from skerry.node.layers.unpacker import errors
from skerry.node.layers.unpacker.errors import UnpackError
from skerry.node.layers.unpacker.folder_tree import LayerFolder, LayerFolderTree

_WHITEOUT: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"
_AUFS: Final = b".wh..wh."  # metadata of aufs, which Docker once used, at the root of old layers
OPAQUE_XATTR: Final = "trusted.overlay.opaque"
USER_OPAQUE_XATTR: Final = "user.overlay.opaque"  # in a user namespace, for overlays mounted with userxattr
_USER_XATTR: Final = b"user."
_CAPABILITY_XATTR: Final = b"security.capability"
_DROPPED_XATTR: Final = b"user.overlay."  # used by unprivileged overlayfs mounts

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o7777
_PERMISSION_BITS: Final = 0o777
_IMPLIED_MODE: Final = 0o755
_MOST_ID: Final = 2**32 - 2  # the next one means "unchanged" to the kernel
_MOST_TIME_NS: Final = 2**63 - 1
_MOST_NAME: Final = 4096
_MOST_MAJOR: Final = 2**12 - 1  # the kernel truncates larger ones, 4096 to 0
_MOST_MINOR: Final = 2**20 - 1
_MAX_CACHED_FOLDERS: Final = 4096
_SPECIAL: Final = {
    tar_reader.CHARACTER_DEVICE: stat.S_IFCHR,
    tar_reader.BLOCK_DEVICE: stat.S_IFBLK,
    tar_reader.FIFO: stat.S_IFIFO,
}


class MappedIds(NamedTuple):
    """How many ids from 0 on exist in a user namespace of an ordinary user."""

    users: int
    groups: int


class LayerWriter:
    """Writes a layer to the folder that is open as `root`."""

    def __init__(self, root: int, most_files: int, ids: MappedIds | None = None) -> None:
        self._folders = LayerFolderTree(root)
        self._most_files = most_files
        self._folder_cache: dict[bytes, LayerFolder] = {}  # folders by the names in the layer
        self._ids = ids
        self.files = 0
        self.changed_owners = 0  # files that belong to root, since their owner is not mapped
        self.devices = 0  # that were left out

    def apply(self, entry: TarEntry, content: Callable[[], Iterator[memoryview]]) -> None:
        """Apply one entry. Raises UnpackError."""
        _check(entry)
        self._count()
        head, _, name = entry.name.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b".."):
            parts = split(entry.name)
            if not parts:
                self._apply_to_root(entry)
                return
            head, name = b"/".join(parts[:-1]), parts[-1]
        try:
            if _WHITEOUT in entry.name and self._handle_whiteout(head, name, entry.name):
                return
            folder = self._folder_cache.get(head)
            if folder is None:
                folder = self._find(head)
            self._make(entry, folder, name, content)
        except OSError as error:
            raise errors.of_system(error, entry.name) from error

    def finish(self) -> Iterator[None]:
        """Set owner, mode and time of every folder; yields after each, for progress."""
        waiting = [self._folders.root]
        while waiting:
            folder = waiting.pop()
            waiting += folder.folders.values()
            try:
                self._set_metadata(folder)
            except OSError as error:
                raise errors.of_system(error, folder.name or b"/") from error
            yield

    def close(self) -> None:
        """Close every folder but the root, which the caller owns."""
        self._folders.forget(self._folders.root)

    def _apply_to_root(self, entry: TarEntry) -> None:
        if entry.kind != tar_reader.FOLDER:
            raise UnpackError(errors.REFUSED, "the root of the layer is not a folder")
        self._folders.root.entry = entry

    def _make(
        self, entry: TarEntry, folder: LayerFolder, name: bytes, content: Callable[[], Iterator[memoryview]]
    ) -> None:
        if entry.kind == tar_reader.FILE:
            self._make_file(entry, folder, name, content())
        elif entry.kind == tar_reader.FOLDER:
            child = folder.folders.get(name) or self._make_folder(folder, name, entry.mode & _PERMISSION_BITS)
            child.entry = entry
        elif entry.kind == tar_reader.SYMLINK:
            self._make_symlink(entry, folder, name)
        elif entry.kind == tar_reader.HARD_LINK:
            self._make_hard_link(entry, folder, name)
        else:
            self._make_special(entry, folder, name)

    def _make_file(
        self, entry: TarEntry, folder: LayerFolder, name: bytes, content: Iterator[memoryview]
    ) -> None:
        parent = self._folders.descriptor(folder)
        try:
            file = os.open(name, _CREATE, entry.mode & _PERMISSION_BITS, dir_fd=parent)
        except FileExistsError:
            self._clear(folder, name)
            parent = self._folders.descriptor(folder)
            file = os.open(name, _CREATE, entry.mode & _PERMISSION_BITS, dir_fd=parent)
        try:
            for piece in content:
                written = os.write(file, piece)
                while written < len(piece):
                    piece = piece[written:]
                    written = os.write(file, piece)
            # In this order: a change of owner clears special bits and capabilities, any change sets the time.
            if entry.uid or entry.gid:
                os.fchown(file, *self._owner(entry))
            if entry.mode & _MODE & ~_PERMISSION_BITS:
                os.fchmod(file, entry.mode & _MODE)
            if entry.xattrs:
                _set_xattrs(file, entry)
            os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(file)

    def _make_folder(self, folder: LayerFolder, name: bytes, mode: int) -> LayerFolder:
        child = LayerFolder(name, folder, mode)
        try:
            os.mkdir(name, mode, dir_fd=self._folders.descriptor(folder))
        except FileExistsError:
            self._clear(folder, name)
            os.mkdir(name, mode, dir_fd=self._folders.descriptor(folder))
            # The replaced entry hid content of lower layers with that name, which must stay hidden.
            child.is_opaque = True
        folder.folders[name] = child
        return child

    def _make_symlink(self, entry: TarEntry, folder: LayerFolder, name: bytes) -> None:
        if not entry.link:
            raise UnpackError(errors.REFUSED, f"{spell(entry.name)} is a symbolic link without a target")
        try:
            os.symlink(entry.link, name, dir_fd=self._folders.descriptor(folder))
        except FileExistsError:
            self._clear(folder, name)
            os.symlink(entry.link, name, dir_fd=self._folders.descriptor(folder))
        folder.links[name] = entry.link
        parent = self._folders.descriptor(folder)
        if entry.uid or entry.gid:
            os.chown(name, *self._owner(entry), dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _make_hard_link(self, entry: TarEntry, folder: LayerFolder, name: bytes) -> None:
        *parts, target = split(entry.link) or [b""]
        source, missing = self._folders.resolve(parts)
        if not target or missing or target in source.folders:
            raise _not_linkable(entry)
        # Both stay open: the two most recently used folders are not closed.
        there, here = self._folders.descriptor(source), self._folders.descriptor(folder)
        try:
            found = os.lstat(target, dir_fd=there)
        except FileNotFoundError:
            raise _not_linkable(entry) from None
        if _is_whiteout(found):
            raise _not_linkable(entry)
        try:
            os.link(target, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        except FileExistsError:
            if name not in folder.folders and os.path.samestat(found, os.lstat(name, dir_fd=here)):
                return
            self._clear(folder, name)
            if self._folders.resolve(parts) != (source, []):
                raise _not_linkable(entry) from None
            there, here = self._folders.descriptor(source), self._folders.descriptor(folder)
            os.link(target, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        if target in source.links:
            folder.links[name] = source.links[target]

    def _make_special(self, entry: TarEntry, folder: LayerFolder, name: bytes) -> None:
        if entry.kind == tar_reader.CHARACTER_DEVICE and entry.major == entry.minor == 0:
            raise UnpackError(
                errors.REFUSED,
                f"{spell(entry.name)} is a device 0:0, which would be a whiteout",
            )
        if self._ids is not None and entry.kind != tar_reader.FIFO:
            self.devices += 1
            return
        mode = _SPECIAL[entry.kind] | entry.mode & _PERMISSION_BITS
        device = os.makedev(entry.major, entry.minor)
        try:
            os.mknod(name, mode, device, dir_fd=self._folders.descriptor(folder))
        except FileExistsError:
            self._clear(folder, name)
            os.mknod(name, mode, device, dir_fd=self._folders.descriptor(folder))
        parent = self._folders.descriptor(folder)
        if entry.uid or entry.gid:
            os.chown(name, *self._owner(entry), dir_fd=parent, follow_symlinks=False)
        if entry.mode & _MODE & ~_PERMISSION_BITS:
            os.chmod(name, entry.mode & _MODE, dir_fd=parent)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _handle_whiteout(self, head: bytes, name: bytes, spelled: bytes) -> bool:
        """True if the entry is a whiteout, which removes content of lower layers, and not a file."""
        parts = [*split(head), name]
        if parts[0].startswith(_AUFS) and parts != [_OPAQUE]:
            return True
        if any(part.startswith(_WHITEOUT) for part in parts[:-1]):
            raise UnpackError(errors.REFUSED, f"{spell(spelled)} is inside a whiteout")
        if not name.startswith(_WHITEOUT):
            return False
        folder = self._find(head)
        if name == _OPAQUE:
            folder.is_opaque = True
            return True
        removed = name[len(_WHITEOUT) :]
        if removed in (b"", b".", b"..") or removed.startswith(_WHITEOUT):
            raise UnpackError(errors.REFUSED, f"{spell(spelled)} is a whiteout without a valid name")
        # A whiteout applies to lower layers only: entries of this layer with that name stay.
        if removed in folder.folders:
            folder.folders[removed].is_opaque = True
            return True
        try:
            os.mknod(removed, stat.S_IFCHR, os.makedev(0, 0), dir_fd=self._folders.descriptor(folder))
        except FileExistsError:
            pass
        return True

    def _find(self, head: bytes) -> LayerFolder:
        """The folder `head`, created if it does not exist."""
        folder, missing = self._folders.resolve(split(head))
        for part in missing:
            if _WHITEOUT in part and part.startswith(_WHITEOUT):
                raise UnpackError(errors.REFUSED, f"{spell(head)} is inside a whiteout")
            self._count()
            self._check_is_free(folder, part, head)
            folder = self._make_folder(folder, part, _IMPLIED_MODE)
        if len(self._folder_cache) >= _MAX_CACHED_FOLDERS:
            self._folder_cache.clear()
        self._folder_cache[head] = folder
        return folder

    def _check_is_free(self, folder: LayerFolder, name: bytes, head: bytes) -> None:
        """An implied folder replaces a whiteout, but not a file."""
        try:
            found = os.lstat(name, dir_fd=self._folders.descriptor(folder))
        except FileNotFoundError:
            return
        if not _is_whiteout(found):
            raise UnpackError(errors.REFUSED, f"{spell(head)} is used as a folder and is not one")

    def _clear(self, folder: LayerFolder, name: bytes) -> None:
        """Remove an existing entry of that name."""
        parent = self._folders.descriptor(folder)
        child = folder.folders.pop(name, None)
        if child is not None:
            self._folders.forget(child)
            tree_removal.remove(name, parent)
        else:
            folder.links.pop(name, None)
            os.unlink(name, dir_fd=parent)
        self._folder_cache.clear()  # some names may resolve differently now

    def _set_metadata(self, folder: LayerFolder) -> None:
        entry = folder.entry or TarEntry(folder.name, tar_reader.FOLDER, mode=_IMPLIED_MODE)
        opened = self._folders.descriptor(folder)
        if entry.uid or entry.gid:
            os.fchown(opened, *self._owner(entry))
        if entry.mode & _MODE != folder.mode:
            os.fchmod(opened, entry.mode & _MODE)
        if entry.xattrs:
            _set_xattrs(opened, entry)
        if folder.is_opaque:
            os.setxattr(opened, OPAQUE_XATTR if self._ids is None else USER_OPAQUE_XATTR, b"y")
        os.utime(opened, ns=(entry.mtime_ns, entry.mtime_ns))

    def _owner(self, entry: TarEntry) -> tuple[int, int]:
        if self._ids is None:
            return entry.uid, entry.gid
        uid = entry.uid if entry.uid < self._ids.users else 0
        gid = entry.gid if entry.gid < self._ids.groups else 0
        self.changed_owners += (uid, gid) != (entry.uid, entry.gid)
        return uid, gid

    def _count(self) -> None:
        self.files += 1
        if self.files > self._most_files:
            raise UnpackError(
                errors.TOO_LARGE,
                f"the layer has more than {self._most_files:,} entries; "
                "raise images.max_layer_files if you trust it",
            )


def split(name: bytes) -> list[bytes]:
    """The parts of a name; raises if it leaves the root."""
    parts = [part for part in name.split(b"/") if part and part != b"."]
    if b".." in parts:
        raise UnpackError(errors.REFUSED, f"{spell(name)} leads out of the layer with '..'")
    return parts


def applied_xattrs(entry: TarEntry) -> dict[bytes, bytes]:
    """The attributes that are applied: those of users, and file capabilities.

    Others configure overlayfs, access lists or security modules of the machine.
    """
    return {
        key: value
        for key, value in entry.xattrs.items()
        if key == _CAPABILITY_XATTR or (key.startswith(_USER_XATTR) and not key.startswith(_DROPPED_XATTR))
    }


def _check(entry: TarEntry) -> None:
    """Reject numbers and names that the kernel would misinterpret or refuse."""
    name = entry.name
    if not name:
        raise UnpackError(errors.REFUSED, "an entry has no name")
    if len(name) > _MOST_NAME or len(entry.link) > _MOST_NAME:
        raise UnpackError(
            errors.REFUSED, f"{spell(name)} has a name or a link of more than {_MOST_NAME} bytes"
        )
    if not (0 <= entry.uid <= _MOST_ID and 0 <= entry.gid <= _MOST_ID):
        raise UnpackError(
            errors.REFUSED, f"{spell(name)} belongs to {entry.uid}:{entry.gid}, which is not a valid owner"
        )
    if not -_MOST_TIME_NS <= entry.mtime_ns <= _MOST_TIME_NS:
        raise UnpackError(errors.REFUSED, f"{spell(name)} has a time that cannot be stored")
    if not (0 <= entry.major <= _MOST_MAJOR and 0 <= entry.minor <= _MOST_MINOR):
        raise UnpackError(
            errors.REFUSED,
            f"{spell(name)} is a device {entry.major}:{entry.minor}, which is not a valid number",
        )


def _set_xattrs(opened: int, entry: TarEntry) -> None:
    for key, value in applied_xattrs(entry).items():
        try:
            os.setxattr(opened, key, value)
        except OSError as error:
            # Whatever the errno: ENOSPC means a full disk or an attribute that is too long.
            reason = (error.strerror or "it failed").lower()
            raise UnpackError(
                errors.REFUSED,
                f"{spell(entry.name)} has the attribute {spell(key)}, "
                f"which cannot be stored on this node's file system: {reason}",
            ) from error


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _not_linkable(entry: TarEntry) -> UnpackError:
    return UnpackError(
        errors.REFUSED,
        f"{spell(entry.name)} is a hard link to {spell(entry.link)}, "
        "which is not a file of an earlier entry of this layer",
    )
