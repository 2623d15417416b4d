"""Forwarding of logs in this process: its own log, and on a node those of everything that runs there.

Parts of the process add their rings to `RoleContext.log_sources`; `start` comes after them, and stops before
them. The forwarders themselves are `skerry.daemon.log_forwarders`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from skerry.daemon.role_parts import RoleContext
from skerry.kit import files, logs
from skerry.model.log_settings import LogSettings
from skerry.node import host
from skerry.node.logs.process_log import ProcessLog
from skerry.node.logs.removed_logs import RemovedLogs

FOLDER: Final = "log-forwarding"


def check_targets(settings: LogSettings) -> None:
    """Raise Invalid for a target that cannot be used."""
    if not settings.forward:
        return
    from skerry.transport.log_forwarding.targets import parse_target

    for target in settings.forward:
        parse_target(target)


def open_process_log(context: RoleContext) -> None:
    """From here on, lines of this process are stored for forwarding."""
    if not context.settings.log.forward:
        return
    process_log = ProcessLog(home(context) / "process", host.boot_id())
    context.undo.callback(process_log.close)
    logs.copy_to(process_log.add)
    context.undo.callback(logs.copy_to, None)
    context.log_sources.append(process_log)


def open_removed_logs(context: RoleContext) -> RemovedLogs | None:
    """Logs of what is removed before they are forwarded; None: nothing is forwarded."""
    if not context.settings.log.forward:
        return None
    max_bytes = context.settings.log.forward_buffer_mb << 20
    removed = RemovedLogs(home(context) / "removed", max_bytes, context.clock)
    context.removed_logs.append(removed)
    return removed


async def start(context: RoleContext, node: str, fingerprint: str) -> None:
    """Forward to all targets until the process stops. `fingerprint` is that of the CA of the cloud."""
    settings = context.settings.log
    if not settings.forward:
        return
    from skerry.daemon import log_forwarders  # few forward logs

    await log_forwarders.start(context, home(context), node, fingerprint)


def home(context: RoleContext) -> Path:
    """The folder of positions, and of what is not sent yet."""
    return files.private_folder(context.folder / FOLDER)
