"""A client compiled from Aurae's present layout, with grpcio, in a process of its own.

As `document_client`, for `aurae.cells.v0`, `aurae.observe.v0` and `aurae.discovery.v0`. It makes the calls
that `aer` makes, with the fields that `aer` sets.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc


def main(wanted: dict[str, str]) -> dict[str, object]:
    sys.path.insert(0, wanted["stubs"])
    import cells_pb2
    import cells_pb2_grpc
    import discovery_pb2
    import discovery_pb2_grpc
    import observe_pb2
    import observe_pb2_grpc

    secrets = [Path(wanted[name]).read_bytes() for name in ("ca", "key", "certificate")]
    options = [("grpc.ssl_target_name_override", wanted["server_name"])]
    channel = grpc.secure_channel(f"unix:{wanted['socket']}", grpc.ssl_channel_credentials(*secrets), options)
    told: dict[str, object] = {}
    with channel:
        found = discovery_pb2_grpc.DiscoveryServiceStub(channel).Discover(
            discovery_pb2.DiscoverRequest(), timeout=30
        )
        told["discovered"] = [found.healthy, found.version]
        cells = cells_pb2_grpc.CellServiceStub(channel)
        for name in ("my-cell", "my-cell/child"):
            cell = cells_pb2.Cell(
                name=name,
                cpu=cells_pb2.CpuController(weight=200),
                cpuset=cells_pb2.CpusetController(),
                isolate_process=True,
            )
            reply = cells.Allocate(cells_pb2.CellServiceAllocateRequest(cell=cell), timeout=30)
            told.setdefault("allocated", []).append([reply.cell_name, reply.cgroup_v2])
        started = cells.Start(
            cells_pb2.CellServiceStartRequest(
                cell_name="my-cell",
                executable=cells_pb2.Executable(
                    name="sleeper", command="echo zzz; exec sleep 4000", description=""
                ),
            ),
            timeout=30,
        )
        told["started"] = [started.pid > 0, started.uid > 0, started.uid == started.gid]
        observe = observe_pb2_grpc.ObserveServiceStub(channel)
        lines = observe.GetSubProcessStream(
            observe_pb2.GetSubProcessStreamRequest(
                channel_type=observe_pb2.LOG_CHANNEL_TYPE_STDOUT, process_id=started.pid
            ),
            timeout=30,
        )
        told["first_line"] = next(iter(lines)).item.line
        lines.cancel()
        workload = observe_pb2.Workload(workload_type=observe_pb2.WORKLOAD_TYPE_CELL, id="my-cell")
        signals = observe.GetPosixSignalsStream(
            observe_pb2.GetPosixSignalsStreamRequest(workload=workload), timeout=30
        )
        signals.initial_metadata()  # it listens from now on
        listed = cells.List(cells_pb2.CellServiceListRequest(), timeout=30)
        told["listed"] = [
            [node.cell.name, node.cell.cpu.weight, [child.cell.name for child in node.children]]
            for node in listed.cells
        ]
        cells.Stop(
            cells_pb2.CellServiceStopRequest(cell_name="my-cell", executable_name="sleeper"), timeout=30
        )
        if wanted.get("signals"):
            signal = next(iter(signals)).signal
            told["signal"] = [signal.signal, signal.process_id == started.pid]
        signals.cancel()
        cells.Free(cells_pb2.CellServiceFreeRequest(cell_name="my-cell"), timeout=30)
        try:
            cells.Free(cells_pb2.CellServiceFreeRequest(cell_name="my-cell"), timeout=30)
        except grpc.RpcError as error:
            told["second_free"] = error.code().name
        told["left"] = len(cells.List(cells_pb2.CellServiceListRequest(), timeout=30).cells)
    return told


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
