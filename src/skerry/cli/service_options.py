"""Options of `skerry service create`, `update` and `plan`, and the request body that is built from them.

The server validates values; here only what cannot be sent is refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import click

from skerry.cli import check_options, container_options, instance_options
from skerry.cli import output as printing
from skerry.cli.options import FieldOptions, option_group
from skerry.client.api import JsonObject

_METRIC: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*):(?P<port>\d{1,5})(?P<path>/[^=]*)?=(?P<target>.+)")


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
IDLE: Final = click.option(
    "--idle",
    "idle_s",
    metavar="DURATION",
    type=_SECONDS,
    help="With --min 0: the last copy stops after so long without requests.  [default: 5m]",
)

_PORTS: Final = instance_options.publish("each copy")
_RESOURCES: Final = instance_options.resources("copy", least=0)
_RESTART: Final = FieldOptions(
    click.option(
        "--restart", type=click.Choice(["always", "on-failure", "never"]), help="Restart policy of a copy."
    )
)
_TEMPLATES: Final = FieldOptions(
    click.option(
        "--volume-template",
        "volume_templates",
        multiple=True,
        metavar="NAME:/PATH:GB",
        help="Give each copy a volume of its own, NAME-INDEX, which it keeps; repeatable.",
    )
)
_ADDRESS: Final = FieldOptions(
    click.option(
        "--port",
        "service_ports",
        multiple=True,
        metavar="PORT[:TARGET][/tcp|udp][=NAME]",
        help="Port of the service's address, and the port of its copies that it leads to; repeatable.  "
        "[default: all ports, as they are]",
    ),
    click.option(
        "--affinity",
        "affinity_s",
        metavar="DURATION",
        type=_SECONDS,
        help="Time for which a client of the service's address keeps its copy; 0: never.",
    ),
)
_SPEC: Final = option_group(
    check_options.checks,
    container_options.environment,
    _PORTS,
    _RESOURCES,
    _RESTART,
    instance_options.options,
    _TEMPLATES,
)
_PLACEMENT: Final = FieldOptions(
    instance_options.constraints,
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
)
_BUDGET: Final = click.option(
    "--budget",
    metavar="COUNT",
    type=Count(),
    help="Copies that may be out of service while nodes are drained: 1 or 25%.",
)
_UPDATE: Final = FieldOptions(
    click.option(
        "--order",
        type=click.Choice(["auto", "start-first", "stop-first"]),
        help="Order in which a copy is replaced.  "
        "[default: start-first, or stop-first if ports or volumes force it]",
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
        "min_ready_s",
        metavar="DURATION",
        type=_SECONDS,
        help="Time for which a new copy must be ready before it counts.",
    ),
    click.option(
        "--drain",
        "drain_s",
        metavar="DURATION",
        type=_SECONDS,
        help="Time between taking a copy out of service and stopping it.",
    ),
    click.option(
        "--deadline",
        "deadline_s",
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
        "promote_after_s",
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
_BOUNDS: Final = FieldOptions(
    click.option(
        "--min",
        metavar="N",
        type=click.IntRange(min=0),
        help="Autoscaling: minimum number of copies; 0 needs --target-requests.",
    ),
    click.option(
        "--max", metavar="N", type=click.IntRange(min=1), help="Autoscaling: maximum number of copies."
    ),
    IDLE,
)
_SCALING: Final = option_group(
    _BOUNDS,
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
    click.option(
        "--target-requests",
        metavar="N",
        type=float,
        help="Autoscaling target: requests under way per copy, by routes.",
    ),
)
settings = option_group(_SPEC, _ADDRESS, _PLACEMENT, _BUDGET, _UPDATE, _SCALING)


def body(given: JsonObject, before: JsonObject | None = None) -> JsonObject:
    """The fields that are given; their options are removed from `given`. In an update of `before`, checks
    replace those of their role, and variables are added."""
    checks = check_options.take(given, before)
    variables = container_options.variables(given.pop("env"), given.pop("env_file"))
    budget = given.pop("budget")
    nested = {"resources": _RESOURCES.take(given), "update": _UPDATE.take(given)}
    fields = instance_options.take(given)
    for group in (_PORTS, _RESTART, _PLACEMENT, _TEMPLATES):
        fields |= group.take(given)
    fields |= _address(_ADDRESS.take(given))
    fields |= {name: chosen for name, chosen in nested.items() if chosen}
    if checks is not None:
        fields["checks"] = checks
    if variables:
        fields["environment"] = _merged((before or {}).get("environment", []), variables)
    if budget is not None:
        fields["budget"] = {"max_unavailable": budget}
    return fields | autoscale(given)


def autoscale(given: JsonObject) -> JsonObject:
    """The fields of autoscaling that are given; their options are removed from `given`."""
    fields: JsonObject = {}
    policy = _BOUNDS.take(given)
    percents = {
        "cpu": given.pop("target_cpu"),
        "memory": given.pop("target_memory"),
        "requests": given.pop("target_requests"),
    }
    custom = given.pop("target_metric")
    targets = [(metric, target) for metric, target in percents.items() if target is not None]
    if custom is not None:
        targets.append(("custom", custom["target"]))
        fields["metric"] = custom["source"]
    if len(targets) > 1:
        raise click.UsageError("A service is scaled by one metric; give one target.")
    for metric, target in targets:
        policy |= {"metric": metric, "target": target}
    if policy:
        fields["autoscale"] = policy
    return fields


def _address(fields: JsonObject) -> JsonObject:
    if (affinity := fields.get("affinity_s")) is not None:
        fields["affinity_s"] = math.ceil(affinity)
    return fields


def _merged(before: list[str], added: list[str]) -> list[str]:
    return list({each.partition("=")[0]: each for each in (*before, *added)}.values())
