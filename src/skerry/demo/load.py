"""Load of the demo: clients at the sites that request pages and call a function, and what each of them got.

A client uses its own site first. If there is no answer, it tries the next site, as a device would that knows
several; a request is lost only if no site answered it in time. `summarize` is pure.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from skerry.demo.machines import Machine, MachineFailed

_GIVE_UP_S: Final = 30.0
_RETRY_S: Final = 0.1
_TIMEOUT_S: Final = 3.0  # without an answer for this long, the next site is tried
_CALLS_PORT: Final = 1323


class Sample(NamedTuple):
    """One request of a client, from its first attempt to its answer."""

    site: str
    node: str  # or copy of a service that answered; empty if none did
    took_s: float
    attempts: int
    problem: str  # of the last failed attempt

    @property
    def is_lost(self) -> bool:
        return not self.node


class LoadSummary(NamedTuple):
    """What came of many requests."""

    total: int
    lost: int
    retried: int
    median_s: float
    p95_s: float
    by_node: Mapping[str, int]
    problems: Mapping[str, int]

    def share(self, *nodes: str) -> float:
        """The share of requests that these nodes answered."""
        return sum(self.by_node.get(node, 0) for node in nodes) / max(1, self.total)


def summarize(samples: Iterable[Sample]) -> LoadSummary:
    samples = list(samples)
    times = sorted(sample.took_s for sample in samples if not sample.is_lost)
    return LoadSummary(
        total=len(samples),
        lost=sum(sample.is_lost for sample in samples),
        retried=sum(sample.attempts > 1 for sample in samples),
        median_s=_quantile(times, 0.5),
        p95_s=_quantile(times, 0.95),
        by_node=dict(Counter(sample.node for sample in samples if not sample.is_lost)),
        problems=dict(Counter(sample.problem for sample in samples if sample.problem)),
    )


def _quantile(times: Sequence[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))] if times else 0.0


class RequestFailed(Exception):
    """One attempt had no good answer."""


Request = Callable[[Machine], str]  # one attempt at a site; the node or copy that answered, or RequestFailed


def function_call(name: str, params: Mapping[str, Any]) -> Request:
    """A call of a function at a site."""
    body = json.dumps({"Params": params, "QoSClass": 1}).encode()

    def attempt(machine: Machine) -> str:
        status, data = _exchange(machine, "127.0.0.1", _CALLS_PORT, "POST", f"/invoke/{name}", body)
        if status != HTTPStatus.OK:
            raise RequestFailed(f"HTTP {status}: {_message(data)}")
        return str(json.loads(data)["ExecutionNode"])

    return attempt


def begin_call(machine: Machine, name: str, params: Mapping[str, Any]) -> str:
    """Begin an asynchronous call of a function at a site; its id. Raises `RequestFailed`."""
    body = json.dumps({"Params": params, "Async": True}).encode()
    status, data = _exchange(machine, "127.0.0.1", _CALLS_PORT, "POST", f"/invoke/{name}", body)
    if status != HTTPStatus.OK:
        raise RequestFailed(f"HTTP {status}: {_message(data)}")
    return str(json.loads(data)["ReqId"])


def page(address: str) -> Request:
    """A page of the service with the virtual address `address`, from a site; it has the name of the copy."""

    def attempt(machine: Machine) -> str:
        status, data = _exchange(machine, address, 80, "GET", "/whoami")
        if status != HTTPStatus.OK:
            raise RequestFailed(f"HTTP {status}")
        return data.decode().split()[0]

    return attempt


def _exchange(
    machine: Machine, host: str, port: int, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """One HTTP request from a machine, on a connection of its own."""

    def connect() -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        made.connect()
        return made

    try:
        with closing(machine.inside(connect)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
    except MachineFailed as error:
        raise RequestFailed(str(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from None


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data).get("message", ""))[:200]
    except (ValueError, AttributeError):
        return ""


class Load:
    """Clients at sites, each a thread that makes one request after the other."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self._machines = machines
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._threads: list[threading.Thread] = []
        self._stops = threading.Event()

    def start(self, site: str, request: Request, *, clients: int, pause_s: float) -> None:
        """Start clients at `site`, which pause between two requests."""
        for _ in range(clients):
            thread = threading.Thread(target=self._run, args=(site, request, pause_s), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> LoadSummary:
        """Let every client finish its request; what all got."""
        self._stops.set()
        for thread in self._threads:
            thread.join()
        return self.summary()

    def summary(self, since: int = 0) -> LoadSummary:
        """What came of the requests so far, but for the first `since`."""
        with self._lock:
            samples = self._samples[since:]
        return summarize(samples)

    def count(self) -> int:
        with self._lock:
            return len(self._samples)

    def _run(self, site: str, request: Request, pause_s: float) -> None:
        while not self._stops.is_set():
            sample = self._request(site, request)
            with self._lock:
                self._samples.append(sample)
            self._stops.wait(pause_s)

    def _request(self, site: str, request: Request) -> Sample:
        sites = itertools.cycle([site, *(name for name in self._machines if name != site)])
        began, problem = time.monotonic(), ""
        for attempts in itertools.count(1):
            try:
                node = request(self._machines[next(sites)])
                return Sample(site, node, time.monotonic() - began, attempts, problem)
            except RequestFailed as error:
                problem = str(error)
            if time.monotonic() - began > _GIVE_UP_S:
                return Sample(site, "", time.monotonic() - began, attempts, problem)
            time.sleep(_RETRY_S)
        raise AssertionError("a count has no end")
