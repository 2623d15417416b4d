"""A client that we did not write: health checks and reflection with grpcio, in a process of its own.

Run with one JSON object as its argument; prints one JSON object. A process of its own, because grpcio keeps
threads and descriptors for the life of the process that uses it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse


def main(wanted: dict[str, str]) -> dict[str, object]:
    options = []
    if name := wanted.get("server_name"):
        options += [("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)]
    if "ca" in wanted:
        secrets = [Path(wanted[name]).read_bytes() for name in ("ca", "key", "certificate")]
        channel = grpc.secure_channel(wanted["target"], grpc.ssl_channel_credentials(*secrets), options)
    else:
        channel = grpc.insecure_channel(wanted["target"], options)
    with channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        reflect = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=ServerReflectionRequest.SerializeToString,
            response_deserializer=ServerReflectionResponse.FromString,
        )
        nothing = channel.unary_unary("/no.such.Service/Do")
        told: dict[str, object] = {}
        try:
            reply, call = check.with_call(
                HealthCheckRequest(), timeout=30, metadata=[("x-request-id", "io-1")]
            )
            told["health"] = HealthCheckResponse.ServingStatus.Name(reply.status)
            told["request_id"] = dict(call.initial_metadata())["x-request-id"]
            futures = [check.future(HealthCheckRequest(), timeout=30) for _ in range(100)]
            told["concurrent"] = sum(future.result().status == 1 for future in futures)
            [listed] = reflect(iter([ServerReflectionRequest(list_services="")]), timeout=30)
            told["services"] = [service.name for service in listed.list_services_response.service]
            nothing(b"", timeout=30)
        except grpc.RpcError as error:
            told["error"] = error.code().name
        return told


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
