"""The Django settings of the tests. `tests/servers.py` starts the servers named here and sets the variables."""

import os
from pathlib import Path
from urllib.parse import urlsplit

SECRET_KEY = "only for the tests"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
ROOT_URLCONF = "tests.urls"
USE_TZ = True
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_ratelimiter",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_ratelimiter.middleware.RateLimitMiddleware",
]
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

# The test database bears the ordinary name, and is a file on SQLite: further processes of a test use it too.
DATABASE = urlsplit(os.environ.get("TEST_DATABASE_URL", ""))
if DATABASE.scheme in ("postgresql", "mysql"):
    DATABASES = {
        "default": {
            "ENGINE": f"django.db.backends.{DATABASE.scheme}",
            "NAME": DATABASE.path.removeprefix("/"),
            "USER": DATABASE.username,
            "HOST": DATABASE.hostname,
            "PORT": DATABASE.port,
            "TEST": {"NAME": DATABASE.path.removeprefix("/")},
        }
    }
else:
    FILE = Path(DATABASE.path or "test.sqlite3")
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FILE,
            # Nothing of it is to outlive the machine; to wait for the disk took longer than most tests that commit.
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA synchronous=OFF"},
            "TEST": {"NAME": FILE},
        }
    }

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "ratelimit": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:1/0"),
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.5, "SOCKET_TIMEOUT": 0.5},
    },
}
RATELIMITER = {
    "CACHE_ALIAS": "ratelimit",
    # Longer than any hiccup of a busy machine: at a deadline the failure policies decide, rightly, and spoil a count.
    "DEADLINE_MS": 10_000,
}
