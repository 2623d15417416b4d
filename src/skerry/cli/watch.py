"""Watch objects of a server until they have a status, or for ever.

The server is polled, because not everything that is shown is an event: why an instance waits, or that a node
has become silent. A server that is unreachable for a moment is retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import click

from skerry.cli import object_kinds
from skerry.cli import output as printing
from skerry.cli.object_kinds import NodeNames, ObjectKind
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError, ServerUnreachable

T = TypeVar("T")

_PATIENCE_S: Final = 30.0  # with a server that is away
_SOON_S: Final = 0.1
_IDLE_S: Final = 1.0
_SHARE: Final = 5  # of our time, at most one part in so many is spent asking


detach = click.option("-d", "--detach", is_flag=True, help="Do not wait for completion.")


def wait_until(server: ApiClient, instance: JsonObject, wanted: frozenset[str]) -> JsonObject | None:
    """Print status changes until the status is one of `wanted`; None if the instance is deleted.

    After the first failed start, which may repeat for ever, also print how to delete it.
    """
    has_failed = False
    for seen in _seen(server, instance["id"]):
        if seen is None:
            click.echo(f"{instance['name']}: deleted", err=True)
            return None
        click.echo(f"{seen['name']}: {describe(seen)}", err=True)
        if seen["status"] in wanted:
            return seen
        if seen["retry_at"] is not None and not has_failed:
            has_failed = True
            click.echo(
                "It is retried automatically. Ctrl-C ends this command, not the instance; "
                f"'skerry delete instance {seen['id']}' deletes it.",
                err=True,
            )
    raise AssertionError("watching does not end by itself")


def describe(instance: JsonObject) -> str:
    """Its status and reason."""
    return f"{instance['status']}, {instance['reason']}" if instance["reason"] else str(instance["status"])


def watch_forever(
    kind: ObjectKind, names: NodeNames, read: Callable[[], list[JsonObject]], output: str
) -> None:
    """Print what `read` finds, and then a line for every change, for ever."""
    lines = printing.StreamingTable(kind.columns)
    shown: dict[str, JsonObject] = {}
    for found in poll_forever(read):
        now = {one["id"]: one for one in found}
        new = [
            one
            for id, one in now.items()
            if id not in shown or _without_times(shown[id]) != _without_times(one)
        ]
        gone = [one for id, one in shown.items() if id not in now]
        if output == "json":
            for one in [*new, *({"id": one["id"], "name": one["name"], "gone": True} for one in gone)]:
                printing.as_json_line(one)
        else:
            lines.show([*(kind.row(one, names) for one in new), *map(kind.deleted_row, gone)])
        shown = now


def poll_forever(read: Callable[[], T]) -> Iterator[T]:
    """What `read` finds now and later, for ever: soon at first, and never too often for the server."""
    pause = _SOON_S
    fetch = read  # a server that is not there at first is not waited for
    while True:
        began = time.monotonic()
        found = fetch()
        took = time.monotonic() - began
        yield found
        time.sleep(max(pause, took * (_SHARE - 1)))
        pause = min(pause * 1.5, _IDLE_S)
        fetch = partial(retry_while_unreachable, read)


def retry_while_unreachable(read: Callable[[], T]) -> T:
    """What `read` finds; a server that does not answer is retried for a while, with a message."""
    deadline = time.monotonic() + _PATIENCE_S
    is_reported = False
    while True:
        try:
            return read()
        except ServerUnreachable as error:
            if time.monotonic() > deadline:
                raise
            if not is_reported:
                is_reported = True
                click.echo(f"{error.message} Retrying for {_PATIENCE_S:.0f} s.", err=True)
            time.sleep(_IDLE_S)


def _seen(server: ApiClient, id: str) -> Iterator[JsonObject | None]:
    """The instance now and after every change; None when it is deleted."""

    def read() -> JsonObject | None:
        try:
            return server.get(object_kinds.INSTANCE.word, id)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    before = None
    for seen in poll_forever(read):
        state = seen and (seen["status"], seen["reason"])
        if seen is None or state != before:
            yield seen
        before = state


def _without_times(one: JsonObject) -> JsonObject:
    """Without what changes all the time."""
    resources = {key: value for key, value in one["resources"].items() if key != "usage"}
    volatile = dict.fromkeys(("reported_at", "last_report_at", "usage", "instances"))
    return {**one, "resources": resources, **volatile}
