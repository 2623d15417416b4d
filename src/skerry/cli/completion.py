"""Completion in a shell: names of objects, read from the server while a person types.

`attach` is called by `skerry.cli.main` when a shell requests completions. What a parameter names is known
by its metavar (`INSTANCE`, `NODE...`), or, where that is only `NAME`, by its command. The server gets half a
second; whatever goes wrong, there are no completions and no message: a person is typing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from skerry.client.api import ApiClient

_TIMEOUT_S: Final = 0.5
_MOST: Final = "1000"  # names that are read
_SAFE: Final = re.compile(r"[\w@%+=:,./-]+")  # a shell may expand other characters

Names = Callable[["ApiClient", str | None], Iterable[str]]


def _listed(path: str, field: str = "") -> Names:
    """The names of the objects at `path`, of a namespace."""

    def names(server: ApiClient, namespace: str | None) -> Iterable[str]:
        found = server.get(path, limit=_MOST, namespace=namespace)
        return [one["name"] for one in found[field or f"{path}s"]]

    return names


def _nodes(server: ApiClient, namespace: str | None) -> Iterable[str]:
    return [one["name"] for one in server.get("node", limit=_MOST)["nodes"]]


def _namespaces(server: ApiClient, namespace: str | None) -> Iterable[str]:
    return [one["name"] for one in server.get("namespace")["namespaces"]]


def _functions(server: ApiClient, namespace: str | None) -> Iterable[str]:
    return [str(name) for name in server.get_list("function", namespace=namespace)]


def _peers(server: ApiClient, namespace: str | None) -> Iterable[str]:
    return [one["name"] for one in server.get("market", "peers")["peers"]]


def _alerts(server: ApiClient, namespace: str | None) -> Iterable[str]:
    return [one["name"] for one in server.get("alert")["alerts"]]


_BY_KIND: Final[dict[str, Names]] = {
    **{kind: _listed(kind) for kind in ("instance", "workload", "service", "volume")},
    "node": _nodes,
}
_BY_METAVAR: Final[dict[str, Names]] = {
    **{kind.upper(): names for kind, names in _BY_KIND.items()},
    "JOB": _listed("job"),
    "SCHEDULE": _listed("schedule"),
    "ROUTE": _listed("route"),
    "ALERT": _alerts,
    "SNAPSHOT": _listed("snapshot"),
    "FUNCTION": _functions,
    "NAMESPACE": _namespaces,
}
# Commands whose parameters are only called NAME; not those that create one.
_BY_COMMAND: Final[dict[tuple[str, ...], Names]] = {
    **{("secret", verb): _listed("secret") for verb in ("versions", "delete", "set")},
    **{("config", verb): _listed("config") for verb in ("versions", "delete", "get", "set")},
    **{("tls", verb): _listed("tls", "certificates") for verb in ("describe", "delete")},
    ("market", "peers", "remove"): _peers,
}
_OPTIONS: Final[dict[str, Names]] = {"--namespace": _namespaces, "--node": _nodes}


def attach(command: click.Command, *path: str) -> None:
    """Give the parameters of `command`, and of the commands below it, their completions."""
    for parameter in command.params:
        complete = _completer(parameter, path)
        if complete is not None:
            parameter.shell_complete = complete  # type: ignore[assignment, method-assign]
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            attach(below, *path, name)


def _completer(
    parameter: click.Parameter, path: tuple[str, ...]
) -> Callable[[click.Context, str], list[CompletionItem]] | None:
    metavar = (parameter.metavar or "").strip("[].")
    if metavar == "CONTEXT":
        return _complete_context
    if path in (("get",), ("describe",), ("delete",)) and isinstance(parameter, click.Argument):
        return _complete_kind if parameter.name == "kind" else _complete_of_kind
    if isinstance(parameter, click.Option):
        names = next((_OPTIONS[each] for each in parameter.opts if each in _OPTIONS), None)
    else:
        names = _BY_COMMAND.get(path) if metavar == "NAME" else None
    names = names or _BY_METAVAR.get(metavar)
    if names is None:
        return None
    chosen = names
    return lambda context, incomplete: _complete(chosen, context, incomplete)


def _complete_of_kind(context: click.Context, incomplete: str) -> list[CompletionItem]:
    kind = context.params.get("kind")
    names = None if kind is None else _BY_KIND.get(kind.word)
    return [] if names is None else _complete(names, context, incomplete)


def _complete_kind(context: click.Context, incomplete: str) -> list[CompletionItem]:
    return _items((f"{kind}s" for kind in _BY_KIND), incomplete)


def _complete_context(context: click.Context, incomplete: str) -> list[CompletionItem]:
    from skerry.client import contexts, discovery

    def names() -> Iterable[str]:
        return (contexts.LOCAL, *sorted(discovery.read_contexts().contexts))

    return _quietly(lambda: _items(names(), incomplete))


def _complete(names: Names, context: click.Context, incomplete: str) -> list[CompletionItem]:
    def complete() -> list[CompletionItem]:
        from skerry.client import discovery
        from skerry.client.api import ApiClient

        given = {name: context.params.get(name) for name in discovery.TargetOptions._fields}
        target = discovery.find(discovery.TargetOptions(**given))
        server = ApiClient(target, timeout_s=_TIMEOUT_S)
        return _items(names(server, _namespace(context)), incomplete)

    return _quietly(complete)


def _namespace(context: click.Context) -> str | None:
    found = context.params.get("namespace")
    return found if isinstance(found, str) else None


def _items(names: Iterable[Any], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    fitting = {str(name) for name in names if str(name).startswith(incomplete)}
    return [CompletionItem(name) for name in sorted(fitting) if _SAFE.fullmatch(name)]


def _quietly(complete: Callable[[], list[CompletionItem]]) -> list[CompletionItem]:
    try:
        with redirect_stderr(StringIO()):
            return complete()
    except Exception:  # noqa: BLE001 - nothing may appear on the line that a person types
        return []
