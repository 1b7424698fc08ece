"""Sends the requests over a few open connections, and records the answers."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..catalogue import Rule
from ..middleware import PROCESS_HEADER
from .scenario import CLIENTS, Caller, Stream

TIMEOUT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request.

    sent, answered: Unix seconds. status: of HTTP; 0 = no answer came, and `error` says why.
    rejected_by: slugs of the rules that the body of a 429 names. process: the server process that answered.
    """

    stream: Stream
    caller: Caller
    sent: float
    answered: float
    status: int
    rejected_by: frozenset[str] = frozenset()
    process: int = 0
    error: str = ""

    @property
    def admitted(self) -> bool:
        """True if the page itself answered."""
        return self.status == 200


class Connection:
    """One connection to the server, kept open from request to request."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)

    def send(self, stream: Stream, caller: Caller) -> Answer:
        """Send one request and wait for its answer. A lost answer is an Answer too: nothing is sent twice."""
        sent = time.time()
        try:
            self._http.request(stream.method, stream.path, headers=caller.headers)
            response = self._http.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            return Answer(stream, caller, sent, time.time(), 0, error=repr(error))
        answered = time.time()
        process = int(response.headers.get(PROCESS_HEADER, 0))
        rejected_by, error_text = frozenset[str](), ""
        if response.status == 429:
            policies = _named_in_body(body) or _exhausted(response.headers.get("RateLimit", ""), stream, caller)
            rejected_by = _rules_of(policies, stream.rules_for(caller))
            if not rejected_by:
                error_text = "a 429 that names no rule which this request meets"
        elif response.status != 200:
            error_text = f"status {response.status}"
        return Answer(stream, caller, sent, answered, response.status, rejected_by, process, error_text)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


def _named_in_body(body: bytes) -> set[str]:
    """Return the policies that a problem document (RFC 9457) lists as violated; empty for any other body."""
    try:
        return set(json.loads(body)["violated-policies"])
    except (ValueError, KeyError, TypeError):
        return set()


def _exhausted(field: str, stream: Stream, caller: Caller) -> set[str]:
    """Return the policies of a RateLimit field with less left than this request costs."""
    costs = {rule.slug: rule.cost for rule in stream.rules_for(caller)}
    left = re.findall(r'"([^"]+)";r=(\d+)', field)
    return {name for name, remaining in left if int(remaining) < costs.get(name, 1)}


def _rules_of(policies: Iterable[str], rules: Iterable[Rule]) -> frozenset[str]:
    """Return the rules of policies: a rule's first limit has the rule's name, further ones are RULE-WINDOW."""
    names = {rule.slug: rule.slug for rule in rules}
    names |= {
        f"{rule.slug}-{limit.window}": rule.slug for rule in rules for row in rule.limits.values() for limit in row
    }
    return frozenset(names[policy] for policy in policies if policy in names)


class Traffic:
    """The requests: `run` sends them in its own threads, and `answers` grows meanwhile."""

    def __init__(self, port: int, streams: Iterable[Stream], seconds: float) -> None:
        self._port = port
        self._schedule = sorted(_due(streams, seconds), key=lambda entry: entry[0])
        self._next: Iterator[tuple[float, Stream, Caller]] = iter(self._schedule)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.answers: list[Answer] = []

    @property
    def total(self) -> int:
        """The number of requests to send."""
        return len(self._schedule)

    def start(self) -> None:
        """Start sending."""
        self._started = time.monotonic()
        self._clients = [threading.Thread(target=self._client, daemon=True) for _ in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def wait(self, seconds: float) -> bool:
        """Wait at most this long. Return whether all answers are there."""
        until = time.monotonic() + seconds
        for client in self._clients:
            client.join(max(0.0, until - time.monotonic()))
        return not any(client.is_alive() for client in self._clients)

    def stop(self) -> None:
        """Stop sending."""
        self._stopped.set()

    def _client(self) -> None:
        connection = Connection(self._port)
        while not self._stopped.is_set():
            with self._lock:
                entry = next(self._next, None)
            if entry is None:
                break
            due, stream, caller = entry
            if self._stopped.wait(max(0.0, self._started + due - time.monotonic())):
                break
            self.answers.append(connection.send(stream, caller))
        connection.close()


def _due(streams: Iterable[Stream], seconds: float) -> Iterator[tuple[float, Stream, Caller]]:
    """Yield each request with its time, in seconds from the start."""
    for stream in streams:
        span = (stream.end - stream.begin) * seconds
        for number in range(stream.count):
            moment = stream.begin * seconds + span * number / stream.count
            for caller in stream.callers:
                yield moment, stream, caller
