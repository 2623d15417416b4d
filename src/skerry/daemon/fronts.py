"""The front processes of a server or a node, as `functions.fronts` has them.

What listens with TLS has none: TLS is ended by the process that has the certificate, and so are its requests.
"""

from __future__ import annotations

import structlog

from skerry.daemon.role_parts import RoleContext
from skerry.transport.http.front_pool import FrontPool, front_count

log = structlog.get_logger(__name__)


def open_fronts(context: RoleContext, *, tls: bool) -> FrontPool | None:
    """The fronts of a listener, which are started when there are calls for them; None without."""
    settings = context.settings
    count = front_count(settings.functions.fronts)
    if not count:
        return None
    if tls:
        if settings.functions.fronts > 0:
            log.warning("fronts.off", why="the listener has TLS, which fronts do not")
        return None
    pool = FrontPool(count, keep_alive_s=settings.http.keep_alive_s)
    context.undo.push_async_callback(pool.stop)
    log.info("fronts.on", fronts=count)
    return pool
