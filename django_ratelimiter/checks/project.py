"""Checks of the project's settings: of RATELIMITER, the engine, the middleware, the proxies and the stored rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from django.core import checks
from django.core.checks import CheckMessage

from ..conf import ENTRIES, django_setting, problems, settings
from ..rules.stored import storage
from ..rules.stored.compiler import snapshot_of_rows
from ..values.bounds import closest
from .common import SYMPTOMS, TAG, are_invalid, from_database, import_or_none, is_subclass, rules_in_force

_MIDDLEWARE: Final = "django_ratelimiter.middleware.RateLimitMiddleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
_TIMEOUTS: Final = ("SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT")
#: Django's own cache on Redis. Its OPTIONS are the arguments of connections, in lower case.
DJANGOS: Final = "django.core.cache.backends.redis.RedisCache"


def check_settings(**_kwargs: object) -> list[CheckMessage]:
    """E001: a setting in RATELIMITER is unknown or invalid."""
    known = {"RATELIMITER", *ENTRIES}
    return [
        checks.Error(_unknown(entry), hint=f"The settings are {', '.join(ENTRIES)}.", id=f"{TAG}.E001")
        if entry not in known
        else checks.Error(f"RATELIMITER: {entry} {wrong}.", hint=f"It must be {right}.", id=f"{TAG}.E001")
        for entry, wrong, right in problems()
    ]


def _unknown(name: str) -> str:
    """Return the error for an unknown setting, with the most similar name."""
    unknown = f"Unknown setting RATELIMITER[{name!r}]."
    if "REDIS" in name.upper():
        return f"{unknown} Name the Redis server in CACHES, and that entry of CACHES in CACHE_ALIAS."
    close = closest(name.upper(), ENTRIES)
    return unknown + (f" Did you mean {close!r}?" if close else "")


def check_engine(**_kwargs: object) -> list[CheckMessage]:
    """E002 to E004, W002, W003: the engine that RATELIMITER names cannot be built, or its options are not advisable."""
    if are_invalid("ENGINE", "CACHE_ALIAS"):
        return []
    if settings.ENGINE is not None:
        return list(_custom_engine(settings.ENGINE))
    if settings.CACHE_ALIAS is not None:
        return list(_redis_alias(settings.CACHE_ALIAS))
    if django_setting("DEBUG"):
        return []
    return [
        checks.Warning(
            "Each process counts requests in its own memory, so each process allows the whole limit.",
            hint=f"Name a Redis entry of CACHES in RATELIMITER['CACHE_ALIAS']. See {SYMPTOMS}",
            id=f"{TAG}.W002",
        )
    ]


def check_middleware(**_kwargs: object) -> list[CheckMessage]:
    """W001: the middleware is missing. E005: it runs before the authentication middleware."""
    middleware = [import_or_none(path) for path in django_setting("MIDDLEWARE", ())]
    own = _position(middleware, _MIDDLEWARE)
    if own is None:
        return [
            checks.Warning(
                "RateLimitMiddleware is not in MIDDLEWARE: only views with @ratelimit or a throttle class of this "
                "package, and code that calls the limiter, are limited.",
                hint=f'Add "{_MIDDLEWARE}" to MIDDLEWARE, after AuthenticationMiddleware. See {SYMPTOMS}',
                id=f"{TAG}.W001",
            )
        ]
    authentication = _position(middleware, _AUTHENTICATION)
    if authentication is None or authentication < own:
        return []
    return [
        checks.Error(
            "RateLimitMiddleware is before AuthenticationMiddleware in MIDDLEWARE, so it does not know the user.",
            hint=f"Move RateLimitMiddleware below AuthenticationMiddleware. See {SYMPTOMS}",
            id=f"{TAG}.E005",
        )
    ]


def check_proxies(**_kwargs: object) -> list[CheckMessage]:
    """W005: rules use the caller's address, but behind a proxy that is not trusted it is the proxy's address."""
    signs = [name for name in ("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST") if django_setting(name)]
    if not signs or are_invalid("TRUSTED_PROXIES"):
        return []
    trusted = settings.TRUSTED_PROXIES
    if trusted.hops or trusted.networks or trusted.unix:
        return []
    slugs = [rule.slug for rule in rules_in_force() if rule.asks_for_address]
    if not slugs:
        return []
    return [
        checks.Warning(
            f"{signs[0]} indicates a proxy, but RATELIMITER['TRUSTED_PROXIES'] trusts none: "
            f"all callers share the proxy's address in rules by IP address: {', '.join(slugs)}.",
            hint='Name the networks of your proxies, such as ["10.0.0.0/8"], "unix" for a Unix socket, '
            f"or give their number. See {SYMPTOMS}",
            id=f"{TAG}.W005",
        )
    ]


def check_rules(**_kwargs: object) -> list[CheckMessage]:
    """W006: rules that cannot be enforced, each with the reason."""
    return [
        checks.Warning(
            f"Rule {slug} is not in force: {reason}",
            hint="Correct the rule in the admin and save it. SQL can write values that the forms reject.",
            id=f"{TAG}.W006",
        )
        for slug, reason in _left_out().items()
    ]


def _custom_engine(path: str) -> Iterator[CheckMessage]:
    if not callable(import_or_none(path)):
        yield checks.Error(
            f"RATELIMITER['ENGINE']: {path} cannot be imported, or cannot be called.",
            hint="Name a callable without arguments that returns an Engine.",
            id=f"{TAG}.E004",
        )


def _redis_alias(alias: str) -> Iterator[CheckMessage]:
    caches = django_setting("CACHES", {})
    if alias not in caches:
        yield checks.Error(
            f"RATELIMITER['CACHE_ALIAS']: CACHES has no entry {alias!r}.",
            hint=f"Name one of: {', '.join(caches)}.",
            id=f"{TAG}.E002",
        )
        return
    cache = caches[alias]
    backend = import_or_none(cache.get("BACKEND", ""))
    is_djangos = is_subclass(backend, DJANGOS)
    if not is_djangos and not is_subclass(backend, "django_redis.cache.RedisCache"):
        yield checks.Error(
            f"RATELIMITER['CACHE_ALIAS']: CACHES[{alias!r}] is not a Redis cache.",
            hint=f'Its BACKEND must be "django_redis.cache.RedisCache" or "{DJANGOS}".',
            id=f"{TAG}.E003",
        )
        return
    names = [name.lower() if is_djangos else name for name in _TIMEOUTS]
    missing = [name for name in names if not _has_timeout(cache, name)]
    if missing:
        yield checks.Warning(
            f"CACHES[{alias!r}] has no {' and no '.join(missing)}, so the collector waits for a Redis that does "
            "not answer.",
            hint=f'Set both in CACHES[{alias!r}]["OPTIONS"], for example to half a second.',
            id=f"{TAG}.W003",
        )


def _has_timeout(cache: dict[str, Any], name: str) -> bool:
    """Return whether the cache has this timeout: in OPTIONS, in the pool's arguments, or in every address."""
    options = cache.get("OPTIONS") or {}
    if options.get(name) or (options.get("CONNECTION_POOL_KWARGS") or {}).get(name.lower()):
        return True
    addresses = cache.get("LOCATION") or ""
    each = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    return all(name.lower() in parse_qs(urlsplit(address).query) for address in each)


def _position(classes: Sequence[Any], path: str) -> int | None:
    return next((index for index, cls in enumerate(classes) if is_subclass(cls, path)), None)


def _left_out() -> dict[str, str]:
    """Return reasons by slug: for the current rows, and for the rules of the last version."""
    rules = from_database(storage.load)
    reasons = {entry.rule: entry.reason for entry in rules.left_out} if rules else {}
    snapshot = from_database(snapshot_of_rows) or {}
    return reasons | {entry["rule"]: entry["reason"] for entry in snapshot.get("left_out", ())}
