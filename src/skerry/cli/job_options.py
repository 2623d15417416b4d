"""Options of `skerry job run` and `skerry schedule add`, the request body built from them, and both kinds.

Options that are not given are not in the body, so that the server takes its default. The server validates
values; here only what cannot be sent is refused.
"""

from __future__ import annotations

from typing import Any, Final

import click

from skerry.cli import amounts, container_options, image_references, instance_options
from skerry.cli import output as printing
from skerry.cli.object_kinds import NodeNames, ObjectKind, TableRow
from skerry.cli.options import option_group
from skerry.client.api import JsonObject

_NUMBERS: Final = {
    "completions": "completions",
    "parallelism": "parallelism",
    "retries": "retries",
    "deadline": "deadline_s",
    "keep_for": "keep_for_s",
}
_RESOURCES: Final = ("cpu", "memory", "disk")


SECONDS: Final = printing.Duration(allows_zero=True)

# What both commands have.
spec = option_group(
    container_options.environment,
    amounts.option("cpu", least=1, help="CPU of each try: 500 (millicores), 0.5."),
    amounts.option("memory", least=1, help="Memory limit of each try: 256 (MB), 1g."),
    amounts.option("disk", least=1, help="Limit of the writable layer."),
    click.option(
        "--constraint",
        "constraints",
        multiple=True,
        metavar="LABEL=VALUE",
        help="Only nodes with this label; LABEL!=VALUE: only nodes without it; repeatable.",
    ),
    click.option(
        "--userns",
        type=click.Choice(["private", "host"]),
        help="User namespace: its own, or the node's, which needs the role admin.  [default: private]",
    ),
    instance_options.options,
    click.option("--completions", metavar="N", type=int, help="Runs that must succeed.  [default: 1]"),
    click.option("--parallelism", metavar="N", type=int, help="Maximum concurrent tries.  [default: 1]"),
    click.option("--retries", metavar="N", type=int, help="Retries of each failed completion.  [default: 3]"),
    click.option(
        "--deadline",
        metavar="TIME",
        type=printing.Duration(),
        help="The job fails if it takes longer: 5m, 2h.  [default: unlimited]",
    ),
    click.option(
        "--keep-for",
        metavar="TIME",
        type=SECONDS,
        help="Time for which the job and all logs are kept after its end: 1h, 7d.  [default: 1d]",
    ),
)


def body(image: str, arguments: tuple[str, ...], given: dict[str, Any]) -> JsonObject:
    """What the options say of a job."""
    made: JsonObject = {
        "image": image_references.resolve(image),
        "arguments": list(arguments),
        "environment": container_options.variables(given["env"], given["env_file"]),
        "constraints": list(given["constraints"]),
        "resources": {part: given[part] or 0 for part in _RESOURCES},
        **instance_options.taken(given),
    }
    if given["userns"] is not None:
        made["userns"] = given["userns"]
    numbers = {field: given[option] for option, field in _NUMBERS.items()}
    return made | {field: value for field, value in numbers.items() if value is not None}


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


def path(kind: ObjectKind, name: str, namespace: str | None, *rest: str) -> tuple[str, ...]:
    """Of an object on the server, in a namespace if one is given."""
    within = () if namespace is None else ("namespace", namespace)
    return (*within, kind.word, name, *rest)
