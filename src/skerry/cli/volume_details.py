"""Volumes in tables, and the details of one; for `skerry volume` and `skerry describe volume`."""

from __future__ import annotations

import time
from typing import Final

import click

from skerry.cli import output as printing
from skerry.cli.object_kinds import VOLUME, NodeNames, everything
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

_GIGABYTE: Final = 1024**3
_MEGABYTE: Final = 1024**2
_POLL_S: Final = 0.2
_WAIT_S: Final = 60.0


def show(server: ApiClient, one: JsonObject, output: str) -> None:
    """Print the details of a volume."""
    if output == "json":
        printing.as_json(one)
        return
    owner = one["owner"]
    rows = [
        ("name", one["name"]),
        ("id", one["id"]),
        ("namespace", one["namespace"]),
        ("status", f"{one['status']} (since {printing.ago(one['since'])})"),
        ("reason", one["reason"]),
        ("size", f"{one['size']}GB"),
        ("used", _used(one)),
        ("node", NodeNames(server).of(one["node_id"]) if one["node_id"] else ""),
        ("pinned to node", one["node"]),
        ("constraints", " ".join(one["constraints"])),
        ("owner", f"service {owner['service']}, copy {owner['index']}" if owner else ""),
        ("used by", ", ".join(one["used_by"]) or "nothing"),
        ("created", printing.ago(one["created_at"])),
    ]
    printing.table(printing.DETAILS, [(key, text) for key, text in rows if text])


def delete(server: ApiClient, name: str, namespace: str | None, *, waits: bool) -> None:
    """Delete a volume, and wait until its node has removed the data."""
    gone = server.delete("volume", name, namespace=namespace)
    is_gone = not waits or _wait_until_gone(server, gone)
    click.echo(f"{'deleted' if waits and is_gone else 'deleting'} volume {gone['name']}")


def delete_of_service(server: ApiClient, service: str, namespace: str) -> None:
    """Delete the volumes of the templates of a service, which is gone."""
    for one in everything(server, VOLUME, namespace=namespace):
        if one["owner"] and one["owner"]["service"] == service:
            delete(server, one["name"], namespace, waits=True)


def _wait_until_gone(server: ApiClient, gone: JsonObject) -> bool:
    """False if that takes long, for instance since its node is away."""
    deadline, reason = time.monotonic() + _WAIT_S, ""
    while time.monotonic() < deadline:
        try:
            reason = server.get("volume", gone["id"])["reason"]
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        time.sleep(_POLL_S)
    click.echo(f"volume {gone['name']} is not removed yet: {reason}", err=True)
    return False


def _used(one: JsonObject) -> str:
    if one["used_bytes"] is None or not one["capacity_bytes"]:
        return ""
    percent = 100 * one["used_bytes"] // one["capacity_bytes"]
    return f"{one['used_bytes'] / _MEGABYTE:.0f}MB of {one['capacity_bytes'] / _MEGABYTE:.0f}MB ({percent}%)"
