"""Where a log comes from, as forwarded lines name it."""

from __future__ import annotations

import enum

import msgspec


class LogOriginKind(enum.StrEnum):
    """What wrote it."""

    INSTANCE = "instance"
    FUNCTION = "function"
    CONTAINER = "container"  # of a user of the node
    CELL = "cell"  # an executable in a cell
    PROCESS = "process"  # Skerry itself


class LogOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What wrote a log. Each field is a label; empty ones are left out."""

    kind: LogOriginKind
    namespace: str = ""
    instance: str = ""  # its id
    name: str = ""  # of the instance, container or executable
    function: str = ""
    service: str = ""  # that the instance is of
    job: str = ""  # likewise
    cell: str = ""

    def labels(self) -> dict[str, str]:
        """At most eight; their number does not depend on what a program writes."""
        return {field: str(value) for field, value in msgspec.structs.asdict(self).items() if value}
