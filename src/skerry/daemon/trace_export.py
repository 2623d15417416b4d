"""Traces of this process, if the setting `traces.endpoint` names a receiver."""

from __future__ import annotations

from skerry import __version__
from skerry.daemon.role_parts import RoleContext
from skerry.kit import traces
from skerry.kit.tasks import TaskSupervisor
from skerry.transport.trace_export.exporter import TraceExporter, check_endpoint


async def start(context: RoleContext, role: str, node: str) -> None:
    """Record and export spans until the process stops. Raises Invalid for an endpoint that cannot be used."""
    settings = context.settings.traces
    if not settings.endpoint:
        return
    check_endpoint(settings)
    recorder = traces.SpanRecorder(settings.sample)
    resource = {
        "service.name": "skerry",
        "service.version": __version__,
        "service.instance.id": node,
        "host.name": node,
        "skerry.role": role,
    }
    exporter = TraceExporter(recorder, settings, resource, __version__)
    context.undo.push_async_callback(exporter.close)
    loops = await context.undo.enter_async_context(TaskSupervisor("traces", clock=context.clock))
    loops.forever("export", exporter.run)
    traces.install(recorder)
    context.undo.callback(traces.install, None)
