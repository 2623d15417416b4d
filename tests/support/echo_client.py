"""A gRPC client that we did not write, grpcio, of `tests.support.echo_server` through a route with TLS.

Run with one JSON object as its argument; prints one JSON object. A process of its own, because grpcio keeps
threads and descriptors for the life of the process that uses it.
"""

from __future__ import annotations

import json
import sys

import grpc


def main(target: str, host: str, ca: str) -> dict[str, object]:
    options = [("grpc.ssl_target_name_override", host), ("grpc.default_authority", host)]
    found: dict[str, object] = {}
    with grpc.secure_channel(target, grpc.ssl_channel_credentials(ca.encode()), options) as channel:
        say = channel.unary_unary("/echo.Echo/Say")
        reply, call = say.with_call(b"hello", timeout=60, wait_for_ready=True)
        found["say"] = reply.decode()
        found["seen_for"] = dict(call.initial_metadata())["x-seen-for"]
        found["trailer"] = dict(call.trailing_metadata())["x-end"]
        found["at_once"] = len([one.result() for one in [say.future(b"x", timeout=60) for _ in range(100)]])
        counted = channel.unary_stream("/echo.Echo/Count")(b"5000", timeout=60)
        found["counted"] = [int(one) for one in counted] == list(range(5000))
        talk = channel.stream_stream("/echo.Echo/Talk")(iter([b"a", b"b"]), timeout=60)
        found["talked"] = [one.decode() for one in talk]
        try:
            channel.unary_unary("/echo.Echo/Fail")(b"", timeout=60)
        except grpc.RpcError as error:
            found["failed"] = [error.code().name, error.details()]
        try:
            channel.unary_unary("/no.such.Service/Do")(b"", timeout=60)
        except grpc.RpcError as error:
            found["unknown"] = error.code().name
    return found


if __name__ == "__main__":
    json.dump(main(**json.loads(sys.argv[1])), sys.stdout)
