"""Write the files that are made from code: references in docs/ and protobuf stubs.

`python scripts/generate.py` writes them; `--check` only says which are out of date and exits with 1. The
files are committed, so that a reader and an installed Skerry need none of the tools that make them.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import protos, walks  # noqa: E402 - the path above makes it importable

SETTINGS_OPENING = """\
# Settings

Every knob with its default. Flags win over environment variables, these over the settings file, this over the
defaults. A file is named with `--config` or `SKERRY_CONFIG`; otherwise `~/.config/skerry/skerry.toml` and
then `/etc/skerry/skerry.toml` are read if they exist. In the file `http.listen` is the key `listen` of the
table `[http]`; on the command line any knob can be given as `--set http.listen=127.0.0.1:8080`. An unknown
key or variable is an error that names the nearest known one.

This page is generated from `src/skerry/model/settings.py`.

| key | variable | default | range | meaning |
|---|---|---|---|---|"""

CLI_OPENING = """\
# Command line

The help of every verb, as `skerry VERB --help` prints it. Exit codes: 0 done, 1 refused or failed, 2 wrong
usage, 3 no server reached, 130 interrupted.

This page is generated from `src/skerry/cli/`.
"""

METRICS_OPENING = """\
# Metrics

Every metric of `/metrics`, which [monitoring](monitoring.md) describes. Those of `process_` are of the
Prometheus client library. A server and a node each have those of their parts. Names and labels stay as they
are; new ones may be added.

This page is generated from the declarations in `src/skerry/`.

| name | type | labels | meaning |
|---|---|---|---|"""

WALKS_OPENING = """\
# Walks

What the system is for, as call chains: module, then function, with paths below `src/skerry`. A picture has
one column per room, and per process or cloud where there are several. A full arrow head is a call, an open
one a message, a watch or a queue. The table has the functions of each step in the order in which they are
entered, and how the first is reached.

This page is generated from `docs/walks/`. Every function that is named exists, and is named by the one that
calls it: `make check` fails if it does not.
"""


def settings_reference() -> str:
    """docs/settings.md: every knob."""
    from skerry.model.settings import setting_fields

    lines = [SETTINGS_OPENING]
    for knob in setting_fields().values():
        bounds = [
            f"{sign} {value:g}"
            for sign, value in (
                ("≥", knob.meta.ge),
                (">", knob.meta.gt),
                ("≤", knob.meta.le),
                ("<", knob.meta.lt),
            )
            if value is not None
        ]
        cells = (f"`{knob.key}`", f"`{knob.variable}`", f"`{json.dumps(knob.default)}`", ", ".join(bounds))
        lines.append(f"| {' | '.join(cells)} | {knob.meta.description} |")
    return "\n".join(lines) + "\n"


def cli_reference() -> str:
    """docs/cli.md: the help of every verb."""
    import click

    from skerry.cli import main

    lines = [CLI_OPENING.rstrip()]
    wide = {"max_content_width": 100}

    def describe(command: click.Command, name: str, parent: click.Context | None) -> None:
        context = click.Context(
            command, info_name=name, parent=parent, terminal_width=100, **(command.context_settings or wide)
        )
        lines.extend(
            ["", f"## {context.command_path}", "", "```text", command.get_help(context).rstrip(), "```"]
        )
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None
                describe(found, child, context)

    describe(main.cli, "skerry", None)
    return "\n".join(lines) + "\n"


def walks_page() -> str:
    """docs/walks.md: the walks, drawn."""
    files = sorted((ROOT / "docs" / "walks").glob("*.toml"))
    return WALKS_OPENING + "\n" + walks.page([walks.load(file, ROOT / "src" / "skerry") for file in files])


def import_everything() -> None:
    """Import every module but the one that runs, so that all metrics are declared."""
    import skerry

    for module in pkgutil.walk_packages(skerry.__path__, "skerry."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def metrics_reference() -> str:
    """docs/metrics.md: every metric."""
    from skerry.kit import metrics

    import_everything()
    lines = [METRICS_OPENING]
    for name, family in sorted(metrics.DECLARED.items()):
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{name}` | {family.kind} | {labels} | {family.help_text} |")
    return "\n".join(lines) + "\n"


def openapi() -> str:
    """docs/openapi.json: the HTTP API."""
    from skerry.daemon.openapi import openapi_document

    return json.dumps(openapi_document(), indent=2, ensure_ascii=False) + "\n"


def generated() -> dict[Path, bytes]:
    """Every generated file with what it should hold."""
    made = {
        ROOT / "docs" / "settings.md": settings_reference().encode(),
        ROOT / "docs" / "cli.md": cli_reference().encode(),
        ROOT / "docs" / "metrics.md": metrics_reference().encode(),
        ROOT / "docs" / "openapi.json": openapi().encode(),
        ROOT / "docs" / "walks.md": walks_page().encode(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for path in protos.compile_into(Path(scratch)):
            made[protos.HOME / path.relative_to(scratch)] = path.read_bytes()
    return made


def main(arguments: list[str]) -> int:
    try:
        made = generated()
    except walks.WalkError as error:
        print(f"docs/walks/{error}", file=sys.stderr)
        return 1
    stale = [path for path, data in made.items() if not path.exists() or path.read_bytes() != data]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date; 'make fix' writes it anew", file=sys.stderr)
        return 1 if stale else 0
    for path, data in made.items():
        if path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
