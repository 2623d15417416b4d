"""Container options of instances, shared by `skerry run`, `service`, `job` and `schedule`, and their fields.

Options that are not given are not sent: the server keeps what there is, or takes its default, and validates.
"""

from __future__ import annotations

from typing import Final

import click

from skerry.cli import output as printing
from skerry.cli.amounts import Amount
from skerry.cli.options import option_group
from skerry.client.api import JsonObject

# Fields by option.
_FIELDS: Final = {
    "node_name": "node",
    "cpu_limit": "cpu_limit",
    "user": "user",
    "entrypoint": "entrypoint",
    "stop_signal": "stop_signal",
    "stop_grace": "stop_grace_s",
    "read_only": "read_only",
    "shm_size": "shm",
    "ulimit": "ulimits",
    "init": "init",
    "hostname": "hostname",
    "add_host": "extra_hosts",
    "dns": "dns",
}

options = option_group(
    click.option("--node", "node_name", metavar="NODE", help="Only on this node, by name or id."),
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
        metavar="DURATION",
        type=printing.Duration(allows_zero=True),
        help="Time between the stop signal and SIGKILL.  [default: the node's]",
    ),
    click.option("--read-only/--writable", default=None, help="Root file system.  [default: writable]"),
    click.option(
        "--shm-size", metavar="MB|SIZE", type=Amount("memory"), help="Size of /dev/shm.  [default: 64m]"
    ),
    click.option(
        "--ulimit", multiple=True, metavar="NAME=SOFT[:HARD]", help="Limit of each process; repeatable."
    ),
    click.option(
        "--init/--no-init", default=None, help="Run an init as process 1, which reaps.  [default: no init]"
    ),
    click.option("--hostname", metavar="NAME", help="Host name.  [default: its name]"),
    click.option(
        "--add-host", multiple=True, metavar="NAME:ADDRESS", help="Line for /etc/hosts; repeatable."
    ),
    click.option(
        "--dns", multiple=True, metavar="ADDRESS", help="Name server; repeatable.  [default: the node's]"
    ),
)


def taken(given: JsonObject) -> JsonObject:
    """The fields that are given; their options are taken out of `given`."""
    made: JsonObject = {}
    for option, field in _FIELDS.items():
        value = given.pop(option)
        if value is None or value == ():
            continue
        if isinstance(value, tuple):
            value = list(value)
        made[field] = [value] if field == "entrypoint" and value else value
    if made.get("entrypoint") == "":  # as the image has it
        made["entrypoint"] = []
    return made


def describe(one: JsonObject) -> list[tuple[str, str]]:
    """Rows for those options of an object that are not as usual."""
    rows = []
    for field in _FIELDS.values():
        value = one.get(field)  # servers of before have none
        if value is None or (value in ("", [], False, 0) and field not in ("cpu_limit", "stop_grace_s")):
            continue
        name = "pinned to node" if field == "node" else field.removesuffix("_s").replace("_", " ")
        rows.append((name, _text(field, value)))
    return rows


def _text(field: str, value: object) -> str:
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
