"""`skerry doctor`: what is wrong on this machine and with its server, and how to fix it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Any

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.cli.doctor.findings import Finding, FindingStatus
from skerry.client import discovery
from skerry.client.discovery import TargetOptions

_COLOURS = {
    FindingStatus.OK: "green",
    FindingStatus.WARNING: "yellow",
    FindingStatus.PROBLEM: "red",
    FindingStatus.SKIPPED: "blue",
}
_NARROW = 60
_MOST_LEFTOVERS = 5


@click.command()
@click.option("--json", "is_json", is_flag=True, help="The same as --output json.")
@click.option("-q", "--quiet", is_flag=True, help="Only warnings and problems.")
@click.option("--config", metavar="FILE", help="TOML file with settings. [env: SKERRY_CONFIG]")
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any setting of docs/settings.md."
)
@options.target
@printing.option
def doctor(
    target: TargetOptions,
    is_json: bool,
    quiet: bool,
    config: str | None,
    assignments: tuple[str, ...],
    output: str,
) -> None:
    """Check this machine and its server; every finding has the command that fixes it.

    Checked are: cgroups, kernel, programs and runtimes with their known vulnerabilities, ports, disk, clock,
    addresses and certificates as other machines see them, etcd, nodes, mesh, peers of the market, routes,
    contexts, leftovers of Skerrys that do not run, and without root what an ordinary user may do here. It
    works with and without a running Skerry, and with and without root; what cannot be checked is skipped.
    Nothing is changed.

    Exit code 0: no problem, maybe warnings; 1: a problem.

    \b
      skerry doctor
      sudo skerry doctor -q
      skerry doctor --json
    """
    from skerry.cli import settings as reading
    from skerry.cli.doctor import diagnosis

    settings = reading.load(reading.parse_assignments(assignments), config)
    folder = discovery.data_folder(target.data or settings.data)
    found = diagnosis.diagnose(target, settings, folder)
    counts = {status.value: sum(each.status is status for each in found) for status in FindingStatus}
    if quiet:
        found = [each for each in found if each.status in (FindingStatus.WARNING, FindingStatus.PROBLEM)]
    if is_json or output == "json":
        document: dict[str, Any] = {"findings": [each._asdict() for each in found], "counts": counts}
        printing.as_json(document)
    else:
        _show(_without_many_leftovers(found))
        _show_counts(counts)
    if counts[FindingStatus.PROBLEM]:
        raise SystemExit(1)


def _without_many_leftovers(found: list[Finding]) -> list[Finding]:
    """On a machine where many Skerrys were killed, as by tests, the screen is for other findings too."""
    left = [each for each in found if each.area == "leftovers"]
    if len(left) <= _MOST_LEFTOVERS:
        return found
    dropped = left[_MOST_LEFTOVERS:]
    message = f"and {len(dropped)} more findings like these"
    rest = Finding("leftovers", FindingStatus.WARNING, message, "skerry doctor --json shows all")
    return [rest if each is dropped[0] else each for each in found if each not in dropped[1:]]


def _show(found: list[Finding]) -> None:
    """A line for each, wrapped where the screen ends; fixes are indented below."""
    width = max(_NARROW, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 0
    widest = max((len(each.area) for each in found), default=0)
    indent = " " * (len(FindingStatus.PROBLEM) + widest + 4)
    for each in found:
        status = f"{each.status.value:<{len(FindingStatus.PROBLEM)}}"
        lines = _wrap(f"{each.area:<{widest}}  {each.message}", width, indent)
        printing.styled_start(status, f"  {lines}", fg=_COLOURS[each.status])
        if each.fix:
            click.echo(f"{indent}fix: {_wrap(each.fix, width, indent + '     ')}")


def _wrap(text: str, width: int, indent: str) -> str:
    if not width:
        return text
    lines = textwrap.wrap(
        text, max(20, width - len(indent) - 1), break_on_hyphens=False, break_long_words=False
    )
    return f"\n{indent}".join(lines)


def _show_counts(counts: dict[str, int]) -> None:
    words = {"ok": "ok", "warning": "warning", "problem": "problem", "skipped": "skipped"}
    plural = {"warning", "problem"}
    click.echo()
    click.echo(
        ", ".join(
            f"{counts[status]} {word}{'s' if status in plural and counts[status] != 1 else ''}"
            for status, word in words.items()
        )
    )
