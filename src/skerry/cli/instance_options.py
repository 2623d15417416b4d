"""Options of what runs, shared by `skerry run`, `service`, `job` and `schedule`.

The server validates values; here only what cannot be sent is refused.
"""

from __future__ import annotations

from typing import Final

import click

from skerry.cli import amounts
from skerry.cli import output as printing
from skerry.cli.amounts import Amount
from skerry.cli.options import FieldOptions
from skerry.client.api import JsonObject

# Fields that `describe` shows, in this order.
_FIELDS: Final = (
    "node",
    "cpu_limit",
    "user",
    "entrypoint",
    "stop_signal",
    "stop_grace_s",
    "read_only",
    "shm",
    "ulimits",
    "init",
    "hostname",
    "extra_hosts",
    "dns",
    "secrets",
    "configs",
    "devices",
    "egress",
    "volumes",
    "tmpfs",
    "volume_templates",
)

constraints = FieldOptions(
    click.option(
        "--constraint",
        "constraints",
        multiple=True,
        metavar="LABEL=VALUE",
        help="Only nodes with this label; LABEL!=VALUE: only nodes without it; repeatable.",
    )
)


def resources(noun: str, *, least: int) -> FieldOptions:
    """CPU, memory and disk of each `noun`."""
    return FieldOptions(
        amounts.option("cpu", least=least, help=f"CPU of each {noun}: 500 (millicores), 0.5."),
        amounts.option("memory", least=least, help=f"Memory limit of each {noun}: 256 (MB), 1g."),
        amounts.option("disk", least=least, help=f"Limit of the writable layer of each {noun}."),
    )


def publish(noun: str, node: str = "its node") -> FieldOptions:
    """Published ports of `noun`."""
    return FieldOptions(
        click.option(
            "-p",
            "--publish",
            "ports",
            multiple=True,
            metavar="SRC:DST[/udp]",
            help=f"Publish port DST of {noun} as port SRC of {node}; repeatable.",
        )
    )


options = FieldOptions(
    click.option("--node", "node", metavar="NODE", help="Only on this node, by name or id."),
    click.option(
        "--cpu-limit",
        metavar="MILLI|CORES",
        type=Amount("cpu"),
        help="CPU limit beside the share of --cpu: 2.0 is two cores; 0: none.  [default: --cpu]",
    ),
    click.option("-u", "--user", metavar="USER[:GROUP]", help="User, and group.  [default: the image's]"),
    click.option("--entrypoint", metavar="PROGRAM", help="Entry point instead of the image's."),
    click.option("--stop-signal", metavar="SIGNAL", help="Stop signal.  [default: the image's, or SIGTERM]"),
    click.option(
        "--stop-grace",
        "stop_grace_s",
        metavar="DURATION",
        type=printing.Duration(allows_zero=True),
        help="Time between the stop signal and SIGKILL.  [default: the node's]",
    ),
    click.option("--read-only/--writable", default=None, help="Root file system.  [default: writable]"),
    click.option(
        "--shm-size",
        "shm",
        metavar="MB|SIZE",
        type=Amount("memory"),
        help="Size of /dev/shm.  [default: 64m]",
    ),
    click.option(
        "--ulimit",
        "ulimits",
        multiple=True,
        metavar="NAME=SOFT[:HARD]",
        help="Limit of each process; repeatable.",
    ),
    click.option(
        "--init/--no-init", default=None, help="Run an init as process 1, which reaps.  [default: no init]"
    ),
    click.option("--hostname", metavar="NAME", help="Host name.  [default: its name]"),
    click.option(
        "--add-host",
        "extra_hosts",
        multiple=True,
        metavar="NAME:ADDRESS",
        help="Line for /etc/hosts; repeatable.",
    ),
    click.option(
        "--dns", multiple=True, metavar="ADDRESS", help="Name server; repeatable.  [default: the node's]"
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[:FILE]",
        help="Secret as a file in /run/secrets, or at a path; also NAME:FILE,mode=0440,uid=N; repeatable.",
    ),
    click.option(
        "--secret-env",
        multiple=True,
        metavar="VARIABLE=NAME",
        help="Secret as an environment variable; repeatable.",
    ),
    click.option(
        "--config",
        "configs",
        multiple=True,
        metavar="NAME[:PATH]",
        help="Config as a file; repeatable.  [default: /run/configs/NAME]",
    ),
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="KIND[:N]|KIND=NAME",
        help="Devices for it alone: nvidia.com/gpu:2, or by name nvidia.com/gpu=0; repeatable.",
    ),
    click.option(
        "--gpus",
        metavar="N",
        type=click.IntRange(min=0),
        help="GPUs of any vendor: the same as --device gpu:N.",
    ),
    click.option(
        "--egress",
        type=click.Choice(["all", "internet", "mesh", "none", "namespace"]),
        help="What it may reach, if stricter than its namespace's, or by an admin.  [default: namespace]",
    ),
    click.option(
        "-v",
        "--volume",
        "volumes",
        multiple=True,
        metavar="NAME:/PATH[:ro]",
        help="Mount a volume; for admins also a path of the node, /SRC:/PATH; repeatable.",
    ),
    click.option(
        "--tmpfs",
        multiple=True,
        metavar="/PATH[:MB]",
        help="Mount an empty folder in memory, which counts as its memory; repeatable.",
    ),
)


def take(given: JsonObject) -> JsonObject:
    """The fields that are given; their options are removed from `given`."""
    fields = options.take(given)
    if (gpus := fields.pop("gpus", None)) is not None:
        fields["devices"] = [*fields.get("devices", ()), *([f"gpu:{gpus}"] if gpus else [])]
    if "entrypoint" in fields:  # an empty one: the image's
        fields["entrypoint"] = [fields["entrypoint"]] if fields["entrypoint"] else []
    if fields.get("egress") == "namespace":
        fields["egress"] = None
    if variables := fields.pop("secret_env", None):
        fields["secrets"] = [*fields.get("secrets", ()), *variables]
    return fields


def describe(one: JsonObject) -> list[tuple[str, str]]:
    """Rows for the options of an object that are not the default."""
    rows = []
    for field in _FIELDS:
        value = one.get(field)  # an older server does not send it
        if value is None or (value in ("", [], False, 0) and field not in ("cpu_limit", "stop_grace_s")):
            continue
        name = "pinned to node" if field == "node" else field.removesuffix("_s").replace("_", " ")
        rows.append((name, _text(field, value)))
    return rows


def _text(field: str, value: object) -> str:
    if field in ("secrets", "configs") and isinstance(value, list):
        return ", ".join(map(_secret, value))
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is True:
        return "yes"
    match field:
        case "cpu_limit":
            return f"{value}m" if value else "none"
        case "shm":
            return f"{value}MB"
        case "stop_grace_s":
            return f"{value:g}s"
    return str(value)


def _secret(use: JsonObject) -> str:
    """The name, where it is, and its version."""
    place = f" as ${use['variable']}" if use["variable"] else f" at {use['target']}" if use["target"] else ""
    return f"{use['name']}{place} (version {use['version']})"
