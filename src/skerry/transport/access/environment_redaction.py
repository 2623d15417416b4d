"""Redaction of environment variables in responses: callers that may only read or call get names without
values.

Values may be secrets. Redaction is done where responses are encoded (`skerry.transport.http.runner`,
`skerry.transport.grpc.call_streams`), so no route and no RPC can forget it. A variable is recognized by the
name of its field, at any depth. Output of programs is not redacted.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from skerry.kit import json_codec
from skerry.model.callers import Caller, Role
from skerry.model.workloads import HIDDEN

_FIELDS: Final = frozenset({"environment", "environnement", "env"})
_LABELS: Final = "labels"  # whose keys users choose: `env=production` is a common one
_SIGNS: Final = tuple(f'{name[1:]}":'.encode() for name in sorted(_FIELDS))  # of a document that may have one
_ROLES_WITH_VALUES: Final = frozenset({Role.ADMIN, Role.DEPLOYER, Role.NODE})


def redact_value(caller: Caller, value: Any) -> Any:
    """What to encode as JSON for `caller` instead of `value`."""
    if caller.role in _ROLES_WITH_VALUES:
        return value
    data = json_codec.encode(value)
    if not any(sign in data for sign in _SIGNS):
        return msgspec.Raw(data)
    return _document(json_codec.decode(data, Any))


def redact_message(caller: Caller, message: Message) -> Message:
    """`message` as `caller` may see it."""
    if caller.role in _ROLES_WITH_VALUES or not _has_variables(message.DESCRIPTOR):
        return message
    shown = type(message)()
    shown.CopyFrom(message)
    _hide(shown)
    return shown


def _document(value: Any) -> Any:
    if isinstance(value, list):
        return [_document(each) for each in value]
    if isinstance(value, dict):
        return {key: _field(key.lower(), each) for key, each in value.items()}
    return value


def _field(name: str, value: Any) -> Any:
    if name == _LABELS:
        return value
    return _hidden(value) if name in _FIELDS else _document(value)


def _hidden(variables: Any) -> Any:
    """`KEY=VALUE`s without the values; whatever else it may be is hidden whole."""
    if isinstance(variables, list) and all(isinstance(each, str) for each in variables):
        return [_variable(each) for each in variables]
    return None if variables is None else HIDDEN


def _variable(text: str) -> str:
    return f"{text.partition('=')[0]}={HIDDEN}"


def _hide(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in _FIELDS:
            value[:] = [_variable(each) for each in value]
        elif field.message_type is not None and _has_variables(field.message_type):
            for each in value if field.is_repeated else [value]:
                _hide(each)


@cache
def _has_variables(kind: Descriptor) -> bool:
    """Whether messages of this kind, or nested ones, have a field for variables."""
    return _reaches_variables(kind, frozenset())


def _reaches_variables(kind: Descriptor, above: frozenset[str]) -> bool:
    return kind.full_name not in above and any(
        field.name in _FIELDS
        or (
            field.message_type is not None
            and _reaches_variables(field.message_type, above | {kind.full_name})
        )
        for field in kind.fields
    )
