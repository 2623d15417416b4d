"""Plans of changes of services, from the server, for people."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import click

from skerry.cli import output as printing
from skerry.cli.object_kinds import NodeNames
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

if TYPE_CHECKING:
    from skerry.cli.manifests import ManifestObject


def request(server: ApiClient, name: str, namespace: str | None, body: JsonObject) -> JsonObject:
    """The plan of the server; nothing is changed."""
    within = ("namespace", namespace) if namespace else ()
    return server.post(*within, "service", name, "plan", body=body)


def of_manifest(server: ApiClient, file: IO[bytes], namespace: str | None) -> list[JsonObject]:
    """Plans of all services of a manifest."""
    from skerry.cli import manifests

    manifest = manifests.read(file)
    if not manifest.services:
        raise click.UsageError(f"{file.name} has no `services:`; 'skerry apply --dry-run' shows other plans.")
    where = manifests.where(file.name, manifest, namespace)
    return [of_object(server, one, where)[0] for one in manifest.services]


def of_object(
    server: ApiClient, wanted: ManifestObject, namespace: str | None
) -> tuple[JsonObject, JsonObject]:
    """The plan of one service of a manifest, and the request body that does it.

    How many replicas an autoscaled service has is not for the manifest to say, once it is there.
    """
    body = wanted.body
    if body["autoscale"] is not None and (
        body["replicas"] is None or _exists(server, wanted.name, namespace)
    ):
        body = {key: value for key, value in body.items() if key != "replicas"}
    return request(server, wanted.name, namespace, body), body


def show(plan: JsonObject, names: NodeNames) -> None:
    """A plan for people."""
    click.echo(f"{plan['name']}: {_headline(plan)}")
    if plan["changes"]:
        printing.table(
            ("field", "before", "after"),
            [(one["field"], _value(one["before"]), _value(one["after"])) for one in plan["changes"]],
        )
    if plan["copies"]:
        click.echo("\nCopies:")
        printing.table(
            ("index", "node", "replaces", "reason"),
            [
                (str(one["index"]), names.of(one["node_id"]), one["replaces"] or "-", one["reason"])
                for one in plan["copies"]
            ],
        )
        if plan["created"] > len(plan["copies"]):
            click.echo(f"... and {plan['created'] - len(plan['copies'])} more.")
    if any(one["node_id"] is None for one in plan["copies"]):
        click.echo("\nNodes:")
        printing.table(
            ("node", "feasible", "reason"),
            [
                (names.of(one["node_id"]), "yes" if one["fits"] else "no", one["text"])
                for one in plan["nodes"]
            ],
        )


def why(plan: JsonObject) -> str:
    """The fields that would change, separated by commas."""
    return ", ".join(one["field"] for one in plan["changes"])


def _exists(server: ApiClient, name: str, namespace: str | None) -> bool:
    try:
        server.get("service", name, namespace=namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def _headline(plan: JsonObject) -> str:
    match plan["action"]:
        case "none":
            return "nothing would change."
        case "create":
            return f"would be created with {plan['created']} copies."
        case "change":
            return f"would be changed; {plan['created']} copies would be created."
    reason = f" ({plan['order_reason']})" if plan["order_reason"] else ""
    bounds = f"at most {plan['surge']} more and {plan['unavailable']} fewer copies meanwhile"
    first = f", {plan['canaries']} of them canaries first" if plan["canaries"] else ""
    return f"would be updated to revision {plan['revision']}{first}: {plan['order']}{reason}, {bounds}."


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
