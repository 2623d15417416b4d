"""Progress of a service: a live table on a terminal, lines elsewhere, until it is done or has failed.

The server is polled (`skerry.cli.watch`). Everything goes to stderr, so that stdout has only the result of a
command. `rich` is imported only to draw the table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from skerry.cli import output as printing
from skerry.cli import watch
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError
from skerry.kit import terminal_text

COLUMNS: Final = ("revision", "copies", "ready")
_OVER: Final = frozenset({"TERMINATED", "FAILED"})

# Of every command that waits for a service.
no_wait = click.option(
    "-d", "--no-wait", "--detach", "is_detached", is_flag=True, help="Return at once; do not wait."
)


def read(server: ApiClient, service: JsonObject) -> JsonObject | None:
    """The service as it is now; None if it is gone."""
    try:
        found = server.get("service", service["name"], namespace=service["namespace"])
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    return found if found["id"] == service["id"] else None


def wait(server: ApiClient, service: JsonObject) -> JsonObject:
    """The service when all its copies are ready, of the revision that `service` shows, and no others.

    Ends earlier if a user has to decide: canaries are good, or it is paused. Fails if the update does, or
    if the service is deleted meanwhile.
    """
    name, revision = service["name"], service["revision"]
    seen = service
    with _shown() as show:
        try:
            for found in watch.poll_forever(lambda: read(server, service)):
                if found is None or found["status"] == "DELETING":
                    raise click.ClickException(f"{name} was deleted by another client.")
                seen = found
                show(seen)
                if _is_over(seen, revision):
                    break
        except KeyboardInterrupt:
            click.echo(
                f"{name} goes on without this command; 'skerry service describe {name}' shows it.",
                err=True,
            )
            raise
    _check(server, seen, revision)
    return seen


def wait_until_gone(server: ApiClient, service: JsonObject) -> None:
    with _shown() as show:
        for seen in watch.poll_forever(lambda: read(server, service)):
            if seen is None:
                return
            show(seen)


def summary(service: JsonObject) -> str:
    """A service in one line."""
    rollout = service["rollout"]
    parts = [f"{service['status']}", f"revision {service['revision']}"]
    parts.append(f"{service['ready']} of {service['replicas']} ready")
    if rollout is not None:
        parts.append(f"{rollout['good']} of {rollout['of']} good")
    if awaited := waiting_for(service):
        parts.append(f"waiting for {awaited}")
    if rollout is not None and rollout["reason"]:
        parts.append(rollout["reason"])
    return ", ".join(parts)


def revision_rows(service: JsonObject) -> list[tuple[str, ...]]:
    """Copies by revision, the newest first."""
    rows: list[tuple[str, ...]] = []
    there = [copy for copy in service["copies"] if copy["status"] not in _OVER]
    for number in sorted({service["revision"], *(copy["revision"] for copy in there)}, reverse=True):
        its = [copy for copy in there if copy["revision"] == number]
        mark = " (target)" if number == service["revision"] else ""
        retiring = sum(copy["retiring"] for copy in its)
        more = f" ({retiring} retiring)" if retiring else ""
        ready = sum(copy["ready"] for copy in its)
        rows.append((f"{number}{mark}", f"{len(its)}{more}", str(ready)))
    return rows


def waiting_for(service: JsonObject) -> str:
    """The first copy that is not as it should be, and why."""
    rollout = service["rollout"]
    if rollout is not None and rollout["phase"] == "canary" and rollout["deadline"] is None:
        return "somebody to promote it"
    if service["paused"] and rollout is not None:
        return "somebody to resume it"
    there = [copy for copy in service["copies"] if copy["status"] not in _OVER and not copy["retiring"]]
    current = [copy for copy in there if copy["revision"] == service["revision"]]
    for copy in current:
        if not copy["ready"]:
            why = [copy["status"], copy["check_message"] or copy["reason"]]
            return f"{copy['name']}: {', '.join(filter(None, why))}"
    if rollout is not None and rollout["good"] < len(current):
        return f"copies to be ready for {service['update']['min_ready_s']:g}s"
    if len(there) > service["replicas"]:
        return "copies to leave"
    if rollout is not None and any(copy["retiring"] for copy in service["copies"]):
        return "copies to drain"
    return ""


def _is_over(seen: JsonObject, revision: int) -> bool:
    rollout = seen["rollout"]
    if rollout is None:
        staying = [copy for copy in seen["copies"] if copy["status"] not in _OVER and not copy["retiring"]]
        is_whole = seen["ready"] >= seen["replicas"] and len(staying) == seen["replicas"]
        return bool(is_whole or seen["revision"] != revision)
    waits_for_operator = rollout["phase"] in ("paused", "canary") and rollout["deadline"] is None
    return bool(rollout["phase"] == "halted" or waits_for_operator)


def _check(server: ApiClient, seen: JsonObject, revision: int) -> None:
    """Raise if it did not get to `revision`; tell what somebody has to decide."""
    name, rollout = seen["name"], seen["rollout"]
    if seen["revision"] != revision:
        why = _failure(server, seen, revision)
        if why:
            raise click.ClickException(
                f"the update of {name} to revision {revision} failed: {why}. It is back at revision "
                f"{seen['revision']}, with {seen['ready']} of {seen['replicas']} copies ready."
            )
        raise click.ClickException(f"{name} was changed by another client, to revision {seen['revision']}.")
    if rollout is None:
        return
    if rollout["phase"] == "halted":
        raise click.ClickException(
            f"the update of {name} to revision {revision} failed: {rollout['reason']}. 'skerry service "
            f"rollback {name}' rolls back, 'skerry service resume {name}' tries again."
        )
    if rollout["phase"] == "paused":
        click.echo(f"{name} is paused; 'skerry service resume {name}' goes on.", err=True)
    else:
        click.echo(
            f"The canaries of {name} are good; 'skerry service promote {name}' updates the others, "
            f"'skerry service rollback {name}' rolls back.",
            err=True,
        )


def _failure(server: ApiClient, service: JsonObject, revision: int) -> str:
    """Why the update to `revision` failed, if it did."""
    events = server.get("service", service["name"], "events", namespace=service["namespace"])["events"]
    for event in reversed(events):
        if event["kind"] == "service.failed" and event["data"].get("revision") == str(revision):
            return str(event["reason"])
    return ""


@contextmanager
def _shown() -> Iterator[Callable[[JsonObject], None]]:
    """A callback that shows a service."""
    if sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        yield _Lines().show


class _Lines:
    """A line whenever something has changed."""

    def __init__(self) -> None:
        self._printed = ""

    def show(self, service: JsonObject) -> None:
        line = f"{service['name']}: {summary(service)}"
        if line != self._printed:
            self._printed = line
            click.echo(line, err=True)


@contextmanager
def _live() -> Iterator[Callable[[JsonObject], None]]:
    from rich.console import Console
    from rich.live import Live

    began = time.monotonic()
    console = Console(file=terminal_text.unfiltered(sys.stderr))
    with Live(
        console=console,
        auto_refresh=False,
        redirect_stdout=False,  # what else is printed would go around the filter
        redirect_stderr=False,
    ) as live:
        yield lambda service: live.update(_drawn(service, time.monotonic() - began), refresh=True)


def _drawn(service: JsonObject, seconds: float) -> Any:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column.upper())
    for row in revision_rows(service):
        table.add_row(*(Text(terminal_text.visible(cell)) for cell in row))
    line = f"{service['name']}: {summary(service)} ({printing.duration(seconds)})"
    return Group(table, Text(terminal_text.visible(line)))
