"""`skerry volume snapshot`, `restore` and `move`, and what shows their operations."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from skerry.cli import object_kinds, options, watch
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.object_kinds import NodeNames, ObjectKind
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError, ServerUnreachable

_name = click.argument("name", metavar="VOLUME")
_SNAPSHOT_COLUMNS: Final = ("name", "volume", "status", "size", "data", "location", "node", "age")
_OPERATION_COLUMNS: Final = ("id", "kind", "volume", "status", "step", "progress", "age", "reason")
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 60.0


def _snapshot_row(one: JsonObject, names: NodeNames) -> tuple[str, ...]:
    return (
        one["name"],
        one["volume"],
        one["status"],
        f"{one['size']}GB",
        printing.size(one["data_bytes"]) if one["status"] == "READY" else "-",
        one["location"],
        names.of(one["node_id"] or None),
        printing.age(one["created_at"]),
    )


def _operation_row(one: JsonObject, names: NodeNames) -> tuple[str, ...]:
    return (
        one["id"],
        one["kind"],
        one["volume"],
        one["status"],
        one["step"],
        _progress(one) or "-",
        printing.age(one["created_at"]),
        one["reason"],
    )


SNAPSHOT: Final = ObjectKind("snapshot", _SNAPSHOT_COLUMNS, _snapshot_row)
OPERATION: Final = ObjectKind("volume-operation", _OPERATION_COLUMNS, _operation_row)


@click.command()
@_name
@click.option("--name", "snapshot_name", metavar="NAME", default="", help="Name.  [default: VOLUME-TIME]")
@click.option(
    "--to",
    type=click.Choice(["node", "folder", "s3"]),
    default="node",
    show_default=True,
    help="Keep it on the node of the volume, in the folder 'snapshots.folder' of that node, or in the "
    "configured store with the API of S3.",
)
@watch.detach
@object_kinds.namespace
@options.server
@printing.option
def snapshot(
    server: ApiClient,
    name: str,
    snapshot_name: str,
    to: str,
    detach: bool,
    namespace: str | None,
    output: str,
) -> None:
    """Take a snapshot of a volume: a copy of its data at one moment.

    What uses the volume keeps running; its writes wait while the data are copied on the node. Prints the
    name of the snapshot.

    \b
      skerry volume snapshot db
      skerry volume snapshot db --name before-update --to s3
    """
    begun = server.post(*_path(namespace, "volume", name, "snapshot"), body={"name": snapshot_name, "to": to})
    ended = begun if detach else _wait(server, begun)
    printing.as_json(ended) if output == "json" else click.echo(ended["snapshot"])
    _exit_unless_done(ended, detach)


@click.command()
@click.argument("name", metavar="[VOLUME]", required=False)
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List snapshots of all namespaces.")
@options.server
@printing.option
def snapshots(
    server: ApiClient, name: str | None, namespace: str | None, all_namespaces: bool, output: str
) -> None:
    """List snapshots, of one volume if it is named, also of volumes that were deleted.

    \b
      skerry volume snapshots
      skerry volume snapshots db
    """
    object_kinds.print_list(server, SNAPSHOT, namespace, all_namespaces, output, volume=name)


@click.command(name="delete-snapshot")
@click.argument("names", metavar="SNAPSHOT...", nargs=-1, required=True)
@watch.detach
@object_kinds.namespace
@options.server
def delete_snapshot(server: ApiClient, names: tuple[str, ...], detach: bool, namespace: str | None) -> None:
    """Delete snapshots with their data. This cannot be undone.

    \b
      skerry volume delete-snapshot db-20261117-120000
    """
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                begun = server.delete(*_path(namespace, "snapshot", name))
                if not detach:
                    _exit_unless_done(_wait(server, begun), detach)
                click.echo(f"deleted snapshot {name}")


@click.command()
@_name
@click.argument("snapshot_name", metavar="SNAPSHOT")
@click.option("--as", "new_name", metavar="NAME", default="", help="Restore it into a new volume, NAME.")
@click.option("--node", metavar="NODE", default="", help="Node of the new volume.  [default: the snapshot's]")
@click.option("--stop", is_flag=True, help="Stop what uses VOLUME for it, and start it again.")
@watch.detach
@object_kinds.namespace
@options.server
@printing.option
def restore(
    server: ApiClient,
    name: str,
    snapshot_name: str,
    detach: bool,
    namespace: str | None,
    output: str,
    **given: Any,
) -> None:
    """Restore SNAPSHOT into VOLUME, whose data are replaced, or into a new volume.

    The data are copied and verified first. A VOLUME that is in use is refused, unless --stop is given. With
    --as, VOLUME is the volume of the snapshot; it need not exist any more.

    \b
      skerry volume restore db before-update --stop
      skerry volume restore db before-update --as db-copy
    """
    body = {
        "snapshot": snapshot_name,
        "new_name": given["new_name"],
        "node": given["node"],
        "stop": given["stop"],
    }
    begun = server.post(*_path(namespace, "volume", name, "restore"), body=body)
    ended = begun if detach else _wait(server, begun)
    printing.as_json(ended) if output == "json" else click.echo(ended["volume"])
    _exit_unless_done(ended, detach)


@click.command()
@_name
@click.argument("node", metavar="NODE")
@watch.detach
@object_kinds.namespace
@options.server
@printing.option
def move(server: ApiClient, name: str, node: str, detach: bool, namespace: str | None, output: str) -> None:
    """Move VOLUME to NODE, with what uses it.

    What uses it is stopped; the data are copied through the servers and verified; then it starts on NODE,
    and only after that the data are removed from the node where they were. If it fails or is cancelled
    before, everything starts again where it was.

    \b
      skerry volume move db edge-2
    """
    begun = server.post(*_path(namespace, "volume", name, "move"), body={"node": node})
    ended = begun if detach else _wait(server, begun)
    printing.as_json(ended) if output == "json" else click.echo(ended["volume"])
    _exit_unless_done(ended, detach)


@click.command()
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List operations of all namespaces.")
@options.server
@printing.option
def operations(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List snapshots, restores and moves that run, and those of the last day."""
    within = object_kinds.EVERY_NAMESPACE if all_namespaces else namespace
    found: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = server.get("volume-operation", limit="0", cursor=cursor, namespace=within)
        found += page["operations"]
        if (cursor := page["cursor"]) is None:
            break
    listed, names = OPERATION.with_namespace() if all_namespaces else OPERATION, NodeNames(server)
    printing.show(
        {"count": len(found), "operations": found},
        output,
        columns=listed.columns,
        rows=lambda value: [listed.row(one, names) for one in value["operations"]],
    )


@click.command()
@click.argument("operation", metavar="OPERATION")
@object_kinds.namespace
@options.server
def cancel(server: ApiClient, operation: str, namespace: str | None) -> None:
    """Cancel a snapshot, restore or move; what it has copied is removed.

    \b
      skerry volume operations
      skerry volume cancel 01m7gtfpsmxr1dcp2kdcyztdzr
    """
    begun = server.post(*_path(namespace, "volume-operation", operation, "cancel"))
    ended = _wait(server, begun)
    click.echo(f"{ended['kind']} of {ended['volume']}: {ended['status']}")


COMMANDS: Final = (snapshot, snapshots, delete_snapshot, restore, move, operations, cancel)


def _path(namespace: str | None, *parts: str) -> tuple[str, ...]:
    return (*(() if namespace is None else ("namespace", namespace)), *parts)


def _wait(server: ApiClient, begun: JsonObject) -> JsonObject:
    """Print steps and progress until the operation has ended. A server that is away for a while is asked
    again."""
    path = _path(begun["namespace"], "volume-operation", begun["id"])
    printed, lost_at = "", None
    while True:
        try:
            seen = server.get(*path)
            lost_at = None
        except ServerUnreachable:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _PATIENCE_S:
                raise
            time.sleep(_POLL_S)
            continue
        except ApiError as error:
            raise click.ClickException(str(error)) from error
        text = _describe(seen)
        if text != printed:
            printed = text
            click.echo(text, err=True)
        if seen["ended_at"] is not None:
            return seen
        time.sleep(_POLL_S)


def _describe(one: JsonObject) -> str:
    state = one["status"] if one["ended_at"] is not None else one["step"]
    parts = [f"{one['kind']} of {one['volume']}: {state}", _progress(one), one["reason"]]
    return ", ".join(part for part in parts if part)


def _progress(one: JsonObject) -> str:
    """How far the present step is."""
    if one["ended_at"] is not None or not one["total_bytes"]:
        return ""
    return f"{printing.size(one['done_bytes'])} of {printing.size(one['total_bytes'])}"


def _exit_unless_done(ended: JsonObject, detach: bool) -> None:
    if not detach and ended["status"] != "SUCCEEDED":
        raise SystemExit(1)
