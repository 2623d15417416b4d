"""The forwarders of logs, one for each target of the setting `log.forward`.

Called by `skerry.daemon.log_forwarding`, which imports it when there is a target.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from skerry.daemon.role_parts import RoleContext
from skerry.kit.tasks import TaskSupervisor
from skerry.node.logs.removed_logs import RemovedLogs
from skerry.node.logs.ring_sources import LogRing, RingSource
from skerry.transport.log_forwarding.batches import NodeLabels, Sender
from skerry.transport.log_forwarding.file_sender import FileSender
from skerry.transport.log_forwarding.forwarder import LogForwarder
from skerry.transport.log_forwarding.loki_sender import LokiSender
from skerry.transport.log_forwarding.syslog_sender import DatagramSender, StreamSender
from skerry.transport.log_forwarding.targets import (
    FileTarget,
    ForwardTarget,
    LokiTarget,
    SyslogTransport,
    parse_target,
)

_CLEAN_S: Final = 5.0
_CLOUD_DIGITS: Final = 12


async def start(context: RoleContext, home: Path, node: str, fingerprint: str) -> None:
    """Forward to all targets until the process stops, with the positions of each in `home`."""
    settings = context.settings.log
    labels = NodeLabels(settings.cloud or fingerprint[:_CLOUD_DIGITS], node)
    loops = await context.undo.enter_async_context(TaskSupervisor("log-forwarding", clock=context.clock))
    forwarders: list[LogForwarder] = []
    for text in dict.fromkeys(settings.forward):
        sender = _sender(parse_target(text), labels)
        forwarder = LogForwarder(text, sender, lambda: _rings(context.log_sources), home / _positions(text))
        forwarders.append(forwarder)
        context.undo.push_async_callback(forwarder.close)
    # The loops stop before the last lines are sent: entered above, so they are stopped here.
    context.undo.push_async_callback(loops.stop)
    for number, forwarder in enumerate(forwarders, 1):
        loops.forever(f"target-{number}", forwarder.run)
    _remove_unused(home, set(map(_positions, settings.forward)))
    if context.removed_logs:
        loops.forever("removed", lambda: _clean(context.removed_logs, forwarders))


async def _clean(removed: Sequence[RemovedLogs], forwarders: Sequence[LogForwarder]) -> None:
    while True:
        await asyncio.sleep(_CLEAN_S)
        for each in removed:
            each.remove_sent(lambda ring: all(forwarder.has_sent(ring) for forwarder in forwarders))


def _rings(sources: Iterable[RingSource]) -> Iterable[LogRing]:
    for source in sources:
        yield from source.list_rings()


def _sender(target: ForwardTarget, labels: NodeLabels) -> Sender:
    if isinstance(target, FileTarget):
        return FileSender(target, labels)
    if isinstance(target, LokiTarget):
        return LokiSender(target, labels)
    if target.transport in (SyslogTransport.UDP, SyslogTransport.UNIX):
        return DatagramSender(target, labels)
    return StreamSender(target, labels)


def _positions(text: str) -> str:
    """The file of the positions of a target."""
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _remove_unused(home: Path, names: set[str]) -> None:
    """Positions of targets that are no longer configured."""
    for path in home.glob("*.json"):
        if path.name not in names:
            path.unlink(missing_ok=True)
