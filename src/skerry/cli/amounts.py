"""Amounts of cpu, memory and disk on the command line: `--cpu 0.5`, `--memory 256m`, `--disk 10g`.

Plain numbers are thousandths of a core, MB and GB; see `skerry.model.quantities`, which reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_METAVARS: Final = {"cpu": "MILLI|CORES", "memory": "MB|SIZE", "disk": "GB|SIZE"}
_PARSERS: Final = {"cpu": "parse_cpu", "memory": "parse_memory", "disk": "parse_disk"}


class Amount(click.ParamType["int", str]):
    """An amount of one resource, at least `least` of its unit."""

    def __init__(self, resource: str, *, least: int = 0) -> None:
        self.name = resource
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        # Imported here: options are defined before the command is known.
        from skerry.model import errors, quantities

        try:
            amount: int = getattr(quantities, _PARSERS[self.name])(str(value))
        except errors.Invalid as error:
            self.fail(error.message, param, ctx)
        if amount < self._least:
            self.fail(f"'{value}' is less than {self._least}", param, ctx)
        return amount


def option(resource: str, *, least: int = 0, help: str) -> Callable[[F], F]:
    """`--cpu`, `--memory` or `--disk` of a command."""
    return click.option(
        f"--{resource}", metavar=_METAVARS[resource], type=Amount(resource, least=least), help=help
    )
