"""`skerry get`, `describe` and `delete`, for every kind of object of a server."""

from __future__ import annotations

import time
from typing import Final

import click

from skerry.cli import (
    check_options,
    instance_options,
    object_kinds,
    options,
    service_details,
    service_progress,
    volume_details,
)
from skerry.cli import output as printing
from skerry.cli import watch as cli_watch
from skerry.cli.commands import instances
from skerry.cli.errors import ErrorCollector
from skerry.cli.object_kinds import (
    INSTANCE,
    KINDS,
    NODE,
    SERVICE,
    VOLUME,
    WORKLOAD,
    NodeNames,
    ObjectKind,
    ObjectKindParam,
)
from skerry.client.api import ApiClient, JsonObject

_EVENTS: Final = "20"  # of an instance, the newest
_GONE: Final[frozenset[str]] = frozenset()


@click.command()
@click.argument("kind", type=ObjectKindParam(*KINDS))
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-w", "--watch", is_flag=True, help="Watch: print a line for each change, until Ctrl-C.")
@click.option(
    "--status",
    metavar="STATUS[,STATUS...]",
    help="Only instances with this status, such as SCHEDULING,CRASHED.",
)
@object_kinds.namespace
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="List objects of all namespaces, with a NAMESPACE column."
)
@options.server
@printing.option
def get(
    server: ApiClient,
    kind: ObjectKind,
    name: str | None,
    watch: bool,
    status: str | None,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
) -> None:
    """List instances, workloads, services, volumes or nodes; with NAME, show one.

    KIND is instance, workload, service, volume or node, and NAME an id or a name. With --watch each change
    is a line; with --output json each line is an object. Nodes have no namespace.

    \b
      skerry get instances
      skerry get instance web -o json
      skerry get instances --status SCHEDULING,CRASHED
      skerry get instances -w
      skerry get workloads -n shop
      skerry get services
      skerry get volumes
      skerry get instances -A
      skerry get nodes
    """
    if status and kind is not INSTANCE:
        raise click.UsageError("--status applies to instances: 'skerry get instances --status RUNNING'.")
    if status and (name or watch):
        raise click.UsageError("--status filters a list; it cannot be combined with a name or --watch.")
    if all_namespaces and (kind is NODE or name):
        raise click.UsageError("--all-namespaces applies to a list of instances or workloads.")
    names = NodeNames(server)
    shown = kind.with_namespace() if all_namespaces else kind

    def read() -> list[JsonObject]:
        if name:
            return [object_kinds.find(server, kind, name, namespace)]
        if kind is NODE:
            return object_kinds.everything(server, NODE)
        where = object_kinds.EVERY_NAMESPACE if all_namespaces else namespace
        return object_kinds.everything(server, kind, state=status, namespace=where)

    if watch:
        cli_watch.watch_forever(shown, names, read, output)
    elif output == "json":
        found = read()
        printing.as_json(found[0] if name else {"count": len(found), kind.plural: found})
    else:
        printing.table(shown.columns, [shown.row(one, names) for one in read()])


@click.command()
@click.argument("kind", type=ObjectKindParam(*KINDS))
@click.argument("name", metavar="NAME")
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, kind: ObjectKind, name: str, namespace: str | None, output: str) -> None:
    """Show the details of an instance, a workload, a service, a volume or a node.

    An instance is shown with its events and, while it is SCHEDULING, the feasibility of every node; a
    workload, a service or a node with its instances.

    \b
      skerry describe instance web
      skerry describe node edge-1
    """
    one = object_kinds.find(server, kind, name, namespace)
    if kind is SERVICE:
        service_details.show(server, one, output)
        return
    if kind is VOLUME:
        volume_details.show(server, one, output)
        return
    names = NodeNames(server)
    known: JsonObject = {kind.word: one}
    if kind is INSTANCE:
        known["events"] = server.get("instance", one["id"], "events", limit=_EVENTS)["events"]
        if one["status"] == "SCHEDULING":
            known["explanation"] = instances.explanation(server, one)
    else:
        where = one.get("namespace", object_kinds.EVERY_NAMESPACE)
        known["instances"] = object_kinds.everything(
            server, INSTANCE, namespace=where, **{kind.word: one["id"]}
        )
    if output == "json":
        printing.as_json(known)
        return
    printing.table(printing.DETAILS, [(key, text) for key, text in _facts(kind, one, names) if text])
    _show_more(known, names)


@click.command()
@click.argument("kind", type=ObjectKindParam(INSTANCE, WORKLOAD, SERVICE, VOLUME))
@click.argument("given", metavar="NAME...", nargs=-1, required=True)
@click.option("--keep-instances", is_flag=True, help="Refuse to delete a workload that has instances.")
@cli_watch.detach
@object_kinds.namespace
@options.server
def delete(
    server: ApiClient,
    kind: ObjectKind,
    given: tuple[str, ...],
    keep_instances: bool,
    namespace: str | None,
    detach: bool,
) -> None:
    """Delete instances, or workloads and services with all their instances, and wait until they are gone.
    Volumes are deleted with their data, and only if nothing uses them.

    This cannot be undone. To remove a node, see 'skerry node drain' and 'skerry node remove'.

    \b
      skerry delete instance web
      skerry delete workload shop
    """
    if keep_instances and kind is not WORKLOAD:
        raise click.UsageError("--keep-instances applies to workloads.")
    if kind is VOLUME:
        with ErrorCollector() as failures:
            for name in given:
                with failures.collect():
                    volume_details.delete(server, name, namespace, waits=not detach)
        return
    with ErrorCollector() as failures:
        going = []
        for name in given:
            with failures.collect():
                one = object_kinds.find(server, kind, name, namespace)
                going += [(one, _delete(server, kind, one, keep_instances))]
        for one, its in going:
            with failures.collect():
                if kind is SERVICE and not detach:
                    service_progress.wait_until_gone(server, one)
                for instance in () if detach else its:
                    cli_watch.wait_until(server, instance, _GONE)
                click.echo(f"{'deleting' if detach and its else 'deleted'} {kind.word} {one['name']}")


def _delete(server: ApiClient, kind: ObjectKind, one: JsonObject, keep_instances: bool) -> list[JsonObject]:
    """Delete it; returns the instances that are deleted with it."""
    if kind is INSTANCE:
        server.delete("instance", one["id"])
        return [one]
    if kind is SERVICE:
        server.delete("service", one["name"], namespace=one["namespace"])
        return []
    its = object_kinds.everything(server, INSTANCE, workload=one["id"], namespace=one["namespace"])
    server.delete("workload", one["id"], cascade=str(not keep_instances).lower())
    return its


def _facts(kind: ObjectKind, one: JsonObject, names: NodeNames) -> list[tuple[str, str]]:
    if kind is NODE:
        return _node(one)
    resources = one["resources"].get("max", one["resources"])
    return [
        ("name", one["name"]),
        ("id", one["id"]),
        ("namespace", one["namespace"]),
        *(_instance(one, names) if kind is INSTANCE else [("version", str(one["version"]))]),
        ("image", one["uri"]),
        ("arguments", " ".join(one["arguments"])),
        # Names only: values may be secrets. JSON has them.
        ("environment", " ".join(each.partition("=")[0] for each in one["environment"])),
        ("ports", " ".join(one["ports"])),
        ("limits", _amounts(resources)),
        ("restart policy", _restart(one)),
        ("checks", check_options.describe(one["checks"])),
        ("architecture", one["architecture"]),
        ("constraints", " ".join(one["constraints"])),
        ("user namespace", one["userns"]),
        *instance_options.describe(one),
        ("created", printing.ago(one["created_at"])),
    ]


def _instance(one: JsonObject, names: NodeNames) -> list[tuple[str, str]]:
    return [
        ("status", f"{cli_watch.describe(one)} (since {printing.ago(one['since'])})"),
        ("ready", _ready(one)),
        ("desired status", one["desired"]),
        ("exit code", _known(one["exit_code"])),
        ("previous exit code", _known(one.get("previous_exit_code"))),  # an older server sends none
        ("restarts", str(one["restarts"])),
        ("next restart", "" if one["retry_at"] is None else printing.next_try(one["retry_at"])),
        ("node", names.of(one["node_id"]) if one["node_id"] else ""),
        ("ip", one["ip"]),
        ("ipv6", one.get("ip6", "")),  # an older server sends none
        ("assigned devices", " ".join(one.get("assigned_devices", ()))),  # an older server sends none
        ("usage", _amounts(one["resources"]["usage"])),
        ("owner", one.get("owner", "")),  # servers of 0.1 tell none
        (
            "workload",
            f"{one['workload_id']}, version {one['workload_version']}" if one["workload_id"] else "",
        ),
    ]


def _known(code: int | None) -> str:
    return "" if code is None else str(code)


def _ready(one: JsonObject) -> str:
    ready = object_kinds.readiness(one)
    return f"no: {one['check_message']}" if ready == "no" and one["check_message"] else ready


def _restart(one: JsonObject) -> str:
    budget = one["restart_budget"]
    return one["restart"] if budget is None else f"{one['restart']}, at most {budget} times in a row"


def _node(one: JsonObject) -> list[tuple[str, str]]:
    facts = one["facts"]
    return [
        ("name", one["name"]),
        ("id", one["id"]),
        ("status", ", ".join(part for part in (object_kinds.node_status_text(one), one["reason"]) if part)),
        ("drain deadline", printing.ago(one["drain_by"]) if one["status"] == "draining" else ""),
        ("resources", _amounts(one["resources"])),
        ("usage", _amounts(one["usage"]) if one.get("usage") else ""),
        ("last report", printing.ago(one["last_report_at"]) if one.get("last_report_at") else ""),
        ("labels", object_kinds.labels(one)),
        ("system", ", ".join(facts[key] for key in ("architecture", "system", "kernel") if facts[key])),
        ("version", facts["version"]),
        ("runtime", facts["runtime"]),
        ("user namespaces", ("yes" if facts["userns"] else "no") if facts["runtime"] else ""),
        ("features", " ".join(facts.get("features", ()))),  # an older server sends none
        ("devices", " ".join(facts.get("devices", ()))),
        *enforcement_rows(facts.get("enforcement")),
        *(("warning", sentence) for sentence in facts["warnings"]),
        ("DiskPressure", facts["disk_pressure"]),
        ("subnet", one["subnet"]),
        ("registered", printing.ago(one["registered_at"])),
    ]


def enforcement_rows(enforcement: JsonObject | None) -> list[tuple[str, str]]:
    """What a node enforces, and why not more."""
    if enforcement is None:  # of an earlier version
        return []
    limits = ", ".join(f"{kind} {means}" for kind, means in enforcement["limits"].items())
    return [
        ("isolation", enforcement["isolation"]),
        ("limits", limits),
        ("container network", enforcement["network"]),
        *(("not enforced", reason) for reason in enforcement["reasons"]),
    ]


def _amounts(resources: JsonObject) -> str:
    parts = zip(("cpu", "memory", "disk"), object_kinds.amounts(resources), strict=True)
    return ", ".join(f"{amount} {part}" for part, amount in parts if amount != "-")


def _show_more(known: JsonObject, names: NodeNames) -> None:
    if explanation := known.get("explanation"):
        click.echo("\nNodes:")
        instances.show_verdicts(explanation, names)
    if events := known.get("events"):
        click.echo("\nEvents:")
        printing.table(
            ("time", "type", "actor", "request", "reason"),
            [
                (
                    time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["at"])),
                    each["kind"].partition(".")[2],
                    each["actor"],
                    each.get("request_id", ""),  # servers of 0.1 tell none
                    each["reason"],
                )
                for each in events
            ],
        )
    if reported := known.get("node", {}).get("instances"):
        click.echo("\nReported instances:")
        printing.table(
            ("id", "name", "status", "image", "usage"),
            [
                (each["id"], each["name"], each["status"], each["uri"], _amounts(each["usage"]))
                for each in reported
            ],
        )
    if its := known.get("instances"):
        click.echo("\nInstances:")
        printing.table(INSTANCE.columns, [INSTANCE.row(each, names) for each in its])
