"""A client compiled from one document's own messages, with grpcio, in a process of its own.

Run with a JSON object as its argument: the document, the folder of its stubs, where the server is, and
perhaps certificates. It then does what each line of its input says, and answers with one line. A process of
its own, because grpcio keeps threads and descriptors, and because no process can have both documents.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


def told(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


class Client:
    """Calls by `Service.Method`, with messages as plain data."""

    def __init__(self, document: str, prefix: str, channel: grpc.Channel) -> None:
        self._file = importlib.import_module(f"{document}_pb2").DESCRIPTOR
        self._prefix = prefix
        self._channel = channel
        self._replies: Any = None
        self._sending: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._sent: Any = None

    def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        do, make = self._method(method)
        return told(do(make(message), timeout=30))

    def open(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        do, make = self._method(method)
        self._replies = do(make(message), timeout=30)
        return {}

    def next(self) -> dict[str, Any] | None:
        message = next(self._replies, None)
        return None if message is None else told(message)

    def hang_up(self) -> dict[str, Any]:
        self._replies.cancel()
        return {}

    def send(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message on a stream that stays open."""
        do, make = self._method(method)
        self._sending.put(make(message))
        if self._sent is None:
            self._sent = do.future(iter(self._sending.get, None), timeout=30)
        return {}

    def end(self) -> dict[str, Any]:
        """End that stream, for its one reply."""
        self._sending.put(None)
        return told(self._sent.result())

    def _method(self, name: str) -> tuple[Any, Any]:
        service, _, method = name.partition(".")
        described = self._file.services_by_name[service].methods_by_name[method]
        takes, gives = (GetMessageClass(kind) for kind in (described.input_type, described.output_type))
        ways = ("unary", "stream")
        shape = f"{ways[described.client_streaming]}_{ways[described.server_streaming]}"
        do = getattr(self._channel, shape)(
            f"/{self._prefix}{service}/{method}",
            request_serializer=takes.SerializeToString,
            response_deserializer=gives.FromString,
        )
        return do, lambda message: ParseDict(message, takes())


def main(wanted: dict[str, str]) -> None:
    sys.path.insert(0, wanted["stubs"])
    if "ca" in wanted:
        secrets = [Path(wanted[name]).read_bytes() for name in ("ca", "key", "certificate")]
        channel = grpc.secure_channel(wanted["target"], grpc.ssl_channel_credentials(*secrets))
    else:
        channel = grpc.insecure_channel(wanted["target"])
    with channel:
        client = Client(wanted["document"], wanted["prefix"], channel)
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            try:
                answer = getattr(client, verb)(*arguments)
            except grpc.RpcError as error:
                answer = {"error": error.code().name, "details": error.details()}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
