"""Options of `skerry service create`, `update` and `plan`, and the request body that is built from them.

Options that are not given are not in the body: the server keeps what there is, or takes its default. The
server validates values; here only what cannot be sent is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click

from skerry.cli import amounts, check_options, container_options, instance_options
from skerry.cli import output as printing
from skerry.cli.options import option_group
from skerry.client.api import JsonObject

_METRIC: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*):(?P<port>\d{1,5})(?P<path>/[^=]*)?=(?P<target>.+)")
# Fields of the update policy by option.
_UPDATE: Final = {
    "order": "order",
    "max_surge": "max_surge",
    "max_unavailable": "max_unavailable",
    "min_ready": "min_ready_s",
    "drain": "drain_s",
    "deadline": "deadline_s",
    "max_failures": "max_failures",
    "canary": "canary",
    "promote_after": "promote_after_s",
    "on_failure": "on_failure",
}


class Count(click.ParamType["int | str", str]):
    """`2`, or `25%` of the replicas."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if text.isdecimal():
            return int(text)
        if not (text.endswith("%") and text[:-1].isdecimal()):
            self.fail(f"'{value}' is no number of copies; write 2 or 25%", param, ctx)
        return text


class MetricTarget(click.ParamType["JsonObject", str]):
    """`NAME:PORT[/PATH]=TARGET`."""

    name = "metric"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JsonObject:
        form = _METRIC.fullmatch(str(value))
        target = 0.0
        try:
            target = float(form["target"]) if form else 0.0
        except ValueError:
            form = None
        if form is None:
            self.fail(
                f"'{value}' is no metric; write NAME:PORT[/PATH]=TARGET, as in in_flight:9000=20", param, ctx
            )
        path = form["path"] or "/metrics"
        return {"source": {"name": form["name"], "port": int(form["port"]), "path": path}, "target": target}


_SECONDS: Final = printing.Duration(allows_zero=True)

spec = option_group(
    check_options.checks,
    container_options.environment,
    click.option(
        "-p",
        "--publish",
        multiple=True,
        metavar="SRC:DST[/udp]",
        help="Publish port DST of each copy as port SRC of its node; repeatable.",
    ),
    amounts.option("cpu", help="CPU of each copy: 500 (millicores), 0.5."),
    amounts.option("memory", help="Memory limit of each copy: 256 (MB), 1g."),
    amounts.option("disk", help="Limit of the writable layer of each copy."),
    click.option(
        "--restart", type=click.Choice(["always", "on-failure", "never"]), help="Restart policy of a copy."
    ),
    instance_options.options,
)
placement = option_group(
    click.option(
        "--constraint",
        "constraints",
        multiple=True,
        metavar="LABEL=VALUE",
        help="Only nodes with this label; LABEL!=VALUE: only nodes without it; repeatable.",
    ),
    click.option(
        "--spread",
        multiple=True,
        metavar="LABEL",
        help="Spread copies over the values of this label of nodes, such as zone; repeatable.",
    ),
    click.option(
        "--max-per-node",
        metavar="N",
        type=click.IntRange(min=0),
        help="Maximum copies on one node; 0: any number.",
    ),
    click.option(
        "--budget",
        metavar="COUNT",
        type=Count(),
        help="Copies that may be out of service while nodes are drained: 1 or 25%.",
    ),
)
update = option_group(
    click.option(
        "--order",
        type=click.Choice(["auto", "start-first", "stop-first"]),
        help="Order in which a copy is replaced.  [default: start-first, or stop-first if ports force it]",
    ),
    click.option(
        "--max-surge",
        metavar="COUNT",
        type=Count(),
        help="Maximum copies above the replicas during an update: 1 or 25%.",
    ),
    click.option(
        "--max-unavailable",
        metavar="COUNT",
        type=Count(),
        help="Maximum replicas that are not ready during an update: 1 or 25%.",
    ),
    click.option(
        "--min-ready",
        metavar="DURATION",
        type=_SECONDS,
        help="Time for which a new copy must be ready before it counts.",
    ),
    click.option(
        "--drain",
        metavar="DURATION",
        type=_SECONDS,
        help="Time between taking a copy out of service and stopping it.",
    ),
    click.option(
        "--deadline",
        metavar="DURATION",
        type=printing.Duration(),
        help="Progress deadline: an update fails after this time without progress.",
    ),
    click.option(
        "--max-failures",
        metavar="N",
        type=click.IntRange(min=1),
        help="Restarts of a new copy after which an update fails.",
    ),
    click.option(
        "--canary",
        metavar="N",
        type=click.IntRange(min=0),
        help="Copies that run a new revision before the others are updated.",
    ),
    click.option(
        "--promote-after",
        metavar="DURATION",
        type=_SECONDS,
        help="Promote good canaries after this time.  [default: by 'skerry service promote']",
    ),
    click.option(
        "--on-failure",
        type=click.Choice(["revert", "pause"]),
        help="After a failed update: roll back to the last good revision, or pause.",
    ),
)
scaling = option_group(
    click.option(
        "--min",
        "least",
        metavar="N",
        type=click.IntRange(min=1),
        help="Autoscaling: minimum number of copies.",
    ),
    click.option(
        "--max",
        "most",
        metavar="N",
        type=click.IntRange(min=1),
        help="Autoscaling: maximum number of copies.",
    ),
    click.option(
        "--target-cpu",
        metavar="PERCENT",
        type=float,
        help="Autoscaling target: CPU usage in percent of the limit, such as 70.",
    ),
    click.option(
        "--target-memory",
        metavar="PERCENT",
        type=float,
        help="Autoscaling target: memory usage in percent of the limit.",
    ),
    click.option(
        "--target-metric",
        metavar="NAME:PORT[/PATH]=TARGET",
        type=MetricTarget(),
        help="Autoscaling target: the mean of a Prometheus metric of the copies.",
    ),
)
settings = option_group(spec, placement, update, scaling)


def body(given: JsonObject, before: JsonObject | None = None) -> JsonObject:
    """The fields that are given, and taken out of `given`. Of an update with `before`, checks replace those
    of their role, and variables are added."""
    made = instance_options.taken(given)
    checks = check_options.taken(given, before)
    variables = container_options.variables(given.pop("env"), given.pop("env_file"))
    publish = given.pop("publish")
    resources = {part: given.pop(part) for part in ("cpu", "memory", "disk")}
    policy = {field: given.pop(option) for option, field in _UPDATE.items()}
    lists = {"constraints": given.pop("constraints"), "spread": given.pop("spread")}
    budget = given.pop("budget")
    if checks is not None:
        made["checks"] = checks
    if variables:
        made["environment"] = _merged((before or {}).get("environment", []), variables)
    if publish:
        made["ports"] = list(publish)
    for name, values in (("resources", resources), ("update", policy)):
        if chosen := {key: value for key, value in values.items() if value is not None}:
            made[name] = chosen
    made |= {name: list(values) for name, values in lists.items() if values}
    if budget is not None:
        made["budget"] = {"max_unavailable": budget}
    made |= {name: value for name in ("restart", "max_per_node") if (value := given.pop(name)) is not None}
    return made | autoscale(given)


def autoscale(given: JsonObject) -> JsonObject:
    """The fields of autoscaling that are given, and taken out of `given`."""
    made: JsonObject = {}
    policy = {"min": given.pop("least"), "max": given.pop("most")}
    percents = {"cpu": given.pop("target_cpu"), "memory": given.pop("target_memory")}
    custom = given.pop("target_metric")
    targets = [(metric, target) for metric, target in percents.items() if target is not None]
    if custom is not None:
        targets.append(("custom", custom["target"]))
        made["metric"] = custom["source"]
    if len(targets) > 1:
        raise click.UsageError("A service is scaled by one metric; give one target.")
    for metric, target in targets:
        policy |= {"metric": metric, "target": target}
    if chosen := {key: value for key, value in policy.items() if value is not None}:
        made["autoscale"] = chosen
    return made


def _merged(before: list[str], added: list[str]) -> list[str]:
    return list({each.partition("=")[0]: each for each in (*before, *added)}.values())
