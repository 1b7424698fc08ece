"""Versions and settings, for a report of an error: in English, and without secrets."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection

from ..backend import get_engine, server_in_words
from ..conf import differing, django_setting, without_secrets
from ..engine.redis import RedisEngine
from ..exceptions import told_safely
from ..values.terminal import visible

#: The distributions whose versions matter. Those that are not installed are left out.
PACKAGES: Final = (
    *("django-tiered-ratelimiter", "Django", "redis", "hiredis", "django-redis", "djangorestframework", "celery"),
    *("django-tasks-db", "prometheus-client", "ruamel.yaml", "drf-spectacular", "django-tenants"),
)


def about() -> dict[str, Any]:
    """Return the versions of Python, packages and servers, and the settings that differ from their defaults."""
    found: dict[str, Any] = {"python": f"{platform.python_version()} ({platform.platform()})", "packages": {}}
    for name in PACKAGES:
        try:
            found["packages"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    own = differing()
    cache = django_setting("CACHES", {}).get(own.get("CACHE_ALIAS"), {})
    settings = {f"RATELIMITER[{name!r}]": value for name, value in own.items()}
    settings |= {f"CACHES[{own['CACHE_ALIAS']!r}][{name!r}]": without_secrets(cache[name], name) for name in cache}
    servers = {"database": without_secrets(_database()), "redis": without_secrets(_redis())}
    return {**found, **servers, "settings": settings}


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of `about`."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield f"{name}:{'' if value else ' as by default'}"
            yield from (visible(f"  {key}: {each}") for key, each in value.items())
        else:
            yield visible(f"{name}: {value}")


def _database() -> str:
    try:
        version = ".".join(map(str, connection.get_database_version()))
    except Exception as error:  # whatever is wrong with it belongs into the report
        said = error if isinstance(error, DatabaseError) else told_safely(error)
        return f"{connection.vendor}, which does not answer: {said}"
    return f"{connection.display_name} {version}"


def _redis() -> str:
    try:
        engine: Any = get_engine()
        exact = getattr(engine, "engine", engine)
        if not isinstance(exact, RedisEngine):
            return f"none; the engine is {type(exact).__name__}"
        kinds = {exact.commands.run(shard, _kind) for shard, *_others in exact.commands.nodes()}
        return f"{', '.join(sorted(kinds))}: {server_in_words()}"
    except ImproperlyConfigured as error:
        return f"was not asked: {told_safely(error)}"
    except Exception as error:  # likewise
        return f"does not answer: {told_safely(error)}"


def _kind(client: Any) -> str:
    """Return the name, version and mode of a server."""
    server = client.info("server")
    name, mode = server.get("server_name", "redis"), server.get("server_mode", server.get("redis_mode", "unknown mode"))
    return f"{name} {server.get(f'{name}_version', 'of an unknown version')}, {mode}"
