"""Functions of a real Skerry, used over HTTP in the words of Serverledge, and the processes that run them."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

from tests.functions.registry import tarballs
from tests.support.groups import pids_in
from tests.support.remains import groups_of
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

ECHO = "def handler(params, context):\n    return params\n"
_ENDS = frozenset({"done", "failed"})


def encoded(archive: bytes) -> str:
    return base64.b64encode(archive).decode()


def body(name: str, code: str | bytes, **fields: Any) -> dict[str, Any]:
    """What `/create` takes: `code` is the text of main.py, or an archive."""
    archive = tarballs.of(main=code) if isinstance(code, str) else code
    return {
        "Name": name,
        "Runtime": "python310",
        "MemoryMB": 32,
        "Handler": "main.handler",
        "TarFunctionCode": encoded(archive),
        **fields,
    }


def create(skerry: Skerry, name: str, code: str | bytes, **fields: Any) -> None:
    # A node that has just joined is not known at once as one that runs functions.
    status, said = eventually_sync(
        lambda: (
            answer
            if (answer := skerry.call("POST", "/create", body(name, code, **fields)))[0] != 503
            else None
        )
    )
    assert (status, said["Created"]) == (200, name) if status == 200 else False, said


def update(skerry: Skerry, name: str, code: str | bytes, **fields: Any) -> None:
    status, said = skerry.call("POST", "/update", body(name, code, **fields))
    assert status == 200, said


def delete(skerry: Skerry, *names: str) -> None:
    for name in names:
        assert skerry.call("POST", "/delete", {"Name": name}) == (200, {"Deleted": name})


def invoke(skerry: Skerry, name: str, params: Any = None, **fields: Any) -> tuple[int, Any]:
    """Status and report."""
    return skerry.call("POST", f"/invoke/{name}", {"Params": params, **fields})


def result(skerry: Skerry, name: str, params: Any = None, **fields: Any) -> Any:
    """What the function returned, which must go well."""
    status, report = invoke(skerry, name, params, **fields)
    assert status == 200, report
    assert report["Success"] is True
    return json.loads(report["Result"])


def failure(skerry: Skerry, name: str, params: Any = None, **fields: Any) -> dict[str, Any]:
    """The report of a call that must fail, by the function's own fault."""
    status, report = invoke(skerry, name, params, **fields)
    assert status == 500, report
    assert (report["Success"], report["Result"], report["State"]) == (False, "", "failed")
    return dict(report)


def begin(skerry: Skerry, name: str, params: Any = None, **fields: Any) -> str:
    """The id of an async call."""
    status, said = invoke(skerry, name, params, Async=True, **fields)
    assert status == 200, said
    return str(said["ReqId"])


def poll(skerry: Skerry, id: str) -> dict[str, Any]:
    status, report = skerry.call("GET", f"/poll/{id}")
    assert status == (200 if report["State"] in _ENDS else 404), report
    return dict(report)


def outcome(skerry: Skerry, id: str, within: float = 60.0) -> dict[str, Any]:
    """The report of an async call, once it has ended."""

    def ended() -> dict[str, Any] | None:
        report = poll(skerry, id)
        return report if report["State"] in _ENDS else None

    found: dict[str, Any] = eventually_sync(ended, within=within, what=f"the end of {id}")
    return found


def groups(skerry: Skerry) -> list[Path]:
    """The cgroups of its workers, blank ones included, in the one hierarchy that has processes in leaves."""
    found = [group for own in groups_of(skerry) for group in (own / "@functions").glob("w*")]
    return [group for group in found if _leaves(group)]


def processes(group: Path) -> set[int]:
    """What runs in a worker's cgroup, but its init."""
    found: set[int] = set()
    for leaf in _leaves(group):
        found.update(pids_in(leaf))
    return found


def _leaves(group: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # it has gone meanwhile
        return list(group.glob("_x*"))
    return []
