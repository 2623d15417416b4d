"""Functions outlive a server and its disk: a second member has code and results, and nobody set that up."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_node import join_token
from tests.support import functions
from tests.support.clusters import sweep
from tests.support.etcd import EtcdServer
from tests.support.functions import ECHO, begin, body, outcome, result
from tests.support.shares import free_port
from tests.support.skerry import PREPARED_WORKERS, Skerry
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# What is not said here is as it comes; these make a test quicker, and leave room for others.
_QUICK = {
    "fleet.report_s": "0.5",
    "fleet.suspect_after_s": "2.5",
    "fleet.leader_lease_s": "3",
    "functions.repair_s": "0.5",
    "functions.ping_s": "0.5",
    "node.stop_grace_s": "0.5",
}
_WORKERS = {"functions.memory_mb": "128", "functions.spare_workers": "0"}


class Cloud:
    """Servers on one etcd, and nodes; each can be killed, and its disk with it."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self._folder = folder
        self._undo = undo
        self.running: dict[str, Skerry] = {}

    def start_server(self, name: str, *flags: str, authority_of: str = "") -> Skerry:
        folder = self._folder / name
        (folder / "data/pki").mkdir(parents=True, mode=0o700, exist_ok=True)
        if authority_of:
            for part in ("ca.crt", "ca.key"):
                shutil.copy2(self.running[authority_of].data / "pki" / part, folder / "data/pki" / part)
        listen = ("--http", f"127.0.0.1:{free_port()}", "--grpc", f"127.0.0.1:{free_port()}")
        return self._start(name, "server", *listen, *flags, settings=_QUICK)

    def restart_server(self, name: str) -> Skerry:
        ready = self.running[name].ready
        listen = ("--http", ready["http"].removeprefix("http://"), "--grpc", ready["grpc"])
        return self._start(name, "server", *listen, settings=_QUICK)

    def start_node(self, name: str, *flags: str, at: str) -> Skerry:
        (self._folder / name).mkdir(exist_ok=True)
        server = self.running[at]
        joining = ("--join", server.ready["http"], "--token", join_token(server), "--name", name)
        return self._start(name, "node", *joining, *flags, settings={**_QUICK, **_WORKERS})

    def restart_node(self, name: str, *flags: str) -> Skerry:
        return self._start(name, "node", "--name", name, *flags, settings={**_QUICK, **_WORKERS})

    def _start(self, name: str, role: str, *flags: str, settings: dict[str, str]) -> Skerry:
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        skerry = self.running[name] = Skerry(self._folder / name, *flags, *words, role=role)
        self._undo.callback(sweep, skerry)
        skerry.wait_ready()
        return skerry

    def destroy(self, name: str) -> None:
        """Kill it at once, and lose what it had on its disk."""
        self.running[name].kill()
        sweep(self.running.pop(name))
        shutil.rmtree(self._folder / name / "data")

    def stop(self) -> None:
        for skerry in reversed(self.running.values()):
            assert skerry.stop() == 0, skerry.said()

    def holders(self) -> set[str]:
        """Who has any code on its disk."""
        return {name for name, skerry in self.running.items() if archives(skerry)}


def archives(skerry: Skerry) -> list[Path]:
    folder = skerry.data / "functions/code/archives"
    return list(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with contextlib.ExitStack() as undo:
        made = Cloud(tmp_path, undo)
        yield made
        made.stop()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(folder)
    server.start()
    yield server
    server.stop()


def created(server: Skerry, name: str, **fields: Any) -> dict[str, Any]:
    """The answer to a function's registration, as soon as there is a node for it."""
    said: dict[str, Any] = {}

    def is_taken() -> bool:
        status, answer = server.call("POST", "/create", body(name, ECHO, **fields))
        said.update(answer if isinstance(answer, dict) else {"message": answer})
        return status == 200

    eventually_sync(is_taken, what=f"{name} created: {said}")
    return said


def status_of(server: Skerry) -> dict[str, Any]:
    status, told = server.call("GET", "/status")
    assert status == 200, told
    return dict(told)


def test_a_server_and_a_node_run_functions_and_share_their_code_without_any_setting(tmp_path: Path) -> None:
    with contextlib.ExitStack() as undo:
        for name in ("server", "node"):
            (tmp_path / name).mkdir()
        server = Skerry(tmp_path / "server", role="server")
        undo.callback(sweep, server)
        server.wait_ready()
        joining = ("--join", server.ready["http"], "--token", join_token(server), "--name", "edge")
        node = Skerry(tmp_path / "node", *joining, *PREPARED_WORKERS, role="node")
        undo.callback(sweep, node)
        node.wait_ready()
        assert created(server, "f")["Copies"] == 2
        assert len(archives(node)) == 1, "before any call"
        status, report = functions.invoke(server, "f", {"n": 1})
        assert (status, report["Result"], report["ExecutionNode"]) == (200, '{"n": 1}', "edge")
        assert node.stop() == 0
        assert server.stop() == 0


def test_when_the_server_that_took_a_function_and_its_results_is_gone_with_its_disk_the_other_has_both(
    etcd: EtcdServer, cloud: Cloud
) -> None:
    store = ("--store", f"etcd://{etcd.address}")
    first = cloud.start_server("first", *store)
    second = cloud.start_server("second", *store, authority_of="first")
    for name in ("n1", "n2"):
        cloud.start_node(name, at="second")
    assert created(first, "f")["Copies"] == 2
    assert len(cloud.holders()) >= 2
    eventually_sync(lambda: functions.invoke(second, "f")[0] == 200)
    assert result(second, "f", {"n": 1}) == {"n": 1}

    accepted = begin(first, "f", {"n": 2})
    assert outcome(second, accepted)["Result"] == '{"n": 2}', "any server finds it"
    eventually_sync(lambda: "skerry_async_result_copies_total" in first.call("GET", "/metrics")[1])
    copied = 'skerry_async_result_copies_total{outcome="done"} 1.0'
    eventually_sync(lambda: copied in first.call("GET", "/metrics")[1])

    cloud.destroy("first")
    assert outcome(second, accepted)["Result"] == '{"n": 2}'
    eventually_sync(lambda: functions.invoke(second, "f")[0] == 200)
    assert result(second, "f", {"n": 3}) == {"n": 3}
    # A member that had no part in it so far runs it too.
    for name in ("n1", "n2"):
        if name not in cloud.holders():
            cloud.start_node("n3", at="second")
    # Two copies again, and whoever looks is told so.
    eventually_sync(lambda: len(cloud.holders()) >= 2)
    eventually_sync(lambda: status_of(second)["UnderReplicated"] == [])
    shown = second.call("GET", "/function/f")[1]
    assert shown["Copies"] >= 2


def test_a_result_whose_origin_was_killed_before_anybody_had_a_copy_is_found_when_its_disk_is_lost_later(
    cloud: Cloud,
) -> None:
    server = cloud.start_server("server")
    listen = ("--http", f"127.0.0.1:{free_port()}")
    node = cloud.start_node("n1", *listen, at="server")
    created(server, "f")
    node.kill()
    accepted = begin(server, "f")
    functions.delete(server, "f")  # so it ends without the node, and nobody can take a copy
    told = outcome(server, accepted)
    assert told["ErrorType"] == "FunctionGone"
    server.kill()
    server = cloud.restart_server("server")
    node = cloud.restart_node("n1", *listen)
    copied = 'skerry_async_result_copies_total{outcome="done"} 1.0'
    eventually_sync(lambda: copied in server.call("GET", "/metrics")[1])
    cloud.destroy("server")
    assert outcome(node, accepted) == told


def test_code_is_copied_again_when_a_member_dies_and_comes_back_from_nodes_to_a_server_without_any(
    cloud: Cloud,
) -> None:
    server = cloud.start_server("server")
    cloud.start_node("n1", at="server")
    assert created(server, "f")["Copies"] == 2
    assert cloud.holders() == {"server", "n1"}
    cloud.start_node("n2", at="server")
    cloud.destroy("n1")
    eventually_sync(lambda: cloud.holders() == {"server", "n2"})

    # The store comes back, from a backup, and the code does not.
    assert server.stop() == 0
    shutil.rmtree(server.data / "functions/code")
    server = cloud.restart_server("server")
    eventually_sync(lambda: cloud.holders() == {"server", "n2"})
    eventually_sync(lambda: functions.invoke(server, "f")[0] == 200)
    assert result(server, "f", {"n": 1}) == {"n": 1}

    functions.delete(server, "f")
    eventually_sync(lambda: cloud.holders() == set(), what="code that nobody needs is removed")


def test_where_a_member_is_there_that_cannot_take_the_code_nothing_is_registered(cloud: Cloud) -> None:
    server = cloud.start_server("server")
    node = cloud.start_node("n1", at="server")
    created(server, "f")
    # A file where its drafts belong: it can keep nothing more.
    drafts = node.data / "functions/code/drafts"
    shutil.rmtree(drafts)
    drafts.write_text("")
    other = "def handler(params, context):\n    return 'other'\n"
    status, refused = server.call("POST", "/create", body("g", other))
    assert (status, "could not be put on a second member (n1:" in refused["message"]) == (503, True), refused
    assert server.call("GET", "/function")[1] == ["f"]
    # One that is not there at all does not keep anybody from registering, and that is told.
    node.kill()
    status, said = server.call("POST", "/create", body("g", other))
    assert (status, said["Copies"], said["CopiesWanted"]) == (200, 1, 2), said
    drafts.unlink()
    cloud.restart_node("n1")
    eventually_sync(lambda: server.call("GET", "/function/g")[1]["Copies"] == 2)
