"""A service in detail: its fields, its copies and its latest events."""

from __future__ import annotations

import time
from typing import Final

import click

from skerry.cli import check_options, instance_options, object_kinds
from skerry.cli import output as printing
from skerry.cli import service_progress as progress
from skerry.cli.object_kinds import NodeNames
from skerry.client.api import ApiClient, JsonObject

_EVENTS: Final = "20"  # the newest


def show(server: ApiClient, one: JsonObject, output: str) -> None:
    """A service with its copies and its latest events."""
    events = server.get("service", one["name"], "events", namespace=one["namespace"], limit=_EVENTS)["events"]
    if output == "json":
        printing.as_json({**one, "events": events})
        return
    names = NodeNames(server)
    printing.table(printing.DETAILS, [(key, text) for key, text in _facts(one) if text])
    if one["copies"]:
        click.echo("\nCopies:")
        printing.table(
            ("name", "id", "revision", "status", "ready", "node", "ip", "restarts", "reason"),
            [
                (
                    copy["name"],
                    copy["instance_id"],
                    str(copy["revision"]),
                    "RETIRING" if copy["retiring"] else copy["status"],
                    "yes" if copy["ready"] else "no",
                    names.of(copy["node_id"]),
                    copy["ip"] or "-",
                    str(copy["restarts"]),
                    copy["check_message"] or copy["reason"],
                )
                for copy in one["copies"]
            ],
        )
    if events:
        click.echo("\nEvents:")
        printing.table(
            ("time", "type", "actor", "reason"),
            [
                (
                    time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["at"])),
                    each["kind"].partition(".")[2],
                    each["actor"],
                    each["reason"],
                )
                for each in events
            ],
        )


def _facts(one: JsonObject) -> list[tuple[str, str]]:
    update, scaling, rollout = one["update"], one["autoscale"], one["rollout"]
    stable = one["stable_revision"]
    return [
        ("name", one["name"]),
        ("id", one["id"]),
        ("namespace", one["namespace"]),
        ("status", one["status"]),
        ("ready", f"{one['ready']} of {one['replicas']}"),
        (
            "revision",
            f"{one['revision']}{'' if stable in (None, one['revision']) else f' (stable: {stable})'}",
        ),
        ("update", "" if rollout is None else progress.summary(one)),
        ("quota", one["quota_message"]),
        ("updates paused", "yes" if one["paused"] else ""),
        ("image", one["image"]),
        ("arguments", " ".join(one["arguments"])),
        # Names only: values may be secrets. JSON has them.
        ("environment", " ".join(each.partition("=")[0] for each in one["environment"])),
        ("address", _address(one)),
        ("affinity", printing.duration(one["affinity_s"]) if one["affinity_s"] else ""),
        ("published ports", " ".join(one["ports"])),
        ("limits", ", ".join(amount for amount in object_kinds.amounts(one["resources"]) if amount != "-")),
        ("checks", check_options.describe(one["checks"])),
        ("constraints", " ".join(one["constraints"])),
        ("spread", " ".join(one["spread"])),
        ("max per node", str(one["max_per_node"] or "")),
        *instance_options.describe(one),
        ("update policy", _policy(update)),
        ("disruption budget", f"{one['budget']['max_unavailable']} unavailable"),
        (
            "autoscaling",
            ""
            if scaling is None
            else f"{scaling['min']} to {scaling['max']} copies, {scaling['metric']} {scaling['target']:g}",
        ),
        ("created", printing.ago(one["created_at"])),
    ]


def _address(one: JsonObject) -> str:
    ports = " ".join(one["service_ports"])
    return f"{one['address']} ({ports})" if one["address"] and ports else str(one["address"])


def _policy(update: JsonObject) -> str:
    parts = [
        update["order"],
        f"max surge {update['max_surge']}",
        f"max unavailable {update['max_unavailable']}",
        f"ready for {update['min_ready_s']:g}s",
        f"drain {update['drain_s']:g}s",
        f"deadline {update['deadline_s']:g}s",
        f"then {update['on_failure']}",
    ]
    if update["canary"]:
        parts.append(f"{update['canary']} canaries")
    return ", ".join(parts)
