"""All endpoints of jobs and schedules, also below `/namespace/`."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.namespaces import in_namespace
from skerry.wire.own.jobs import job_endpoints, schedule_endpoints

_NAMESPACED: tuple[Endpoint, ...] = (
    job_endpoints.list_jobs,
    job_endpoints.show,
    job_endpoints.create,
    job_endpoints.cancel,
    job_endpoints.delete,
    job_endpoints.tries,
    schedule_endpoints.list_schedules,
    schedule_endpoints.show,
    schedule_endpoints.create,
    schedule_endpoints.change,
    schedule_endpoints.delete,
    schedule_endpoints.run,
    schedule_endpoints.pause,
    schedule_endpoints.resume,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_NAMESPACED, *map(in_namespace, _NAMESPACED))
