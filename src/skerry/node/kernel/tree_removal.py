"""Removing a tree that a stranger made: of any depth, with any names, links or flags in it.

`shutil.rmtree` recurses, and a layer can nest folders deeper than that goes. Here what lies in a folder of a
folder is moved up a level, so that nothing stays deep and two folders are open at most. No link is followed.
Used by the agent on what a failed unpacking left, and by the unpacker where one entry of a layer takes the
place of a folder.
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
    """Remove `name`, whatever it is and holds, from the folder that is open as `parent`.

    Nothing there is fine. Raises OSError if the file system does not let go of something.
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
    """Empty `folder`, moving what cannot be dropped at once to a name of its own in `top`."""
    opened = os.open(folder, _OPEN | os.O_DIRECTORY, dir_fd=top)
    try:
        for child in map(os.fsencode, os.listdir(opened)):
            while not _drop(child, opened):
                number += 1
                move = functools.partial(os.rename, child, b"%d" % number, src_dir_fd=opened, dst_dir_fd=top)
                try:
                    _insist(move, child, opened)
                    break
                except OSError as error:
                    # The name is taken, by something that goes as well: try the next.
                    if error.errno not in _NOT_EMPTY | {errno.ENOTDIR}:
                        raise
    finally:
        os.close(opened)
    return number


def _drop(name: bytes, parent: int) -> bool:
    """Remove it if one step does, as with all but a folder that holds something. True: it is not there."""
    try:
        act = os.rmdir if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode) else os.unlink
        _insist(functools.partial(act, name, dir_fd=parent), name, parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise
        return False
    return True


def _insist(act: Callable[[], None], name: bytes, parent: int) -> None:
    """Do it; if it is not permitted, unlock what it is about and the folder that it is in, and do it then."""
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
        pass  # a file system without such flags; what is asked next says what is wrong
