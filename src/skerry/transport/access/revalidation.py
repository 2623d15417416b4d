"""Streams that outlive what let them in: whoever has one is asked again and again whether it still counts.

A request is checked when it comes, and most are answered at once. Output that is followed, events, a program
in a container may go on for days, while the token is revoked or expires. Used by both servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from skerry.model.callers import Caller

RECHECK_S = 1.0


async def until_refused(authenticate: Callable[[], Caller]) -> NoReturn:
    """Raises what `authenticate` raises, soon after it would; never ends otherwise."""
    while True:
        await asyncio.sleep(RECHECK_S)
        authenticate()
