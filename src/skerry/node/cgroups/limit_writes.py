"""Writes limits and verifies that the kernel took them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.files import CgroupFiles

_CANNOT_TAKE = (errno.EINVAL, errno.ERANGE, errno.EACCES, errno.ENOSPC, errno.EBUSY)


def write(
    files: CgroupFiles, path_of: Callable[[str], str], settings: Iterable[translation.LimitSetting]
) -> None:
    """Write each setting and read it back. Raises Invalid with the name of a limit that the kernel
    refuses."""
    for setting in settings:
        path = path_of(setting.file)
        try:
            files.write(path, setting.value)
            actual = files.read(path)
        except FileNotFoundError as error:
            if setting.optional:
                continue
            raise errors.Internal(
                f"this kernel has no {setting.file} for the limit {setting.limit}", detail=path
            ) from error
        except OSError as error:
            if error.errno not in _CANNOT_TAKE:
                raise
            raise errors.Invalid(
                f"the kernel refuses {setting.value} in {setting.file}: {error.strerror}; "
                f"choose another {setting.limit}",
                field=setting.limit,
            ) from error
        if not translation.is_set(setting, actual):
            raise errors.Internal(
                f"the kernel did not set {setting.limit}: {setting.value} was written to {setting.file}, "
                f"which has {actual.strip()}",
                detail=path,
            )


def check_lists(limits: CellLimits, cpus: Callable[[], str], mems: Callable[[], str]) -> None:
    """Reject cpus and memory nodes that the parent does not have; v2 would ignore them."""
    for name, requested, of_parent in (("cpus", limits.cpus, cpus), ("mems", limits.mems, mems)):
        if not requested:
            continue
        there = of_parent()
        lacking = translation.numbers(requested) - translation.numbers(there)
        if lacking:
            raise errors.Invalid(
                f"{name} {requested} are not available: the node or the parent cell has only {there.strip()}",
                field=name,
            )
