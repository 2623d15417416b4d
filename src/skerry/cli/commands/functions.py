"""`skerry fn`: functions, from a file on this machine to a call.

The commands use Serverledge's API with the additions of Skerry. `deploy` is a module of its own; parameters
and reports of calls are in `function_calls`.
"""

from __future__ import annotations

from typing import Final

import click

from skerry.cli import function_calls, instance_options, options
from skerry.cli import output as printing
from skerry.cli.commands import deploy
from skerry.cli.errors import ErrorCollector
from skerry.cli.options import AliasGroup, option_object, raw
from skerry.client.api import ApiClient, JsonObject

_COLUMNS: Final = ("name", "runtime", "handler", "memory", "cpu", "concurrency", "version", "age")


_params = option_object(
    "params",
    function_calls.params,
    click.option(
        "-p",
        "--param",
        "given",
        multiple=True,
        metavar="NAME:VALUE",
        help="A parameter: a string, or any JSON with NAME:=JSON, as in n:=3; repeatable.",
    ),
    click.option(
        "-j",
        "--json",
        "document",
        metavar="FILE|-|JSON",
        help="All parameters as one JSON object; - reads standard input.",
    ),
)
_qos = option_object(
    "qos",
    lambda qos_class, resptime: {"QoSClass": qos_class, "QoSMaxRespT": resptime or -1.0},
    click.option(
        "-c",
        "--class",
        "qos_class",
        metavar="N",
        type=click.IntRange(0, 255),
        default=0,
        show_default=True,
        help="QoS class of the call: each class has its share of the queue.",
    ),
    click.option(
        "--resptime",
        metavar="DURATION",
        type=printing.Duration(),
        help="Maximum response time; the call is ended after it.  [default: the function's]",
    ),
)


@click.group(cls=AliasGroup, aliases={"create": "deploy", "ls": "list", "rm": "delete", "call": "invoke"})
def fn() -> None:
    """Deploy functions and call them.

    A function is code with a handler. A call runs in a worker, which is kept warm for a while.

    \b
      def handler(params, context):                 hello.py
          return {"hello": params["name"]}

    \b
      skerry fn deploy hello.py
      skerry fn invoke hello -p name:world
      skerry fn logs -f hello
      skerry fn delete hello
    """


fn.add_command(deploy.deploy)


@fn.command(name="list")
@click.option("-q", "--quiet", is_flag=True, help="Names only; fast for any number of functions.")
@options.functions
@printing.option
def list_(server: ApiClient, quiet: bool, output: str) -> None:
    """List functions."""
    with function_calls.explain_call_errors(""):
        names = server.get_list("function")
        if quiet:
            printing.as_json(names) if output == "json" else _show_names(names)
            return
        with function_calls.print_if_slow(f"Reading {len(names)} functions one by one; -q shows names only."):
            found = [one for name in names if (one := function_calls.find(server, name)) is not None]
    if output == "json":
        printing.as_json({"count": len(found), "functions": found})
        return
    printing.table(_COLUMNS, [_row(one) for one in found])


@fn.command()
@click.argument("name", metavar="FUNCTION")
@options.functions
@printing.option
def describe(server: ApiClient, name: str, output: str) -> None:
    """Show the details of a function, without its code."""
    one = function_calls.require_function(server, name)
    warm = function_calls.warm_workers(server, one)
    if output == "json":
        printing.as_json({**one, "Warm": warm})
        return
    printing.table(printing.DETAILS, [(field, text) for field, text in _facts(one, warm) if text])


@fn.command()
@click.argument("name", metavar="FUNCTION")
@_params
@click.option(
    "-a", "--async", "is_async", is_flag=True, help="Asynchronous: print the id of the call and do not wait."
)
@click.option("--wait", is_flag=True, help="With --async: wait for the result.")
@click.option("--printed", is_flag=True, help="Show what the function printed, too, on standard error.")
@_qos
@raw
@options.functions
@printing.option
def invoke(
    server: ApiClient,
    name: str,
    params: bytes,
    qos: JsonObject,
    is_async: bool,
    wait: bool,
    printed: bool,
    output: str,
) -> None:
    """Call a function and print its result as JSON.

    If it fails, its traceback and output are printed on standard error and the exit code is 1. With --output
    json the whole report is printed, with times.

    \b
      skerry fn invoke hello -p name:world
      skerry fn invoke sum -p numbers:=[1,2,3]
      skerry fn invoke resize --json request.json
      echo '{"n": 3}' | skerry fn invoke square --json -
      skerry fn invoke report --async --wait
    """
    if wait and not is_async:
        raise click.UsageError("--wait needs --async; a synchronous call always waits.")
    body = function_calls.body(params, **qos, Async=is_async, ReturnOutput=printed or output == "json")
    with function_calls.print_if_slow(f"{name}: running"):
        reply = function_calls.call(server, name, body)
    if is_async and not wait:
        printing.as_json(reply) if output == "json" else click.echo(reply["ReqId"])
        return
    report = function_calls.result(server, reply["ReqId"]) if is_async else reply
    function_calls.show(name, report, output, with_printed=printed)


@fn.command()
@click.argument("request", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the call has ended.")
@click.option("--printed", is_flag=True, help="Show what the function printed, too, on standard error.")
@raw
@options.functions
@printing.option
def poll(server: ApiClient, request: str, wait: bool, printed: bool, output: str) -> None:
    """Print the result of an async call; ID is what 'skerry fn invoke --async' printed.

    The exit code is 1 if it failed or has not ended yet; the field State of --output json says which.
    """
    report = function_calls.result(server, request) if wait else function_calls.poll_call(server, request)
    if report["State"] in function_calls.PENDING:
        if output == "json":
            printing.as_json(report)
        raise function_calls.FunctionCallFailed(
            f"{request} is {report['State']}. Try again later, or wait for it with --wait."
        )
    function_calls.show(request, report, output, with_printed=printed)


@fn.command()
@click.argument("name", metavar="FUNCTION")
@click.option("-f", "--follow", is_flag=True, help="Follow the output, until Ctrl-C.")
@click.option(
    "-n",
    "--tail",
    metavar="N",
    type=click.IntRange(min=0),
    help="Show only the last N lines.",
)
@raw
@options.functions
def logs(server: ApiClient, name: str, follow: bool, tail: int | None) -> None:
    """Show the output of all workers of a function, ordered by time."""
    lines = None if tail is None else str(tail)
    with function_calls.explain_call_errors(name):
        for data in server.output("function", name, "logs", follow=str(follow).lower(), tail=lines):
            click.echo(data, nl=False)


@fn.command()
@click.argument("name", metavar="FUNCTION")
@click.argument("count", metavar="[COUNT]", type=click.IntRange(min=0), default=1)
@click.option("--pull", is_flag=True, help="Pull a newer image first.")
@options.functions
@printing.option
def prewarm(server: ApiClient, name: str, count: int, pull: bool, output: str) -> None:
    """Start COUNT warm workers, by default 1, so that the next calls need no cold start.

    With 0 only the image or code is fetched. The exit code is 1 if the resources suffice for fewer workers.
    """
    body = {"Function": name, "Instances": count, "ForceImagePull": pull}
    with (
        function_calls.explain_call_errors(name),
        function_calls.print_if_slow(f"{name}: starting workers"),
    ):
        reply = server.post("prewarm", body=body, timeout=None)
    made = int(reply["Prewarmed"])
    if output == "json":
        printing.as_json(reply)
    else:
        click.echo(f"{made} warm" if count else "fetched")
    if made < count:
        raise click.ClickException(f"{name}: resources suffice for {made} of {count} workers only.")


@fn.command()
@click.argument("names", metavar="FUNCTION...", nargs=-1, required=True)
@options.functions
def delete(server: ApiClient, names: tuple[str, ...]) -> None:
    """Delete functions. Running calls may finish; later calls are refused."""
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect(), function_calls.explain_call_errors(name):
                click.echo(f"deleted {server.post('delete', body={'Name': name})['Deleted']}")


@fn.command()
@options.server_or_node
@printing.option
def neighbours(server: ApiClient, output: str) -> None:
    """Show the other nodes that accept calls, as the server sees them.

    A call may be offloaded to one of them, depending on the policy (`functions.policy`).
    """
    seen = server.get_list("neighbours")
    if output == "json":
        printing.as_json(seen)
        return
    rows = [
        (
            one["Node"],
            one["Area"],
            one["Address"],
            "up" if one["Up"] else "down",
            "-" if one["RTT"] is None else f"{one['RTT'] * 1000:.1f}ms",
            f"{one['AvailableMemMB']}MB",
            f"{one['AvailableCPUs']:g}",
            str(one["QueueLength"]),
            str(one["Done"]),
            str(one["Refused"] + one["Lost"]),
        )
        for one in seen
    ]
    printing.table(
        ("node", "area", "address", "status", "rtt", "memory", "cpus", "queued", "completed", "failed"), rows
    )


def _show_names(names: list[str]) -> None:
    for name in names:
        click.echo(name)


def _row(one: JsonObject) -> tuple[str, ...]:
    return (
        one["Name"],
        one["Runs"],
        one["Handler"] or one["CustomImage"],
        f"{one['MemoryMB']}MB",
        _cpu(one) or "-",
        str(one["MaxConcurrency"]),
        str(one["Version"]),
        printing.age(one["UpdatedAt"]),
    )


def _cpu(one: JsonObject) -> str:
    return f"{one['CPUDemand'] * 1000:.0f}m" if one["CPUDemand"] > 0 else ""


def _copies(one: JsonObject) -> str:
    return "" if one.get("Copies") is None else f"{one['Copies']} of {one['CopiesWanted']} wanted"


def _facts(one: JsonObject, warm: int | None) -> list[tuple[str, str]]:
    return [
        ("name", one["Name"]),
        ("namespace", one.get("Namespace", "")),
        ("runtime", one["Runtime"]),
        ("runtime version", one["Runs"]),
        ("handler", one["Handler"]),
        ("image", one["CustomImage"]),
        ("code", one["Code"] or ""),
        ("code copies", _copies(one)),
        ("memory", f"{one['MemoryMB']}MB"),
        ("cpu", _cpu(one) or "no limit"),
        ("concurrency", f"{one['MaxConcurrency']} per worker"),
        # Names only: values may be secrets. JSON has them.
        ("environment", " ".join(each.partition("=")[0] for each in one["Environment"])),
        *instance_options.describe({key: one.get(key.title(), []) for key in ("secrets", "configs")}),
        ("network", one["Network"]),
        ("timeout", f"{one['TimeoutS']:g}s"),
        ("policy", one["Policy"] or "the node's"),
        ("idempotent", "yes" if one["Idempotent"] else "no"),
        ("web handler", "yes" if one.get("Web") else "no"),
        ("template", "no" if one.get("Template") is False else "yes"),
        ("version", str(one["Version"])),
        ("warm workers", "" if warm is None else str(warm)),
        ("created", printing.ago(one["CreatedAt"])),
        ("updated", printing.ago(one["UpdatedAt"]) if one["Version"] > 1 else ""),
    ]
