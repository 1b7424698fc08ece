"""Fixtures that more than one test module uses."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.color import no_style
from django.core.management.commands import flush
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import AsyncClient, Client, testcases
from django.test import client as test_client
from django.urls import set_urlconf

from django_ratelimiter import backend, limiter
from django_ratelimiter.backend import usage_buffer
from django_ratelimiter.conf import ENTRIES
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import MemoryEngine, breaker
from django_ratelimiter.engine.base import Engine
from django_ratelimiter.engine.fallback import FallbackEngine
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.redis.partition_notes import PartitionTracker
from django_ratelimiter.identity import untrusted
from django_ratelimiter.limiter import events, io, slots
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.rules.stored import published, storage, tables, versions
from example_project.redis_server import RedisServer
from tests import making, profiles
from tests.making import Awaiting, Clock, MakeRule

profiles.load("short")
backend.are_tests_running = lambda: False  # these tests name the keys of a site


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, each worker of pytest-xdist with another, so that none is waited for at the end.

    Those with a browser go to one of the workers, for each that has one starts it.
    """
    longest = [item for item in items if any(mark.kwargs.get("first") for mark in item.iter_markers("once"))]
    rest = [item for item in items if item not in longest]
    rest.sort(key=lambda item: "window" not in getattr(item, "fixturenames", ()))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    for number, item in enumerate(longest):
        rest.insert(number % workers * len(items) // workers, item)  # where a worker's share of them begins
    items[:] = rest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage be collected while tests are: what is made there stays, and it took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over thousands of tests that stay anyway: it took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Leave the database its name under pytest-xdist: `tests.servers` gave each worker its own."""


@pytest.fixture(scope="session", autouse=True)
def _permissions_stay() -> Iterator[None]:
    """Let tests that commit leave permissions behind: to make them again takes longer than most of the tests do."""
    kept = {"django_content_type", "auth_permission"}

    def without_them(style: object, connection: BaseDatabaseWrapper, **options: bool) -> list[str]:
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        tables = [table for table in tables if table not in kept]
        if connection.vendor != "postgresql":
            return connection.ops.sql_flush(style, tables, **options)
        unordered = "SET LOCAL session_replication_role = replica"  # minds no foreign keys; to truncate takes longer
        return [unordered, *(f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables)]

    def call(command: str, *given: str, **options: Any) -> Any:
        """Send the SQL of `flush` at once: its parser and its search for modules took two thirds of the time."""
        if command != "flush":
            return call_command(command, *given, **options)
        connection = connections[options["database"]]
        connection.ops.execute_sql_flush(
            without_them(no_style(), connection, reset_sequences=False, allow_cascade=False)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testcases, "call_command", call)
        patch.setattr(flush, "sql_flush", without_them)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_given: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _contexts_of_fields_are_not_kept() -> Iterator[None]:
    """Keep for `response.context` what pages are made of, and no copy for each field, which took a sixth of forms."""
    keep = test_client.store_rendered_templates

    def keep_pages(store: dict[str, Any], signal: Any, sender: Any, template: Any, context: Any, **given: Any) -> None:
        if not (template.name or "").startswith(("django/forms/", "admin/widgets/")):
            keep(store, signal, sender, template, context, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_client, "store_rendered_templates", keep_pages)
        yield


@pytest.fixture(autouse=True)
def _django_set_urlconf(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the addresses of `pytest.mark.urls`, in the place of pytest-django's fixture of this name.

    That one empties the caches of resolvers as well. They are kept by the name of the module, and to fill one with the
    addresses of the admin takes longer than most tests do.
    """
    marker = request.node.get_closest_marker("urls")
    if marker is None:
        yield
        return
    with monkeypatch.context() as patch:
        patch.setattr(settings, "ROOT_URLCONF", marker.args[0])
        set_urlconf(None)
        yield
    set_urlconf(None)


@pytest.fixture(scope="session")
def redis_url() -> str:
    """The address of the server that the settings name too."""
    return os.environ["TEST_REDIS_URL"]


@pytest.fixture(scope="session")
def _redis_of_the_session(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(autouse=True)
def redis_client(_redis_of_the_session: redis.Redis) -> redis.Redis:
    """A client of the test server, whose database is empty when the test begins."""
    _redis_of_the_session.flushdb()
    return _redis_of_the_session


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin as a process does: knowing no rules and no tiers, and nothing counted in its memory."""
    # Tests that give settings of their own are not about how long a loaded machine lets one wait.
    monkeypatch.setattr(ENTRIES["DEADLINE_MS"], "default", 10_000)
    monkeypatch.setattr(cache, "_state", cache._State())
    monkeypatch.setattr("django_ratelimiter.limiter.fallback.local", FallbackEngine())
    usage_buffer._forget()
    monkeypatch.setattr(events, "_soft_exceeded", events.NotificationDedup())
    monkeypatch.setattr(events, "_reached", events.NotificationDedup())
    monkeypatch.setattr(events, "_denied", events.NotificationDedup())
    monkeypatch.setattr(versions, "_published", threading.local())
    monkeypatch.setattr(published, "PAUSES", (0.0, 0.0))
    # A test before it has seen that they exist.
    monkeypatch.setattr(
        tables, "_seen", {("default", name) for name in connections["default"].introspection.django_table_names()}
    )
    monkeypatch.setattr(breaker, "changed_at", None)
    untrusted.named.clear()
    untrusted.noted.clear()
    untrusted.heard.clear()
    tiers.forget()
    storage.forget_entries()
    if isinstance(engine := backend._engine, LocalFirstEngine):
        engine.counters.clear()
        engine.engine._partition_tracker = PartitionTracker()
    for thread in threading.enumerate():  # of engines of earlier tests, which would send what this test counts
        if target := thread.name == "ratelimiter-units" and vars(thread).get("_target"):  # not if it has just ended
            target.__self__.clear()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, in a list of one number, which the test moves."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def _no_connection_stays_open() -> Iterator[None]:
    """Close what other threads have opened: nobody else does, and PostgreSQL would not let its database go."""
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_signal: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            opened.append(connection)

    connection_created.connect(note)
    yield
    connection_created.disconnect(note)
    for connection in opened:
        connection.inc_thread_sharing()
        connection.close()


@pytest.fixture(params=["thread", "event loop"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Let a test run twice: in a thread, and on an event loop."""
    return bool(request.param == "event loop")


@pytest.fixture
def either(is_async: bool) -> Callable[[Any, Any], Any]:
    """The first of two functions in a thread, the second on an event loop, and both are called alike."""
    return lambda plain, awaited: async_to_sync(awaited) if is_async else plain


@pytest.fixture
def either_way(is_async: bool) -> Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function, or a coroutine function that returns the same, and both are called alike."""

    def decorate(decorator: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*given: Any) -> Any:
            return function(*given)

        return async_to_sync(decorator(awaited)) if is_async else decorator(function)

    return decorate


@pytest.fixture
def get(either: Callable[[Any, Any], Any], client: Client, async_client: AsyncClient) -> Any:
    """Ask for a page by either kind of handler; the test's own thread serves both."""
    return either(client.get, async_client.get)


@pytest.fixture
def either_client(is_async: bool) -> Any:
    """A client of either kind of handler, which are used alike."""
    return Awaiting() if is_async else Client()


@pytest.fixture
def check(either: Callable[[Any, Any], Any]) -> Callable[..., Decision]:
    """Decide on a request by `limiter.check` and by `limiter.acheck`."""
    return either(limiter.check, limiter.acheck)  # type: ignore[no-any-return]


@pytest.fixture
def redis_server() -> Iterator[Callable[..., RedisServer]]:
    """Start servers of the test's own, which it may stop, kill and start again: `redis_server(port=None)`."""
    with ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(RedisServer(*given, **options))


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Engine:
    """Both engines in turn; `parametrize("engine", ["redis"], indirect=True)` picks one."""
    from django_ratelimiter.engine.redis import RedisEngine

    return MemoryEngine() if request.param == "memory" else RedisEngine(redis_client, namespace="test")


@pytest.fixture
def make_rule(db: None) -> MakeRule:
    """Make rules: see `making.make_rule`."""
    return making.make_rule


@pytest.fixture
def people(db: None) -> None:
    """Two users."""
    for name in ("ann", "bob"):
        User.objects.create(username=name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the engine, which counts in memory, and of whoever waits."""
    clock = Clock()
    engine = MemoryEngine(clock)
    monkeypatch.setattr(backend, "_engine", engine)
    monkeypatch.setattr(backend, "_build", lambda: engine)  # after each change of settings
    monkeypatch.setattr("django_ratelimiter.limiter.fallback.local", FallbackEngine(clock))
    monkeypatch.setattr(io, "sleep", clock.sleep)
    monkeypatch.setattr(io, "asleep", clock.asleep)
    monkeypatch.setattr(slots, "_clock", clock.seconds)
    return clock
