"""The settings of the sites that the system tests start: those of the tests, with what makes a process observable.

SYSTEM_URLCONF: other addresses than those of the tests. SYSTEM_ALL_ASYNC: if set, no middleware is synchronous only.
"""

import os
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, MIDDLEWARE

ROOT_URLCONF = os.environ.get("SYSTEM_URLCONF", "tests.urls")
if "SYSTEM_ALL_ASYNC" not in os.environ:
    MIDDLEWARE = ["example_project.middleware.name_the_process", *MIDDLEWARE]
CACHES["ratelimit"]["OPTIONS"] = {"SOCKET_CONNECT_TIMEOUT": 10, "SOCKET_TIMEOUT": 10}
RATELIMITER: dict[str, Any] = {
    "CACHE_ALIAS": "ratelimit",
    "DEADLINE_MS": 10_000,  # longer than any hiccup, see tests.settings
    "TRUSTED_PROXIES": ["127.0.0.1"],  # the tests choose the addresses that requests come from
    # Shorter than the defaults, for tests wait for them.
    "VERSION_CHECK_INTERVAL": float(os.environ.get("SYSTEM_VERSION_CHECK_INTERVAL", 0.2)),
    "RULES_MAX_AGE": 1.0,
    "TIER_CACHE_SECONDS": 5,
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}
