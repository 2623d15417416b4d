"""Requests from outside to the ready copies of a service, one after the other, until told to stop.

    with Traffic(cloud, "web", 8080) as traffic:
        ...
    assert traffic.failures == []

Which copies are ready is what the server says, looked up a few times a second; while it says nothing, those
of before are used on. Every request that is sent must be answered.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

from tests.node.network.machines import inside
from tests.support.lans import Lan
from tests.support.skerry import ask

_LOOK_UP_S = 0.2
_TIMEOUT_S = 5.0


class Traffic:
    """A client that has three requests under way, from the machine of the server."""

    def __init__(self, cloud: Lan, service: str, port: int) -> None:
        self._cloud = cloud
        self._path = f"/service/{service}"
        self._port = port
        self._addresses: list[str] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"traffic-{number}")
            for number, work in enumerate((self._look_up, self._send, self._send, self._send))
        ]
        self.answers: Counter[str] = Counter()  # by what was answered
        self.failures: list[str] = []
        self.fewest_ready: int | None = None

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _look_up(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._learn()
            self._is_over.wait(_LOOK_UP_S)

    def _learn(self) -> None:
        with contextlib.closing(self._cloud.server.connect()) as connection:
            while not self._is_over.is_set():
                status, answer = ask(connection, "GET", self._path)
                if status == 200:
                    self._take(answer)
                self._is_over.wait(_LOOK_UP_S)

    def _take(self, service: dict[str, Any]) -> None:
        names = {node.ready["node"]: name for name, node in self._cloud.nodes.items()}
        ready = [copy for copy in service["copies"] if copy["ready"]]
        self._addresses = [self._cloud.address(names[copy["node_id"]]) for copy in ready]
        if self.fewest_ready is None or len(ready) < self.fewest_ready:
            self.fewest_ready = len(ready)

    def _send(self) -> None:
        inside(self._cloud.server_place, self._send_for_ever)

    def _send_for_ever(self) -> None:
        turn = 0
        while not self._is_over.wait(0.01):
            if addresses := self._addresses:
                turn += 1
                self._send_one(addresses[turn % len(addresses)])

    def _send_one(self, address: str) -> None:
        begin = time.time()
        connection = http.client.HTTPConnection(address, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.status == 200:
                self.answers[body.strip()] += 1
            else:
                self.failures.append(f"{address} at {begin:.3f}: {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(f"{address} at {begin:.3f}: {error!r}")
        finally:
            connection.close()
