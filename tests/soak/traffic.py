"""Many callers at once, who ask for all pages in any order, by threads that keep their connections."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from example_project.redis_server import HOST

from .operator import RULES

CALLERS: Final = 20_000
FREE: Final = "/hello/"
PATHS: Final = (FREE, *[f"/items/{number}/" for number in range(1, len(RULES) + 1)])
#: The only page that may be rejected with 503: its failure policy is "closed".
CLOSED: Final = f"/items/{1 + [policy for _, policy, _ in RULES].index('closed')}/"


class Traffic:
    """What came back. answers: how often, by status; 0 = no answer, as from a worker that was killed.

    wrong: answers that nobody should get, the first of them in words. rate: requests in a second, of all threads: as
    many whether the machine is busy or not, for what a process holds depends on it.
    """

    def __init__(self, ports: Sequence[int], threads: int, rate: float) -> None:
        self.answers: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._ports, self._rate = ports, rate
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(threads)]

    def is_served(self) -> bool:
        """Return whether all servers answer. Raises OSError while one does not."""
        for port in self._ports:
            with closing(http.client.HTTPConnection(HOST, port, timeout=30)) as connection:
                connection.request("GET", FREE)
                connection.getresponse()
        return True

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Ask for as long as the block lasts."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _ask(self, number: int) -> None:
        drawn = random.Random(number)
        connection = http.client.HTTPConnection(HOST, self._ports[number % len(self._ports)], timeout=30)
        pause, due = len(self._threads) / self._rate, time.monotonic()
        while not self._ended.wait(max(due - time.monotonic(), 0.0)):
            due = max(due + pause, time.monotonic())  # who is late does not hurry
            caller, path = drawn.randrange(CALLERS), drawn.choice(PATHS)
            try:
                connection.request("GET", path, headers={"X-Forwarded-For": f"10.0.{caller // 250}.{caller % 250}"})
                response = connection.getresponse()
                response.read()
                status = response.status
            except (OSError, http.client.HTTPException):
                connection.close()
                status = 0
            self.answers[status] += 1
            if status not in (0, 200, 429) and (status, path) != (503, CLOSED):
                self.wrong.append(f"{status} for {path}")
        connection.close()
