"""What `skerry apply` does with jobs and schedules: which are created, changed or kept as they are.

A job that is there cannot be changed: one with another spec is an error, before anything is done. Imported
only by its command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from skerry.cli import job_options
from skerry.cli.job_options import JOB, SCHEDULE
from skerry.cli.object_kinds import ObjectKind
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError
from skerry.model.jobs import JobSpec
from skerry.wire.own.jobs.documents import JobSpecDocument
from skerry.wire.own.jobs.inputs import JobSpecInput

if TYPE_CHECKING:
    from skerry.cli.manifests import ManifestObject, ManifestSchedule

_DEFAULTS = {"timezone": "UTC", "overlap": "skip", "window_s": 3600.0, "paused": False}


def is_kept(server: ApiClient, wanted: ManifestObject, namespace: str | None) -> bool:
    """True if the job is there; False if it is to be created. An error if it is there with another spec."""
    there = _find(server, JOB, wanted.name, namespace)
    if there is None:
        return False
    body = {field: value for field, value in wanted.body.items() if field != "name"}
    if _spec(body, wanted.name) != _shown_spec(there, wanted.name):
        raise click.ClickException(
            f"Job '{wanted.name}' is there with another spec, and jobs cannot be changed; delete it with "
            f"'skerry job delete {wanted.name}', or give this one another name."
        )
    return True


def changes(server: ApiClient, wanted: ManifestSchedule, namespace: str | None) -> tuple[str, ...] | None:
    """The fields of a schedule that are to change; None if it is to be created."""
    there = _find(server, SCHEDULE, wanted.name, namespace)
    if there is None:
        return None
    body = wanted.body
    changed = [
        field
        for field in ("cron", *_DEFAULTS)
        if (body[field] if body[field] is not None else _DEFAULTS.get(field)) != there[field]
    ]
    if "function" in body:
        present = there["function"] or {}
        given = {"parameters": {}, "namespace": there["namespace"], **body["function"]}
        # A server of an earlier version has no namespaces of functions.
        changed += ["function"] if given != {"namespace": there["namespace"], **present} else []
    elif "job" in body:
        is_same = there["job"] is not None and _spec(body["job"], wanted.name) == _shown_spec(
            there["job"], wanted.name
        )
        changed += [] if is_same else ["job"]
    return tuple(changed)


def patch_body(wanted: ManifestSchedule) -> JsonObject:
    """What makes the schedule as it is wanted; the spec of `from_job` is copied once, when it is created."""
    return {field: value for field, value in wanted.body.items() if field not in ("name", "from_job")}


def _find(server: ApiClient, kind: ObjectKind, name: str, namespace: str | None) -> JsonObject | None:
    try:
        return server.get(*job_options.path(kind, name, namespace))
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _spec(body: JsonObject, name: str) -> JobSpec:
    return msgspec.convert(body, JobSpecInput).unchecked_spec(name)


def _shown_spec(document: dict[str, Any], name: str) -> JobSpec:
    fields = {field: document[field] for field in JobSpecDocument.__struct_fields__}
    return _spec(fields, name)
