"""Functions that are executables, such as those of Serverledge's Go SDK: started once, called by HTTP inside
the worker.

The code contains `handler_amd64`, `handler_arm64` or `handler`, as files or in a zip archive. Each is a
server on port 8080 of its own worker that handles `POST /invoke` as images do
(`skerry.node.workers.container_protocol`). This runs in the worker with the standard library only, and gives
`python_worker` a handler; the program's output is its worker's. Not specific to Go.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from skerry.node.workers.python_handlers import Handler, JsonText, NotLoadable

if TYPE_CHECKING:
    import subprocess

PORT: Final = 8080
_HOST: Final = "127.0.0.1"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_FIRST_LOOK_S: Final = 0.002
_SELDOM_S: Final = 0.05
_MOST_UNPACKED: Final = 512 * 1024 * 1024
_NOTICE_S: Final = 0.5
_MAX_QUOTED: Final = 2000


class ExecutableCallFailed(Exception):
    """The program reported a failure, or returned an invalid reply."""


def load(folder: str) -> Handler:
    """Start the program in `folder`, and return when it listens. Raises NotLoadable."""
    import subprocess

    path = _find(folder)
    try:
        process = subprocess.Popen([path], cwd=folder, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise NotLoadable(
            f"{os.path.basename(path)} does not start: {error.strerror}; build it for this machine, "
            f"{platform.machine()}, without shared libraries (CGO_ENABLED=0)"
        ) from None
    _wait_until_it_listens(process)
    return lambda params, context: _call(process, params)


def _find(folder: str) -> str:
    machine = platform.machine()
    names = (f"handler_{_ARCHITECTURES.get(machine, machine)}", "handler")
    there = sorted(os.listdir(folder))
    for name in names:
        if name in there:
            return _executable(os.path.join(folder, name))
    for archive in there:
        if archive.endswith(".zip") and (found := _from_zip(os.path.join(folder, archive), names)):
            return found
    raise NotLoadable(
        f"the code must hold {names[0]} or {names[1]}, an executable, or a zip archive with it; "
        f"it holds {', '.join(there[:20]) or 'nothing'}"
    )


def _executable(path: str) -> str:
    """`path` if it is executable, else an executable copy: the code is read-only, and zip archives lose
    modes."""
    if os.access(path, os.X_OK):
        return path
    with open(path, "rb") as file:
        return _copy(os.path.basename(path), file.read())


def _from_zip(path: str, names: tuple[str, ...]) -> str:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                if name in archive.namelist():
                    if archive.getinfo(name).file_size > _MOST_UNPACKED:
                        raise NotLoadable(f"{name} has more than {_MOST_UNPACKED} bytes unpacked")
                    return _copy(name, archive.read(name))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise NotLoadable(f"{os.path.basename(path)} cannot be unpacked: {error}") from None
    return ""


def _copy(name: str, data: bytes) -> str:
    import tempfile

    path = os.path.join(tempfile.mkdtemp(), name)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o700)
    return path


def _wait_until_it_listens(process: subprocess.Popen[bytes]) -> None:
    import socket

    pause = _FIRST_LOOK_S
    while True:
        try:
            socket.create_connection((_HOST, PORT)).close()
            return
        except OSError:
            _check_lives(process)
        time.sleep(pause)
        pause = min(2 * pause, _SELDOM_S)


def _check_lives(process: subprocess.Popen[bytes]) -> None:
    if (code := process.poll()) is not None:
        raise NotLoadable(f"the program ended with {code}; it must serve POST /invoke on port {PORT}")


def _call(process: subprocess.Popen[bytes], params: Any) -> JsonText:
    import http.client

    body = json.dumps({"Params": params, "ReturnOutput": True}, allow_nan=False)
    connection = http.client.HTTPConnection(_HOST, PORT)
    try:
        connection.request("POST", "/invoke", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        if _ends_soon(process):
            os._exit(1)  # the worker is its program: a new one is started for the next call
        raise ExecutableCallFailed(f"the program gave no answer: {error}") from None
    finally:
        connection.close()
    return _result(response.status, content)


def _ends_soon(process: subprocess.Popen[bytes]) -> bool:
    """True if it has ended: connections of a dying process end a little before it."""
    import subprocess

    try:
        process.wait(_NOTICE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _result(status: int, body: bytes) -> JsonText:
    try:
        reply = json.loads(body)
        succeeded, text, output = reply["Success"], reply.get("Result") or "null", reply.get("Output") or ""
        is_json = status == 200 and succeeded and _is_json(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        quoted = body[:_MAX_QUOTED].decode(errors="replace")
        raise ExecutableCallFailed(
            f"the program answered with status {status} and no JSON as wanted: {quoted!r}"
        ) from None
    sys.stdout.write(output)
    if status != 200 or not succeeded:
        raise ExecutableCallFailed(
            str(reply.get("Error") or "the program answered that the call did not succeed")
        )
    return JsonText(text if is_json else json.dumps(text))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
