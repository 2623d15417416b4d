"""The settings of logs; a part of `skerry.model.settings`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Logs of Skerry go to standard error; these and those of workloads can be forwarded."""

    level: Annotated[
        str, Meta(pattern="^(debug|info|warning|error)$", description="Lowest level that is logged")
    ] = "info"
    style: Annotated[
        str,
        Meta(
            pattern="^(auto|text|json)$",
            description="`text` for people, `json` for machines, `auto` by terminal",
        ),
    ] = "auto"
    forward: Annotated[
        tuple[str, ...],
        Meta(
            max_length=8,
            description="Targets to which this process forwards its own log and, on a node, those of its "
            "instances, functions, containers and cells: `file:/PATH`, `syslog://HOST:PORT`, "
            "`syslog:/dev/log`, `loki+https://HOST/loki/api/v1/push` (see logs.md)",
        ),
    ] = ()
    cloud: Annotated[
        str,
        Meta(
            max_length=63,
            description="Label `cloud` of forwarded lines; empty: the beginning of the fingerprint of its CA",
        ),
    ] = ""
    forward_buffer_mb: Annotated[
        int,
        Meta(
            ge=1,
            le=65536,
            description="Disk for logs of what was removed before they were forwarded; the oldest go first",
        ),
    ] = 64
