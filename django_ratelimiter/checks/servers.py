"""Checks of Redis: that no other cache affects its connections, and that it does not evict counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from ..backend import get_engine, server_in_words
from ..conf import django_setting, settings
from ..engine.redis import RedisEngine
from ..engine.redis.checks import dry_run, evicting, is_answer
from ..engine.redis.connections.faults import is_fault
from ..exceptions import EngineUnavailable
from ..rules.ruleset import NO_VERSION
from ..rules.stored import epochs
from ..values.addresses import addresses_of
from .common import Found, are_invalid, check, check_deployed, from_database, import_or_none, is_subclass, message

_POOLS: Final = "django_redis.pool"
#: Options of django-redis that become arguments of connections.
_ARGUMENTS: Final = ("USERNAME", "PASSWORD", "SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT")
#: Options with the classes or factories of connections and pools.
_MAKERS: Final = ("CONNECTION_POOL_CLASS", "SENTINELS", "SENTINEL_KWARGS")
_OF_SENTINEL: Final = "redis.sentinel.SentinelConnectionPool"


@check
def check_pools() -> Found:
    """W014: another alias has the address of ours and other OPTIONS; the one used first determines both."""
    if are_invalid("ENGINE", "CACHE_ALIAS") or settings.ENGINE is not None:
        return []
    alias, caches = settings.CACHE_ALIAS, django_setting("CACHES", {})
    if alias not in caches:
        return []
    own, given = _addresses(caches[alias])[:1], _arguments(caches[alias])
    differences = {
        other: sorted(name for name in {*given, *theirs} if given.get(name) != theirs.get(name))
        for other, theirs in ((other, _arguments(cache)) for other, cache in caches.items())
        if other != alias and {*own} & {*_addresses(caches[other])}
    }
    return [
        message(
            "W014",
            f"CACHES[{alias!r}] and CACHES[{other!r}] have the same address, so django-redis keeps one pool of "
            "connections for both. The entry that is used first decides its options, but they differ in "
            f"{', '.join(names)}.",
            "Give both the same OPTIONS. Or give the limiter its own database, which is better anyway. "
            '"redis://host:6379/0" and "redis://host:6379?db=0" count as different addresses.',
        )
        for other, names in differences.items()
        if names
    ]


@check_deployed
def check_eviction() -> Found:
    """W015: a full Redis evicts counters. W018: none answers. I001: INFO is not allowed. Only with `check --deploy`."""
    try:
        engine = _redis_engine()
        policies = sorted(evicting(engine)) if engine is not None else []
    except EngineUnavailable as error:
        if not is_answer(error):
            yield message(
                "W018",
                f"No Redis answers at {server_in_words()}: {str(error).rstrip('. ')}. Until it does, each request "
                "is decided by the failure policies of its rules.",
                "Start the server, or correct the entry of CACHES. For development without Redis leave "
                "RATELIMITER['CACHE_ALIAS'] out: then each process counts in its own memory.",
            )
            return
        hint = "Its user may need the permission to run INFO. Ask redis-cli for `CONFIG GET maxmemory*` instead."
        text = f"Redis cannot be asked whether it drops keys when its memory is full: {error}"
        yield message("I001", text, hint)
        return
    if policies:
        yield message(
            "W015",
            f"When its memory is full, Redis drops keys (maxmemory-policy {', '.join(policies)}). Callers whose "
            "counters are dropped get a full quota again, and usage that has not been collected is lost.",
            "Set `maxmemory-policy noeviction`, and use a separate Redis for a cache that needs another policy.",
        )


@check_deployed
def check_scripts() -> Found:
    """E008: a server does not run our scripts correctly. W018: it runs none now. Only with `check --deploy`."""
    try:
        engine = _redis_engine()
        if engine is not None:
            dry_run(engine)
    except EngineUnavailable as error:
        if is_fault(error):
            yield message(
                "E008",
                f"The server cannot decide: {error}",
                "docs/howto/bigger-sites.md lists the servers that can, and their settings.",
            )
        elif is_answer(error) and "W018" not in str(check_eviction()):  # it reports a server that is out of reach
            yield message(
                "W018",
                f"The Redis at {server_in_words()} cannot decide now: {str(error).rstrip('. ')}. Until it does, each "
                "request is decided by the failure policies of its rules.",
                "The message says what the server lacks: memory, a place to save to, replicas, the role of the master, "
                "or, in a cluster, a master for each slot: see CLUSTER INFO in redis-cli.",
            )


@check
def check_turns() -> Found:
    """W025: another database has its rules in the same Redis and NAMESPACE, and each replaces those of the other."""
    if from_database(lambda: epochs.compared(NO_VERSION)) is epochs.Held.IN_TURNS:
        yield message("W025", epochs.Held.IN_TURNS.problem, "See docs/explanation/versions.md.")


def _redis_engine() -> RedisEngine | None:
    """Return the engine if it is one on Redis and its settings are valid. Raises EngineUnavailable."""
    if are_invalid("ENGINE", "CACHE_ALIAS", "NAMESPACE", "SHARDS", "DEADLINE_MS", "CLOCK"):
        return None
    try:
        engine: Any = get_engine()
    except ImproperlyConfigured:
        return None  # other checks report it
    exact = getattr(engine, "engine", engine)
    return exact if isinstance(exact, RedisEngine) else None


def _addresses(cache: Mapping[str, Any]) -> list[str]:
    """Return the addresses that identify this cache's pools in django-redis, the master's first; empty if none."""
    if not is_subclass(import_or_none(cache.get("BACKEND", "")), "django_redis.cache.RedisCache"):
        return []
    factory = import_or_none(_factory(cache.get("OPTIONS") or {}))
    for method in ("connect", "get_connection", "get_or_create_connection_pool"):
        if getattr(getattr(factory, method, None), "__module__", "") != _POOLS:
            return []
    return addresses_of(cache)


def _factory(options: Mapping[str, Any]) -> str:
    default = django_setting("DJANGO_REDIS_CONNECTION_FACTORY") or f"{_POOLS}.ConnectionFactory"
    return str(options.get("CONNECTION_FACTORY") or default)


def _arguments(cache: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a pool, without its address, by the names that connections use."""
    options = cache.get("OPTIONS") or {}
    given = {name.lower(): options[name] for name in _ARGUMENTS if options.get(name)}
    given |= options.get("CONNECTION_POOL_KWARGS") or {}
    makers = {name: options[name] for name in _MAKERS if options.get(name)}
    if makers.get("CONNECTION_POOL_CLASS") == _OF_SENTINEL:
        del makers["CONNECTION_POOL_CLASS"]  # django-redis's factory for Sentinel sets it at the first use
    return given | makers | {"CONNECTION_FACTORY": _factory(options)}
