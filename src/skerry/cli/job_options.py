"""Options of `skerry job run` and `skerry schedule add`, the request body built from them, and both kinds.

The server validates values; here only what cannot be sent is refused.
"""

from __future__ import annotations

from typing import Any, Final

import click

from skerry.cli import container_options, image_references, instance_options
from skerry.cli import output as printing
from skerry.cli.object_kinds import NodeNames, ObjectKind, TableRow
from skerry.cli.options import FieldOptions, option_group
from skerry.client.api import JsonObject

SECONDS: Final = printing.Duration(allows_zero=True)

_RESOURCES: Final = instance_options.resources("try", least=1)
_NO_RESOURCES: Final = {"cpu": 0, "memory": 0, "disk": 0}
_USERNS: Final = FieldOptions(
    click.option(
        "--userns",
        type=click.Choice(["private", "host"]),
        help="User namespace: its own, or the node's, which needs the role admin.  [default: private]",
    ),
)
_LIMITS: Final = FieldOptions(
    click.option("--completions", metavar="N", type=int, help="Runs that must succeed.  [default: 1]"),
    click.option("--parallelism", metavar="N", type=int, help="Maximum concurrent tries.  [default: 1]"),
    click.option("--retries", metavar="N", type=int, help="Retries of each failed completion.  [default: 3]"),
    click.option(
        "--deadline",
        "deadline_s",
        metavar="TIME",
        type=printing.Duration(),
        help="The job fails if it takes longer: 5m, 2h.  [default: unlimited]",
    ),
    click.option(
        "--keep-for",
        "keep_for_s",
        metavar="TIME",
        type=SECONDS,
        help="Time for which the job and all logs are kept after its end: 1h, 7d.  [default: 1d]",
    ),
)
# Of both commands.
spec = option_group(
    container_options.environment,
    _RESOURCES,
    instance_options.constraints,
    _USERNS,
    instance_options.options,
    _LIMITS,
)


def body(image: str, arguments: tuple[str, ...], given: dict[str, Any]) -> JsonObject:
    """The job that the options describe."""
    return {
        "image": image_references.resolve(image),
        "arguments": list(arguments),
        "environment": container_options.variables(given["env"], given["env_file"]),
        "constraints": [],
        "resources": _NO_RESOURCES | _RESOURCES.take(given),
        **instance_options.constraints.take(given),
        **instance_options.take(given),
        **_USERNS.take(given),
        **_LIMITS.take(given),
    }


def _job(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["status"],
        f"{one['succeeded']}/{one['completions']}",
        str(one["active"]),
        str(one["failures"]),
        printing.age(one["created_at"]),
        one["image"],
        one["reason"],
    )


def _schedule(one: JsonObject, names: NodeNames) -> TableRow:
    last = one["runs"][-1] if one["runs"] else None
    return (
        one["name"],
        one["cron"],
        one["timezone"],
        target_text(one),
        "paused" if one["paused"] else next(iter(one["next_local"]), "-"),
        "-" if last is None else last["status"],
        printing.age(one["created_at"]),
    )


def target_text(schedule: JsonObject) -> str:
    """What a schedule runs."""
    if schedule["function"] is not None:
        return f"function {schedule['function']['name']}"
    return f"job of {schedule['job']['image']}"


JOB: Final = ObjectKind("job", ("name", "status", "done", "active", "failed", "age", "image", "reason"), _job)
SCHEDULE: Final = ObjectKind(
    "schedule", ("name", "cron", "timezone", "target", "next", "last", "age"), _schedule
)


def path(kind: ObjectKind, name: str, namespace: str | None, *subpath: str) -> tuple[str, ...]:
    """The path of an object on the server, in a namespace if one is given."""
    within = () if namespace is None else ("namespace", namespace)
    return (*within, kind.word, name, *subpath)
