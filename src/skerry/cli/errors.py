"""Errors of the client at the command line: messages and exit codes.

Exit codes: 1 refused or failed, 2 wrong usage, 3 unreachable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import click

from skerry.client import node_socket
from skerry.client.errors import ClientError, InvalidTarget, NodeError, ServerUnreachable

if TYPE_CHECKING:
    from grpclib.client import Channel

S = TypeVar("S")


class _Unreachable(click.ClickException):
    exit_code = 3


class _WrongUsage(click.ClickException):
    exit_code = 2


def to_click(error: ClientError) -> click.ClickException:
    """`error` with its exit code."""
    if isinstance(error, ServerUnreachable):
        return _Unreachable(error.message)
    return (_WrongUsage if isinstance(error, InvalidTarget) else click.ClickException)(error.message)


class ErrorCollector:
    """For several objects in one command: errors are printed, and the exit code is 1 then."""

    def __enter__(self) -> ErrorCollector:
        self._is_any = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._is_any:
            raise SystemExit(1)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """For one of them."""
        try:
            yield
        except ServerUnreachable:
            raise  # the others would fail too
        except ClientError as error:
            self._show(to_click(error))
        except click.ClickException as error:
            self._show(error)

    def _show(self, error: click.ClickException) -> None:
        error.show()
        self._is_any = True


def call_node_each(
    node: node_socket.NodeSocket,
    service: Callable[[Channel], S],
    names: Sequence[str],
    work: Callable[[S, str], Awaitable[str]],
) -> None:
    """Do `work` for all `names` at once, and print each result; the exit code is 1 if one failed."""
    import asyncio  # a fifth of the start of commands that speak HTTP

    async def one(stub: S, name: str) -> str | NodeError:
        try:
            with node_socket.explain_node_errors(node):
                return await work(stub, name)
        except NodeError as error:
            return error

    async def all_of_them(stub: S) -> list[str | NodeError]:
        return await asyncio.gather(*(one(stub, name) for name in names))

    results = node_socket.call_node(node, service, all_of_them)
    with ErrorCollector() as failures:
        for result in results:
            with failures.collect():
                if isinstance(result, NodeError):
                    raise result
                click.echo(result)
