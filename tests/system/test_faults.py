"""What can happen to Redis, under traffic through the whole stack of middleware, in threads and on an event loop.

For each fault: no request fails (500), each is answered as its rule's failure policy says or as Redis has decided, no
decision waits longer than the deadline and 10 ms, and when the fault is over Redis decides again by itself.

How long a decision has waited is measured around the engine, and compared with bare waits of the same length that are
made in the same process at the same time: what they are late by is the machine's doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
import redis
from django.test import AsyncClient, Client
from django.test.utils import override_settings

from django_ratelimiter import connection
from example_project.redis_server import RedisServer, free_port
from tests.engine.slow import SlowProxy

from .conftest import MakeRule

DEADLINE = 0.05
BEYOND = 0.01
#: Wide enough never to refuse: a refusal would be Redis's or the memory's decision, and here is about neither.
WIDE = 1_000_000
WORKERS = 3
PATHS = {"/items/1/": "local", "/items/2/": "open", "/items/3/": "closed", "/items/4/": "local"}
#: What each fault is given to do its harm, and no longer than that.
FAULT_SECONDS = 0.5
SECONDS = 20.0

Fault = Callable[["Stage"], Iterator[None]]


class Stage(NamedTuple):
    """What a fault is played on. control: a connection that is not taken for one of the limiter's."""

    server: RedisServer
    proxy: SlowProxy
    control: redis.Redis


class Answer(NamedTuple):
    """What a request was answered, and whether Redis decided it."""

    path: str
    status: int
    by_redis: bool


def hung(stage: Stage) -> Iterator[None]:
    os.kill(stage.server.pid, signal.SIGSTOP)
    yield
    os.kill(stage.server.pid, signal.SIGCONT)


def killed(stage: Stage) -> Iterator[None]:
    stage.server.kill()
    yield
    stage.server.start()


def flushed(stage: Stage) -> Iterator[None]:
    stage.control.flushall()
    yield
    stage.control.flushall()


def scripts_flushed(stage: Stage) -> Iterator[None]:
    stage.control.script_flush()
    yield
    stage.control.script_flush()


def made_a_replica(stage: Stage) -> Iterator[None]:
    stage.control.replicaof("127.0.0.1", free_port())
    yield
    stage.control.replicaof("NO", "ONE")


def full(stage: Stage) -> Iterator[None]:
    stage.control.config_set("maxmemory", 1)
    yield
    stage.control.config_set("maxmemory", 0)


def password_changed(stage: Stage) -> Iterator[None]:
    stage.control.config_set("requirepass", "another")
    stage.control.client_kill_filter(skipme=True, _type="normal")
    yield
    stage.control.config_set("requirepass", "")


def busy(stage: Stage) -> Iterator[None]:
    """Somebody's script does not end."""
    stage.control.config_set("busy-reply-threshold", 100)

    def run() -> None:
        with redis.Redis.from_url(stage.server.url) as other, contextlib.suppress(redis.ResponseError):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stage.control.script_kill()
    thread.join()


def slow(stage: Stage) -> Iterator[None]:
    stage.proxy.seconds = 0.015
    yield
    stage.proxy.seconds = 0.0


def too_slow(stage: Stage) -> Iterator[None]:
    stage.proxy.seconds = 0.15
    yield
    stage.proxy.seconds = 0.0


#: With whether Redis goes on deciding meanwhile.
FAULTS: dict[Fault, bool] = {
    hung: False,
    killed: False,
    flushed: True,
    scripts_flushed: True,
    made_a_replica: False,
    full: False,
    password_changed: False,
    busy: False,
    slow: True,
    too_slow: False,
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with RedisServer() as server, SlowProxy(server.port, 0.0) as proxy, redis.Redis.from_url(server.url) as control:
        yield Stage(server, proxy, control)


@pytest.fixture
def rules(make_rule: MakeRule, stage: Stage) -> Iterator[None]:
    for number, policy in enumerate(PATHS.values(), 1):
        algorithm = "concurrency" if number == 4 else "token_bucket"
        make_rule(number, WIDE if number != 4 else 1_000, algorithm, failure_policy=policy, partition_by=["ip"])
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": stage.proxy.url}
    settings = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": DEADLINE * 1_000}
    with override_settings(CACHES={"default": cache, "ratelimit": cache}, RATELIMITER=settings):
        yield


class Traffic:
    """Requests for all paths in turn, by several workers at once, and what they were answered.

    waits: seconds that the engine has taken for each call. late: what bare waits of a deadline were late by.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.waits: list[float] = []
        self.late: list[float] = []
        self.errors: list[BaseException] = []
        self.ended = False

    def note(self, path: str, response: Any) -> None:
        self.answers.append(Answer(path, response.status_code, "RateLimit" in response))

    def wait_for_redis(self) -> None:
        """Until each path has been decided by Redis from now on."""
        self.wait_for(lambda answers: {answer.path for answer in answers if answer.by_redis} == set(PATHS))

    def wait_for(self, condition: Callable[[list[Answer]], bool]) -> list[Answer]:
        """The answers from now on, as soon as the condition holds for them."""
        begin, deadline = len(self.answers), time.monotonic() + SECONDS
        while not condition(self.answers[begin:]):
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, self.answers[-8:]
            time.sleep(0.01)
        return self.answers[begin:]


@contextmanager
def in_threads() -> Iterator[Traffic]:
    traffic, engine = Traffic(), connection.get_engine()
    check = engine.check

    def timed(*args: Any, **options: Any) -> Any:
        began = time.monotonic()
        try:
            return check(*args, **options)
        finally:
            traffic.waits.append(time.monotonic() - began)

    def work(number: int) -> None:
        client, paths = Client(raise_request_exception=True), [*PATHS][number:] + [*PATHS][:number]
        try:
            while not traffic.ended:
                for path in paths:
                    traffic.note(path, client.get(path))
        except BaseException as error:
            traffic.errors.append(error)

    def wait_barely() -> None:
        never = threading.Event()
        while not traffic.ended:
            began = time.monotonic()
            never.wait(DEADLINE)
            traffic.late.append(time.monotonic() - began - DEADLINE)

    engine.check = timed  # type: ignore[method-assign]
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
def on_an_event_loop() -> Iterator[Traffic]:
    traffic = Traffic()

    async def main() -> None:
        engine = connection.get_async_engine()
        check: Callable[..., Awaitable[Any]] = engine.check

        async def timed(*args: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return await check(*args, **options)
            finally:
                traffic.waits.append(time.monotonic() - began)

        engine.check = timed
        await asyncio.gather(wait_barely(), *map(work, range(WORKERS)))

    async def work(number: int) -> None:
        client, paths = AsyncClient(raise_request_exception=True), [*PATHS][number:] + [*PATHS][:number]
        while not traffic.ended:
            for path in paths:
                traffic.note(path, await client.get(path))

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

    connection.get_engine()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield traffic
    finally:
        traffic.ended = True
        thread.join()


@pytest.mark.once
@pytest.mark.parametrize("driven", [in_threads, on_an_event_loop])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault(fault: Fault, driven: Callable[[], Any], stage: Stage, rules: None) -> None:
    goes_on = FAULTS[fault]
    with driven() as traffic, ExitStack() as undone:
        traffic.wait_for_redis()
        begin = len(traffic.waits), len(traffic.late)
        undone.enter_context(contextmanager(fault)(stage))
        if goes_on:
            traffic.wait_for_redis()
        else:
            traffic.wait_for(lambda answers: any(answer.status == 503 for answer in answers))
        time.sleep(FAULT_SECONDS)
        undone.close()
        traffic.wait_for_redis()
    assert not traffic.errors
    for answer in traffic.answers:
        refused = PATHS[answer.path] == "closed" and not answer.by_redis
        assert answer.status == (503 if refused else 200), answer
    waits, late = sorted(traffic.waits[begin[0] :]), max(traffic.late[begin[1] :])
    assert waits[int(len(waits) * 0.99)] <= DEADLINE + BEYOND + late
    assert waits[-1] < 2, "the client's own timeouts, 5 s, have no say"
