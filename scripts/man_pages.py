"""Write the man pages: `skerry.1`, and one for every command, made from the help of the command line.

`python scripts/man_pages.py FOLDER` writes them there; `make install` calls it. They are not committed: they
are made from what is installed, and cannot be out of date.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import click  # noqa: E402 - the path above makes the next ones importable

from skerry import __version__  # noqa: E402
from skerry.cli import main as command_line  # noqa: E402

EXIT_STATUS = (
    ("0", "Done."),
    ("1", "Refused or failed."),
    ("2", "Wrong usage."),
    ("3", "No server reached."),
    ("130", "Interrupted."),
)
ENVIRONMENT = (
    ("SKERRY_URL", "The server, unless --url or --context is given."),
    ("SKERRY_CONTEXT", "The context, unless --url, --context, SKERRY_URL or --data is given."),
    ("SKERRY_DATA", "The data folder of the Skerry on this machine."),
    ("SKERRY_TOKEN", "The access token."),
    ("SKERRY_CA", "The CA certificate of the server."),
    ("SKERRY_NAMESPACE", "The namespace."),
    ("SKERRY_CONFIG", "The settings file of skerry up, server and node."),
)
FILES = (
    ("~/.config/skerry/contexts.json", "Contexts, with their tokens; see skerry-context(1)."),
    ("~/.config/skerry/skerry.toml, /etc/skerry/skerry.toml", "Settings of skerry up, server and node."),
    ("/var/lib/skerry, ~/.local/share/skerry", "The data folder, of root and of other users."),
)


def pages() -> dict[str, str]:
    """Every page by its file name."""
    root = command_line.cli
    context = click.Context(root, info_name="skerry")
    made = {"skerry.1": _root_page(root, context)}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        made[f"skerry-{name}.1"] = _command_page(command, name, context)
    return made


def _root_page(root: click.Group, context: click.Context) -> str:
    lines = _opening("skerry", "a small cloud on one machine, or many")
    lines += [".SH SYNOPSIS", ".B skerry", r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]..."]
    lines += [".SH DESCRIPTION", *_prose(root.help or "")]
    lines += [".PP", *_prose(root.epilog or "")]
    lines += [".SH OPTIONS", *_options(root, context)]
    for title, verbs in command_line.SECTIONS.items():
        lines.append(f".SH {_quoted(title.upper())}")
        for name, verb in verbs.items():
            lines += [".TP", rf"\fBskerry\-{_escape(name)}\fR(1)", _text(verb.summary)]
    lines += _closing([])
    return "\n".join(lines) + "\n"


def _command_page(command: click.Command, name: str, parent: click.Context) -> str:
    title = f"skerry-{name}"
    lines = _opening(title, command_line.VERBS[name].summary.rstrip("."))
    lines += [".SH SYNOPSIS"]
    context = click.Context(command, info_name=name, parent=parent)
    described = list(_walk(command, context))
    for index, (one, place) in enumerate(described):
        lines += [*([".br"] if index else []), _synopsis(one, place)]
    lines += [".SH DESCRIPTION", *_prose(command.help or "")]
    lines += [".SH OPTIONS", *_options(command, context)]
    if len(described) > 1:
        lines.append(".SH COMMANDS")
        for one, place in described[1:]:
            lines += [f".SS {_quoted(place.command_path)}", *_prose(one.help or ""), *_options(one, place)]
    lines += _closing([other for other in ("skerry", "skerry-doctor", "skerry-context") if other != title])
    return "\n".join(lines) + "\n"


def _walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _walk(below, click.Context(below, info_name=name, parent=context))


def _opening(title: str, summary: str) -> list[str]:
    small = summary[:1].lower() + summary[1:]
    return [
        f'.TH "{title.upper()}" "1" "{_day()}" "skerry {__version__}" "Skerry"',
        ".SH NAME",
        rf"{_escape(title)} \- {_text(small)}",
    ]


def _day() -> date:
    """Today, or the day of the release that is built."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.fromtimestamp(int(epoch), UTC).date() if epoch else date.today()


def _closing(also: list[str]) -> list[str]:
    lines = [".SH EXIT STATUS"]
    for code, meaning in EXIT_STATUS:
        lines += [".TP", rf"\fB{code}\fR", _text(meaning)]
    lines += [".SH ENVIRONMENT"]
    for name, meaning in ENVIRONMENT:
        lines += [".TP", rf"\fB{_escape(name)}\fR", _text(meaning)]
    lines += [".SH FILES"]
    for path, meaning in FILES:
        lines += [".TP", rf"\fI{_escape(path)}\fR", _text(meaning)]
    if also:
        lines += [".SH SEE ALSO", ",\n".join(rf"\fB{_escape(name)}\fR(1)" for name in also)]
    return lines


def _synopsis(command: click.Command, context: click.Context) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    return rf"\fB{_escape(context.command_path)}\fR {_escape(pieces)}"


def _options(command: click.Command, context: click.Context) -> list[str]:
    lines = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            lines += [".TP", rf"\fB{_escape(record[0])}\fR", _text(record[1])]
    return lines


def _prose(help_text: str) -> list[str]:
    r"""Paragraphs; those that begin with `\b` are kept as they are."""
    lines: list[str] = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(help_text))):
        if number:
            lines.append(".PP")
        if paragraph.startswith("\b"):
            lines += [".nf", *(_text(line) or r"\&" for line in paragraph.split("\n")[1:]), ".fi"]
        else:
            lines.append(_text(" ".join(paragraph.split())))
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")


def _text(text: str) -> str:
    """A line of text: no request of roff, whatever it begins with."""
    text = _escape(text)
    return rf"\&{text}" if text[:1] in (".", "'") else text


def _quoted(text: str) -> str:
    return '"' + _escape(text).replace('"', r"\(dq") + '"'


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: man_pages.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("skerry*.1"):  # of commands that are no more
        if old.name == "skerry.1" or old.name.startswith("skerry-"):
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
