"""Loop devices: a file as a block device, while it is open or mounted.

Used by `skerry.node.containers.disk_images`. Every device detaches with its last user (autoclear), so a
killed agent leaves none: before the mount the only user is its own descriptor, after it the mounts, of which
copies in other mount namespaces may outlive the first. The file is locked while it is attached, by a lock
that belongs to the open file: no file is ever attached to two devices, and attaching it again returns its
device.

Requires Linux 5.8 and the device nodes of devtmpfs in /dev.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CONTROL: Final = "/dev/loop-control"
_DEVICES: Final = Path("/sys/block")
_GET_FREE: Final = 0x4C82  # LOOP_CTL_GET_FREE
_GET_STATUS: Final = 0x4C05  # LOOP_GET_STATUS64
_CONFIGURE: Final = 0x4C0A  # LOOP_CONFIGURE
_AUTOCLEAR: Final = 4  # LO_FLAGS_AUTOCLEAR
# struct loop_config: descriptor of the file, block size, and of struct loop_info64 the flags; the rest is 0.
_CONFIGURATION: Final = struct.Struct("=II52xI240x")
_STATUS: Final = struct.Struct("=QQ216x")  # struct loop_info64: device and inode of the file
_BLOCK: Final = 4096
_TRIES: Final = 100  # somebody else may take the free device first
_BUSY_S: Final = 1.0
_PAUSE_S: Final = 0.01


@contextlib.contextmanager
def attached(image: Path) -> Iterator[str]:
    """The path of the device of `image`; after the block it stays only if it was mounted. Raises
    BlockingIOError if the file is locked for a second, and has no device."""
    with contextlib.ExitStack() as opened:
        file = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        opened.callback(os.close, file)
        device, path = _find_or_attach(file)
        opened.callback(os.close, device)
        yield path


def _find_or_attach(file: int) -> tuple[int, str]:
    """A descriptor of the device, and its path."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (found := _find(os.fstat(file))) is not None:
                return found
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)  # it is just being attached or detached
        else:
            return _attach(file)


def _find(file: os.stat_result) -> tuple[int, str] | None:
    """The device of `file`, opened, if there is one."""
    for entry in _DEVICES.glob("loop*"):
        with contextlib.suppress(OSError):  # not in use, or not any more
            device = os.open(path := f"/dev/{entry.name}", os.O_RDWR | os.O_CLOEXEC)
            try:
                status = bytearray(_STATUS.size)
                fcntl.ioctl(device, _GET_STATUS, status)
                if _STATUS.unpack(status) == (file.st_dev, file.st_ino):
                    return os.dup(device), path
            finally:
                os.close(device)
    return None


def _attach(file: int) -> tuple[int, str]:
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                configuration = _CONFIGURATION.pack(file, _BLOCK, _AUTOCLEAR)
                fcntl.ioctl(device, _CONFIGURE, bytearray(configuration))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device stays free for long enough", _CONTROL)
