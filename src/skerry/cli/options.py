"""Parts of commands: groups of options, and groups of commands with aliases or a default command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import click

from skerry.kit import terminal_text

F = TypeVar("F", bound=Callable[..., Any])


def option_group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Give a command all of `options`; `--help` shows them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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


class DefaultCommandGroup(AliasGroup):
    """A group that runs a default command if none is named; its options may follow the name of the group."""

    def __init__(self, *arguments: Any, default: str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
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
