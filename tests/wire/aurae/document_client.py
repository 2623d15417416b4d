"""A client compiled from the document's own layout, with grpcio, in a process of its own.

Run with a JSON object as its argument: the folder of the compiled stubs, the socket, and certificates. It
goes through the contract's canonical script and prints what it was told. A process of its own, because grpcio
keeps threads and descriptors, and because one process cannot have two files that describe `runtime.Cell`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc


def main(wanted: dict[str, str]) -> dict[str, object]:
    sys.path.insert(0, wanted["stubs"])
    import observe_pb2
    import observe_pb2_grpc
    import runtime_pb2
    import runtime_pb2_grpc

    secrets = [Path(wanted[name]).read_bytes() for name in ("ca", "key", "certificate")]
    options = [("grpc.ssl_target_name_override", wanted["server_name"])]
    channel = grpc.secure_channel(f"unix:{wanted['socket']}", grpc.ssl_channel_credentials(*secrets), options)
    told: dict[str, object] = {}
    with channel:
        cells = runtime_pb2_grpc.CellServiceStub(channel)
        reply = cells.Allocate(
            runtime_pb2.AllocateCellRequest(cell=runtime_pb2.Cell(name="my-cell", cpu_shares=2)), timeout=30
        )
        told["allocated"] = [reply.cell_name, reply.cgroup_v2]
        cells.Start(
            runtime_pb2.StartCellRequest(
                executable=runtime_pb2.Executable(
                    cell_name="my-cell",
                    name="sleep-4000",
                    command=wanted.get("command", "sleep 4000"),
                    description="Sleep for 4000 seconds",
                )
            ),
            timeout=30,
        )
        if "pid" in wanted:
            stream = observe_pb2_grpc.ObserveStub(channel).GetSubProcessStream(
                observe_pb2.GetSubProcessStreamRequest(process_id=int(wanted["pid"])), timeout=30
            )
            told["first_line"] = next(iter(stream)).line
            stream.cancel()
        cells.Stop(runtime_pb2.StopCellRequest(cell_name="my-cell", executable_name="sleep-4000"), timeout=30)
        cells.Free(runtime_pb2.FreeCellRequest(cell_name="my-cell"), timeout=30)
        try:
            cells.Free(runtime_pb2.FreeCellRequest(cell_name="my-cell"), timeout=30)
        except grpc.RpcError as error:
            told["second_free"] = error.code().name
    return told


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
