"""The engine of this process, built from the settings at its first use, and the engine for event loops."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import sys
from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.signals import connection_created
from django.utils.asyncio import async_unsafe
from django.utils.module_loading import import_string

from .conf import django_setting, settings, without_secrets
from .engine.base import Engine
from .engine.coroutines import as_async
from .engine.local.engine import LocalFirstEngine
from .engine.local.store import LocalCounters
from .engine.locks import freed_by_fork
from .engine.memory import MemoryEngine
from .engine.redis import CLIENT_ERRORS, RedisEngine
from .engine.usage import UsageBuffer
from .exceptions import EngineUnavailable, told_safely
from .logs import logger
from .values.addresses import ADVICE, addresses_of, shown_address, wrong_address

COUNTS_ALONE: Final = "Each process counts requests in its own memory, so each process allows the whole limit."
WAY_OUT: Final = "Name a Redis entry of CACHES in RATELIMITER['CACHE_ALIAS']."

#: Usage that this process has counted itself. It is sent with a later call of the engine.
usage_buffer: Final = UsageBuffer()

_engine: Engine | None = None
_async_engine: tuple[Engine, Any] | None = None  # the engine for event loops, and the engine that it belongs to
_building = freed_by_fork(Lock())
_fresh = ""  # the end of a namespace that no other process uses
_run: Final = secrets.token_hex(4)  # of this run of tests, which begins at zero as its database begins empty


class UnusableEngine(ImproperlyConfigured, EngineUnavailable):
    """CACHE_ALIAS names no usable Redis. To all who ask the engine, it is as if that did not answer."""


def get_engine() -> Engine:
    """Return the engine that RATELIMITER names: ENGINE, else CACHE_ALIAS, else one in this process's memory.

    Does not connect to a server. Raises ImproperlyConfigured if the named engine cannot be built; its text holds no
    part of an address, and no other exception is chained to it.
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
    addresses = [shown_address(each) for each in addresses_of(cache)]
    setting = f"CACHES[{without_secrets(alias)!r}]"
    return f"{', '.join(addresses)} ({setting})" if all(addresses) else setting


def wrong_location(cache: Mapping[str, Any]) -> str:
    """Return what is wrong with the addresses in an entry of CACHES, without any part of them; "" = nothing known."""
    own = (cache.get("OPTIONS") or {}).get("CONNECTION_FACTORY") or django_setting("DJANGO_REDIS_CONNECTION_FACTORY")
    return next(filter(None, (wrong_address(each, any_scheme=bool(own)) for each in addresses_of(cache))), "")


def reset_engine(*, setting: str = "RATELIMITER", **_signal: object) -> None:
    """Drop the engine if it was built from `setting`. The next call builds it again."""
    global _engine, _async_engine
    if setting in ("RATELIMITER", "CACHES"):
        engine: object = _engine
        _engine = _async_engine = None
        if isinstance(engine, LocalFirstEngine):
            engine.engine.retire()
            atexit.unregister(engine.flush)


setting_changed.connect(reset_engine, dispatch_uid="django_ratelimiter.backend")


def _build() -> Any:
    """Return the engine; one on Redis behind what this process may decide itself, and sends before it ends."""
    engine = _exact()
    if not isinstance(engine, RedisEngine):
        return engine
    local = LocalCounters(settings.DENIAL_MEMORY, settings.VERSION_CHECK_INTERVAL, usage_buffer=usage_buffer)
    built = LocalFirstEngine(engine, local)
    atexit.register(built.flush)  # only now: it runs before what closes the connections, which is registered by now
    return built


def _exact() -> Engine:
    if settings.ENGINE is not None:
        return _custom(settings.ENGINE)
    if settings.CACHE_ALIAS is None:
        if not is_alone():
            logger.warning("%s %s", COUNTS_ALONE, WAY_OUT)
        return MemoryEngine()
    return _redis(settings.CACHE_ALIAS)


def are_tests_running() -> bool:
    """Return whether Django's test environment is set up, as `manage.py test` and pytest-django do."""
    loaded = sys.modules.get("django.test.utils")
    return hasattr(getattr(loaded, "_TestState", None), "saved_data")


def is_alone() -> bool:
    """Return whether this process is one of tests, or of `manage.py runserver`: no other counts the same requests."""
    return are_tests_running() or any(word.startswith("runserver") for word in sys.argv[1:])


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
    namespace, shards, clock, deadline = _namespace(), settings.SHARDS, settings.CLOCK, settings.DEADLINE_MS / 1_000
    try:
        return RedisEngine(_client(alias), namespace, shards=shards, deadline=deadline, clock=clock)
    except CLIENT_ERRORS as error:  # a connection factory of the project that connects when the client is created
        raise EngineUnavailable(f"The client of CACHES[{alias!r}] cannot be made now: {error}") from error
    except UnusableEngine as error:
        problem = str(error)
    except (ValueError, ImproperlyConfigured, InvalidCacheBackendError) as error:
        problem = f"CACHES[{alias!r}]: {without_secrets(told_safely(error))}"
    # Raised here, so that nothing that may quote a secret is chained to it.
    raise UnusableEngine(f"RATELIMITER['CACHE_ALIAS']: {problem}")


def _client(alias: str) -> Any:
    """Return the client of an entry of CACHES. Raises UnusableEngine, and what its factory raises."""
    entry = django_setting("CACHES", {}).get(alias)
    if entry is None:
        raise UnusableEngine(f"CACHES has no {without_secrets(alias)!r}.")
    # Our own object: Django would close one of `caches` after each request of the calling thread.
    cache: Any = caches.create_connection(alias)
    is_djangos = isinstance(cache, RedisCache)
    if not is_djangos and not hasattr(type(cache), "client"):
        raise UnusableEngine(
            f"{alias!r} is not a Redis cache; its BACKEND must be django_redis.cache.RedisCache or "
            "django.core.cache.backends.redis.RedisCache."
        )
    if wrong := wrong_location(entry):
        raise UnusableEngine(f"CACHES[{alias!r}]['LOCATION'] {wrong}. {ADVICE}")
    # Django's own cache and django-redis store the client factory in different attributes.
    return (cache._cache if is_djangos else cache.client).get_client(write=True)
