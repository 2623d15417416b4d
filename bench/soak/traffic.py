"""What people do while things are killed, and the record of what was acknowledged to them.

Each client is a thread that makes one kind of request again and again: calls, async calls, instances that
come and go, changes of a workload. Calls are made at the server and at the node, and async ones are polled at
the other of the two. What an answer promised is written down here and compared with what the witness saw and
with what Skerry says afterwards. An error is no violation: a promise that was not kept is.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tests.support import functions

from bench.soak.cluster import NODE_HTTP, SERVER_HTTP, Refused, ask_once
from bench.soak.witness import FUNCTION, Witness

_BUSY, _RARE = "busy", "rare"  # functions: one whose worker stays, and one that has to get another each time
_WORKLOAD = "counter"
_SMALL = {"cpu": 20, "memory": 16}
_PENDING = ("queued", "running")
_UNANSWERED = (OSError, http.client.HTTPException)
_PORTS = (NODE_HTTP, SERVER_HTTP)
_ELSEWHERE = {NODE_HTTP: SERVER_HTTP, SERVER_HTTP: NODE_HTTP}
_WITHIN_S = 60.0
_PAUSE_S = 0.1


class AcceptedCall(NamedTuple):
    """An async call that was accepted, and where."""

    name: str
    port: int


@dataclass
class Record:
    """What was acknowledged, and which promises were broken."""

    answered: set[str] = field(default_factory=set)  # calls that were said to have run
    refused: set[str] = field(default_factory=set)  # calls that were said to have failed, or not said at all
    pending: dict[str, AcceptedCall] = field(default_factory=dict)  # async calls by id, end not known yet
    instances: dict[str, str] = field(default_factory=dict)  # ids of what must be there, by name
    version: int = 0  # of the workload, as last acknowledged
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def violate(self, text: str) -> None:
        self.violations.append(text)
        print(f"  VIOLATED: {text}", flush=True)


class Traffic:
    """All clients together."""

    def __init__(self, image: str, witness: Witness, chance: random.Random) -> None:
        self.record = Record()
        self._image = image
        self._witness = witness
        self._chance = chance
        self._names = itertools.count(1)
        # Each client makes its calls at both in turn.
        self._ports, self._async_ports = itertools.cycle(_PORTS), itertools.cycle(_PORTS)
        self._over = threading.Event()
        self._busy = threading.Lock()  # held while ids of async calls are looked at
        self._threads: list[threading.Thread] = []

    # Before, and after

    def prepare(self, steady: int) -> None:
        """Make what is there all the time: a function, a workload, and instances that are to run for ever."""
        for name in (_BUSY, _RARE):
            self._persist(partial(ask_once, SERVER_HTTP, "POST", "/create", functions.body(name, FUNCTION)))
        self._until(lambda: _RARE in ask_once(NODE_HTTP, "GET", "/function"), "the node has the functions")
        made = ask_once(SERVER_HTTP, "PUT", "/workload/", {"name": _WORKLOAD, "uri": self._image})
        self._workload = made["id"]
        for number in range(steady):
            self._create(f"steady-{number}")

    def start(self) -> None:
        for client in (self._call, self._call_async, self._churn, self._change):
            thread = threading.Thread(target=self._repeat, args=(client,), name=client.__name__)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def settle(self) -> None:
        """After the last kill: every async call ends, everything can be deleted, and it all adds up."""
        with self._expecting("async calls end"):
            self._until(self.collect, "every async call has ended")
        self.check()
        for name in tuple(self.record.instances):
            self._delete(name)
        left = ask_once(SERVER_HTTP, "GET", "/instance/?limit=0")["instances"]
        for each in left:
            self.record.violate(f"instance {each['name']} is there, and nobody has it: {each['status']}")
        with self._expecting("nothing runs"):
            self._until(lambda: not self._witness.living(), "no copy is alive")
        for name in (_BUSY, _RARE):
            ask_once(SERVER_HTTP, "POST", "/delete", {"Name": name})

    # Judgements

    def what_is_wrong(self) -> str:
        """Why what should run does not yet; empty if it does. For whoever waits until all is well again."""
        try:
            node = ask_once(SERVER_HTTP, "GET", "/node/n1")
            if (node["status"], node["liveness"]) != ("ready", "live"):
                return f"the node is {node['status']}, {node['liveness']}"
            for name, id in tuple(self.record.instances.items()):
                status = ask_once(SERVER_HTTP, "GET", f"/instance/{id}")["status"]
                if name.startswith("steady") and (status, self._witness.copies(name)) != ("RUNNING", 1):
                    return f"{name} is {status}, and {self._witness.copies(name)} copies are alive"
            for function, port in itertools.product((_BUSY, _RARE), _PORTS):
                if not self._call(function, port):
                    return f"a call of {function} at port {port} failed"
        except (Refused, *_UNANSWERED) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def check(self) -> None:
        """Compare what was promised with what was seen; to be called when no call runs."""
        runs = self._witness.calls
        record = self.record
        for name in sorted(record.answered):
            if runs[name] != 1:
                record.violate(f"call {name} was answered, and ran {runs[name]} times")
        for name in sorted(record.refused):
            if runs[name] > 1:
                record.violate(f"call {name} failed, and ran {runs[name]} times")
        for name in sorted(self._witness.doubled):
            record.violate(f"two copies of instance {name} ran at once")
        version = self._version()
        if version < record.version:
            record.violate(f"change {record.version} of the workload was acknowledged; it has {version}")
        there = {each["id"] for each in ask_once(SERVER_HTTP, "GET", "/instance/?limit=0")["instances"]}
        for name, id in record.instances.items():
            if id not in there:
                record.violate(f"instance {name} was acknowledged, and is gone")

    def collect(self) -> bool:
        """Ask for the ends of async calls where they were not accepted; true when none is pending. False also
        if nobody answers."""
        with self._busy:
            for id, (name, port) in tuple(self.record.pending.items()):
                try:
                    report = ask_once(_ELSEWHERE[port], "GET", f"/poll/{id}")
                except Refused as error:
                    if error.status != http.client.NOT_FOUND:
                        return False
                    report = error.answer  # 404 is the answer for what has not ended, too
                    if report["State"] not in _PENDING:
                        self.record.violate(f"async call {name} was accepted, and is not known: {error}")
                        report = {"State": "lost"}
                except _UNANSWERED:
                    return False
                if report["State"] in _PENDING:
                    continue
                del self.record.pending[id]
                if report["State"] == "done":
                    self._is_own(name, report)
                    self.record.answered.add(name)
                else:
                    self.record.refused.add(name)
                self.record.counts[f"async {report.get('ErrorType') or report['State']}"] += 1
            return not self.record.pending

    # Clients

    def _call(self, function: str = _BUSY, port: int | None = None) -> bool:
        """True if it is known to have run."""
        name = f"c{next(self._names)}"
        report = self._invoke(port or next(self._ports), function, name)
        if not report:
            self.record.refused.add(name)
            return False
        self._is_own(name, report)
        self.record.answered.add(name)
        self.record.counts["calls done"] += 1
        return True

    def _invoke(self, port: int, function: str, name: str, **fields: Any) -> Any:
        """The report of a call, or none if there is no answer."""
        params = {"witness": list(self._witness.address), "name": name}
        try:
            return ask_once(port, "POST", f"/invoke/{function}", {"Params": params, **fields})
        except Refused as error:
            report = error.answer if isinstance(error.answer, dict) else {}
            self.record.counts[f"calls {report.get('ErrorType') or error.status}"] += 1
        except _UNANSWERED:
            self.record.counts["calls unanswered"] += 1
        return None

    def _is_own(self, name: str, report: Any) -> None:
        if json.loads(report["Result"]) != name:
            self.record.violate(f"call {name} got the answer {report['Result']}")

    def _call_async(self) -> None:
        name = f"a{next(self._names)}"
        port = next(self._async_ports)
        if report := self._invoke(port, self._chance.choice((_BUSY, _RARE)), name, Async=True):
            with self._busy:
                self.record.pending[report["ReqId"]] = AcceptedCall(name, port)
        else:
            self.record.refused.add(name)

    def _churn(self) -> None:
        name = f"brief-{next(self._names)}"
        id = self._create(name)
        with self._expecting(f"instance {name} starts"):
            self._until(lambda: self._status(id) == "RUNNING" and self._witness.copies(name), f"{name} runs")
        self._over.wait(self._chance.uniform(0, 2))
        self._delete(name)

    def _create(self, name: str) -> str:
        """Sent again until it is acknowledged: that makes one, however often it is sent."""
        spec = {
            "name": name,
            "uri": self._image,
            "arguments": self._witness.program(name),
            "resources": _SMALL,
        }
        made = self._persist(lambda: ask_once(SERVER_HTTP, "PUT", "/instance/", spec, Idempotency_Key=name))
        self.record.instances[name] = made["id"]
        self.record.counts["instances created"] += 1
        return str(made["id"])

    def _delete(self, name: str) -> None:
        id = self.record.instances.pop(name)

        def delete() -> None:
            try:
                ask_once(SERVER_HTTP, "DELETE", f"/instance/{id}")
            except Refused as error:
                if error.status != http.client.NOT_FOUND:  # the answer to the one before was lost
                    raise

        self._persist(delete)
        with self._expecting(f"instance {name} goes"):
            self._until(lambda: self._status(id) == "", f"{name} is forgotten")
            self._until(lambda: not self._witness.copies(name), f"no copy of {name} is alive")
        self.record.counts["instances deleted"] += 1

    def _status(self, id: str) -> str:
        """Of an instance; empty when it is no more."""
        try:
            return str(ask_once(SERVER_HTTP, "GET", f"/instance/{id}")["status"])
        except Refused as error:
            if error.status == http.client.NOT_FOUND:
                return ""
            raise

    def _change(self) -> None:
        wanted = self.record.version + 1
        body = {"environment": [f"VERSION={wanted}"]}
        self._persist(lambda: ask_once(SERVER_HTTP, "PATCH", f"/workload/{self._workload}", body))
        self.record.version = wanted
        self.record.counts["changes of a workload"] += 1

    def _version(self) -> int:
        found = ask_once(SERVER_HTTP, "GET", f"/workload/{self._workload}")["environment"]
        return int(str(found).partition("VERSION=")[2].partition("'")[0] or 0)

    # How they go about it

    def _repeat(self, client: Callable[[], None]) -> None:
        while not self._over.wait(_PAUSE_S):
            try:
                client()
            except Exception as error:  # noqa: BLE001 - a client that died would hide what comes after
                self.record.violate(f"{client.__name__.strip('_')}: {type(error).__name__}: {error}")

    def _persist(self, request: Callable[[], Any]) -> Any:
        """The answer to a request that is sent again while nobody answers."""
        deadline = time.monotonic() + _WITHIN_S
        while True:
            try:
                return request()
            except (Refused, *_UNANSWERED) as error:
                is_for_good = isinstance(error, Refused) and error.status < http.client.INTERNAL_SERVER_ERROR
                if is_for_good or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while True:
            with contextlib.suppress(Refused, *_UNANSWERED):
                if condition():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_WITHIN_S:.0f} s: {what}")
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def _expecting(self, what: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.record.violate(f"{what}: {error}")
