"""systemd of this machine, by its command `systemctl`. Used by the installer and the uninstaller."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from skerry.cli.install import units

_BOOTED: Final = Path("/run/systemd/system")
_QUICK_S: Final = 60.0
_START_S: Final = 900.0  # the unit has limits of its own, extended by each step of the start


def check_booted() -> None:
    """Refuse a machine whose service manager is not systemd."""
    if not _BOOTED.is_dir():
        raise click.ClickException(
            f"systemd is not the service manager of this machine: {_BOOTED} does not exist. Use --no-start "
            "to write the units all the same, for an image that is booted later; or let your service manager "
            "start 'skerry up', 'skerry server' or 'skerry node --join INVITATION' itself."
        )


def is_booted() -> bool:
    return _BOOTED.is_dir() and shutil.which("systemctl") is not None


def version() -> int:
    """Of systemd; 0 if it is not known."""
    if shutil.which("systemctl") is None:
        return 0
    found = re.match(r"systemd (\d+)", _run(["--version"], _QUICK_S).stdout)
    return int(found[1]) if found else 0


def reload() -> None:
    _checked(["daemon-reload"], _QUICK_S)


def stop(names: Sequence[str]) -> None:
    """Stop units, those that do not exist or do not run left out."""
    if names:
        _run(["stop", *names], _START_S)


def forget_failures() -> None:
    """Of units that are no more."""
    _run(["reset-failed", units.SERVICE], _QUICK_S)


def start(sockets: Sequence[str]) -> None:
    """Start the sockets, then the service anew; returns when it is ready."""
    if sockets:
        _checked(["start", *sockets], _QUICK_S)
    _checked(["restart", units.SERVICE], _START_S)


def recent_log() -> str:
    """The end of the service's log, for an error."""
    if shutil.which("journalctl") is None:
        return ""
    command = ["journalctl", "--unit", units.SERVICE, "--lines", "5", "--no-pager", "--output", "cat"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_QUICK_S)
    return done.stdout.strip()


def _checked(arguments: Sequence[str], within_s: float) -> None:
    done = _run(arguments, within_s)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise click.ClickException(
            f"'systemctl {' '.join(arguments)}' failed: {said}\n{recent_log()}\n"
            f"Everything is written, and systemd goes on trying. See: journalctl -u {units.SERVICE}"
        )


def _run(arguments: Sequence[str], within_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise click.ClickException("There is no 'systemctl' on the PATH; install systemd.") from None
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"'systemctl {' '.join(arguments)}' has not ended within {within_s:g} s."
        ) from None
