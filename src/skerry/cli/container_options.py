"""Options of `skerry container run` and `create`, and the request that is built from them.

`skerry run` shares some of them. The node validates values; here only what cannot be sent is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skerry.cli import amounts, image_references, instance_options
from skerry.cli import output as printing
from skerry.cli.errors import to_click
from skerry.cli.options import option_group, without_dashes
from skerry.client.errors import ApiError, NodeError
from skerry.kit import ulid

if TYPE_CHECKING:
    from skerry.transport.proto.containers_pb2 import CreateRequest

# Fields of the spec by option, where their names differ.
_FIELDS: Final = {
    "cpu": "cpu_milli",
    "memory": "memory_mb",
    "disk": "disk_gb",
    "workdir": "folder",
    "hostname": "host_name",
    "stop_grace": "stop_grace_s",
}
_NOT_RUN: Final = 125
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127
_LETTERS: Final = 6

environment = option_group(
    click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Environment variable; repeatable."),
    click.option(
        "--env-file",
        multiple=True,
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="File with a KEY=VALUE on each line; repeatable.",
    ),
)
arguments = option_group(
    click.argument("image", metavar="IMAGE"),
    click.argument(
        "command", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED, callback=without_dashes
    ),
)
essentials = option_group(
    click.option(
        "--name", metavar="NAME", default="", help="Name.  [default: generated from the image's name]"
    ),
    environment,
    instance_options.publish("the container", "the node"),
    amounts.option("cpu", least=1, help="CPU: 0.2 or 200 (millicores) is a fifth of a core."),
    amounts.option("memory", least=1, help="Memory limit: 256 (MB), 256m, 1g."),
    amounts.option("disk", least=1, help="Limit of the writable layer."),
    click.option(
        "--userns",
        type=click.Choice(["private", "host"]),
        default="private",
        show_default=True,
        help="User namespace: its own, or the node's, which needs the role admin.",
    ),
)
options = option_group(
    essentials,
    click.option(
        "--pids",
        metavar="N",
        type=click.IntRange(min=1),
        help="Limit of processes and threads.  [default: the node's]",
    ),
    click.option(
        "-u", "--user", metavar="USER[:GROUP]", default="", help="User, and group.  [default: the image's]"
    ),
    click.option(
        "-w", "--workdir", metavar="DIR", default="", help="Working directory.  [default: the image's]"
    ),
    click.option("--hostname", metavar="NAME", default="", help="Host name.  [default: its name]"),
    click.option("--entrypoint", metavar="PROGRAM", default="", help="Entry point instead of the image's."),
    click.option(
        "--stop-signal",
        metavar="SIGNAL",
        default="",
        help="Stop signal.  [default: the image's, or SIGTERM]",
    ),
    click.option(
        "--stop-grace",
        metavar="DURATION",
        type=printing.Duration(allows_zero=True),
        help="Time between the stop signal and SIGKILL.  [default: the node's]",
    ),
    click.option(
        "--network",
        type=click.Choice(["bridge", "none"]),
        default="bridge",
        show_default=True,
        help="Network: an IP address of its own, or loopback only.",
    ),
    click.option("--read-only", is_flag=True, help="Read-only root file system."),
    click.option(
        "--pull",
        type=click.Choice(["always", "missing", "never"]),
        default="missing",
        show_default=True,
        help="When to pull the image.",
    ),
)


def request(image: str, command: tuple[str, ...], **given: Any) -> CreateRequest:
    """The request for the container that the options describe."""
    from skerry.transport.proto.containers_pb2 import ContainerSpec, CreateRequest

    pull, name, entrypoint = given.pop("pull"), given.pop("name"), given.pop("entrypoint")
    spec = ContainerSpec(
        name=name or name_for(image),
        image=image_references.resolve(image),
        entrypoint=[entrypoint] if entrypoint else [],
        arguments=command,
        environment=variables(given.pop("env"), given.pop("env_file")),
        network=f"NETWORK_{given.pop('network').upper()}",
        userns=f"USER_NAMESPACE_{given.pop('userns').upper()}",
        **{_FIELDS.get(option, option): value for option, value in given.items() if value is not None},
    )
    return CreateRequest(spec=spec, pull=f"PULL_{pull.upper()}")


def name_for(image: str) -> str:
    """A unique name that begins with that of the image."""
    path = image.partition("@")[0].rstrip("/").rpartition("/")[2] or image
    word = re.sub(r"[^a-z0-9]+", "-", path.partition(":")[0].partition(".")[0].lower()).strip("-")
    return f"{word[:40].strip('-') or 'container'}-{ulid.new_id(time.time())[-_LETTERS:]}"


def variables(given: tuple[str, ...], files: tuple[str, ...]) -> list[str]:
    """Every variable once: options override files, later ones earlier ones."""
    found: dict[str, str] = {}
    for name in files:
        for number, line in enumerate(_lines(name), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if "=" not in text:
                raise click.UsageError(f"{name}, line {number}: write KEY=VALUE.")
            found[text.partition("=")[0]] = text
    found.update((each.partition("=")[0], each) for each in given)
    return list(found.values())


def _lines(name: str) -> list[str]:
    try:
        return Path(name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name} cannot be read: {error}") from None


@contextmanager
def container_exit_codes() -> Iterator[None]:
    """Exit with 125 on errors, or with 126 and 127 if the program is not executable or not found."""
    try:
        yield
    except (NodeError, ApiError) as error:
        to_click(error).show()
        raise SystemExit(_code_of(error)) from None


def _code_of(error: NodeError | ApiError) -> int:
    """The OCI runtime reports why a program cannot be executed with a message only, without a code."""
    is_refused = error.status == "FAILED_PRECONDITION" or getattr(error, "code", "") == "refused"
    if is_refused:
        text = error.message.lower()
        if "executable file not found" in text or "no such file or directory" in text:
            return _NOT_FOUND
        if "permission denied" in text or "exec format error" in text or "is a directory" in text:
            return _NOT_EXECUTABLE
    return _NOT_RUN
