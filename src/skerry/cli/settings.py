"""Settings, read once: flags over environment over a TOML file over defaults.

Everything else gets the frozen tree of `skerry.model.settings` passed in. An unknown key or variable is an
error that names the nearest known one, and every invalid value is reported with its source.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct, structs

from skerry.client import discovery
from skerry.kit import json_codec
from skerry.model.settings import SettingField, Settings, setting_fields

if TYPE_CHECKING:
    from skerry.kit.service_manager import ServiceManager

T = TypeVar("T", bound=Struct)

# Variables of the client side, which are not settings of a server.
_OTHERS = {"SKERRY_URL", "SKERRY_CONTEXT", "SKERRY_TOKEN", "SKERRY_CA", "SKERRY_CONFIG", "SKERRY_NAMESPACE"}


def load(
    flags: Mapping[str, Any], config: str | None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The tree for this start. `flags` are values by dotted key; None means the flag was not given."""
    environment = os.environ if environment is None else environment
    known = setting_fields()
    values: dict[str, Any] = {}
    named = config or environment.get("SKERRY_CONFIG")
    path = Path(named) if named else _config_file()
    if path is not None:
        values |= _from_file(path, known)
    values |= _from_environment(environment, known)
    for key, value in flags.items():
        if value is not None:
            field = known.get(key) or _unknown(key, known, "--set")
            values[key] = _checked(field, value, f"the flag for {key}", from_text=isinstance(value, str))
    return _replaced(Settings(), _nested(values))


def environment_variable(name: str) -> str | None:
    """The value of a variable that an option names."""
    return os.environ.get(name)


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """The values of `--set KEY=VALUE`, by key."""
    found = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes KEY=VALUE, not '{assignment}'")
        found[key.strip()] = value
    return found


def _from_file(path: Path, known: Mapping[str, SettingField]) -> dict[str, Any]:
    import tomllib  # compiles its patterns, which most starts do not need

    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise click.UsageError(f"The settings file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"The settings file {path} is not valid TOML: {error}") from None
    values = {}
    for key, value in flatten(tree):
        field = known.get(key) or _unknown(key, known, str(path))
        values[key] = _checked(field, value, f"'{key}' in {path}", from_text=False)
    return values


def _from_environment(environment: Mapping[str, str], known: Mapping[str, SettingField]) -> dict[str, Any]:
    by_variable = {field.variable: field for field in known.values()}
    values = {}
    for name, text in environment.items():
        if not name.startswith("SKERRY_") or name in _OTHERS:
            continue
        field = by_variable.get(name) or _unknown(name, [*by_variable, *_OTHERS], "the environment")
        values[field.key] = _checked(field, text, name, from_text=True)
    return values


def _checked(field: SettingField, value: Any, source: str, *, from_text: bool) -> Any:
    if from_text and isinstance(field.default, tuple):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return json_codec.convert(value, field.type, strict=not from_text)
    except json_codec.InvalidJson as error:
        raise click.UsageError(
            f"{source}: {str(error)[0].lower()}{str(error)[1:]} ({field.meta.description})"
        ) from None


def _unknown(key: str, known: Any, source: str) -> Any:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.4)
    hint = f" The nearest known one is '{near[0]}'." if near else ""
    raise click.UsageError(f"Unknown setting '{key}' in {source}.{hint} docs/settings.md lists them all.")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The values of nested tables by dotted key."""
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", value))
    return pairs


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *path, leaf = key.split(".")
        branch = tree
        for name in path:
            branch = branch.setdefault(name, {})
        branch[leaf] = value
    return tree


def _replaced(tree: T, values: Mapping[str, Any]) -> T:
    """`tree` with `values`, each of which is checked."""
    changed = {
        name: _replaced(getattr(tree, name), value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return structs.replace(tree, **changed)


def _config_file() -> Path | None:
    """The default settings file, if it exists."""
    own = discovery.config_folder()
    system = Path("/etc/skerry/skerry.toml")
    for path in (*([own / "skerry" / "skerry.toml"] if own else []), system):
        if path.is_file():
            return path
    return None


def service_manager() -> ServiceManager:
    """The service manager that started this process, with its sockets; its variables are removed."""
    from skerry.kit.service_manager import InvalidSockets, ServiceManager

    try:
        return ServiceManager.take(os.environ)
    except InvalidSockets as error:
        raise click.UsageError(f"The sockets of the service manager cannot be used: {error}") from None


def has_display() -> bool:
    """Whether a browser could show something to the person at this terminal."""
    if not sys.stdout.isatty() or os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
