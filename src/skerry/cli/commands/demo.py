"""`skerry demo`: a cloud with three edge sites on this machine, shown step by step, and removed again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from skerry.cli.options import DefaultCommandGroup, without_dashes

_STEPS: Final = ("flood", "power-cut", "rollout", "purchase")

_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/lib/skerry-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder of the demo: data of all machines, and a record of what was created.",
)


@click.group(cls=DefaultCommandGroup, aliases={}, default="run")
def demo() -> None:
    """Show what Skerry does, on this machine, in about three minutes.

    A cloud, three edge sites and a neighbour cloud are created as network namespaces with delays between
    them, each with a Skerry of its own. An application runs on them; then an edge site is flooded, a machine
    loses its power, a bad version is rolled out, and capacity is bought. Everything is removed at the end.

    It needs root, and nothing from outside: no registry, no internet.

    \b
      skerry demo
      skerry demo --fast
      skerry demo --step rollout --keep
      skerry demo exec oslo skerry fn invoke recommend -p user:=7
      skerry demo clean
    """


@demo.command()
@click.option(
    "--step",
    "steps",
    type=click.Choice(_STEPS),
    multiple=True,
    help="Only this step, after the sites and the application are up; repeatable.",
)
@click.option("--pause", "pauses", is_flag=True, help="Wait for Enter before each step.")
@click.option("--fast", "is_fast", is_flag=True, help="Show everything for a few seconds only.")
@click.option("--keep", "keeps", is_flag=True, help="Leave everything running at the end.")
@_folder
def run(folder: Path, steps: tuple[str, ...], is_fast: bool, pauses: bool, keeps: bool) -> None:
    """Run the demo; the default command.

    The exit code is 1 if an assertion of the demo did not hold. Ctrl-C removes everything, too.
    """
    from skerry.demo import cleaning, scenario

    _end_by_exception()
    options = scenario.DemoOptions(folder.absolute(), steps, is_fast=is_fast, pauses=pauses, keeps=keeps)
    try:
        sys.exit(0 if scenario.run(options) else 1)
    except (scenario.DemoRefused, cleaning.CleaningFailed) as error:
        raise click.ClickException(str(error)) from None


@demo.command()
@_folder
def clean(folder: Path) -> None:
    """Remove a demo that was kept, or killed."""
    from skerry.demo import cleaning, scenario

    try:
        removed = scenario.clean(folder.absolute())
    except (scenario.DemoRefused, cleaning.CleaningFailed) as error:
        raise click.ClickException(str(error)) from None
    if removed is None:
        click.echo(f"There is no demo in {folder}.")
    else:
        click.echo(f"Removed the demo: {removed.processes} processes, {removed.groups} cgroups.")


@demo.command(
    name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@_folder
@click.argument("site", metavar="SITE")
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED, callback=without_dashes)
def execute(folder: Path, site: str, command: tuple[str, ...]) -> None:
    """Run a command on a machine of the demo, by default a shell.

    SITE is cloud, lisbon, oslo, turin or north. There `skerry` uses the Skerry of that machine.

    \b
      skerry demo exec oslo
      skerry demo exec oslo skerry fn invoke recommend -p user:=7
    """
    from skerry.demo import machines, scenario

    try:
        scenario.check_root()
        pid = machines.find_machine(folder.absolute(), site)
    except (machines.MachineFailed, scenario.DemoRefused) as error:
        raise click.ClickException(str(error)) from None
    environment = machines.environment()
    words = machines.enter_command(pid, command or (environment.get("SHELL", "/bin/sh"),))
    os.execvpe(words[0], words, environment)  # noqa: S606 - the user's own command


def _end_by_exception() -> None:
    """Have SIGTERM and SIGHUP end the demo as Ctrl-C does: with everything removed."""
    import signal

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
