from google.protobuf import empty_pb2 as _empty_pb2
from skerry.transport.proto import kudo_controller_pb2 as _kudo_controller_pb2
from skerry.transport.proto import kudo_scheduler_pb2 as _kudo_scheduler_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
