"""Settings, read once: flags over environment over a TOML file over defaults.

Everything else gets the frozen tree of `skerry.model.settings` passed in. An unknown key or variable is an
error that names the nearest known one, and every invalid value is reported with its source.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from skerry.kit import json_codec
from skerry.model.settings import SettingField, Settings, setting_fields

# Variables of the client side, which are not settings of a server.
_OTHERS = {"SKERRY_URL", "SKERRY_TOKEN", "SKERRY_CA", "SKERRY_CONFIG", "SKERRY_NAMESPACE"}


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
    return json_codec.convert(_nested(values), Settings)


def _from_file(path: Path, known: Mapping[str, SettingField]) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise click.UsageError(f"The settings file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"The settings file {path} is not valid TOML: {error}") from None
    values = {}
    for key, value in _flat(tree):
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


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{name}.")
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


def _config_file() -> Path | None:
    """The default settings file, if it exists."""
    home = os.environ.get("XDG_CONFIG_HOME")
    own = [Path(home)] if home else _own_config_folder()
    for path in (*(folder / "skerry" / "skerry.toml" for folder in own), Path("/etc/skerry/skerry.toml")):
        if path.is_file():
            return path
    return None


def _own_config_folder() -> list[Path]:
    try:
        return [Path.home() / ".config"]
    except RuntimeError:
        return []  # a user without a home folder
