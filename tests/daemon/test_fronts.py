"""A whole Skerry with fronts: real functions, `kill -9` of a front and of the server, and a takeover."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.support.functions import create
from tests.support.skerry import PREPARED_WORKERS, Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

FLAGS = (*PREPARED_WORKERS, "--set", "functions.fronts=1")
CODE = "def handler(params):\n  return params\n"


def call(connection: http.client.HTTPConnection, number: int) -> object:
    connection.request("POST", "/invoke/echo", json.dumps({"Params": {"n": number}}))
    report = json.loads(connection.getresponse().read())
    return json.loads(report["Result"])


def metric(skerry: Skerry, name: str) -> float:
    connection = skerry.connect()
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def front_of(skerry: Skerry, connection: http.client.HTTPConnection) -> int:
    """Call until calls come by a front; the pid of that."""
    came = metric(skerry, "skerry_front_requests_total")
    eventually_sync(
        lambda: call(connection, 1) == {"n": 1} and metric(skerry, "skerry_front_requests_total") > came
    )
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    (front,) = [pid for pid in pids if _is_front(pid, skerry.ready["pid"])]
    return front


def _is_front(pid: int, parent: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return b"front_process" in command and int(stat[1]) == parent


def test_calls_by_a_front_survive_its_end_and_end_with_the_server(tmp_path: Path) -> None:
    skerry = Skerry(tmp_path, *FLAGS)
    connection = None
    try:
        skerry.wait_ready()
        create(skerry, "echo", CODE)
        connection = skerry.connect()
        front = front_of(skerry, connection)
        came = metric(skerry, "skerry_front_requests_total")
        assert [call(connection, number) for number in range(20)] == [{"n": number} for number in range(20)]
        # Scrapes that come soon after each other share one text.
        eventually_sync(lambda: metric(skerry, "skerry_front_requests_total") >= came + 20)
        os.kill(front, signal.SIGKILL)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            call(connection, 1)
        connection.close()
        assert call(connection, 2) == {"n": 2}  # it connects anew
        second = front_of(skerry, connection)
        assert second != front
    finally:
        if connection is not None:
            connection.close()
        skerry.kill()
    eventually_sync(lambda: not Path(f"/proc/{second}").exists())
    socket.create_server(("127.0.0.1", connection.port)).close()  # the port is free at once
    with running(tmp_path, *FLAGS):  # removes what was left of workers
        pass


def test_a_takeover_fails_no_call_of_a_assigned_connection(tmp_path: Path) -> None:
    former = Skerry(tmp_path, *FLAGS)
    following = connection = None
    try:
        former.wait_ready()
        create(former, "echo", CODE)
        connection = former.connect()
        front = front_of(former, connection)
        following = Skerry(tmp_path, *FLAGS, "--takeover")
        number = 0
        while former.process.poll() is None:
            assert call(connection, number) == {"n": number}
            number += 1
        assert former.process.wait() == 0, former.said()
        following.wait_ready()
        assert call(connection, 7) == {"n": 7}
        assert front_of(following, connection) != front
        connection.close()
        assert following.stop() == 0, following.said()
    finally:
        if connection is not None:
            connection.close()
        for each in (former, following):
            if each is not None and each.process.poll() is None:
                each.kill()
