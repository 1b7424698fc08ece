"""Checks of Redis: that it decides, does not evict counters, and holds the rules of one database."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..backend import get_engine, server_in_words
from ..engine.redis import RedisEngine
from ..engine.redis.checks import dry_run, evicting, is_answer
from ..engine.redis.connections.faults import is_fault
from ..exceptions import EngineUnavailable
from ..rules.ruleset import NO_VERSION
from ..rules.stored import epochs
from .common import Found, are_invalid, check, check_deployed, from_database, message


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
