"""`skerry events`: the event stream of a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient, parse_object
from skerry.client.errors import IncompleteReply


class ServerSentEvent(NamedTuple):
    """One server-sent event."""

    id: str
    kind: str
    data: str


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow the events, until Ctrl-C.")
@click.option(
    "--kind",
    metavar="KIND[,KIND...]",
    help="Only these types: a noun (token) or a whole type (token.created).",
)
@click.option("--after", metavar="ID", help="Only events after the event with this id.")
@options.server
@printing.option
def events(server: ApiClient, follow: bool, kind: str | None, after: str | None, output: str) -> None:
    """Show events, oldest first.

    With --output json each line is one event, with the id for --after. A broken connection is resumed where
    it ended.
    """
    last = after or "0"
    while True:
        lines = server.stream(
            "events", kind=kind, follow=str(follow).lower(), headers={"Last-Event-ID": last}
        )
        try:
            for event in parse(lines):
                last = event.id or last
                click.echo(_line(event, output))
            if not follow:
                return
        except IncompleteReply:
            if not follow:
                raise
        # The server ended the stream or went away. It resumes exactly; if nothing answers, that is the end.
        time.sleep(1.0)


def parse(lines: Iterable[str]) -> Iterator[ServerSentEvent]:
    """Server-sent events out of a stream of lines; comments (heartbeats) are passed over."""
    event = ServerSentEvent("", "message", "")
    for line in lines:
        if not line:
            if event.data:
                yield event
            event = ServerSentEvent("", "message", "")
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            event = event._replace(id=value)
        elif name == "event":
            event = event._replace(kind=value)
        elif name == "data":
            event = event._replace(data=f"{event.data}\n{value}" if event.data else value)


def _line(sent: ServerSentEvent, output: str) -> str:
    event = parse_object(sent.data)
    if output == "json":
        return json.dumps({"id": sent.id, **event}, ensure_ascii=False)
    if "at" not in event:
        return f"{sent.kind}: {sent.data}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    extra = " ".join(f"{key}={value}" for key, value in event.get("data", {}).items())
    parts = [
        when,
        event["kind"].ljust(20),
        event["subject"],
        f"by {event['actor']}",
        event.get("reason", ""),
        extra,
    ]
    return "  ".join(part for part in parts if part)
