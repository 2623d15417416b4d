"""Contexts: servers that a person has named, with their credentials, in a file of their own.

`skerry.client.discovery` decides which of them is used, and where the file is; `skerry context` changes it.
The file has mode 0600, because it contains tokens, and is replaced as a whole. A context contains the CA
certificate itself rather than its path, so that it does not depend on another file.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from skerry.client.errors import InvalidTarget

FILE: Final = "contexts.json"
LOCAL: Final = "local"  # the name of no context: the Skerry of this machine
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OPEN_TO_OTHERS: Final = 0o077


class ServerContext(NamedTuple):
    """A server with its credentials; `ca` is PEM."""

    name: str
    url: str
    token: str = ""
    ca: str = ""

    def __repr__(self) -> str:
        return f"ServerContext({self.name!r}, {self.url!r})"  # no token in a log or a traceback


class ContextFile(NamedTuple):
    """All contexts by name, and the current one; `current` is `local` if none was chosen."""

    contexts: dict[str, ServerContext]
    current: str = LOCAL

    def find(self, name: str, source: str) -> ServerContext | None:
        """The context `name`, None for `local`; `source` is who named it."""
        if name == LOCAL:
            return None
        if name not in self.contexts:
            raise InvalidTarget(
                f"{source} names the context '{name}', which does not exist. "
                "'skerry context list' lists them, 'skerry context add' adds one."
            )
        return self.contexts[name]


def check_name(name: str) -> str:
    if name == LOCAL:
        raise InvalidTarget(f"'{LOCAL}' is the Skerry of this machine; choose another name for a context.")
    if not _NAME.fullmatch(name):
        raise InvalidTarget(
            f"'{name}' is not a name for a context: it has letters, digits, dots, dashes and underscores, "
            "63 at most."
        )
    return name


def read(path: Path) -> ContextFile:
    """The file at `path`; empty if there is none."""
    try:
        return _parse(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return ContextFile({})
    except OSError as error:
        raise InvalidTarget(f"The contexts in {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InvalidTarget(
            f"{path} is not a valid file of contexts ({error}). Mend it, or remove it and add them again."
        ) from None


def is_open_to_others(path: Path) -> bool:
    """Whether other users may read the file, and the tokens in it."""
    try:
        return bool(path.stat().st_mode & _OPEN_TO_OTHERS)
    except OSError:
        return False


@contextmanager
def changing(path: Path) -> Iterator[ContextFile]:
    """Read the file while no other command changes it; `write` is called inside."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield read(path)
    except OSError as error:
        raise InvalidTarget(f"The contexts in {path} cannot be written: {error.strerror}.") from None


def write(path: Path, file: ContextFile) -> None:
    """Replace the file. Raises OSError."""
    from skerry.kit import files  # commands that only read do not need it

    value = {
        "current": file.current,
        "contexts": {
            name: {"url": each.url, "token": each.token, "ca": each.ca}
            for name, each in sorted(file.contexts.items())
        },
    }
    files.write_atomically(path, json.dumps(value, indent=2).encode() + b"\n", files.PRIVATE)


def _parse(data: bytes) -> ContextFile:
    """Raises ValueError."""
    value = json.loads(data)
    found = value.get("contexts") if isinstance(value, dict) else None
    if not isinstance(found, dict):
        raise ValueError("it has no 'contexts'")
    contexts = {name: _context(name, fields) for name, fields in found.items()}
    current = value.get("current", LOCAL)
    if not isinstance(current, str):
        raise ValueError("its 'current' is not a string")
    return ContextFile(contexts, current)


def _context(name: str, fields: Any) -> ServerContext:
    if not isinstance(fields, dict):
        raise ValueError(f"the context '{name}' is not an object")
    known = {key: fields.get(key, "") for key in ("url", "token", "ca")}
    if not known["url"] or not all(isinstance(text, str) for text in known.values()):
        raise ValueError(f"the context '{name}' has no url, or a field that is not a string")
    return ServerContext(name, **known)
