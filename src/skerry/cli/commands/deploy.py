"""`skerry fn deploy`: create or update a function from code on this machine or from an image."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any, Final

import click

from skerry.cli import amounts, container_options, function_calls, function_package, image_references, options
from skerry.cli import output as printing
from skerry.cli.function_package import EntryPoint, FunctionPackage
from skerry.client.api import ApiClient, JsonObject

_CUSTOM: Final = "custom"
_MEMORY: Final = 128


@click.command()
@click.argument("path", metavar="[PATH]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--name", metavar="NAME", default="", help="Name.  [default: the name of the file]")
@click.option(
    "--handler",
    metavar="MODULE.FUNCTION",
    default="",
    help="Handler.  [default: 'handler', or the only function]",
)
@click.option(
    "--runtime",
    metavar="NAME",
    default="",
    help="Runtime: python, nodejs and others.  [default: by the code]",
)
@click.option("--image", metavar="IMAGE", default="", help="Image that serves POST /invoke on port 8080.")
@amounts.option("memory", least=1, help=f"Memory limit of each worker: 256 (MB), 1g.  [default: {_MEMORY}]")
@amounts.option(
    "cpu", help="CPU limit of each worker: 500 (millicores), 0.5; 0: no limit.  [default: no limit]"
)
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    help="Concurrent calls per worker.  [default: 1]",
)
@container_options.environment
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[:FILE]",
    help="Secret as a file in /run/secrets; repeatable.",
)
@click.option(
    "--secret-env",
    multiple=True,
    metavar="VARIABLE=NAME",
    help="Secret as an environment variable; repeatable.",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME[:FILE]",
    help="Config as a file in /run/configs; repeatable.",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    type=printing.Duration(),
    help="Timeout of a call: 0.5s, 2m.  [default: the node's]",
)
@click.option(
    "--network", type=click.Choice(["bridge", "none"]), help="Network; none has no connection at all."
)
@click.option("--policy", metavar="NAME", help="Offloading policy.  [default: the policy of each node]")
@click.option(
    "--idempotent/--not-idempotent",
    default=None,
    help="Whether a call that may have run may be retried.  [default: it may not]",
)
@click.option(
    "--web/--no-web",
    default=None,
    help="Whether the handler takes HTTP requests, at /web/NAME.  [default: it takes parameters]",
)
@click.option(
    "--template/--no-template",
    default=None,
    help="Whether workers may be copies of one that has loaded the code, on nodes that have templates.  "
    "[default: they may]",
)
@options.functions
@printing.option
def deploy(
    server: ApiClient,
    path: Path | None,
    name: str,
    handler: str,
    runtime: str,
    image: str,
    output: str,
    **settings: Any,
) -> None:
    """Deploy a function from a file, a folder or a tar archive; or from an image.

    PATH is a .py or .js file, a folder with the code and its dependencies, or a .tar that is sent
    unchanged. Of a folder everything is sent except .git, __pycache__ and the like. The code is loaded once
    before this command ends, so that load errors are reported now.

    If the function exists it is updated: running calls may finish, and calls that start later run the new
    code. Options that are not given keep their values; -e adds to the environment.

    \b
      skerry fn deploy hello.py
      skerry fn deploy --name shop --handler cart.total --memory 256 -e RATE=0.2 ./shop
      skerry fn deploy --network none --timeout 5s thumbnail.js
      skerry fn deploy --name sums --image oci-archive:sums.tar
      skerry fn deploy --secret-env API_KEY=api-key mail.py
      skerry fn deploy --web --handler shop.app ./shop
    """
    if (path is None) == (not image):
        raise click.UsageError("Give either PATH with the code of the function, or --image.")
    package = function_package.pack(path) if path is not None else None
    name = name or (package.name if package is not None else _name_of(image))
    before = function_calls.find(server, name)
    entry = _entry(package, before, handler, runtime)
    cpu = settings["cpu"]
    given: JsonObject = {
        "MemoryMB": settings["memory"],
        "CPUDemand": None if cpu is None else cpu / 1000 or -1.0,
        "MaxConcurrency": settings["concurrency"],
        "TimeoutS": settings["timeout"],
        "Network": settings["network"],
        "Policy": settings["policy"],
        "Idempotent": settings["idempotent"],
        "Web": settings["web"],
        "Template": settings["template"],
        "Signature": None,  # of whoever registered it by the API
        "Secrets": [*settings["secrets"], *settings["secret_env"]] or None,
        "Configs": [*settings["configs"]] or None,
    }
    body = {
        "MemoryMB": _MEMORY,
        **{key: before[key] for key in given if before is not None and key in before},
        **{key: value for key, value in given.items() if value is not None},
        "Name": name,
        "Runtime": entry.runtime,
        "Handler": entry.handler,
        "CustomImage": image_references.resolve(image) if image else "",
        "Environment": _environment(
            before, container_options.variables(settings["env"], settings["env_file"])
        ),
        "TarFunctionCode": base64.b64encode(package.archive).decode() if package is not None else "",
    }
    with (
        function_calls.explain_call_errors(name),
        function_calls.print_if_slow(f"{name}: loading the code"),
    ):
        made = server.post("create" if before is None else "update", body=body, timeout=None)
    if output == "json":
        printing.as_json({**made, "Updated": before is not None, "Bytes": _size(package)})
        return
    click.echo(f"{_done(made, before)}: {_summary(body, made, package)}")
    if (made.get("Copies") or 0) < (made.get("CopiesWanted") or 0):
        click.echo(
            "Only one member has its code: no other was reachable. It is copied as soon as one is.",
            err=True,
        )
    hint = f"It answers HTTP requests at /web/{name}." if body.get("Web") else ""
    click.echo(hint or f"Call it with 'skerry fn invoke {name}'.", err=True)


def _entry(
    package: FunctionPackage | None, before: JsonObject | None, handler: str, runtime: str
) -> EntryPoint:
    """In this order: what was given, the present handler if the code still has it, a guess by the code."""
    if package is None:
        return EntryPoint(_CUSTOM, handler)
    kept = before["Handler"] if before is not None and before["Runtime"] != _CUSTOM else ""
    for chosen in filter(None, (handler, kept)):
        if found := function_package.runtime_of(package, chosen):
            return EntryPoint(runtime or found, chosen)
    if handler:
        if not runtime:
            raise click.UsageError(
                f"The code has no file for the handler '{handler}'; correct --handler, or give --runtime."
            )
        return EntryPoint(runtime, handler)
    guessed = function_package.guess(package)
    return EntryPoint(runtime or guessed.runtime, guessed.handler)


def _environment(before: JsonObject | None, given: list[str]) -> list[str]:
    kept = before["Environment"] if before is not None else []
    return list({each.partition("=")[0]: each for each in (*kept, *given)}.values())


def _name_of(image: str) -> str:
    """The last part of a reference, without its tag."""
    _, _, path = image_references.resolve(image).partition("@")[0].rstrip("/").rpartition("/")
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.partition(":")[0].removesuffix(".tar")) or image


def _done(made: JsonObject, before: JsonObject | None) -> str:
    return (
        f"deployed {made['Created']}"
        if before is None
        else f"updated {made['Created']} to version {made['Version']}"
    )


def _summary(body: JsonObject, made: JsonObject, package: FunctionPackage | None) -> str:
    if package is None:
        return f"{body['CustomImage']}, {body['MemoryMB']}MB"
    files = f"{len(package.files)} file{'' if len(package.files) == 1 else 's'}"
    size = printing.size(_size(package))
    return f"{body['Handler']}, {made['Runtime']}, {body['MemoryMB']}MB; {files}, {size}"


def _size(package: FunctionPackage | None) -> int:
    return 0 if package is None else len(package.archive)
