"""Each process that decides says so once in a while: beside a decision, and no request waits for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from time import monotonic, time
from typing import Any
from weakref import WeakValueDictionary

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import breaker
from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.breaker import MAX_FAILURES, CircuitBreaker
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.rules import cache, heartbeats
from django_ratelimiter.rules.heartbeats import HEARD_SECONDS, INTERVAL, pulse, read_fleet
from django_ratelimiter.rules.ruleset import RuleSet

from ..making import fork
from .rows import make_rule

VERSION = Version(7, 3)


@pytest.fixture(autouse=True)
def _beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what keeps other tests from speaking, and forget the breakers that they have left open."""
    monkeypatch.setattr(cache, "beat", heartbeats.beat)
    monkeypatch.setattr(breaker, "_breakers", WeakValueDictionary())


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """What this process has said so far."""
    said: list[Any] = []
    store = get_engine().heartbeats  # type: ignore[attr-defined]
    write = store.write
    monkeypatch.setattr(store, "write", lambda process, text: said.append(json.loads(text)) or write(process, text))

    def wait() -> list[Any]:
        if pulse.thread is not None:
            pulse.thread.join()
        return said

    return wait


def confirm(version: Version = VERSION) -> None:
    cache.mark_confirmed(RuleSet(version))


def test_says_it_once_in_an_interval(written: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        confirm()
    [[host, pid, version, open_now, outage_at, at, proxies]] = written()
    assert (pid, version, open_now, outage_at, proxies) == (os.getpid(), [7, 3], 0, None, [])
    assert host
    assert abs(time() - at) < 60
    later = monotonic() + INTERVAL
    monkeypatch.setattr("django_ratelimiter.rules.cache.time.monotonic", lambda: later)
    confirm()
    assert len(written()) == 2
    cache.mark_confirmed(RuleSet(VERSION, is_versioned=False))  # decided by nobody's rules
    assert len(written()) == 2


def test_says_at_once_what_has_changed(written: Callable[[], list[Any]]) -> None:
    confirm()
    assert len(written()) == 1
    opened = CircuitBreaker()
    for _ in range(MAX_FAILURES):
        opened.fail(OSError())
    confirm()
    assert written()[-1][3] == 1
    opened.close()
    confirm()
    assert written()[-1][3] == 0
    assert abs(time() - written()[-1][4]) < 60
    assert len(written()) == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.urls")
def test_a_request_says_it_and_a_new_version_too(written: Callable[[], list[Any]], get: Any, admin_user: User) -> None:
    with cache.editing(admin_user, "a rule"):
        rule = make_rule(partition_by=["ip"])
    assert written() == []  # to edit is not to decide
    assert get("/hello/").status_code == 200
    first = written()[-1][2][0]
    assert get("/hello/").status_code == 200
    assert len(written()) == 1
    rule.message = "Please wait."
    rule.save()
    assert get("/hello/").status_code == 200
    assert [said[2][0] for said in written()] == [first, first + 1]


def test_the_fleet_is_this_process_and_those_heard_of_lately() -> None:
    store = get_engine().heartbeats  # type: ignore[attr-defined]
    now = time()
    store.write("near", json.dumps(["web-1", 7, [6, 3], 1, now - 9, now - 10]))
    store.write("gone", json.dumps(["web-1", 8, [6, 3], 0, None, now - HEARD_SECONDS - 5]))
    store.write(pulse.process, json.dumps(["me", 9, [5, 3], 0, None, now]))
    for text in ("", "{}", "[1]", '["a", "b", [1], 0, null, 1]'):
        store.write(f"strange{text}", text)
    get_engine().publish(VERSION)
    own, other = read_fleet(VERSION).heartbeats
    assert (own.process, own.pid, own.version) == (pulse.process, os.getpid(), VERSION)
    assert (other.host, other.pid, other.version, other.open_breakers) == ("web-1", 7, Version(6, 3), 1)
    assert read_fleet(VERSION).versions == [VERSION]


def test_in_memory_there_is_this_process_alone(settings: Any) -> None:
    with override_settings(RATELIMITER={**settings.RATELIMITER, "CACHE_ALIAS": None}):
        confirm()
        assert pulse.thread is None
        found = read_fleet(VERSION)
    assert ([each.process for each in found.heartbeats], found.versions) == ([pulse.process], [])


def test_nobody_minds_a_redis_that_is_away(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    store = get_engine().heartbeats  # type: ignore[attr-defined]
    for error in (EngineUnavailable("gone"), RuntimeError("broken")):

        def fail(process: str, text: str, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(store, "write", fail)
        pulse.hasten()
        confirm()
        assert pulse.thread is not None
        pulse.thread.join()
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # for the second, which is our fault


def test_a_forked_process_is_another() -> None:
    reads, writes = os.pipe()
    child = fork()
    if not child:
        os.write(writes, pulse.process.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writes)
    with os.fdopen(reads) as said:
        name = said.read()
    assert len(name) == len(pulse.process)
    assert name != pulse.process


def test_where_there_is_no_thread_to_be_had_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("django_ratelimiter.rules.heartbeats.Thread.start", start)
    monkeypatch.setattr(pulse, "due_at", float("-inf"))
    confirm()


def test_no_thread_is_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another request comes between a thread's being made and its being started."""
    started: list[Any] = []

    class NotStarted:
        def __init__(self, **_given: Any) -> None:
            """Take what a thread takes."""

        def is_alive(self) -> bool:
            return False

        def start(self) -> None:
            started.append(self)

    class Interrupted(type(pulse)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "thread" and value is not None and not interrupted:
                interrupted.append(True)
                heartbeats.beat(VERSION)

    interrupted: list[bool] = []
    monkeypatch.setattr(heartbeats, "Thread", NotStarted)
    monkeypatch.setattr(pulse, "thread", None)
    monkeypatch.setattr(pulse, "__class__", Interrupted)
    heartbeats.beat(VERSION)
    assert len(started) == len(set(started)) == 2
