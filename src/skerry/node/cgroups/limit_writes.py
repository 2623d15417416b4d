"""Writing limits and making sure that the kernel took them."""

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
    """Write each setting and read it back. Raises Invalid naming the limit that the kernel does not take."""
    for setting in settings:
        path = path_of(setting.file)
        try:
            files.write(path, setting.value)
            held = files.read(path)
        except FileNotFoundError as error:
            if setting.optional:
                continue
            raise errors.Internal(
                f"the kernel offers no {setting.file} to hold {setting.limit}", detail=path
            ) from error
        except OSError as error:
            if error.errno not in _CANNOT_TAKE:
                raise
            raise errors.Invalid(
                f"the kernel does not take {setting.value} in {setting.file}: {error.strerror}; "
                f"ask for another {setting.limit}",
                field=setting.limit,
            ) from error
        if not translation.is_held(setting, held):
            raise errors.Internal(
                f"the kernel did not keep {setting.limit}: {setting.value} was written to {setting.file} and "
                f"{held.strip()} is there",
                detail=path,
            )


def check_lists(limits: CellLimits, cpus: Callable[[], str], mems: Callable[[], str]) -> None:
    """Refuse cpus and memory nodes that the parent does not have; v2 would take them and ignore them."""
    for name, asked, of_parent in (("cpus", limits.cpus, cpus), ("mems", limits.mems, mems)):
        if not asked:
            continue
        there = of_parent()
        lacking = translation.numbers(asked) - translation.numbers(there)
        if lacking:
            raise errors.Invalid(
                f"{name} {asked} cannot be had: this node, or the parent cell, has only {there.strip()}",
                field=name,
            )
