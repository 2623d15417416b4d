"""Ways to call: by bytes, and by clients that know only a description of the contract that is not ours."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from tests.node.cells.real import Ground
from tests.support.cells import CellServer, cell_server
from tests.support.certificates import SERVER_NAME, TestAuthority
from tests.transport.grpc.raw import RawClient, framed

DOCUMENT = Path(__file__).parent / "document"
PRESENT = Path(__file__).parent / "present"


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


def compile_stubs(source: Path, folder: Path) -> Path:
    """Stubs for grpcio, made from the layout in `source`; returns the folder that holds them."""
    made = folder / "stubs"
    made.mkdir()
    sources = [path.name for path in source.glob("*.proto")]
    outs = [f"--python_out={made}", f"--grpc_python_out={made}"]
    assert protoc.main(["protoc", f"--proto_path={source}", *outs, *sources]) == 0
    return made


def assert_same_layout(ours: FileDescriptor, source: Path, name: str, folder: Path) -> None:
    """Our file is `name` of `source` in all but its place."""
    described = folder / "set"
    arguments = ["protoc", f"--proto_path={source}", f"--descriptor_set_out={described}", f"{name}.proto"]
    assert protoc.main(arguments) == 0
    own = FileDescriptorProto()
    ours.CopyToProto(own)
    [theirs] = FileDescriptorSet.FromString(described.read_bytes()).file
    for file in (own, theirs):
        for extra in ("name", "options"):
            file.ClearField(extra)
        for field in (field for message in file.message_type for field in message.field):
            field.ClearField("json_name")  # follows from the name; one of the two compilers writes it out
        for method in (method for service in file.service for method in service.method):
            method.ClearField("options")
    assert own == theirs


@asynccontextmanager
async def real_server(folder: Path, authority: TestAuthority, ground: Ground) -> AsyncIterator[CellServer]:
    """The contracts over real cells; what is left of these is freed at the end."""
    async with ground.agent() as cells, cell_server(folder, authority, cells, has_kernel=True) as server:
        yield server
        for view in reversed(cells.list()):
            await cells.free(view.cell.name)


async def script(client: str, served: CellServer, stubs: Path, **wanted: str) -> dict[str, object]:
    """What the module `client` was told, which has a deployer's certificate."""
    pair = served.authority.issue("an-aurae-client", "deployer")
    wanted |= {
        "stubs": str(stubs),
        "socket": str(served.path),
        "ca": str(served.authority.ca),
        "certificate": str(pair.certificate),
        "key": str(pair.key),
        "server_name": SERVER_NAME,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"tests.wire.aurae.{client}",
        json.dumps(wanted),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return json.loads(out)
