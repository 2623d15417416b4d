"""What commands are put together from: options that go together, and other names for verbs."""

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
    """Give a command all of `options`; they arrive as one, `name`, which `make` makes of them."""
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
    """A command line for somebody else, without the `--` that people of other tools put before it."""
    given = given[1:] if given[:1] == ("--",) else given
    if parameter.required and not given:
        raise click.MissingParameter(ctx=context, param=parameter)
    return given


def refuse_before_verb(context: click.Context) -> None:
    """Options of a group that also does something by itself, given before one of its verbs, would be lost."""
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: options of '{context.invoked_subcommand}' come after that word.", context
        )


class AliasGroup(click.Group):
    """A group whose verbs are also known by the names that people's fingers know; help shows one of them."""

    def __init__(self, *arguments: Any, aliases: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._aliases = aliases

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._aliases.get(cmd_name, cmd_name))


class DefaultCommandGroup(AliasGroup):
    """A group that does one of its verbs if none is named: its options may follow the group's own name."""

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


# For every verb that shows what programs have written; the others have it before the verb.
raw = click.option(
    "--raw",
    is_flag=True,
    expose_value=False,
    callback=_obey_controls,
    help="Let control characters through to the terminal, instead of showing them as ^[ or \\u009b.",
)
