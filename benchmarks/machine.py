"""The machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import redis

from example_project.redis_server import RedisServer

DISTRIBUTIONS: Final = (
    "Django",
    "redis",
    "hiredis",
    "django-redis",
    "djangorestframework",
    "django-ratelimit",
    "django-smart-ratelimit",
    "limits",
    "throttled-py",
    "pyrate-limiter",
)


def describe() -> dict[str, Any]:
    """Return date, machine, server, and versions by distribution."""
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        info = client.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{processor()}, {os.cpu_count()} processors, {platform.system()} {platform.release()}",
        "server": f"{name} {info.get('valkey_version') or info['redis_version']}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "versions": {each: installed for each in DISTRIBUTIONS if (installed := version_of(each))},
    }


def version_of(distribution: str) -> str | None:
    """Return the installed version, if there is one."""
    with suppress(PackageNotFoundError):
        return version(distribution)
    return None


def processor() -> str:
    """Return the name of the processor, as the system reports it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
