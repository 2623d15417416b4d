"""Calls by their bytes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from tests.support.cells import CellServer
from tests.support.certificates import SERVER_NAME
from tests.wire.grpc.raw import RawClient, framed

DOCUMENT = Path(__file__).parent / "document"


async def raw(served: CellServer, path: str, message: str, **replaced: str) -> tuple[int, str]:
    """Send `message`, in hex; the status, and the reply in hex or what is wrong in words."""
    pseudo = {"scheme": "https"} | replaced
    async with RawClient(served.path, served.tls(), server_name=SERVER_NAME) as client:
        stream = await client.start(path, **pseudo)
        await client.write(stream, framed(bytes.fromhex(message)))
        told = await client.answer(stream)
    status = int(told["grpc-status"])
    if status:
        return status, unquote(told["grpc-message"])
    return status, told["data"][10:]  # without the five bytes of gRPC's frame
