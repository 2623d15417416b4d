"""`skerry status` and `skerry version`."""

from __future__ import annotations

import platform
from typing import Any

import click

from skerry import __version__
from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient, JsonReply


@click.command()
@options.server
@printing.option
def status(server: ApiClient, output: str) -> None:
    """Show whether the server is ready, when it started, what is unavailable, and who you are to it.

    Exit code 0: ready; 1: running but not ready; 3: unreachable.
    """
    about = server.get("about")
    code, ready = server.get_with_status("readyz")
    value = JsonReply(
        about,
        url=server.target.url,
        ready=code == 200,
        checks=ready.get("checks", {}) if isinstance(ready, dict) else {},
    )
    printing.show(value, output, columns=printing.DETAILS, rows=_rows)
    if code != 200:
        raise SystemExit(1)


def _rows(value: dict[str, Any]) -> list[Any]:
    rows = [
        ("server", value["url"]),
        ("version", value["version"]),
        ("ready", "yes" if value["ready"] else "no"),
        ("started", printing.ago(value["started_at"])),
        *([("store", value["store"])] if "store" in value else _node_rows(value)),
        ("pid", str(value["pid"])),
    ]
    if role := value.get("role"):  # a server of an earlier version does not say
        rows += [("caller", value["caller"]), ("role", role)]
        rows.append(("namespaces", ", ".join(value.get("namespaces") or ["* (the whole cloud)"])))
    rows += [(f"check {name}", result) for name, result in value["checks"].items() if result != "ok"]
    rows += [("unavailable", sentence) for sentence in value["lacking"]]
    rows += [("warning", sentence) for sentence in value["warnings"]]
    rows += [("unreachable", sentence) for sentence in value.get("unreachable", ())]
    return rows


def _node_rows(value: dict[str, Any]) -> list[Any]:
    """Of the listener of a node, which --url names."""
    contact = value["contact_at"]
    return [
        ("node", f"{value['name']} ({value['node']})"),
        ("joined", value["server"]),
        ("contact", "never" if contact is None else printing.ago(contact)),
        *(("devices", url) for url in value["urls"]),
    ]


@click.command()
@printing.option
def version(output: str) -> None:
    """Show the version of this command."""
    value = {"version": __version__, "python": platform.python_version()}
    printing.show(value, output, columns=("skerry", "python"), rows=lambda v: [(v["version"], v["python"])])
