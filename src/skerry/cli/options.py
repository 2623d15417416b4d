"""What commands are put together from: several options as one decorator, and other names for verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Give a command all of `options`; `--help` shows them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class Aliases(click.Group):
    """A group whose verbs are also known by the names that people's fingers know; help shows one of them."""

    def __init__(self, *arguments: Any, aliases: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._aliases = aliases

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._aliases.get(cmd_name, cmd_name))
