"""A cluster of real processes, as people use it over HTTP, and as it is found on this machine.

    cluster = Cluster(server, {"north": node, ...})
    id = cluster.create(name="web", uri=..., ports=["8080:80"])
    cluster.until(id, "RUNNING")
    assert cluster.copies() == cluster.places(id)

What is asked of the server must go well. What runs is counted by the processes that there are, whatever
anybody says.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from skerry.daemon.node_runtime import group_root
from tests.support.groups import groups_from, pids_from, removed
from tests.support.remains import groups_of, ranges_of
from tests.support.skerry import Skerry, ask
from tests.support.waiting import eventually_sync

Document = dict[str, Any]

# A cell has an init, which stays when what ran in it has ended; once its group is gone too, it is dead, and
# only has to be waited for by its parent.
_COPY = r"^0::.*/{}/@i-([0-9a-z]+)/(?!_init( \(deleted\))?$)"


class Happened(NamedTuple):
    """A status that an instance had."""

    status: str
    at: float  # when it began
    reason: str


class Cluster:
    """A server and its nodes by name."""

    def __init__(self, server: Skerry, nodes: Mapping[str, Skerry]) -> None:
        self.server = server
        self.nodes = nodes

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        """The answer to a request, which must go well."""
        status, answer = self.server.call(verb, path, body, {"Content-Type": "application/json"})
        assert status < 400, f"{verb} {path}: {status} {answer}"
        return answer

    def create(self, **spec: Any) -> str:
        return str(self.call("PUT", "/instance/", spec)["id"])

    def instance(self, id: str) -> Document:
        return dict(self.call("GET", f"/instance/{id}"))

    def instances(self) -> list[str]:
        """The ids of all that there are."""
        return [instance["id"] for instance in self.call("GET", "/instance/?namespace=*")["instances"]]

    def node_of(self, instance: Document) -> str:
        """The name of the node that an instance is on."""
        return next(name for name, node in self.nodes.items() if node.ready["node"] == instance["node_id"])

    def history(self, id: str) -> list[Happened]:
        """What was written down of an instance, the oldest first."""
        told = self.call("GET", f"/instance/{id}/events")["events"]
        return [
            Happened(event["kind"].removeprefix("instance.").upper(), event["at"], event["reason"])
            for event in told
        ]

    def destroy(self, *ids: str) -> None:
        """Destroy instances and wait until they are gone."""
        for id in ids:
            self.call("DELETE", f"/instance/{id}")
        self.until_gone(*ids)

    def until(self, id: str, status: str, **fields: Any) -> Document:
        """The instance, when it has that status and these fields."""
        return self._until(f"/instance/{id}", {"status": status, **fields})

    def until_node(self, name: str, **fields: Any) -> Document:
        """The node, when it has these fields."""
        return self._until(f"/node/{name}", fields)

    def until_ready(self, *names: str) -> None:
        for name in names:
            self.until_node(name, status="ready", liveness="live")

    def until_gone(self, *ids: str) -> None:
        for id in ids:
            self._until(f"/instance/{id}", {"code": "not-found"})

    def _until(self, path: str, fields: Document) -> Document:
        """What is at `path`, when it has these fields."""
        seen: Document = {}
        with contextlib.closing(self.server.connect()) as connection:

            def is_so() -> bool:
                nonlocal seen
                _, seen = ask(connection, "GET", path)
                return {key: seen.get(key) for key in fields} == fields

            try:
                eventually_sync(is_so, what=f"{path} with {fields}")
            except AssertionError as error:
                raise AssertionError(f"{error}; it is {seen}") from None
        return seen

    def places(self, *ids: str) -> list[tuple[str, str]]:
        """On which node each of these instances is, as the server says."""
        return sorted((id, self.node_of(self.instance(id))) for id in ids)

    def copies(self, *ids: str) -> list[tuple[str, str]]:
        """On which node there really is a live copy of which instance; of these alone, if any are named."""
        return sorted((id, name) for id, name in self.processes() if not ids or id in ids)

    def processes(self) -> dict[tuple[str, str], set[int]]:
        """The processes of each instance on each node."""
        found: dict[tuple[str, str], set[int]] = {}
        groups = {
            name: re.compile(_COPY.format(group_root("skerry", node.data)), re.MULTILINE)
            for name, node in self.nodes.items()
        }
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                text = path.read_text()
                for name, group in groups.items():
                    if match := group.search(text):
                        found.setdefault((match[1], name), set()).add(int(path.parent.name))
        return found


def sweep(skerry: Skerry) -> None:
    """Kill a Skerry and its containers, if a failed test has left them, and take away what they had."""
    if skerry.process.poll() is None:
        skerry.kill()
    groups = groups_of(skerry)

    def are_empty() -> bool:
        members = {pid for group in groups for pid in pids_from(group)}
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not members

    eventually_sync(are_empty)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    claims = tuple(map(str, ranges_of(skerry)))
    for path in sorted(
        (path for path in mounts if path.startswith((str(skerry.data), *claims))), reverse=True
    ):
        subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
    for claim in claims:
        shutil.rmtree(claim)
    for group in groups:
        for each in groups_from(group):
            eventually_sync(partial(removed, each), what=f"{each} is removed")
