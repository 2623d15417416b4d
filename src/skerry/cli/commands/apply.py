"""`skerry apply`: create, change and delete objects so that they match a manifest.

The whole plan is made first, which `--dry-run` shows, and then applied step by step. A step that fails ends
the command; the next run continues. Objects that the manifest does not name are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click

from skerry.cli import object_kinds, options, service_plans
from skerry.cli import output as printing
from skerry.cli.job_options import JOB, SCHEDULE
from skerry.cli.object_kinds import INSTANCE, SERVICE, VOLUME, WORKLOAD, ObjectKind
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

if TYPE_CHECKING:
    from skerry.cli.manifests import (
        ApplyManifest,
        ManifestAlert,
        ManifestObject,
        ManifestReplicas,
        ManifestRoute,
        ManifestSchedule,
        ManifestVolume,
    )
    from skerry.model.workloads import InstanceSpec

_DONE: Final = {"create": "created", "change": "changed", "delete": "deleted", "keep": "unchanged:"}


class ApplyStep(NamedTuple):
    """One object to create, change, delete or keep."""

    verb: str  # a key of `_DONE`
    kind: ObjectKind
    name: str
    why: str = ""
    act: Callable[[], Any] = lambda: None

    def shown(self, *, is_done: bool) -> str:
        verb = _DONE[self.verb] if is_done or self.verb == "keep" else f"would {self.verb}"
        return f"{verb} {self.kind.word} {self.name}{f' ({self.why})' if self.why else ''}"


@click.command()
@click.option(
    "-f",
    "--file",
    type=click.File("rb"),
    required=True,
    metavar="FILE",
    help="Manifest in YAML; - reads standard input.",
)
@click.option("--dry-run", is_flag=True, help="Check the manifest and print the plan; change nothing.")
@click.option(
    "--rollout",
    type=click.Choice(["rolling", "none"]),
    default="rolling",
    show_default=True,
    help="Rolling update of existing instances.",
)
@object_kinds.namespace
@options.server
@printing.option
def apply(
    server: ApiClient,
    file: IO[bytes],
    dry_run: bool,
    rollout: str,
    namespace: str | None,
    output: str,
) -> None:
    """Create and update objects from a manifest: volumes, workloads, instances, services, jobs, schedules,
    routes and alerts.

    Missing objects are created, different ones are changed; applying the same FILE again changes nothing.
    Fields that FILE leaves out get their defaults. Objects that it does not name are not touched. Copies of
    services follow by themselves; 'skerry service plan -f FILE' shows where they would be placed.

    \b
      namespace: shop                       # of all objects; or use -n
      volumes:
        - {name: db, size: 10}              # GB; cannot be changed
      workloads:
        - name: web
          image: docker.io/library/nginx:1.27
          environment: {MODE: fast}
          resources: {cpu: 0.5, memory: 256m, disk: 1g}  # or 500, 256, 1: millicores, MB, GB
          restart: on-failure               # or always, never
          constraints: [zone=edge]
      instances:
        - workload: web                     # replicas of a workload
          count: 3
        - name: cache                       # or a single instance
          image: docker.io/library/redis:7
          ports: ["6379:6379"]              # node : instance
      services:
        - name: shop
          image: example.org/shop:4
          replicas: 3
          checks: ["http:80/health"]
          update: {max_surge: 2, deadline_s: 300}
      jobs:
        - name: sums                        # begins at once; cannot be changed
          image: example.org/sums:1
          completions: 10
          parallelism: 3
      schedules:
        - name: nightly
          cron: "30 3 * * *"
          timezone: Europe/Berlin
          job: {image: example.org/backup:2, retries: 1}
        - name: report
          cron: "0 8 * * MON-FRI"
          function: {name: report, parameters: {format: pdf}}
      routes:
        - {host: shop.example.org, to: service/shop, redirect: https}
        - {host: shop.example.org, path: /api, to: service/api:8080, rate: 10/s}
      alerts:                               # of the whole cloud; only for admins
        - {name: shop, on: service-not-ready, namespace: shop, for_s: 300, mail: ops@example.org}

    \b
      skerry apply -f shop.yaml --dry-run
      skerry apply -f shop.yaml
    """
    from skerry.cli import manifests

    done = []
    manifest = manifests.read(file)
    for step in list(plan(server, manifest, manifests.where(file.name, manifest, namespace), rollout)):
        if not dry_run:
            step.act()
        done.append({"do": step.verb, "kind": step.kind.word, "name": step.name, "why": step.why})
        if output != "json":
            click.echo(step.shown(is_done=not dry_run))
    if output == "json":
        printing.as_json({"steps": done})


def plan(
    server: ApiClient, manifest: ApplyManifest, namespace: str | None, rollout: str
) -> Iterator[ApplyStep]:
    """The steps in order: volumes before what uses them, workloads before their instances."""
    from skerry.cli.manifests import ManifestReplicas

    for volume in manifest.volumes:
        yield _volume_step(server, volume, namespace)
    found = {one.name: _workload(server, one.name, namespace) for one in manifest.workloads}
    for wanted in manifest.workloads:
        yield _workload_step(server, wanted, namespace, found[wanted.name], rollout)
    for one in manifest.instances:
        if isinstance(one, ManifestReplicas):
            is_new = one.workload in found and found[one.workload] is None
            workload = None if is_new else object_kinds.find(server, WORKLOAD, one.workload, namespace)
            yield from _copy_steps(server, one, namespace, workload)
        else:
            yield from _instance_steps(server, one, namespace)
    for service in manifest.services:
        yield _service_step(server, service, namespace)
    for job in manifest.jobs:
        yield _job_step(server, job, namespace)
    for schedule in manifest.schedules:
        yield _schedule_step(server, schedule, namespace)
    for route in manifest.routes:
        yield _route_step(server, route, namespace)
    for alert in manifest.alerts:
        yield _alert_step(server, alert)


def _alert_step(server: ApiClient, wanted: ManifestAlert) -> ApplyStep:
    """Alerts are of the whole cloud. The server does not show where they send to, but a digest of it."""
    from skerry.model.alerts import digest_of

    kind = ObjectKind("alert", (), lambda one, names: ())
    act = partial(server.put, "alert", wanted.name, body=wanted.body)
    try:
        there = server.get("alert", wanted.name)
    except ApiError as error:
        if error.status != 404:
            raise
        return ApplyStep("create", kind, wanted.name, "", act)
    changed = sorted(
        field
        for field, value in wanted.body.items()
        if field in there and value != there[field] and (field, value) != ("threshold", None)
    )
    if digest_of(there["id"], wanted.destination) != there["destination_digest"]:
        changed.append("destination")
    if not changed:
        return ApplyStep("keep", kind, wanted.name)
    return ApplyStep("change", kind, wanted.name, ", ".join(changed), act)


def _workload_step(
    server: ApiClient, wanted: ManifestObject, namespace: str | None, there: JsonObject | None, rollout: str
) -> ApplyStep:
    if there is None:
        act = partial(server.put, "workload", body=wanted.body, namespace=namespace)
        return ApplyStep("create", WORKLOAD, wanted.name, "", act)
    changed = _changed(wanted.spec, there)
    if not changed:
        return ApplyStep("keep", WORKLOAD, wanted.name)
    act = partial(server.patch, "workload", there["id"], body=wanted.body, rollout=rollout)
    return ApplyStep("change", WORKLOAD, wanted.name, changed, act)


def _volume_step(server: ApiClient, wanted: ManifestVolume, namespace: str | None) -> ApplyStep:
    """A volume cannot change: the server refuses another size."""
    try:
        there = server.get("volume", wanted.name, namespace=namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        there = {}
    act = partial(server.put, "volume", body=wanted.body, namespace=namespace)
    if not there:
        return ApplyStep("create", VOLUME, wanted.name, "", act)
    if (there["size"], there["node"], there["constraints"]) == (
        wanted.body["size"],
        wanted.body.get("node") or "",
        wanted.body.get("constraints") or [],
    ):
        return ApplyStep("keep", VOLUME, wanted.name)
    return ApplyStep("change", VOLUME, wanted.name, "size, node or constraints", act)


def _route_step(server: ApiClient, wanted: ManifestRoute, namespace: str | None) -> ApplyStep:
    """What the manifest leaves out gets its default; a credential stays, as manifests have none."""
    from skerry.cli.commands.routes import ROUTE
    from skerry.cli.manifests import ROUTE_FIELDS

    try:
        there = server.get("route", wanted.name, namespace=namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        act = partial(server.put, "route", body=wanted.body, namespace=namespace)
        return ApplyStep("create", ROUTE, wanted.name, "", act)
    defaults: JsonObject = {"path": "/", "timeout_s": 60.0, "idle_timeout_s": 3600.0, "protocol": "http1"}
    fields = (there.keys() & set(ROUTE_FIELDS)) - {"name"}  # others are no part of a spec
    empty = {field: type(there[field])() for field in fields} | defaults
    changed = sorted(field for field in fields if wanted.body.get(field, empty[field]) != there[field])
    if not changed:
        return ApplyStep("keep", ROUTE, wanted.name)
    body = {field: wanted.body.get(field) for field in changed}
    act = partial(server.patch, "route", wanted.name, body=body, namespace=namespace)
    return ApplyStep("change", ROUTE, wanted.name, ", ".join(changed), act)


def _service_step(server: ApiClient, wanted: ManifestObject, namespace: str | None) -> ApplyStep:
    """What the server says that the manifest would change; copies follow after this command has ended."""
    plan, body = service_plans.of_object(server, wanted, namespace)
    match plan["action"]:
        case "none":
            return ApplyStep("keep", SERVICE, wanted.name)
        case "create":
            act = partial(server.put, "service", body=body, namespace=namespace)
            return ApplyStep("create", SERVICE, wanted.name, "", act)
    act = partial(server.patch, "service", wanted.name, body=body, namespace=namespace)
    return ApplyStep("change", SERVICE, wanted.name, service_plans.why(plan), act)


def _job_step(server: ApiClient, wanted: ManifestObject, namespace: str | None) -> ApplyStep:
    from skerry.cli import job_plans

    if job_plans.is_kept(server, wanted, namespace):
        return ApplyStep("keep", JOB, wanted.name)
    return ApplyStep(
        "create", JOB, wanted.name, "", partial(server.put, "job", body=wanted.body, namespace=namespace)
    )


def _schedule_step(server: ApiClient, wanted: ManifestSchedule, namespace: str | None) -> ApplyStep:
    from skerry.cli import job_plans

    changed = job_plans.changes(server, wanted, namespace)
    if changed is None:
        act = partial(server.put, "schedule", body=wanted.body, namespace=namespace)
        return ApplyStep("create", SCHEDULE, wanted.name, "", act)
    if not changed:
        return ApplyStep("keep", SCHEDULE, wanted.name)
    body = job_plans.patch_body(wanted)
    act = partial(server.patch, "schedule", wanted.name, body=body, namespace=namespace)
    return ApplyStep("change", SCHEDULE, wanted.name, ", ".join(changed), act)


def _instance_steps(server: ApiClient, wanted: ManifestObject, namespace: str | None) -> Iterator[ApplyStep]:
    create = partial(server.put, "instance", body=wanted.body, namespace=namespace)
    there_are = _staying(server, name=wanted.name, namespace=namespace)
    called = [one for one in there_are if one["workload_id"] is None and not one.get("owner")]
    if len(called) > 1:
        ids = ", ".join(one["id"] for one in called)
        raise click.ClickException(
            f"Several instances are named '{wanted.name}': {ids}. "
            "Delete all but one with 'skerry delete instance ID'."
        )
    if not called:
        yield ApplyStep("create", INSTANCE, wanted.name, "", create)
        return
    [there] = called
    changed = _changed(wanted.spec, there)
    if there["status"] == "FAILED" or (there["status"] == "TERMINATED" and changed):
        yield _deletion(server, there, f"it is {there['status']}")
        yield ApplyStep("create", INSTANCE, wanted.name, changed, create)
    elif changed:
        act = partial(server.patch, "instance", there["id"], body=wanted.body)
        yield ApplyStep("change", INSTANCE, wanted.name, changed, act)
    else:
        yield ApplyStep("keep", INSTANCE, wanted.name)


def _copy_steps(
    server: ApiClient, wanted: ManifestReplicas, namespace: str | None, workload: JsonObject | None
) -> Iterator[ApplyStep]:
    """Failed replicas are replaced; of surplus replicas the youngest are deleted."""
    there = _staying(server, workload=workload["id"], namespace=namespace) if workload else []
    failed = [one for one in there if one["status"] == "FAILED"]
    good = [one for one in there if one["status"] != "FAILED"]
    for one in failed:
        yield _deletion(server, one, "it is FAILED")
    for one in good[wanted.number :]:
        yield _deletion(server, one, f"{wanted.number} are wanted")
    for number, _ in enumerate(good[: wanted.number], 1):
        yield ApplyStep("keep", INSTANCE, wanted.workload, f"{number} of {wanted.number}")
    for number in range(len(good) + 1, wanted.number + 1):
        body = {"workload_name": wanted.workload}
        act = partial(server.put, "instance", body=body, namespace=namespace)
        yield ApplyStep("create", INSTANCE, wanted.workload, f"{number} of {wanted.number}", act)


def _deletion(server: ApiClient, one: JsonObject, why: str) -> ApplyStep:
    return ApplyStep("delete", INSTANCE, one["id"], why, partial(server.delete, "instance", one["id"]))


def _workload(server: ApiClient, name: str, namespace: str | None) -> JsonObject | None:
    try:
        found = server.get("workload", name, namespace=namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    if found["name"] != name:
        raise click.ClickException(
            f"'{name}' is the id of the workload {found['name']}; choose another name."
        )
    return found


def _staying(server: ApiClient, **filters: str | None) -> list[JsonObject]:
    return [
        one for one in object_kinds.everything(server, INSTANCE, **filters) if one["desired"] != "DESTROYED"
    ]


def _changed(wanted: InstanceSpec, there: JsonObject) -> str:
    """The fields that differ, separated by commas."""
    from skerry.cli import manifests

    present = manifests.spec_of(there)
    names = {"uri": "image"}
    return ", ".join(
        names.get(field, field)
        for field in wanted.__struct_fields__
        if getattr(wanted, field) != getattr(present, field)
    )
