"""Loads and calls a Python function's handler, and encodes its result.

Standard library only. Calls and sockets are `python_worker`'s.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, Final

from skerry.node.workers import worker_frames

Handler = Callable[[Any, dict[str, Any]], Any]

_MOST_NAMES: Final = 20
_SUMMARY_CHARACTERS: Final = 2000
_START_UP: Final = ("frozen", "built-in")  # modules that an interpreter has before it uses any path


class NotLoadable(Exception):
    """The handler cannot be loaded; the text says why and what to do."""


class JsonText(str):
    """A result that is JSON already."""


class Unrepresentable(Exception):
    """It cannot be encoded as JSON; the text says why and what to do."""


def load(name: str, folder: str) -> Handler:
    """The handler called `name`, `module.function`, in the code at `folder`. Raises NotLoadable, and errors
    of the module's import."""
    return adapt(find(name, folder), name)


def find(name: str, folder: str) -> Callable[..., Any]:
    """The same, as it is there."""
    module_name, _, attribute = name.rpartition(".")
    if not module_name or not attribute:
        raise NotLoadable(
            f"handler {name!r} must read `module.function`: "
            "`hello.greet` is the function `greet` in the file hello.py"
        )
    _put_first(folder)
    try:
        __import__(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise  # an import inside the module failed
        raise NotLoadable(
            f"there is no module {missing!r} in the code, which handler {name!r} needs; "
            f"at its top there is {_listing(sorted(os.listdir(folder)))}"
        ) from None
    module = sys.modules[module_name]
    try:
        handler = getattr(module, attribute)
    except AttributeError:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise NotLoadable(
            f"module {module_name!r} has no {attribute!r}, which handler {name!r} needs; "
            f"it has {_listing(names)}"
        ) from None
    if not callable(handler):
        raise NotLoadable(f"{name!r} is no function but {_article(type(handler).__name__)}")
    return handler  # type: ignore[no-any-return]  # it can be called, whatever it is


def _put_first(folder: str) -> None:
    """Give the code's own modules precedence over everything else, except what an interpreter needs itself.
    Nothing of this program is on the path."""
    home = os.path.abspath(__file__)
    for _ in __name__.split("."):
        home = os.path.dirname(home)
    sys.path[:] = [folder, *(path for path in sys.path if path not in (folder, home))]
    own = {entry.partition(".")[0] for entry in os.listdir(folder)}
    replaced = {name for name in own & sys.modules.keys() if _can_be_replaced(name)}
    if replaced:
        for name in [name for name in sys.modules if name.partition(".")[0] in replaced]:
            del sys.modules[name]
    sys.path_importer_cache.pop(folder, None)


def _can_be_replaced(name: str) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.origin not in _START_UP and name != "encodings"


def _listing(names: list[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiouAEIOU" else f"a {noun}"


def adapt(handler: Callable[..., Any], name: str, first: str = "params") -> Handler:
    """`handler`, called with as much of (params, context) as it takes; `first` is the word for the first of
    them in errors. Raises NotLoadable."""
    code = handler.__code__ if isinstance(handler, types.FunctionType) else None
    if code is not None and code.co_argcount == 2 and not code.co_kwonlyargcount:
        return handler  # as nearly all are; reading a signature takes longer than everything else
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return handler  # written in C: it may take anything
    if _takes(signature, None, None):
        return handler
    if _takes(signature, None, context=None):
        return lambda params, context: handler(params, context=context)
    if _takes(signature, None):
        return lambda params, context: handler(params)
    raise NotLoadable(f"{name}{signature} must be callable with ({first}, context) or with ({first})")


def _takes(signature: inspect.Signature, *arguments: None, **named: None) -> bool:
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return False
    return True


def _represent(value: Any) -> Any:
    """Encode other types: bytes as text if they are UTF-8, else as {"base64": ...}."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    raise TypeError(f"{_article(type(value).__name__)} is no JSON")


# Spaces after ',' and ':', as in the contract.
_encode = json.JSONEncoder(allow_nan=False, default=_represent).encode


def to_json(value: Any) -> bytes:
    """`value` as strict JSON, with exact numbers. Raises Unrepresentable."""
    if type(value) is JsonText:
        return value.encode()
    try:
        return _encode(value).encode()
    except BaseException as error:  # noqa: BLE001 - subclasses of dict and the like run the function's own code
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else summary(error)
    raise Unrepresentable(
        f"the handler returned what JSON cannot hold: {reason}; "
        "return dicts, lists, text, bytes, finite numbers, True, False or None"
    )


def summary(error: BaseException) -> str:
    """One line, or little more, about `error`."""
    if isinstance(error, (NotLoadable, Unrepresentable)):
        return str(error)
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r}); return a value or raise an error instead"
    text = "".join(traceback.format_exception_only(error)).strip()
    return text if len(text) <= _SUMMARY_CHARACTERS else text[:_SUMMARY_CHARACTERS] + "..."


def explain(error: BaseException) -> bytes:
    """`error` for the author of a function: message, then traceback."""
    if isinstance(error, NotLoadable):
        return str(error).encode("utf-8", "backslashreplace")
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
            trace = trace.tb_next  # ours
        text = f"{summary(error)}\n\n{''.join(traceback.format_exception(type(error), error, trace))}"
        data = text.encode("utf-8", "backslashreplace")
    except BaseException:  # noqa: BLE001 - no memory, or an error that cannot be formatted
        data = f"{type(error).__name__}, which cannot be formatted".encode("utf-8", "backslashreplace")
    most = worker_frames.MAX_ERROR_BYTES
    if len(data) <= most:
        return data
    note = b"\n... cut ...\n"
    return data[: most // 2 - len(note)] + note + data[-(most // 2) :]
