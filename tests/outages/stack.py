"""Requests through the whole stack of middleware in this process, in threads and on an event loop, under a deadline.

How long a decision has waited is measured around the engine, and compared with bare waits of the same length that are
made in the same process at the same time: what they are late by is the machine's doing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, NamedTuple

from django.test import AsyncClient, Client
from redis.exceptions import ResponseError

from django_ratelimiter import backend
from django_ratelimiter.engine import EngineUnavailable

DEADLINE = 0.05
BEYOND = 0.01
#: Wide enough never to reject: a rejection would be Redis's or the memory's decision, and here is about neither.
WIDE = 1_000_000
WORKERS = 3
PATHS = {"/items/1/": "local", "/items/2/": "open", "/items/3/": "closed", "/items/4/": "local"}
SECONDS = 120.0
#: How long a worker rests after each request: a fault is waited for, and more requests meanwhile tell no more.
REST_SECONDS = 0.02
ADDRESS = "203.0.113.1"

#: For RATELIMITER. The workers choose the addresses that requests come from.
LIMITER = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": DEADLINE * 1_000, "TRUSTED_PROXIES": ["127.0.0.1"]}


def make_rules(make_rule: Callable[..., Any]) -> None:
    """Make a rule for each path."""
    for number, policy in enumerate(PATHS.values(), 1):
        algorithm = "concurrency" if number == 4 else "token_bucket"
        make_rule(number, WIDE if number != 4 else 1_000, algorithm, failure_policy=policy, partition_by=["ip"])


class Answer(NamedTuple):
    """What a request was answered, and whether Redis decided it."""

    path: str
    address: str
    status: int
    by_redis: bool


Condition = Callable[[list[Answer]], bool]


def may_have_been_run(error: EngineUnavailable) -> bool:
    """Whether a server may have run the call: it was asked, and has not said no."""
    cause = error.__cause__
    return cause is not None and not isinstance(cause, ResponseError) and "refused" not in str(cause)


class Traffic:
    """Requests for all paths in turn, from all addresses, by several workers at once, and what they were answered.

    paths: may grow meanwhile. waits: seconds that the engine has taken for each call. late: what bare waits of a
    deadline were late by. lost: calls that may have been run though no reply came, by usage label.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.paths = [*PATHS]
        self.addresses = addresses or [ADDRESS]
        self.answers: list[Answer] = []
        self.waits: list[float] = []
        self.late: list[float] = []
        self.lost: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.ended = False

    def requests(self, number: int) -> Iterator[tuple[str, str]]:
        """Paths and addresses in turn, for one worker."""
        while not self.ended:
            for path in [*self.paths[number:], *self.paths[:number]]:
                for address in self.addresses:
                    yield path, address

    def note(self, path: str, address: str, response: Any) -> None:
        self.answers.append(Answer(path, address, response.status_code, "RateLimit" in response))

    def note_lost(self, error: EngineUnavailable, charges: Iterable[Any]) -> None:
        """Count a call whose reply did not come."""
        if may_have_been_run(error):
            self.lost.update({charge.usage for charge in charges})

    @contextmanager
    def timed(self, charges: Iterable[Any]) -> Iterator[None]:
        """Note how long the engine takes for a call, and whether its reply was lost."""
        began = time.monotonic()
        try:
            yield
        except EngineUnavailable as error:
            self.note_lost(error, charges)
            raise
        finally:
            self.waits.append(time.monotonic() - began)

    def is_decided(self, answers: list[Answer]) -> bool:
        """Whether Redis has decided, in these answers, every path and address."""
        asked = {(path, address) for path in PATHS for address in self.addresses}
        return asked <= {(answer.path, answer.address) for answer in answers if answer.by_redis}


def wait_for_all(several: Sequence[Traffic], condition: Condition) -> None:
    """Until the condition holds for the answers of each from now on."""
    begins, deadline = [len(traffic.answers) for traffic in several], time.monotonic() + SECONDS
    while not all(condition(each.answers[begin:]) for each, begin in zip(several, begins, strict=True)):
        errors = [error for traffic in several for error in traffic.errors]
        assert not errors, errors
        assert time.monotonic() < deadline, [traffic.answers[-8:] for traffic in several]
        time.sleep(0.01)


@contextmanager
def in_threads(*addresses: str) -> Iterator[Traffic]:
    traffic, engine = Traffic(addresses), backend.get_engine()
    check = engine.check

    def timed(charges: Any, **options: Any) -> Any:
        with traffic.timed(charges):
            return check(charges, **options)

    def work(number: int) -> None:
        client = Client(raise_request_exception=True)
        try:
            for path, address in traffic.requests(number):
                traffic.note(path, address, client.get(path, headers={"X-Forwarded-For": address}))
                time.sleep(REST_SECONDS)
        except BaseException as error:
            traffic.errors.append(error)

    def wait_barely() -> None:
        never = threading.Event()
        while not traffic.ended:
            began = time.monotonic()
            never.wait(DEADLINE)
            traffic.late.append(time.monotonic() - began - DEADLINE)

    engine.check = timed  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    threads.append(threading.Thread(target=wait_barely))
    try:
        for thread in threads:
            thread.start()
        yield traffic
    finally:
        traffic.ended = True
        for thread in threads:
            thread.join()


@contextmanager
def on_an_event_loop(*addresses: str) -> Iterator[Traffic]:
    traffic = Traffic(addresses)

    async def main() -> None:
        engine = backend.get_async_engine()
        check: Callable[..., Awaitable[Any]] = engine.check

        async def timed(charges: Any, **options: Any) -> Any:
            with traffic.timed(charges):
                return await check(charges, **options)

        engine.check = timed
        await asyncio.gather(wait_barely(), *map(work, range(WORKERS)))

    async def work(number: int) -> None:
        client = AsyncClient(raise_request_exception=True)
        for path, address in traffic.requests(number):
            traffic.note(path, address, await client.get(path, headers={"X-Forwarded-For": address}))
            await asyncio.sleep(REST_SECONDS)

    async def wait_barely() -> None:
        while not traffic.ended:
            began = time.monotonic()
            await asyncio.sleep(DEADLINE)
            traffic.late.append(time.monotonic() - began - DEADLINE)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            traffic.errors.append(error)

    backend.get_engine()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield traffic
    finally:
        traffic.ended = True
        thread.join()


class Waits:
    """How long decisions waited from here on."""

    def __init__(self, *several: Traffic) -> None:
        self._begins = [(traffic, len(traffic.waits), len(traffic.late)) for traffic in several]

    def assert_within_the_deadline(self) -> None:
        """At p99, beside what any wait in such a busy process is late by, once for each kind of traffic in it."""
        for traffic, waits, late in self._begins:
            # A hiccup that was over just before the first of these may have held them up as well.
            took, most = sorted(traffic.waits[waits:]), len(self._begins) * max(traffic.late[max(late - 2, 0) :])
            usual = took[-1 - ceil(len(took) / 100)]  # one in a hundred may wait longer; of fewer, one
            print(f"{len(took)} waits, p99 {usual:.3f} s; the machine was late by {most:.3f} s")
            assert usual <= DEADLINE + BEYOND + most
            assert took[-1] < 2 + most, "the client's own timeouts, 5 s, have no say"


def assert_by_policy_or_redis(traffic: Traffic) -> None:
    """No request has failed, and each for these paths was answered by its rule's failure policy or by Redis."""
    assert not traffic.errors
    for answer in (each for each in traffic.answers if each.path in PATHS):
        rejected = PATHS[answer.path] == "closed" and not answer.by_redis
        assert answer.status == (503 if rejected else 200), answer
