"""Parts of commands: groups of options, and groups of commands with aliases or a default command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from skerry.kit import terminal_text

if TYPE_CHECKING:
    from skerry.client.api import ApiClient
    from skerry.client.discovery import TargetOptions
    from skerry.client.node_socket import NodeSocket

F = TypeVar("F", bound=Callable[..., Any])


def option_group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Give a command all of `options`; `--help` shows them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class FieldOptions:
    """A group of options whose values are fields of a request body.

    Each parameter has the name of its field. Those that are not given are not sent: the server keeps the
    value that it has, or takes its default.
    """

    def __init__(self, *options: Callable[[Any], Any]) -> None:
        self._options = options
        declared = option_group(*options)(lambda: None)
        parameters: list[click.Parameter] = declared.__click_params__  # click keeps options there
        self._fields = [str(parameter.name) for parameter in reversed(parameters)]

    def __call__(self, command: F) -> F:
        return cast(F, option_group(*self._options)(command))

    def take(self, given: dict[str, Any]) -> dict[str, Any]:
        """The fields that are given; all of the group are removed from `given`."""
        values = {field: given.pop(field) for field in self._fields}
        return {
            field: list(value) if isinstance(value, tuple) else value
            for field, value in values.items()
            if value is not None and value != ()
        }


bound_namespaces = click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    help="Bind it to this namespace; repeatable, the first is its default. [default: the whole cloud]",
)


def option_object(name: str, make: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Give a command all of `options`; it gets one parameter `name`, which `make` builds from them."""
    parts = tuple(inspect.signature(make).parameters)

    def decorate(command: F) -> F:
        command = option_group(*options)(command)

        def wrapped(**given: Any) -> Any:
            return command(**{name: make(**{part: given.pop(part) for part in parts})}, **given)

        wrapped.__name__ = command.__name__
        wrapped.__doc__ = command.__doc__
        wrapped.__click_params__ = command.__click_params__  # type: ignore[attr-defined]  # click keeps options there
        return cast(F, wrapped)

    return decorate


def without_dashes(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    """The command line of another program, without a leading `--`."""
    given = given[1:] if given[:1] == ("--",) else given
    if parameter.required and not given:
        raise click.MissingParameter(ctx=context, param=parameter)
    return given


def refuse_before_verb(context: click.Context) -> None:
    """Refuse options of a group that are given before one of its commands: they would be ignored."""
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: write options of '{context.invoked_subcommand}' after that word.", context
        )


class AliasGroup(click.Group):
    """A group whose commands have aliases, such as `ls` for `list`; help shows one name of each."""

    def __init__(self, *arguments: Any, aliases: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._aliases = aliases

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_unknown = not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if is_unknown and not ctx.resilient_parsing:
            from skerry.cli import suggestions

            hint = suggestions.suggest(args[0], (*self.commands, *self._aliases), ctx.command_path)
            raise click.UsageError(f"Unknown command '{ctx.command_path} {args[0]}'; {hint}", ctx)
        return super().resolve_command(ctx, args)


class DefaultCommandGroup(AliasGroup):
    """A group that runs a default command if none is named; its options may follow the name of the group, and
    with `takes_argument` its argument, if that is not the name of a command."""

    def __init__(self, *arguments: Any, default: str, takes_argument: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._default = default
        self._takes_argument = takes_argument

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        is_default = not first or (first.startswith("-") and first not in ctx.help_option_names)
        if self._takes_argument and not first.startswith("-"):
            is_default = is_default or self.get_command(ctx, first) is None
        if is_default:
            args = [self._default, *args]
        return super().parse_args(ctx, args)


def _obey_controls(_ctx: click.Context, _param: click.Parameter, is_raw: bool) -> None:
    if is_raw:
        terminal_text.unprotect()


# Of every command that shows output of programs; the others accept it before the command.
raw = click.option(
    "--raw",
    is_flag=True,
    expose_value=False,
    callback=_obey_controls,
    help="Pass control characters to the terminal instead of showing them as ^[ or \\u009b.",
)


def _connect(options: TargetOptions, *, at_node: bool = False, namespace: str | None = None) -> ApiClient:
    # Imported here: these options are defined before the command is known.
    from skerry.client import discovery
    from skerry.client.api import ApiClient

    target = discovery.find(options, at_node=at_node)
    return ApiClient(target, lambda text: click.echo(text, err=True), namespace=namespace)


def target_options(
    url: str | None, context: str | None, data: str | None, token: str | None, ca: str | None
) -> TargetOptions:
    from skerry.client.discovery import TargetOptions

    return TargetOptions(url, data, token, ca, context)


def _server(
    url: str | None, context: str | None, data: str | None, token: str | None, ca: str | None
) -> ApiClient:
    return _connect(target_options(url, context, data, token, ca))


def _server_or_node(
    url: str | None, context: str | None, data: str | None, token: str | None, ca: str | None
) -> ApiClient:
    return _connect(target_options(url, context, data, token, ca), at_node=True)


def _functions(
    url: str | None,
    context: str | None,
    data: str | None,
    token: str | None,
    ca: str | None,
    namespace: str | None,
) -> ApiClient:
    return _connect(target_options(url, context, data, token, ca), at_node=True, namespace=namespace)


def _server_without_ca(
    url: str | None, context: str | None, data: str | None, token: str | None
) -> ApiClient:
    return _connect(target_options(url, context, data, token, None))


def _node(data: str | None, socket: str | None) -> NodeSocket:
    from skerry.client import node_socket

    return node_socket.find(data, socket)


_TARGET = option_group(
    click.option("--url", metavar="URL", help="Server: http://127.0.0.1:1323, unix:/PATH. [env: SKERRY_URL]"),
    click.option(
        "--context", metavar="CONTEXT", help="Server by the name of 'skerry context'. [env: SKERRY_CONTEXT]"
    ),
    click.option("--data", metavar="DIR", help="Data folder of a Skerry on this machine. [env: SKERRY_DATA]"),
    click.option(
        "--token", metavar="TEXT", help="Access token; your own Skerry needs none. [env: SKERRY_TOKEN]"
    ),
)
_CA = click.option("--ca", metavar="FILE", help="CA certificate of an https server. [env: SKERRY_CA]")

# Of commands that look for a server themselves: they get the options as `target`.
target = option_object("target", target_options, _TARGET, _CA)
# Of every command that talks to a server, which it gets as `server`.
server = option_object("server", _server, _TARGET, _CA)
# Of commands for functions, which a node with an HTTP address serves too; `functions` with a namespace.
server_or_node = option_object("server", _server_or_node, _TARGET, _CA)
functions = option_object(
    "server",
    _functions,
    _TARGET,
    _CA,
    click.option(
        "--namespace",
        metavar="NAME",
        envvar="SKERRY_NAMESPACE",
        help="Namespace.  [default: that of your token, or default] [env: SKERRY_NAMESPACE]",
    ),
)
# Of a command with its own `--ca`; the CA of the server can still be in the environment.
server_without_ca = option_object("server", _server_without_ca, _TARGET)
# Of every command that talks to the node of this machine, which it gets as `node`.
node = option_object(
    "node",
    _node,
    click.option(
        "--data",
        metavar="DIR",
        envvar="SKERRY_DATA",
        help="Data folder of the Skerry on this machine. [env: SKERRY_DATA]",
    ),
    click.option(
        "--socket",
        metavar="PATH",
        envvar="SKERRY_GRPC_SOCKET",
        help="gRPC socket of the node. [env: SKERRY_GRPC_SOCKET]",
    ),
)
