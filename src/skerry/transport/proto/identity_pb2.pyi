from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RenewRequest(_message.Message):
    __slots__ = ("csr",)
    CSR_FIELD_NUMBER: _ClassVar[int]
    csr: bytes
    def __init__(self, csr: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class EdgeRequest(_message.Message):
    __slots__ = ("csr", "hosts")
    CSR_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    csr: bytes
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, csr: _Optional[bytes] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class EdgeReply(_message.Message):
    __slots__ = ("certificate", "refused")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    refused: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, certificate: _Optional[bytes] = ..., refused: _Optional[_Iterable[str]] = ...) -> None: ...
