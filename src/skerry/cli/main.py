"""The `skerry` command: a table of verbs, each imported only when it is called.

Before the verb is known nothing is imported but the standard library, click, and what guards the terminal:
everything is printed through `skerry.kit.terminal_text`. So `skerry --help` and shell completion are quick.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

import click

from skerry import __version__
from skerry.cli.options import raw
from skerry.kit import terminal_text


class Verb(NamedTuple):
    """Where a verb lives, and what `--help` says of it without importing it."""

    module: str
    summary: str


SECTIONS = {
    "Start Skerry": {
        "up": Verb("skerry.cli.commands.daemon", "Start everything on this machine."),
        "server": Verb("skerry.cli.commands.daemon", "Start the control plane alone."),
        "node": Verb("skerry.cli.commands.nodes", "Join this machine to a server; or look after nodes."),
    },
    "Run things on any node": {
        "run": Verb("skerry.cli.commands.instances", "Run an image on whichever node has room."),
        "apply": Verb("skerry.cli.commands.apply", "Make workloads and instances as a file says."),
        "get": Verb("skerry.cli.commands.objects", "List instances, workloads or nodes, and watch them."),
        "describe": Verb("skerry.cli.commands.objects", "Show all that is known of one of them."),
        "delete": Verb("skerry.cli.commands.objects", "Delete instances or workloads."),
        "start": Verb("skerry.cli.commands.instances", "Start instances that were stopped."),
        "stop": Verb("skerry.cli.commands.instances", "Stop instances."),
        "logs": Verb("skerry.cli.commands.instances", "Show what an instance has written."),
        "exec": Verb("skerry.cli.commands.instances", "Run a command in an instance."),
        "explain": Verb("skerry.cli.commands.instances", "Show why an instance is not placed."),
    },
    "Run code when it is called": {
        "fn": Verb("skerry.cli.commands.functions", "Deploy functions and call them."),
    },
    "Lend and borrow capacity": {
        "market": Verb("skerry.cli.commands.market", "Buy capacity of other clouds, and sell some."),
        "contract": Verb("skerry.cli.commands.contracts", "Check contracts of the market."),
    },
    "Run things on this machine": {
        "image": Verb("skerry.cli.commands.images", "Fetch, list and remove images on this machine."),
        "container": Verb("skerry.cli.commands.containers", "Run images in containers on this machine."),
        "cell": Verb("skerry.cli.commands.cells", "Make cells on this machine and run programs in them."),
        "aurae": Verb("skerry.cli.commands.aurae", "Use clients of Aurae with the cells of this machine."),
    },
    "Look after the server": {
        "status": Verb("skerry.cli.commands.status", "Show whether the server is up and what it lacks."),
        "events": Verb("skerry.cli.commands.events", "Show what happened, and follow it."),
        "token": Verb("skerry.cli.commands.tokens", "Make, list and revoke access tokens."),
        "certificate": Verb("skerry.cli.commands.certificates", "List and revoke certificates."),
        "sim": Verb("skerry.cli.commands.sim", "Try the control plane with nodes that only pretend."),
        "version": Verb("skerry.cli.commands.status", "Show the version."),
    },
}
VERBS = {name: verb for section in SECTIONS.values() for name, verb in section.items()}


class LazyGroup(click.Group):
    """A group that knows its verbs' names and summaries, and imports a verb when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), verb.summary) for name, verb in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " 'skerry --help' lists the verbs."
            raise click.UsageError(f"There is no verb '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with 'skerry up' in one terminal and 'skerry run -p 8080:80 IMAGE' in another. "
    "Every verb has --help; those that print take --output json.",
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
