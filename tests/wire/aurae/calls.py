"""Ways to call: by bytes, and by a client that knows only the document."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import unquote

from grpc_tools import protoc

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


def compile_document(folder: Path) -> Path:
    """Stubs for grpcio, made from the document's own layout; returns the folder that holds them."""
    made = folder / "stubs"
    made.mkdir()
    sources = [path.name for path in DOCUMENT.glob("*.proto")]
    outs = [f"--python_out={made}", f"--grpc_python_out={made}"]
    assert protoc.main(["protoc", f"--proto_path={DOCUMENT}", *outs, *sources]) == 0
    return made


async def script(**wanted: str) -> dict[str, object]:
    """What `document_client` was told."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.wire.aurae.document_client",
        json.dumps(wanted),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return json.loads(out)
