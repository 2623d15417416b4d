"""The `skerry` command: a table of commands, each imported only when it is called.

Before the command is known nothing is imported but the standard library, click, and what guards the terminal:
everything is printed through `skerry.kit.terminal_text`. So `skerry --help` and shell completion are quick.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NamedTuple

import click

from skerry import __version__
from skerry.cli.options import raw
from skerry.kit import terminal_text


class Verb(NamedTuple):
    """Where a command lives, and what `--help` says of it without importing it."""

    module: str
    summary: str


SECTIONS = {
    "Start Skerry": {
        "up": Verb("skerry.cli.commands.daemon", "Start everything on this machine."),
        "server": Verb("skerry.cli.commands.daemon", "Start the control plane alone."),
        "node": Verb("skerry.cli.commands.nodes", "Join this machine to a server, or manage nodes."),
        "install": Verb("skerry.cli.commands.install", "Make Skerry a service of this machine."),
        "uninstall": Verb("skerry.cli.commands.install", "Remove the service, and with --purge the data."),
        "demo": Verb("skerry.cli.commands.demo", "Show what Skerry does, on this machine."),
    },
    "Workloads": {
        "run": Verb("skerry.cli.commands.instances", "Run an image on a node with enough resources."),
        "apply": Verb("skerry.cli.commands.apply", "Create and update objects from a file."),
        "get": Verb("skerry.cli.commands.objects", "List and watch instances, services, volumes and others."),
        "describe": Verb("skerry.cli.commands.objects", "Show the details of an object."),
        "delete": Verb("skerry.cli.commands.objects", "Delete instances, workloads, services or volumes."),
        "start": Verb("skerry.cli.commands.instances", "Start stopped instances."),
        "stop": Verb("skerry.cli.commands.instances", "Stop instances."),
        "logs": Verb("skerry.cli.commands.instances", "Show the output of an instance."),
        "exec": Verb("skerry.cli.commands.instances", "Run a command in an instance."),
        "explain": Verb("skerry.cli.commands.instances", "Explain a placement, or a connection."),
    },
    "Services, jobs and schedules": {
        "service": Verb(
            "skerry.cli.commands.services", "Run an image in several copies, and update it without a gap."
        ),
        "job": Verb("skerry.cli.commands.jobs", "Run an image to completion, with retries."),
        "schedule": Verb("skerry.cli.commands.schedules", "Run jobs, or call functions, at set times."),
    },
    "Networking": {
        "route": Verb("skerry.cli.commands.routes", "Publish services and functions under host names."),
    },
    "Data, secrets and configuration": {
        "volume": Verb("skerry.cli.commands.volumes", "Create volumes: data that outlive instances."),
        "secret": Verb("skerry.cli.commands.secrets", "Store secrets for what runs."),
        "config": Verb("skerry.cli.commands.secrets", "Store files that are no secrets, for what runs."),
        "registry": Verb("skerry.cli.commands.secrets", "Log in to private registries of images."),
        "tls": Verb("skerry.cli.commands.tls", "Import and issue TLS certificates for routes."),
    },
    "Functions": {
        "fn": Verb("skerry.cli.commands.functions", "Deploy functions and call them."),
    },
    "Capacity market": {
        "market": Verb("skerry.cli.commands.market", "Buy capacity from other clouds, and sell your own."),
        "contract": Verb("skerry.cli.commands.contracts", "Verify contracts of the market."),
    },
    "Local node": {
        "image": Verb("skerry.cli.commands.images", "Pull, list and remove images on this machine."),
        "container": Verb("skerry.cli.commands.containers", "Run containers on this machine."),
        "cell": Verb("skerry.cli.commands.cells", "Create cells on this machine and run programs in them."),
        "dns": Verb("skerry.cli.commands.dns", "Look up names as the containers of this machine do."),
        "aurae": Verb("skerry.cli.commands.aurae", "Use Aurae clients with the cells of this machine."),
    },
    "Administration": {
        "status": Verb(
            "skerry.cli.commands.status", "Show whether the server is ready, and what is unavailable."
        ),
        "doctor": Verb(
            "skerry.cli.commands.doctor", "Find what is wrong on this machine, and how to fix it."
        ),
        "top": Verb("skerry.cli.commands.top", "Show nodes, instances, services and functions, live."),
        "console": Verb("skerry.cli.commands.console", "Open the web console."),
        "mesh": Verb("skerry.cli.commands.mesh", "Show how nodes reach each other."),
        "alert": Verb("skerry.cli.commands.alerts", "Notify somebody when something is wrong."),
        "events": Verb("skerry.cli.commands.events", "Show events, and follow them."),
        "namespace": Verb("skerry.cli.commands.namespaces", "Show namespaces, and limit what they may use."),
        "token": Verb("skerry.cli.commands.tokens", "Create, list and revoke access tokens."),
        "certificate": Verb("skerry.cli.commands.certificates", "List and revoke certificates."),
        "backup": Verb("skerry.cli.commands.backup", "Back up the cloud, and verify backups."),
        "restore": Verb("skerry.cli.commands.restore", "Restore a backup into an empty data folder."),
        "sim": Verb("skerry.cli.commands.sim", "Simulate the control plane."),
    },
    "This command": {
        "context": Verb("skerry.cli.commands.contexts", "Name servers, and choose the one that is used."),
        "completion": Verb("skerry.cli.commands.completion", "Complete commands and names in your shell."),
        "version": Verb("skerry.cli.commands.status", "Show the version."),
    },
}
VERBS = {name: verb for section in SECTIONS.values() for name, verb in section.items()}


class LazyGroup(click.Group):
    """A group that knows the names and summaries of its commands, and imports a command when it runs."""

    def main(self, *args: Any, **extra: Any) -> Any:
        if "_SKERRY_COMPLETE" in os.environ:  # a shell requests completions
            from skerry.cli import shells

            shells.register()
        return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), cmd_name)
        assert isinstance(command, click.Command)
        if ctx.resilient_parsing:  # a shell requests completions
            from skerry.cli import completion

            completion.attach(command, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Imported here: only commands that have imported the client can raise its errors.
            from skerry.client.errors import ClientError

            if not isinstance(error, ClientError):
                raise
            from skerry.cli.errors import to_click

            raise to_click(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), verb.summary) for name, verb in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_unknown = args and args[0] not in VERBS and not args[0].startswith("-")
        if is_unknown and not ctx.resilient_parsing:
            from skerry.cli import suggestions

            raise click.UsageError(f"Unknown command '{args[0]}'; {suggestions.suggest(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with 'skerry up' in one terminal and 'skerry run -p 8080:80 $(skerry image "
    "sample)' in another. Every command has --help; those that print take --output json.",
)
@raw
@click.version_option(__version__, "-V", "--version", prog_name="skerry")
def cli() -> None:
    """Skerry turns one machine, or many, into a small cloud."""


def main() -> None:
    """The console script."""
    terminal_text.protect()
    try:
        sys.exit(cli.main(prog_name="skerry", standalone_mode=False) or 0)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`skerry events | head`): that is no failure of ours.
        sys.stderr.close()
        sys.exit(0)
