"""The engine of this process, built from the settings at its first use, and the engine for event loops."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import sys
from hashlib import blake2b
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.signals import connection_created
from django.utils.asyncio import async_unsafe
from django.utils.module_loading import import_string

from .conf import django_setting, settings
from .engine.adapters import as_async
from .engine.base import Engine
from .engine.local.engine import LocalFirstEngine
from .engine.local.store import LocalCounters
from .engine.locks import freed_by_fork
from .engine.memory import MemoryEngine
from .engine.redis import CLIENT_ERRORS, RedisEngine
from .engine.usage import UsageBuffer
from .exceptions import EngineUnavailable

#: Usage that this process has counted itself. It is sent with a later call of the engine.
usage_buffer: Final = UsageBuffer()

_engine: Engine | None = None
_async_engine: tuple[Engine, Any] | None = None  # the engine for event loops, and the engine that it belongs to
_building = freed_by_fork(Lock())
_fresh = ""  # the end of a namespace that no other process uses
_run: Final = secrets.token_hex(4)  # of this run of tests, which begins at zero as its database begins empty


def get_engine() -> Engine:
    """Return the engine that RATELIMITER names: ENGINE, else CACHE_ALIAS, else one in this process's memory.

    Does not connect to a server. Raises ImproperlyConfigured if the named engine cannot be built.
    """
    engine = _engine
    return _build_once() if engine is None else engine


@async_unsafe("The engine has to be built; `limiter.acheck` does it in a thread.")
def _build_once() -> Engine:
    global _engine
    with _building:
        engine = _engine
        if engine is None:
            engine = _engine = _build()
        return engine


def get_async_engine() -> Any:
    """Return the engine for event loops: its methods are coroutines, and none of them blocks.

    Raises SynchronousOnlyOperation on an event loop if the engine is not built yet, because that may take a while. On
    Redis it has its own connections with the options of the same alias, at most 64 on each event loop.
    """
    global _async_engine
    engine, twin = get_engine(), _async_engine
    if twin is None or twin[0] is not engine:
        twin = _async_engine = engine, as_async(engine)
    return twin[1]


def server_in_words() -> str:
    """Return the server of the engine and the setting that names it, without passwords, for logs and checks."""
    if settings.ENGINE is not None:
        return f"RATELIMITER['ENGINE'], {settings.ENGINE}"
    alias = settings.CACHE_ALIAS
    cache = django_setting("CACHES", {}).get(alias) or {}
    location = cache.get("LOCATION") or ""
    addresses = [_without_password(each) for each in (location.split(",") if isinstance(location, str) else location)]
    setting = f"CACHES[{alias!r}]"
    return f"{', '.join(addresses)} ({setting})" if all(addresses) else setting


def _without_password(address: object) -> str:
    """Return an address without user, password and parameters; empty if it cannot be parsed."""
    try:
        parts = urlsplit(str(address))
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else ""


def reset_engine(*, setting: str = "RATELIMITER", **_signal: object) -> None:
    """Drop the engine if it was built from `setting`. The next call builds it again."""
    global _engine, _async_engine
    if setting in ("RATELIMITER", "CACHES"):
        engine: object = _engine
        _engine = _async_engine = None
        if isinstance(engine, LocalFirstEngine):
            engine.engine.retire()


setting_changed.connect(reset_engine, dispatch_uid="django_ratelimiter.backend")


@atexit.register
def _flush_counts() -> None:
    """Send the counts of this process to the engine before the process ends."""
    engine: object = _engine
    if isinstance(engine, LocalFirstEngine):
        engine.flush()


def _build() -> Any:
    """Return the engine; one on Redis with local counters, which call Redis only if a rule needs it."""
    engine = _exact()
    if not isinstance(engine, RedisEngine):
        return engine
    return LocalFirstEngine(
        engine, LocalCounters(settings.DENIAL_MEMORY, settings.VERSION_CHECK_INTERVAL, usage_buffer=usage_buffer)
    )


def _exact() -> Engine:
    if settings.ENGINE is not None:
        return _custom(settings.ENGINE)
    if settings.CACHE_ALIAS is None:
        return MemoryEngine()
    return _redis(settings.CACHE_ALIAS)


def are_tests_running() -> bool:
    """Return whether Django's test environment is set up, as `manage.py test` and pytest-django do."""
    loaded = sys.modules.get("django.test.utils")
    return hasattr(getattr(loaded, "_TestState", None), "saved_data")


def _namespace() -> str:
    """Return NAMESPACE; in tests with their database and run, so that they share no counters with others.

    It begins with NAMESPACE, so an ACL that allows its keys allows these, too.
    """
    if not are_tests_running():
        return f"{settings.NAMESPACE}{_fresh}"
    connection_created.connect(_follow_database, dispatch_uid="django_ratelimiter.backend")
    name = str(connections.settings[DEFAULT_DB_ALIAS].get("NAME") or ":memory:")
    if ":memory:" in name or "mode=memory" in name:  # of this process alone
        name = f"memory-{os.getpid()}"
    elif not re.fullmatch(r"[\w.-]{1,64}", name):
        name = blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{settings.NAMESPACE}:{name}-{_run}{_fresh}"


def _follow_database(**_signal: object) -> None:
    """Drop the engine in a process of tests that has another database now, such as a worker of `test --parallel`."""
    exact = getattr(_engine, "engine", None)
    if isinstance(exact, RedisEngine) and exact.namespace != _namespace():
        reset_engine()


def begin_namespace() -> None:
    """Count in a namespace that nothing was counted in: for tests that may not delete keys that they have to search."""
    global _fresh
    _fresh = f":{secrets.token_hex(4)}"
    reset_engine()


def _custom(path: str) -> Engine:
    try:
        factory = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"RATELIMITER['ENGINE']: {error}") from error
    engine: Engine = factory()
    return engine


def _redis(alias: str) -> Engine:
    try:
        # Our own object: Django would close one of `caches` after each request of the calling thread.
        cache: Any = caches.create_connection(alias)
    except KeyError as error:
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES has no {alias!r}.") from error
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES cannot give {alias!r}: {error}") from error
    # Django's own cache and django-redis store the client factory in different attributes.
    clients: Any = cache._cache if isinstance(cache, RedisCache) else getattr(cache, "client", None)
    if not hasattr(clients, "get_client"):
        raise ImproperlyConfigured(
            f"RATELIMITER['CACHE_ALIAS']: {alias!r} is not a Redis cache; its BACKEND must be "
            "django_redis.cache.RedisCache or django.core.cache.backends.redis.RedisCache."
        )
    try:
        client = clients.get_client(write=True)
    except ValueError as error:  # the address is invalid
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES[{alias!r}]: {error}") from error
    except CLIENT_ERRORS as error:  # a connection factory of the project that connects when the client is created
        raise EngineUnavailable(f"The client of CACHES[{alias!r}] cannot be made now: {error}") from error
    deadline = settings.DEADLINE_MS / 1_000
    try:
        return RedisEngine(client, _namespace(), shards=settings.SHARDS, deadline=deadline, clock=settings.CLOCK)
    except ValueError as error:
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES[{alias!r}]: {error}") from error
