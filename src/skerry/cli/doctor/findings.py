"""Findings: what a check has found, how bad it is, and the command that fixes it."""

from __future__ import annotations

import enum
from typing import NamedTuple


class FindingStatus(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # works, but not as well or as safely as it could
    PROBLEM = "problem"  # something does not work
    SKIPPED = "skipped"  # could not be checked


class Finding(NamedTuple):
    """One line of the report; `fix` is a command, or an instruction where no command can do it."""

    area: str
    status: FindingStatus
    message: str
    fix: str = ""


def ok(area: str, message: str) -> Finding:
    return Finding(area, FindingStatus.OK, message)


def warning(area: str, message: str, fix: str = "") -> Finding:
    return Finding(area, FindingStatus.WARNING, message, fix)


def problem(area: str, message: str, fix: str = "") -> Finding:
    return Finding(area, FindingStatus.PROBLEM, message, fix)


def skipped(area: str, message: str, fix: str = "") -> Finding:
    return Finding(area, FindingStatus.SKIPPED, message, fix)
