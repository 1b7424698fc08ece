"""Django's settings for all measurements with Django.

Environment:
    BENCH_REDIS_URL  the Redis of all limiters.
    BENCH_FOLDER     the folder of the SQLite file.
    BENCH_LIMITER    the limiter before the view: a name in `urls.LIMITERS`; default: none.
    BENCH_LOOP       if set, views are asynchronous, for an ASGI server.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from ..contest import QUOTA

REDIS_URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")
FOLDER = Path(os.environ.get("BENCH_FOLDER", "/nonexistent"))
LIMITER = os.environ.get("BENCH_LIMITER", "")
ON_LOOP = bool(os.environ.get("BENCH_LOOP"))
#: Whether our rules use tiers: then the user is read.
TIERS = LIMITER != "ours"
KIND = "tiers" if TIERS else "plain"

SECRET_KEY = "only for the benchmark"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "benchmarks.site.urls"
# Log records are created, but not written.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"nowhere": {"class": "logging.NullHandler"}},
    "root": {"handlers": ["nowhere"], "level": "WARNING"},
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django_ratelimiter",
]
# All have what a site with users has anyway; on an event loop, Django would run each of these in a thread.
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
MIDDLEWARE = [*(() if ON_LOOP else MIDDLEWARE), "benchmarks.site.middleware.signed_in"]
if LIMITER.startswith("ours"):
    MIDDLEWARE.append("django_ratelimiter.middleware.RateLimitMiddleware")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / f"{KIND}.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL},
    "builtin": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL},
}

# On a busy machine we must not decide without Redis, which would be fast.
RATELIMITER = {"CACHE_ALIAS": "default", "DEADLINE_MS": 2_000, "NAMESPACE": f"bench-{KIND}"}
# Known callers are measured. With 5 seconds, a slow machine would measure the database, as callers come in turn.
RATELIMITER["TIER_CACHE_SECONDS"] = 3_600

RATELIMIT_BACKEND = "redis"
_redis = urlsplit(REDIS_URL)
RATELIMIT_REDIS = {"host": _redis.hostname, "port": _redis.port, "db": int(_redis.path.strip("/") or 0)}

REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_THROTTLE_RATES": dict.fromkeys(("anon", "user", "uploads"), f"{QUOTA}/h"),
}
