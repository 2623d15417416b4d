"""Finds the Python and Node.js interpreters for functions on this machine, once when the agent starts.

A worker runs as a user of its own and does not see home folders, so an interpreter in one, as with pyenv and
nvm, is unusable: then the system's is used. Of one anywhere else outside /usr, workers see its folders of
programs and libraries only. If there is none, functions of that runtime fail with the reason; the agent
starts nevertheless.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import child_process
from skerry.model import errors
from skerry.node.launcher.specs import ENVIRONMENT

_INVISIBLE: Final = ("/dev", "/home", "/proc", "/root", "/run", "/tmp", "/var/tmp")  # noqa: S108 - in a worker
_PROBE_S: Final = 20.0
_LEAST_PYTHON: Final = (3, 11)
_LEAST_NODE: Final = (16,)
_PYTHON_PROBE: Final = (
    "import os, sys; print(sys.version.split()[0]); print(os.path.dirname(os.__file__)); "
    "print(sys.base_prefix); print(sys.base_exec_prefix)"
)
_PARTS: Final = ("bin", "lib", "lib64")  # of an installation: all that it needs to run


class Interpreter(msgspec.Struct, frozen=True):
    """An interpreter that workers can run."""

    path: str
    version: str  # for people: `Python 3.11.2`
    needs: tuple[str, ...] = ()  # host paths that a worker must see; none for one in /usr


_Attempt = Callable[[str], Awaitable[Interpreter]]


class InterpreterUnusable(Exception):
    """Why a program cannot be used."""


async def find_python() -> Interpreter:
    """The interpreter that runs Skerry, or else the system's. Raises Unavailable."""
    own = getattr(sys, "_base_executable", None) or sys.executable
    found = await _first_of([own, _look_up("python3")], _try_python)
    if isinstance(found, Interpreter):
        return found
    raise errors.Unavailable(
        f"Python functions cannot run here ({found}); install Python {_text(_LEAST_PYTHON)} or later where "
        "all users can read it, as the package python3 does, and restart Skerry"
    )


async def find_node() -> Interpreter:
    """Raises Unavailable."""
    found = await _first_of([_look_up("node"), _look_up("nodejs")], _try_node)
    if isinstance(found, Interpreter):
        return found
    raise errors.Unavailable(
        f"Node.js functions cannot run here ({found}); install Node.js {_text(_LEAST_NODE)} or later where "
        "all users can read it, as the package nodejs does, and restart Skerry"
    )


async def _first_of(paths: Iterable[str | None], attempt: _Attempt) -> Interpreter | str:
    reasons = []
    for path in dict.fromkeys(path for path in paths if path):
        try:
            return await attempt(path)
        except InterpreterUnusable as error:
            reasons.append(f"{path} {error}")
    return "; ".join(reasons) or "not installed"


async def _try_python(path: str) -> Interpreter:
    real = _visible_path(path)  # before it is run, which takes longer
    version, library, *prefixes = (await _run(path, "-I", "-S", "-c", _PYTHON_PROBE)).splitlines()
    _check_version(version, _LEAST_PYTHON)
    _visible_path(library)
    return Interpreter(real, f"Python {version}", _needs(real, prefixes))


async def _try_node(path: str) -> Interpreter:
    version = (await _run(path, "--version")).strip().removeprefix("v")
    _check_version(version, _LEAST_NODE)
    real = _visible_path(path)
    return Interpreter(real, f"Node.js {version}", _needs(real, [str(Path(real).parent.parent)]))


def _needs(program: str, prefixes: Iterable[str]) -> tuple[str, ...]:
    """The existing paths of installations at `prefixes` that cells do not see by default."""
    parts = [Path(prefix).resolve() / part for prefix in dict.fromkeys(prefixes) for part in _PARTS]
    every = [Path(program), *(part for part in parts if part.is_dir())]
    return tuple(str(path) for path in every if not path.resolve().is_relative_to("/usr"))


async def _run(*command: str) -> str:
    try:
        process = await child_process.start(command, stdout=child_process.PIPE, env={})
    except OSError as error:
        raise InterpreterUnusable(f"does not start: {error.strerror}") from error
    try:
        async with asyncio.timeout(_PROBE_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise InterpreterUnusable(f"does not print its version within {_PROBE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise InterpreterUnusable(f"exits with {process.returncode} instead of printing its version")
    return output.decode(errors="replace")


def _check_version(version: str, least: tuple[int, ...]) -> None:
    numbers = tuple(int(part) for part in version.split(".")[: len(least)] if part.isdigit())
    if numbers < least:
        raise InterpreterUnusable(f"has version {version}, and {_text(least)} is required")


def _visible_path(path: str) -> str:
    """Its real path, which a worker must see and be able to reach through every folder."""
    real = Path(path).resolve()
    for each in (real, *real.parents):
        if str(each) in _INVISIBLE:
            raise InterpreterUnusable(f"is in {each}, which workers do not see")
        try:
            mode = os.stat(each).st_mode
        except OSError as error:
            raise InterpreterUnusable(f"cannot be read: {error.strerror}") from error
        if not mode & stat.S_IXOTH:
            raise InterpreterUnusable(f"is not accessible to all users, because of {each}")
    return str(real)


def _look_up(name: str) -> str | None:
    return shutil.which(name, path=ENVIRONMENT["PATH"])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
