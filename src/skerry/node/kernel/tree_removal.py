"""Removes an untrusted file tree: of any depth, with any names, links or flags.

`shutil.rmtree` recurses, and a layer can nest folders deeper than that allows. Here subfolders of a folder
are moved up a level, so that nothing stays deep and at most two folders are open. No link is followed. Used
by the agent on what a failed unpacking left, and by the unpacker where an entry of a layer replaces a folder.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
import struct
from collections.abc import Callable
from typing import Final

_GET_FLAGS: Final = 0x80086601  # FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, on machines of 64 bits
_SET_FLAGS: Final = 0x40086602
_LOCKED: Final = 0x10 | 0x20  # immutable, append-only
_FLAGS: Final = struct.Struct("=i4x")
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def remove(name: bytes | str, parent: int) -> None:
    """Remove `name`, whatever it is and contains, from the folder that is open as `parent`.

    Does nothing if it does not exist. Raises OSError if the file system refuses.
    """
    name = os.fsencode(name)
    if _drop(name, parent):
        return
    top = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent)
    try:
        number = 0
        while children := os.listdir(top):
            for child in map(os.fsencode, children):
                if not _drop(child, top):
                    number = _lift(child, top, number)
                    _drop(child, top)
    finally:
        os.close(top)
    _drop(name, parent)


def _lift(folder: bytes, top: int, number: int) -> int:
    """Empty `folder`, moving non-empty subfolders to a name of their own in `top`."""
    opened = os.open(folder, _OPEN | os.O_DIRECTORY, dir_fd=top)
    try:
        for child in map(os.fsencode, os.listdir(opened)):
            while not _drop(child, opened):
                number += 1
                move = functools.partial(os.rename, child, b"%d" % number, src_dir_fd=opened, dst_dir_fd=top)
                try:
                    _retry_unlocked(move, child, opened)
                    break
                except OSError as error:
                    # The name is in use, by something that is removed as well: try the next.
                    if error.errno not in _NOT_EMPTY | {errno.ENOTDIR}:
                        raise
    finally:
        os.close(opened)
    return number


def _drop(name: bytes, parent: int) -> bool:
    """Remove it if one call does, as for all but non-empty folders. True: it no longer exists."""
    try:
        act = os.rmdir if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode) else os.unlink
        _retry_unlocked(functools.partial(act, name, dir_fd=parent), name, parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise
        return False
    return True


def _retry_unlocked(act: Callable[[], None], name: bytes, parent: int) -> None:
    """Do it; if it is not permitted, unlock the entry and its folder, and retry."""
    try:
        act()
    except PermissionError:
        _unlock(parent)
        try:
            opened = os.open(name, _OPEN, dir_fd=parent)
        except OSError:
            pass  # a link or a device: it has no flags
        else:
            try:
                _unlock(opened)
            finally:
                os.close(opened)
        act()


def _unlock(descriptor: int) -> None:
    try:
        (flags,) = _FLAGS.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_FLAGS.size)))
        if flags & _LOCKED:
            fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(flags & ~_LOCKED))
    except OSError:
        pass  # a file system without such flags; the retry reports the error
