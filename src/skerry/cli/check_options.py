"""Options for health checks, of `skerry run` and `skerry service`, and how checks are shown."""

from __future__ import annotations

from typing import Final

import click

from skerry.cli.options import option_group
from skerry.client.api import JsonObject

_ROLES: Final = {"check": "readiness", "liveness": "liveness", "startup": "startup"}

checks = option_group(
    click.option(
        "--check",
        multiple=True,
        metavar="CHECK",
        help="Readiness check: http:80/health, tcp:5432, grpc:50051 or exec:COMMAND, with options such as "
        ",interval=2s behind it; repeatable.",
    ),
    click.option(
        "--liveness",
        multiple=True,
        metavar="CHECK",
        help="Liveness check: its failure restarts the instance.",
    ),
    click.option(
        "--startup",
        multiple=True,
        metavar="CHECK",
        help="Startup check: must pass before the other checks begin.",
    ),
)


def take(given: JsonObject, before: JsonObject | None = None) -> list[JsonObject] | None:
    """The checks of the options, which are removed from `given`; None if there are none. In an update of
    `before`, they replace those of their role."""
    texts_of = {option: given.pop(option) for option in _ROLES}
    if not any(texts_of.values()):
        return None
    from skerry.model import errors, health_checks

    replaced = {_ROLES[option] for option, texts in texts_of.items() if texts}
    found = [check for check in (before or {}).get("checks", []) if check["role"] not in replaced]
    for option, texts in texts_of.items():
        for text in texts:
            try:
                check = health_checks.parse(text, health_checks.CheckRole(_ROLES[option]))
            except errors.Invalid as error:
                raise click.BadParameter(error.message, param_hint=f"--{option}") from None
            found.append({field: getattr(check, field) for field in check.__struct_fields__})
    return found


def describe(checks: list[JsonObject]) -> str:
    """Roles and targets, such as `readiness=http:80/health liveness=tcp:80`."""
    return " ".join(f"{check['role']}={_target(check)}" for check in checks)


def _target(check: JsonObject) -> str:
    if check["method"] == "exec":
        return f"exec:{' '.join(check['command'])}"
    behind = (
        check["path"] if check["method"] == "http" else f"/{check['service']}" if check["service"] else ""
    )
    return f"{check['method']}:{check['port']}{behind}"
