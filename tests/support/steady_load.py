"""Requests to one URL by several clients until told to stop, on connections that are kept, and on new ones.

with SteadyLoad(url) as load:
    ...
assert load.failures == []
"""

from __future__ import annotations

import http.client
import threading
import time
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S, eventually_sync

_PAUSE_S = 0.01


class SteadyLoad:
    """Half of the clients connect anew for each request. With a `body` they are POSTs."""

    def __init__(self, url: str, body: bytes | None = None, clients: int = 4) -> None:
        self.failures: list[str] = []
        self.answered = 0
        self._url = urlsplit(url)
        self._body = body
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n % 2 == 0,)) for n in range(clients)]
        self._counting = threading.Lock()

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def until_answered(self, count: int = 20) -> None:
        """Wait until `count` more requests have been answered."""
        wanted = self.answered + count
        eventually_sync(lambda: self.answered >= wanted or self.failures, what=f"{count} more answers")

    def _run(self, keeps: bool) -> None:
        connection = http.client.HTTPConnection(self._url.netloc, timeout=PATIENCE_S)
        while not self._is_over.wait(_PAUSE_S):
            if (problem := self._request(connection)) or not keeps:
                connection.close()
            with self._counting:
                if problem:
                    self.failures.append(f"{time.time():.3f} {problem}")
                else:
                    self.answered += 1
        connection.close()

    def _request(self, connection: http.client.HTTPConnection) -> str:
        """Why it failed; empty if it was answered."""
        try:
            connection.request(
                "GET" if self._body is None else "POST",
                self._url.path or "/",
                self._body,
                {"Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        return "" if answer.status == 200 else f"{answer.status} {text}"
