"""The manifest of `skerry apply`: objects in YAML, validated before anything is sent.

    namespace: shop           # of all objects
    volumes:
      - {name: db, size: 10}  # GB
    workloads:
      - name: web
        image: docker.io/library/nginx:1.27
    instances:
      - workload: web         # replicas of a workload
        count: 3
      - name: cache           # or a single instance
        image: docker.io/library/redis:7
        ports: ["6379:6379"]
    services:
      - name: shop
        image: example.org/shop:4
        replicas: 3
        checks: ["http:80/health"]
        update: {canary: 1, promote_after_s: 600}
    jobs:
      - name: sums
        image: example.org/sums:1
        completions: 10
    schedules:
      - name: nightly
        cron: "30 3 * * *"
        job: {image: "example.org/backup:2"}
    alerts:                   # of the whole cloud
      - {name: nodes, on: node-lost, for_s: 60, webhook: "https://hooks.example.org/TOKEN"}

Fields are those of the server, validated by the same code; fields that are left out get their defaults. YAML
is read by the core schema of version 1.2: `8080:53` and `no` are strings. This module, like the parser, is
imported only by its command.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final, NamedTuple

import click
import msgspec
import yaml

from skerry.cli import image_references
from skerry.client.api import JsonObject
from skerry.model import errors, ids, quantities
from skerry.model.images import ImageAccess
from skerry.model.workloads import InstanceSpec
from skerry.node.images import references
from skerry.wire.option_documents import OPTION_FIELDS
from skerry.wire.own.alerts.documents import AlertInput
from skerry.wire.own.http_routes.documents import RouteInput
from skerry.wire.own.jobs.inputs import NUMBERS, JobSpecInput, ScheduleInput
from skerry.wire.own.services.inputs import BudgetInput, ServiceInput, UpdateInput
from skerry.wire.own.volumes.documents import VolumeInput
from skerry.wire.spec_documents import SpecInput

_LISTS: Final = ("volumes", "workloads", "instances", "services", "jobs", "schedules", "routes", "alerts")
_PARTS: Final = {
    "cpu": quantities.parse_cpu,
    "memory": quantities.parse_memory,
    "disk": quantities.parse_disk,
}
_FIELDS: Final = (
    "name",
    "image",
    "arguments",
    "environment",
    "resources",
    "ports",
    "restart",
    "restart_budget",
    "architecture",
    "constraints",
    "userns",
    "checks",
    "spread",
    "max_per_node",
    "metric",
    *OPTION_FIELDS,
)
_SERVICE_FIELDS: Final = (
    *_FIELDS,
    "replicas",
    "update",
    "budget",
    "autoscale",
    "service_ports",
    "affinity_s",
)
_PARTS_OF: Final = {"update": UpdateInput.__struct_fields__, "budget": BudgetInput.__struct_fields__}
_JOB_FIELDS: Final = (
    *(field for field in _FIELDS if not field.startswith("restart")),  # a try never restarts by itself
    *NUMBERS,
)
_SCHEDULE_FIELDS: Final = ("cron", "timezone", "overlap", "window_s", "paused")
_VOLUME_FIELDS: Final = ("name", "size", "node", "constraints")
ROUTE_FIELDS: Final = tuple(
    field for field in RouteInput.__struct_fields__ if field not in ("kind", "namespace", "basic", "token")
)
_TARGETS: Final = ("job", "from_job", "function")
_MAX_COUNT: Final = 10_000


class ManifestObject(NamedTuple):
    """A workload or a single instance: the request body, and the spec to compare with."""

    name: str
    body: JsonObject
    spec: InstanceSpec


class ManifestReplicas(NamedTuple):
    """A number of instances of a workload."""

    workload: str
    number: int


class ManifestSchedule(NamedTuple):
    """A schedule: the request body."""

    name: str
    body: JsonObject


class ManifestRoute(NamedTuple):
    """A route: the request body, and its spec to compare with."""

    name: str
    body: JsonObject


class ManifestAlert(NamedTuple):
    """An alert rule: the request body, with all fields, and its destination to compare with."""

    name: str
    body: JsonObject
    destination: str


class ManifestVolume(NamedTuple):
    """A volume: the request body."""

    name: str
    body: JsonObject


class ApplyManifest(NamedTuple):
    """The objects of a file, in its order."""

    workloads: list[ManifestObject]
    instances: list[ManifestObject | ManifestReplicas]
    services: list[ManifestObject]
    jobs: list[ManifestObject]
    schedules: list[ManifestSchedule]
    namespace: str | None  # None: not given
    volumes: list[ManifestVolume] = []  # noqa: RUF012 - a default, which nobody changes
    routes: list[ManifestRoute] = []  # noqa: RUF012
    alerts: list[ManifestAlert] = []  # noqa: RUF012


def read(file: IO[bytes]) -> ApplyManifest:
    """Read and validate a file; errors name the place."""
    try:
        content = load(file.read())
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise click.ClickException(f"{file.name}{line}: {what}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise click.ClickException(f"{file.name} cannot be read as YAML: {_one_line(error)}") from None
    try:
        return _manifest(content)
    except _Wrong as error:
        raise click.ClickException(f"{file.name}: {error}") from None


def where(file: str, manifest: ApplyManifest, namespace: str | None) -> str | None:
    """The namespace of all objects of a file; None: the default one of the caller."""
    given = manifest.namespace
    if given and namespace not in (None, given):
        raise click.UsageError(
            f"{file} sets the namespace '{given}', not '{namespace}'; leave out --namespace and unset "
            "SKERRY_NAMESPACE, or change the file."
        )
    return given or namespace


def load(data: bytes) -> Any:
    """The plain values of a YAML document."""
    return yaml.load(data, _Loader)  # noqa: S506 - it makes plain values only


class _Wrong(Exception):
    """An error with its place in the file."""


def _manifest(content: Any) -> ApplyManifest:
    if not isinstance(content, dict) or content.keys() <= {"namespace"}:
        lists_text = ", ".join(f"`{name}:`" for name in _LISTS)
        raise _Wrong(f"it must have at least one of these lists: {lists_text}")
    _check_keys("the file", content, ("namespace", *_LISTS))
    lists = {}
    for name in _LISTS:
        lists[name] = content.get(name) or []
        if not isinstance(lists[name], list) or not all(isinstance(one, dict) for one in lists[name]):
            raise _Wrong(f"`{name}:` must be a list of objects with fields such as `name:`")
    workloads = [_wanted(f"workloads[{n}]", one) for n, one in enumerate(lists["workloads"])]
    instances = [
        _copies(f"instances[{n}]", one) if "workload" in one else _wanted(f"instances[{n}]", one)
        for n, one in enumerate(lists["instances"])
    ]
    _check_once("workload", (one.name for one in workloads))
    _check_once("instance", (one.name for one in instances if isinstance(one, ManifestObject)))
    _check_once(
        "list of instances of", (one.workload for one in instances if isinstance(one, ManifestReplicas))
    )
    services = [_service(f"services[{n}]", one) for n, one in enumerate(lists["services"])]
    _check_once("service", (one.name for one in services))
    jobs = [_job(f"jobs[{n}]", one) for n, one in enumerate(lists["jobs"])]
    _check_once("job", (one.name for one in jobs))
    schedules = [_schedule(f"schedules[{n}]", one) for n, one in enumerate(lists["schedules"])]
    _check_once("schedule", (one.name for one in schedules))
    volumes = [_volume(f"volumes[{n}]", one) for n, one in enumerate(lists["volumes"])]
    _check_once("volume", (one.name for one in volumes))
    namespace = _namespace(content.get("namespace"))
    routes = [_route(f"routes[{n}]", one) for n, one in enumerate(lists["routes"])]
    _check_once("route", (one.name for one in routes))
    alerts = [_alert(f"alerts[{n}]", one) for n, one in enumerate(lists["alerts"])]
    _check_once("alert", (one.name for one in alerts))
    return ApplyManifest(workloads, instances, services, jobs, schedules, namespace, volumes, routes, alerts)


def _alert(place: str, one: Mapping[str, Any]) -> ManifestAlert:
    place = f"{place} ({one.get('name')})"
    _check_keys(place, one, ("name", *AlertInput.__struct_fields__))
    fields = {field: value for field, value in one.items() if field != "name"}
    try:
        given = msgspec.convert(fields, AlertInput)
        rule = given.request(str(one.get("name"))).rule("", 0.0, 1)
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place}: {error}") from None
    except errors.SkerryError as error:
        raise _Wrong(f"{place}: {error.message}") from None
    return ManifestAlert(rule.name, msgspec.to_builtins(given), given.webhook or given.mail)


def _route(place: str, one: Mapping[str, Any]) -> ManifestRoute:
    place = f"{place} ({one.get('name') or one.get('host')})"
    _check_keys(place, one, ROUTE_FIELDS)
    try:
        name, _ = msgspec.convert(dict(one), RouteInput).route()
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place}: {error}") from None
    except errors.SkerryError as error:
        raise _Wrong(f"{place}: {error.message}") from None
    return ManifestRoute(name, {**one, "name": name})


def _volume(place: str, one: Mapping[str, Any]) -> ManifestVolume:
    place = f"{place} ({one.get('name')})"
    _check_keys(place, one, _VOLUME_FIELDS)
    body = {**one, "size": _amount(place, "size", one.get("size"), quantities.parse_disk)}
    try:
        name, _ = msgspec.convert(body, VolumeInput).volume()
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place}: {error}") from None
    except errors.SkerryError as error:
        raise _Wrong(f"{place}: {error.message}") from None
    return ManifestVolume(name, body)


def _namespace(given: Any) -> str | None:
    if given is None:
        return None
    try:
        return ids.check_namespace(str(given))
    except errors.Invalid as error:
        raise _Wrong(error.message) from None


def _copies(place: str, one: Mapping[str, Any]) -> ManifestReplicas:
    _check_keys(place, one, ("workload", "count"))
    workload, count = one["workload"], one.get("count", 1)
    if not isinstance(workload, str):
        raise _Wrong(f"{place}: `workload` must be the name of a workload")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MAX_COUNT:
        raise _Wrong(f"{place}: `count` must be a number from 0 to {_MAX_COUNT}")
    return ManifestReplicas(workload, count)


def _wanted(place: str, one: Mapping[str, Any]) -> ManifestObject:
    name = one.get("name")
    place = f"{place} ({name})" if isinstance(name, str) else place
    _check_keys(place, one, _FIELDS)
    body: JsonObject = {
        # Null is the default, and so takes away what an earlier file said.
        **dict.fromkeys(field for field in _FIELDS if field not in ("name", "image")),
        **{field: value for field, value in one.items() if field != "image"},
        "uri": _image(place, one.get("image")),
        "environment": _environment(place, one.get("environment")),
        "ports": _ports(one.get("ports")),
        "resources": _resources(place, one.get("resources")),
        "cpu_limit": _amount(place, "cpu_limit", one.get("cpu_limit"), quantities.parse_cpu),
        "shm": _amount(place, "shm", one.get("shm"), quantities.parse_memory),
    }
    return ManifestObject(str(name), body, _spec(place, body))


def _service(place: str, one: Mapping[str, Any]) -> ManifestObject:
    """A service; fields of its own that are left out get their defaults, too."""
    _check_keys(f"{place} ({one.get('name')})", one, _SERVICE_FIELDS)
    own = {field: one.get(field) for field in _SERVICE_FIELDS if field not in _FIELDS}
    for field, parts in _PARTS_OF.items():
        given = own[field]
        if isinstance(given, dict):
            own[field] = {**dict.fromkeys(parts), **given}
    wanted = _wanted(place, {field: value for field, value in one.items() if field in _FIELDS})
    body = {**wanted.body, **own}
    try:
        msgspec.convert(body, ServiceInput)
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place} ({wanted.name}): {error}") from None
    return ManifestObject(wanted.name, body, wanted.spec)


def _job(place: str, one: Mapping[str, Any], name: str = "") -> ManifestObject:
    """A job, or what a schedule of that name makes jobs of."""
    name = name or str(one.get("name"))
    place = f"{place} ({name})"
    _check_keys(place, one, _JOB_FIELDS)
    wanted = _wanted(place, {"name": name, **{field: one[field] for field in one if field in _FIELDS}})
    body = {field: value for field, value in wanted.body.items() if not field.startswith("restart")}
    body |= {field: one[field] for field in NUMBERS if field in one}
    try:
        msgspec.convert(body, JobSpecInput).unchecked_spec(name)
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place}: {error}") from None
    except errors.SkerryError as error:
        raise _Wrong(f"{place}: {error.message}") from None
    return ManifestObject(name, body, wanted.spec)


def _schedule(place: str, one: Mapping[str, Any]) -> ManifestSchedule:
    """A schedule; fields that are left out get their defaults."""
    name = str(one.get("name"))
    place = f"{place} ({name})"
    _check_keys(place, one, ("name", *_SCHEDULE_FIELDS, *_TARGETS))
    targets = [field for field in _TARGETS if field in one]
    if len(targets) != 1 or "cron" not in one:
        raise _Wrong(f"{place} needs `cron`, and one of `job`, `from_job` and `function`")
    body: JsonObject = {"name": name, **{field: one.get(field) for field in _SCHEDULE_FIELDS}}
    body[targets[0]] = one[targets[0]]
    if targets == ["job"]:
        if not isinstance(one["job"], dict):
            raise _Wrong(f"{place}: `job` must be an object with fields such as `image:`")
        made = _job(f"{place}: job", one["job"], name).body
        body["job"] = {field: value for field, value in made.items() if field != "name"}
    try:
        msgspec.convert(body, ScheduleInput)
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place}: {error}") from None
    return ManifestSchedule(name, body)


def spec_of(document: Mapping[str, Any]) -> InstanceSpec:
    """The spec of a workload or an instance as the server shows it."""
    fields = {field: document[field] for field in SpecInput.__struct_fields__ if field in document}
    del fields["port_mappings"]  # which are the ports once more
    return msgspec.convert(fields, SpecInput).onto(caller_access=ImageAccess.ALL)  # the server decides on it


def _spec(place: str, body: JsonObject) -> InstanceSpec:
    try:
        return msgspec.convert(body, SpecInput).onto(caller_access=ImageAccess.ALL)
    except msgspec.ValidationError as error:
        raise _Wrong(f"{place}: {error}") from None
    except errors.SkerryError as error:
        raise _Wrong(f"{place}: {error.message}") from None


def _image(place: str, image: Any) -> str:
    if not isinstance(image, str):
        raise _Wrong(f"{place}: `image` must be an image reference, such as docker.io/library/nginx")
    uri = image_references.resolve(image)
    try:
        references.parse(uri)
    except errors.Invalid as error:
        raise _Wrong(f"{place}: {error.message}") from None
    return uri


def _environment(place: str, given: Any) -> Any:
    """`KEY: value` for each, or a list as the server takes it."""
    if not isinstance(given, dict):
        return given
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _Wrong(f"{place}: put the value of environment.{key} in quotes")
    return [f"{key}={value}" for key, value in given.items()]


def _ports(given: Any) -> Any:
    return [str(port) if type(port) is int else port for port in given] if isinstance(given, list) else given


def _resources(place: str, given: Any) -> Any:
    """Every part, so that one that is left out gets its default."""
    if not isinstance(given, dict):
        return given
    _check_keys(f"{place}: resources", given, _PARTS)
    parsed = {
        part: _amount(place, f"resources.{part}", given[part], parse)
        for part, parse in _PARTS.items()
        if part in given
    }
    return {**dict.fromkeys(_PARTS), **parsed}


def _amount(place: str, field: str, given: Any, parse: Callable[[str], int]) -> Any:
    """Amounts as the command line takes them: `0.5` cores, `256m`."""
    if isinstance(given, bool) or not isinstance(given, str | float):
        return given
    try:
        return parse(str(given))
    except errors.Invalid as error:
        raise _Wrong(f"{place}: {field}: {error.message}") from None


def _check_keys(place: str, given: Mapping[Any, Any], known: Iterable[str]) -> None:
    known = tuple(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
            raise _Wrong(f"{place} has no `{key}`; {hint}")


def _check_once(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _Wrong(f"the {what} {json.dumps(name)} is there twice")
        seen.add(name)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Loader(yaml.CSafeLoader):
    """Plain values by the core schema, and no key twice."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]  # its own, not those of YAML 1.1


def _no_key_twice(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | None):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a single word", key_node.start_mark
            )
        if key in made:
            raise yaml.constructor.ConstructorError(
                None, None, f"`{key}` is there twice", key_node.start_mark
            )
        made[key] = loader.construct_object(value_node, deep=True)
    return made


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value)  # a leading zero means nothing


_Loader.add_constructor("tag:yaml.org,2002:map", _no_key_twice)
_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
