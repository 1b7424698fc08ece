"""The one engine of this process, built from the settings when it is first asked for, and its twin for event loops."""

from __future__ import annotations

import atexit
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.asyncio import async_unsafe
from django.utils.module_loading import import_string

from .conf import django_setting, settings
from .engine.adapters import as_async
from .engine.base import Engine
from .engine.local.counters import LocalCounters
from .engine.local.engine import AsyncLocalFirstEngine, LocalFirstEngine
from .engine.memory import MemoryEngine
from .engine.redis import CLIENT_ERRORS, AsyncRedisEngine, RedisEngine
from .engine.usage import UsageBuffer
from .exceptions import EngineUnavailable
from .locks import freed_by_fork

#: Usage that this process has counted by itself, and that is to travel with a later call of the engine.
usage_buffer: Final = UsageBuffer()

_engine: Engine | None = None
_async_engine: tuple[Engine, Any] | None = None  # the twin, and what it is the twin of
_building = freed_by_fork(Lock())


def get_engine() -> Engine:
    """Return the engine that RATELIMITER names: ENGINE, else CACHE_ALIAS, else one in this process's memory.

    Asks nothing of a server. Raises ImproperlyConfigured if the named one cannot be had.
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
    """Return the engine for event loops: its methods are awaited, and none of them blocks.

    Raises SynchronousOnlyOperation on an event loop if it has to be built first, which may take a while. On Redis it
    has connections of its own with the options of the same alias, at most 64 on each event loop.
    """
    global _async_engine
    engine, twin = get_engine(), _async_engine
    if twin is None or twin[0] is not engine:
        twin = _async_engine = engine, as_async(engine)
    return twin[1]


def server_in_words() -> str:
    """Return what the engine asks, and the setting that names it, without passwords, for logs and checks."""
    if settings.ENGINE is not None:
        return f"RATELIMITER['ENGINE'], {settings.ENGINE}"
    alias = settings.CACHE_ALIAS
    cache = django_setting("CACHES", {}).get(alias) or {}
    location = cache.get("LOCATION") or ""
    addresses = [_without_password(each) for each in (location.split(",") if isinstance(location, str) else location)]
    setting = f"CACHES[{alias!r}]"
    return f"{', '.join(addresses)} ({setting})" if all(addresses) else setting


def _without_password(address: object) -> str:
    """Return an address without user, password and parameters; empty where it cannot be read."""
    try:
        parts = urlsplit(str(address))
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else ""


def reset_engine(*, setting: str = "RATELIMITER", **_signal: object) -> None:
    """Build the engine again when it is next asked for, if `setting` is one that it was built from."""
    global _engine, _async_engine
    if setting in ("RATELIMITER", "CACHES"):
        former = (_engine, _async_engine[1] if _async_engine else None)
        _engine = _async_engine = None
        for engine in former:
            exact: object = engine.engine if isinstance(engine, LocalFirstEngine | AsyncLocalFirstEngine) else engine
            if isinstance(exact, RedisEngine | AsyncRedisEngine):
                exact.retire()


setting_changed.connect(reset_engine, dispatch_uid="django_ratelimiter.backend")


@atexit.register
def _flush_counts() -> None:
    """Tell the engine what this process has decided by itself, before it ends."""
    engine: object = _engine
    if isinstance(engine, LocalFirstEngine):
        engine.flush()


def _build() -> Any:
    """Return the engine; one on Redis by way of local counters, which knows when it need not be asked."""
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


def _custom(path: str) -> Engine:
    try:
        factory = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"RATELIMITER['ENGINE']: {error}") from error
    engine: Engine = factory()
    return engine


def _redis(alias: str) -> Engine:
    try:
        # An object of our own: Django would close one of `caches` after each request of the thread that has asked.
        cache: Any = caches.create_connection(alias)
    except KeyError as error:
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES has no {alias!r}.") from error
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES cannot give {alias!r}: {error}") from error
    # Django's own cache and django-redis keep what makes clients in two places.
    clients: Any = cache._cache if isinstance(cache, RedisCache) else getattr(cache, "client", None)
    if not hasattr(clients, "get_client"):
        raise ImproperlyConfigured(
            f"RATELIMITER['CACHE_ALIAS']: {alias!r} is not a Redis cache; its BACKEND must be "
            "django_redis.cache.RedisCache or django.core.cache.backends.redis.RedisCache."
        )
    try:
        client = clients.get_client(write=True)
    except ValueError as error:  # an address that is none
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES[{alias!r}]: {error}") from error
    except CLIENT_ERRORS as error:  # a factory of the project's own, whose client connects when it is made
        raise EngineUnavailable(f"The client of CACHES[{alias!r}] cannot be made now: {error}") from error
    deadline = settings.DEADLINE_MS / 1_000
    try:
        return RedisEngine(client, settings.NAMESPACE, shards=settings.SHARDS, deadline=deadline, clock=settings.CLOCK)
    except ValueError as error:
        raise ImproperlyConfigured(f"RATELIMITER['CACHE_ALIAS']: CACHES[{alias!r}]: {error}") from error
