"""Revalidation of the credentials of long streams, again and again.

A request is checked when it comes, and most end soon. Followed output, events or a program in a container may
last for days, while the token is revoked or expires. Used by both servers.
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
