"""Checks of the project: its settings, engine, middleware and proxies, its tables and rules, and the collector."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Max, Min

from ..backend import COUNTS_ALONE, WAY_OUT, UnusableEngine, get_engine, is_alone
from ..conf import ENTRIES, django_setting, problems, settings
from ..exceptions import EngineUnavailable
from ..models import RuleSetVersion, UsageBatch
from ..rules.stored import storage
from ..rules.stored.compiler import snapshot_of_rows
from ..rules.stored.tables import APP, command_for
from ..tenants import have_own
from ..usage.times import aware, now
from ..values.bounds import closest
from ..values.distributions import REMEDY, others
from .common import (
    SYMPTOMS,
    Found,
    are_invalid,
    check,
    from_database,
    import_or_none,
    is_subclass,
    message,
    rules_in_force,
    tables_are_missing,
)

_MIDDLEWARE: Final = "django_ratelimiter.middleware.RateLimitMiddleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
#: Time without counts after which the collector is assumed not to run. A site may be idle for a night.
LONG: Final = timedelta(days=1)


@check
def check_settings() -> Found:
    """E001: a setting in RATELIMITER is unknown or invalid."""
    known = {"RATELIMITER", *ENTRIES}
    return [
        message("E001", _unknown(entry), f"The settings are {', '.join(ENTRIES)}.")
        if entry not in known
        else message("E001", f"RATELIMITER: {entry} {wrong}.", f"It must be {right}.")
        for entry, wrong, right in problems()
    ]


def _unknown(name: str) -> str:
    """Return the error for an unknown setting, with the most similar name."""
    unknown = f"Unknown setting RATELIMITER[{name!r}]."
    if "REDIS" in name.upper():
        return f"{unknown} Name the Redis server in CACHES, and that entry of CACHES in CACHE_ALIAS."
    close = closest(name.upper(), ENTRIES)
    return unknown + (f" Did you mean {close!r}?" if close else "")


@check
def check_distributions() -> Found:
    """E014: another distribution has files in this package, or it is not known whether one has."""
    try:
        names, reason = ", ".join(others()), ""
    except (OSError, ValueError) as error:  # a list of files that cannot be read
        names, reason = "possibly another distribution", f" ({error})"
    if names:
        yield message(
            "E014",
            f"{names} installs files in the package django_ratelimiter, too{reason}: which of both is imported depends "
            "on their order, and uninstalling one deletes files of the other.",
            REMEDY,
        )


@check
def check_engine() -> Found:
    """E002: CACHE_ALIAS names no Redis that can be used. W002: nothing names one."""
    if are_invalid("ENGINE", "CACHE_ALIAS") or settings.ENGINE is not None:
        return
    if settings.CACHE_ALIAS is not None:
        try:
            get_engine()
        except UnusableEngine as error:
            yield message("E002", str(error), WAY_OUT)
        except (EngineUnavailable, ImproperlyConfigured):
            return  # reported by other checks
    elif not is_alone():
        yield message("W002", COUNTS_ALONE, f"{WAY_OUT} See {SYMPTOMS}")


@check
def check_middleware() -> Found:
    """W001: the middleware is missing. E005: it runs before the authentication middleware."""
    middleware = [import_or_none(path) for path in django_setting("MIDDLEWARE", ())]
    own = _position(middleware, _MIDDLEWARE)
    authentication = _position(middleware, _AUTHENTICATION)
    if own is None:
        yield message(
            "W001",
            "RateLimitMiddleware is not in MIDDLEWARE: only views with @ratelimit or a throttle class of this "
            "package, and code that calls the limiter, are limited.",
            f'Add "{_MIDDLEWARE}" to MIDDLEWARE, after AuthenticationMiddleware. See {SYMPTOMS}',
        )
    elif authentication is not None and authentication > own:
        yield message(
            "E005",
            "RateLimitMiddleware is before AuthenticationMiddleware in MIDDLEWARE, so it does not know the user.",
            f"Move RateLimitMiddleware below AuthenticationMiddleware. See {SYMPTOMS}",
        )


@check
def check_proxies() -> Found:
    """W005: rules use the caller's address, but behind a proxy that is not trusted it is the proxy's address."""
    signs = [name for name in ("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST") if django_setting(name)]
    if not signs or are_invalid("TRUSTED_PROXIES"):
        return
    trusted = settings.TRUSTED_PROXIES
    if trusted.hops or trusted.networks or trusted.unix:
        return
    slugs = [rule.slug for rule in rules_in_force() if rule.asks_for_address]
    if slugs:
        yield message(
            "W005",
            f"{signs[0]} indicates a proxy, but RATELIMITER['TRUSTED_PROXIES'] trusts none: "
            f"all callers share the proxy's address in rules by IP address: {', '.join(slugs)}.",
            'Name the networks of your proxies, such as ["10.0.0.0/8"], "unix" for a Unix socket, '
            f"or give their number. See {SYMPTOMS}",
        )


@check
def check_rules() -> Found:
    """W006: rules that cannot be enforced, each with the reason."""
    return [
        message(
            "W006",
            f"Rule {slug} is not in force: {reason}",
            "Correct the rule in the admin and save it. SQL can write values that the forms reject.",
        )
        for slug, reason in _left_out().items()
    ]


@check
def check_tables() -> Found:
    """W016: the app is installed, but its tables do not exist."""
    if sys.argv[1:2] != ["migrate"] and tables_are_missing():  # migrate creates them
        yield message(
            "W016",
            "The tables of django_ratelimiter do not exist: only limits written in code apply.",
            f"Run `{command_for(storage.primary())}`, or take the app out of INSTALLED_APPS if all limits are in code.",
        )


@check
def check_tenants() -> Found:
    """E011: each tenant of django-tenants would have its own tables, but a process has one set of rules."""
    if have_own(APP):
        yield message(
            "E011",
            "django_ratelimiter is in TENANT_APPS: the rules of the tenant that a process serves first would apply to "
            "all tenants.",
            "Name it in SHARED_APPS only. Users of different tenants are counted apart.",
        )


@check
def check_collecting() -> Found:
    """W013: there are rules, but no usage has been collected for a day."""
    if are_invalid("CACHE_ALIAS") or not settings.CACHE_ALIAS or not rules_in_force():
        return
    since = from_database(_since)
    if since is not None and aware(since) <= now() - LONG:
        yield message(
            "W013",
            f"No usage has been collected from Redis since {since:%Y-%m-%d %H:%M %Z}, and Redis keeps it only for "
            "8 days.",
            "Run `manage.py ratelimit collect` each minute: by cron, or as a task of Celery or Django. "
            "If no request has matched a rule since then, you can ignore this.",
        )


def _since() -> datetime | None:
    """Return when usage was last collected; if never, when the first rules were saved; `None` if neither was."""
    collected: datetime | None = UsageBatch.objects.aggregate(at=Max("collected_at"))["at"]
    return collected or RuleSetVersion.objects.aggregate(at=Min("created_at"))["at"]


def _position(classes: Sequence[Any], path: str) -> int | None:
    return next((index for index, cls in enumerate(classes) if is_subclass(cls, path)), None)


def _left_out() -> dict[str, str]:
    """Return reasons by slug: for the current rows, and for the rules of the last version."""
    rules = from_database(storage.load)
    reasons = {entry.rule: entry.reason for entry in rules.left_out} if rules else {}
    snapshot = from_database(snapshot_of_rows) or {}
    return reasons | {entry["rule"]: entry["reason"] for entry in snapshot.get("left_out", ())}
