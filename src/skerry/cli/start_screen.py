"""What a person sees who starts Skerry at a terminal: the steps of the start, where it is, and what to try.

Used by `skerry.cli.commands.daemon`. Nothing is printed if standard output is not a terminal. If the log is
on a terminal too, only warnings are shown during the start, and no details of single cells, connections and
packets after it; `--log text` shows every line, and files and pipes always get every line.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from skerry import __version__
from skerry.cli import output as printing
from skerry.client import discovery

if TYPE_CHECKING:
    from skerry.daemon.process import ReadyDocument


class Example(NamedTuple):
    """A command to try, without the name of the program."""

    arguments: str
    summary: str


_WEB: Final = Example(
    "run --name web -p 8080:80 $(skerry image sample)", "run a sample web server on port 8080"
)
_CONSOLE: Final = Example("console", "open the web console in a browser")
_STATUS: Final = Example("status", "what is served, and what is unavailable")
_TOP: Final = Example("top", "watch what runs")
_DOCTOR: Final = Example("doctor", "find what is wrong, and how to fix it")
_INVITE: Final = Example("token create --role node", "an invitation, by which a machine joins")
_NODES: Final = Example("get nodes", "the machines of this cloud")
_CONTAINERS: Final = Example("container list", "containers on this machine")

_SHOWN_HERE: Final = frozenset(
    {"containers.weakened", "runtime.unavailable"}
)  # as warnings, with the addresses
_DETAILS: Final = (
    *("call.", "cell.", "executable.", "grpc.", "http.", "init.", "network.", "request."),
    *("servers.", "services.rules_", "session."),
)


def is_shown_at_start(level: str, event: str) -> bool:
    return level not in ("debug", "info") and event not in _SHOWN_HERE


def is_shown_later(level: str, event: str) -> bool:
    return level != "info" or not event.startswith(_DETAILS)


class StartScreen:
    """Shows one start. `has_console`: there is a command `console`."""

    def __init__(self, role: str, folder: Path, log_style: str, *, has_console: bool) -> None:
        self._role = role
        self._folder = folder
        self._has_console = has_console
        self._began = time.monotonic()
        self._is_shown = sys.stdout.isatty()
        # Logs that are read by a program, or in a file, are complete.
        self._hides_logs = self._is_shown and log_style == "auto" and sys.stderr.isatty()

    def open(self) -> None:
        """Before anything is started; the imports are most of the time of a start."""
        if not self._is_shown:
            return
        is_first = not any((self._folder / name).exists() for name in ("pki", "node"))
        printing.styled(f"Skerry {__version__} is starting.", bold=True)
        click.echo(f"  {'first start, ' if is_first else ''}data folder {self._folder}")

    def hide_logs(self) -> None:
        if self._hides_logs:
            from skerry.kit import logs

            logs.show_only(is_shown_at_start)

    def step(self, text: str) -> None:
        if self._is_shown:
            click.echo(f"  {text}")

    def ready(self, ready: ReadyDocument) -> None:
        """What is served where, what is unavailable, and what to try; logs follow."""
        if self._is_shown:
            self._show(ready)
        if self._hides_logs:
            from skerry.kit import logs

            logs.show_only(is_shown_later)

    def _show(self, ready: ReadyDocument) -> None:
        click.echo()
        printing.styled(
            f"Skerry is up (pid {ready.pid}), after {time.monotonic() - self._began:.1f} s.", bold=True
        )
        if ready.joined:
            click.echo(f"  {ready.joined}")
        for name, value in (
            ("API", ready.http),
            *(("devices", url) for url in ready.urls),
            ("gRPC", ready.grpc),
            ("socket", ready.socket),
            ("plain", ready.plain and f"{ready.plain} (buyers without credentials)"),
            ("data", ready.data),
        ):
            if value:
                click.echo(f"  {name:<7} {value}")
        for sentence in ready.lacking:
            printing.styled(f"  unavailable: {sentence}", fg="yellow")
        for sentence in ready.warnings:
            printing.styled(f"  warning: {sentence}", fg="yellow")
        self._show_examples(ready)
        click.echo()
        more = "; its log follows, all of it with --log text" if self._hides_logs else ""
        click.echo(f"Ctrl-C stops Skerry; containers keep running until they are stopped{more}.")

    def _show_examples(self, ready: ReadyDocument) -> None:
        examples = _examples(self._role, can_run=not ready.lacking)
        if self._has_console and self._role != "node":
            examples = (*examples[:1], _CONSOLE, *examples[1:])
        click.echo()
        click.echo("Try this in another terminal:")
        if alias := _alias():
            click.echo(f"  {alias}")
        if self._folder != discovery.data_folder(None):
            click.echo(f"  export SKERRY_DATA={self._folder}")
        width = max(len(example.arguments) for example in examples)
        for example in examples:
            click.echo(f"  skerry {example.arguments:<{width}}   {example.summary}")


def _examples(role: str, *, can_run: bool) -> tuple[Example, ...]:
    if role == "node":
        return _CONTAINERS, _DOCTOR
    if role == "server":
        return _INVITE, _NODES, _DOCTOR
    return (_WEB if can_run else _STATUS), _TOP, _DOCTOR


def _alias() -> str:
    """The line by which a shell knows this program as `skerry`; empty if that is so already."""
    called, found = Path(sys.argv[0]), shutil.which("skerry")
    if called.name != "skerry" or (found and Path(found).resolve() == called.resolve()):
        return ""
    return f"alias skerry={shlex.quote(str(called.absolute()))}"
