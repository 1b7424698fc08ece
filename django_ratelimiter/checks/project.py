"""Checks of the project: its settings, installation, middleware, proxies, tables, rules and Redis."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Max, Min

from ..backend import COUNTS_ALONE, WAY_OUT, UnusableEngine, get_engine, is_alone, server_in_words
from ..conf import ENTRIES, django_setting, problems, settings
from ..engine.redis import RedisEngine
from ..engine.redis.checks import dry_run, evicting, is_answer
from ..engine.redis.connections.faults import is_fault
from ..exceptions import EngineUnavailable
from ..models import RuleSetVersion, UsageBatch
from ..rules.ruleset import NO_VERSION
from ..rules.stored import published, storage
from ..rules.stored.compiler import snapshot_of_rows
from ..rules.stored.tables import APP, command_for
from ..tenants import have_own
from ..usage.times import aware, now
from ..values.bounds import closest
from ..values.distributions import REMEDY, others
from .common import (
    SYMPTOMS,
    TAG,
    Found,
    T,
    are_trusted,
    check,
    from_database,
    has_tables,
    import_or_none,
    is_subclass,
    message,
    rules_in_force,
    together,
)

_MIDDLEWARE: Final = "django_ratelimiter.middleware.RateLimitMiddleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
#: Time without counts after which the collector is assumed not to run. A site may be idle for a night.
LONG: Final = timedelta(days=1)


@check("E001", "{0}", "{1}")
def check_settings() -> Found:
    """Return what is wrong with each unknown or invalid setting in RATELIMITER, and what is right."""
    for entry, wrong, right in problems():
        if entry in ENTRIES or entry == "RATELIMITER":
            yield f"RATELIMITER: {entry} {wrong}.", f"It must be {right}."
        else:
            yield _unknown(entry), f"The settings are {', '.join(ENTRIES)}."


def _unknown(name: str) -> str:
    """Return the error for an unknown setting, with the most similar name."""
    unknown = f"Unknown setting RATELIMITER[{name!r}]."
    if "REDIS" in name.upper():
        return f"{unknown} Name the Redis server in CACHES, and that entry of CACHES in CACHE_ALIAS."
    close = closest(name.upper(), ENTRIES)
    return unknown + (f" Did you mean {close!r}?" if close else "")


@check(
    "E014",
    "{} installs files in the package django_ratelimiter, too{}: each overwrites and deletes files of the other.",
    REMEDY,
)
def check_distributions() -> Found:
    """Return the distributions that have files in this package, or why it is not known whether one has."""
    try:
        return [(", ".join(names), "")] if (names := others()) else []
    except (OSError, ValueError) as error:  # a list of files that cannot be read
        return [("possibly another distribution", f" ({error})")]


@check(
    "W001",
    "MIDDLEWARE lacks RateLimitMiddleware: only views with @ratelimit or a throttle class of this package are limited.",
    f'Add "{_MIDDLEWARE}" to MIDDLEWARE, after AuthenticationMiddleware. See {SYMPTOMS}',
)
def check_middleware() -> Found:
    """Return something if the middleware is missing."""
    return [()] if _position(_MIDDLEWARE) is None else []


@check(
    "E005",
    "RateLimitMiddleware is before AuthenticationMiddleware in MIDDLEWARE, so it does not know the user.",
    f"Move RateLimitMiddleware below AuthenticationMiddleware. See {SYMPTOMS}",
)
def check_order() -> Found:
    """Return something if the middleware runs before the authentication middleware."""
    own, authentication = _position(_MIDDLEWARE), _position(_AUTHENTICATION)
    return [()] if own is not None and authentication is not None and authentication > own else []


def _position(path: str) -> int | None:
    """Return the position of this class, or of one derived from it, in MIDDLEWARE."""
    classes = map(import_or_none, django_setting("MIDDLEWARE", ()))
    return next((index for index, cls in enumerate(classes) if is_subclass(cls, path)), None)


@check(
    "W005",
    "SECURE_PROXY_SSL_HEADER or USE_X_FORWARDED_HOST indicates a proxy, but TRUSTED_PROXIES trusts none: all callers "
    "share the proxy's address in rules by IP address: {}.",
    f'Name the networks of your proxies, "unix" for a Unix socket, or give their number. See {SYMPTOMS}',
)
def check_proxies() -> Found:
    """Return the rules that use the caller's address, if there is a proxy, and none is trusted."""
    has_proxy = django_setting("SECURE_PROXY_SSL_HEADER") or django_setting("USE_X_FORWARDED_HOST")
    if not has_proxy or are_trusted(settings.TRUSTED_PROXIES):
        return []
    return together(rule.slug for rule in rules_in_force() if rule.asks_for_address)


@check(
    "W006",
    "Rule {} is not in force: {}",
    "Correct the rule in the admin and save it. SQL can write values that the forms reject.",
)
def check_rules() -> Found:
    """Return the rules that cannot be enforced, each with the reason: of the current rows, and of the last version."""
    rules = from_database(storage.load)
    reasons = {entry.rule: entry.reason for entry in rules.left_out} if rules else {}
    snapshot = from_database(snapshot_of_rows) or {}
    return (reasons | {entry["rule"]: entry["reason"] for entry in snapshot.get("left_out", ())}).items()


@check(
    "W016",
    "The tables of django_ratelimiter do not exist: only limits written in code apply.",
    "Run `{}`, or take the app out of INSTALLED_APPS if all limits are in code.",
)
def check_tables() -> Found:
    """Return the command that makes the tables if the app is installed without them."""
    is_missing = from_database(has_tables, needs_tables=False) is False
    return [(command_for(storage.primary()),)] if is_missing and sys.argv[1:2] != ["migrate"] else []


@check(
    "E011",
    "{} is in TENANT_APPS: the rules of the tenant that a process serves first would apply to all tenants.",
    "Name it in SHARED_APPS only. Users of different tenants are counted apart.",
)
def check_tenants() -> Found:
    """Return our app if each tenant of django-tenants would have its own tables: a process has one set of rules."""
    return together([APP] * have_own(APP))


@check("E002", "{}", WAY_OUT)
def check_engine() -> Found:
    """Return why CACHE_ALIAS names no Redis that can be used."""
    if settings.ENGINE is None and settings.CACHE_ALIAS is not None:
        try:
            get_engine()
        except UnusableEngine as error:
            yield (str(error),)
        except EngineUnavailable:
            return  # W018


@check("W002", COUNTS_ALONE, f"{WAY_OUT} See {SYMPTOMS}")
def check_memory() -> Found:
    """Return something if no Redis is named, and several processes may count the same requests."""
    return [()] if settings.ENGINE is None and settings.CACHE_ALIAS is None and not is_alone() else []


@check(
    "W013",
    "No usage has been collected from Redis since {}, and Redis keeps it only for 8 days.",
    "Run `manage.py ratelimit collect` each minute, unless no request has matched a rule since then.",
)
def check_collecting() -> Found:
    """Return since when nothing was collected if there are rules, and it is a day ago."""
    since = from_database(_since) if settings.CACHE_ALIAS and rules_in_force() else None
    return [] if since is None or aware(since) > now() - LONG else [(f"{since:%Y-%m-%d %H:%M %Z}",)]


def _since() -> datetime | None:
    """Return when usage was last collected; if never, when the first rules were saved; `None` if neither was."""
    collected: datetime | None = UsageBatch.objects.aggregate(at=Max("collected_at"))["at"]
    return collected or RuleSetVersion.objects.aggregate(at=Min("created_at"))["at"]


@check("W025", "{}", "See docs/explanation/versions.md.")
def check_turns() -> Found:
    """Return the problem if another database has its rules in the same Redis and NAMESPACE."""
    held = from_database(lambda: published.compared(NO_VERSION))
    return [(held.problem,)] if held is published.Held.IN_TURNS else []


@checks.register(TAG, deploy=True)
def check_server(**_options: Any) -> Iterator[CheckMessage]:
    """Return whether each server decides (W018, E008), and whether it drops counters (W015, I001)."""
    policies, silence = _asked(evicting)
    if silence is not None and not is_answer(silence):
        yield _undecided(silence)
        return
    if silence is not None:
        text = f"Redis cannot be asked whether it drops keys when its memory is full: {silence}"
        hint = "Its user may need the permission to run INFO. Ask redis-cli for `CONFIG GET maxmemory*` instead."
        yield message("I001", text, hint)
    elif policies:
        text = f"When its memory is full, Redis drops counters (maxmemory-policy {', '.join(sorted(policies))})."
        hint = "Set `maxmemory-policy noeviction`, and use a separate Redis for a cache that needs another policy."
        yield message("W015", text, hint)
    _, fault = _asked(dry_run)
    if fault is not None and is_fault(fault):
        hint = "docs/howto/bigger-sites.md lists the servers that can, and their settings."
        yield message("E008", f"The server cannot decide: {fault}", hint)
    elif fault is not None and is_answer(fault):
        yield _undecided(fault)


def _undecided(error: EngineUnavailable) -> CheckMessage:
    return message(
        "W018",
        f"Redis does not decide, at {server_in_words()}: {str(error).rstrip('. ')}. Until then, failure policies do.",
        "Start the server, or correct the entry of CACHES. If it answers, its message says what it lacks, such as "
        "memory. For development without Redis leave RATELIMITER['CACHE_ALIAS'] out.",
    )


def _asked(ask: Callable[[RedisEngine], T]) -> tuple[T | None, EngineUnavailable | None]:
    """Return what the engine answers, and why it does not; neither without an engine on Redis and valid settings."""
    try:
        engine: Any = get_engine()
        exact = getattr(engine, "engine", engine)
        return ask(exact) if isinstance(exact, RedisEngine) else None, None
    except ImproperlyConfigured:
        return None, None  # other checks report it
    except EngineUnavailable as error:
        return None, error
