"""Remove what `skerry install` has made: stop the service, end what it runs, remove its files.

Called by `skerry.cli.commands.install`. Only files in the record are removed, the record itself last: an
interrupted removal is continued by the next one. Data stay unless `purges` is set; a node then leaves its
cloud first, and nothing is removed if no server can be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

from skerry.cli import settings as reading
from skerry.cli.install import installer, systemd, units
from skerry.cli.install.installation import Installation, Layout
from skerry.daemon import node_leave, rootless
from skerry.daemon.node_leave import LeaveOptions
from skerry.kit.clock import SystemClock
from skerry.model.settings import Settings


@dataclass(frozen=True, slots=True)
class UninstallRequest:
    """What to remove."""

    layout: Layout
    purges: bool  # data, too
    leaving: LeaveOptions
    is_image: bool  # another root, where nothing runs


def find(layout: Layout) -> Installation:
    """The installation of this machine; an error if there is none."""
    record = layout.read_record()
    if record is None:
        raise click.ClickException(
            f"{layout.on_disk(layout.record)} does not exist: 'skerry install' has made nothing here. "
            "'skerry node leave' removes a node that was started by hand."
        )
    return record


def uninstall(request: UninstallRequest, record: Installation, report: Callable[[str], None]) -> None:
    """Stop and remove all of it. Raises a `SkerryError` that says what to do, and may be repeated then."""
    layout = request.layout
    settings = _settings(layout)
    folder = layout.on_disk(record.data)

    def stop_service() -> None:
        if not request.is_image and systemd.is_booted():
            report("stopping the service")
            systemd.stop([*record.sockets, units.SERVICE])

    _remove_running(request, record, settings, folder, stop_service, report)
    if not request.is_image and systemd.is_booted():
        systemd.stop([units.SLICE])  # not before all processes in it have ended
    installer.remove_files(layout, set(record.files))
    if not request.is_image and systemd.is_booted():
        systemd.reload()
        systemd.forget_failures()
    _report_kept(layout, record, folder, report)
    layout.on_disk(layout.record).unlink(missing_ok=True)
    for made in reversed(record.folders):
        with suppress(OSError):  # not empty: there are files of others
            layout.on_disk(made).rmdir()


def _remove_running(
    request: UninstallRequest,
    record: Installation,
    settings: Settings,
    folder: Path,
    stop_service: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    clock = SystemClock()
    if request.purges and record.role == "node" and node_leave.has_joined(folder, clock):
        leaving = node_leave.leave(
            node_leave.read_settings(folder, settings),
            folder,
            clock,
            request.leaving,
            report,
            enforcement=rootless.outside(),
            stop_service=stop_service,
        )
        asyncio.run(leaving)
    else:
        stop_service()
    if not folder.exists():
        return
    asyncio.run(node_leave.remove_installed(settings, folder, clock, report, has_data=not request.purges))


def _settings(layout: Layout) -> Settings:
    path = layout.on_disk(layout.settings)
    return reading.load({}, str(path) if path.exists() else "/dev/null", {})


def _report_kept(layout: Layout, record: Installation, folder: Path, report: Callable[[str], None]) -> None:
    if folder.exists() and any(folder.iterdir()):
        report(f"The data are still in {folder}; 'skerry install {record.role}' continues with them.")
    else:
        with suppress(OSError):
            folder.rmdir()
    own = layout.on_disk(layout.unit(f"{units.SERVICE}.d"))
    for path in (own, layout.on_disk(layout.settings)):
        if path.exists():
            report(f"{path} is left: 'skerry install' has not made it.")
    command = layout.on_disk(PurePosixPath("/usr/bin/skerry"))
    if command.exists():
        report("The program itself is still there; 'apt-get remove skerry' removes it.")
