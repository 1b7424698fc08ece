"""Settings of the example: SQLite, Redis by django-redis, Celery on the same Redis, DRF and the rate limiter.

Environment, all optional:
  REDIS_URL                redis:// or rediss://, for counters and Celery; without it a process counts in its memory.
    EXAMPLE_STATE_DIR        The folder of the SQLite file; default: beside manage.py.
    EXAMPLE_NAMESPACE        The prefix of the limiter's keys in Redis; default: example.
  EXAMPLE_COLLECT_SECONDS  How often beat collects the usage; default: 60.
  EXAMPLE_DEBUG            "1" switches Django's DEBUG on.
  DEMO_BREAK               Breaks the example on purpose: one of the names in `broken.py`, or "nolimiter".
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = Path(os.environ.get("EXAMPLE_STATE_DIR") or BASE_DIR)
REDIS_URL = os.environ.get("REDIS_URL", "")
NAMESPACE = os.environ.get("EXAMPLE_NAMESPACE", "example")
DEMO_BREAK = os.environ.get("DEMO_BREAK", "")

# Only for an example on the loopback address: a published key protects nothing.
SECRET_KEY = "the-example-projects-key-is-public-so-never-use-it-for-anything-else"
DEBUG = os.environ.get("EXAMPLE_DEBUG") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_ratelimiter",
    "example_project",  # for its customers, and the command demo_data
]

MIDDLEWARE = [
    "example_project.middleware.name_the_process",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",  # rejections are in the client's language
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_ratelimiter.middleware.RateLimitMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

RATELIMITER: dict[str, Any] = {
    "CACHE_ALIAS": "default" if REDIS_URL else None,
    "NAMESPACE": NAMESPACE,
    # The demo uses all processors of a small machine, so Redis may have to wait.
    "DEADLINE_MS": 1_000,
    # The demo's traffic acts as a reverse proxy on this machine, for many addresses.
    "TRUSTED_PROXIES": ("127.0.0.0/8",),
    "CUSTOMER": "example_project.models.customer_of",
    "CUSTOMER_CALLERS": "example_project.models.callers_of",
    "TIER_RESOLVER": "example_project.models.plan_of",
}
if DEMO_BREAK == "nolimiter":
    RATELIMITER["ENABLED"] = False
elif DEMO_BREAK:
    RATELIMITER["ENGINE"] = f"example_project.broken.{DEMO_BREAK}"

CACHES: dict[str, dict[str, Any]] = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if REDIS_URL:
    CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": REDIS_URL,
            # A limiter must not wait long for its counters: after this, the rule's failure policy decides.
            "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.5, "SOCKET_TIMEOUT": 0.5},
        }
    }

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": STATE_DIR / "example.sqlite3",
        "OPTIONS": {
            # Writers wait for each other instead of failing, and readers never wait for a writer.
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}


def _next_database(url: str) -> str:
    """Return the next database of the same Redis, to separate tasks from counters."""
    parts = urlsplit(url)
    number = int(parts.path.strip("/") or 0)
    return parts._replace(path=f"/{(number + 1) % 16}").geturl()


CELERY_BROKER_URL = _next_database(REDIS_URL) if REDIS_URL else "memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": f"{NAMESPACE}:"} if REDIS_URL else {}
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULE = {
    "collect the usage": {
        "task": "django_ratelimiter.collect_usage",
        "schedule": float(os.environ.get("EXAMPLE_COLLECT_SECONDS", "60")),
        "options": {"expires": 60},
    }
}

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
# Without DEBUG, Django only sends a view's exceptions by mail.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
}
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
