"""A port of this machine's loopback that leads to a machine of the demo: for console and command line.

    python -m skerry.demo.forwarder SOCKET_FD NETWORK_NAMESPACE HOST PORT

Bytes are passed on unread: TLS and credentials are between the caller and the server, which sees a caller
from another machine and requires a token.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from typing import Final

from skerry.node.kernel import namespaces

_CHUNK: Final = 64 * 1024
_CONNECT_S: Final = 10.0


async def forward(listener: socket.socket, host: str, port: int) -> None:
    """Connect every caller of `listener` with the server, for ever."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(accept, sock=listener)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


def main(descriptor: int, network: str, host: str, port: int) -> None:
    """Sockets that are made from here on are in the other namespace; the listener stays in its own."""
    listener = socket.socket(fileno=descriptor)
    namespace = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    namespaces.enter_namespace(namespace)
    os.close(namespace)
    asyncio.run(forward(listener, host, port))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
