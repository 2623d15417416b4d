"""Pages that containers serve on ports of this machine."""

from __future__ import annotations

import http.client
import socket

from tests.support.waiting import eventually_sync


def get(port: int) -> str:
    """The page that is served there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
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

    return str(eventually_sync(found, within=20))


def nobody_listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False
