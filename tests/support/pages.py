"""Pages that containers serve on ports of this machine."""

from __future__ import annotations

import http.client
import socket

from tests.support.waiting import PATIENCE_S, eventually_sync


def get(port: int, host: str = "127.0.0.1") -> str:
    """The page that is served there."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def served(port: int) -> str:
    """The page, as soon as the container's server has got that far."""

    def found() -> str:
        try:
            return get(port)
        except (OSError, http.client.HTTPException):
            return ""

    return str(eventually_sync(found))


def nobody_listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False
