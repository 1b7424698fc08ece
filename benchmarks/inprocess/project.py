"""The Django project that requests are made of: one view under several names, each with rules of its own.

It uses only public names of the limiter, so that any version of it can be measured.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import django
from django.conf import settings  # noqa: TID251  this is a project of its own
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory
from django.urls import path

KEY: Final = "a-key-that-is-known"
OURS: Final = "django_ratelimiter.middleware.RateLimitMiddleware"
PLENTY: Final = 100_000_000
HOUR: Final = 3_600
DAY: Final = 86_400

#: View: for each of its rules what it is counted by, the quota, the seconds of its window, and the algorithm.
RULES: Final[dict[str, list[tuple[list[str], int, int, str]]]] = {
    "free": [],
    "one": [(["ip"], PLENTY, HOUR, "sliding_window_counter")],
    "one-refused": [(["ip"], 1, DAY, "sliding_window_counter")],
    "three": [
        (["ip"], PLENTY, HOUR, "sliding_window_counter"),
        (["ip"], PLENTY, DAY, "token_bucket"),
        ([], PLENTY, HOUR, "fixed_window"),
    ],
    "three-refused": [
        (["ip"], 1, DAY, "sliding_window_counter"),
        (["ip"], PLENTY, DAY, "token_bucket"),
        ([], PLENTY, HOUR, "fixed_window"),
    ],
    "synced": [
        (["ip"], PLENTY, HOUR, "sliding_window_counter"),
        (["ip"], PLENTY, DAY, "fixed_window"),
        ([], PLENTY, HOUR, "fixed_window"),
    ],
    "known": [
        (["user"], PLENTY, HOUR, "sliding_window_counter"),
        (["api_key"], PLENTY, HOUR, "sliding_window_counter"),
        (["ip"], PLENTY, HOUR, "sliding_window_counter"),
    ],
}
#: Views whose rules a process decides by what it has counted, and tells Redis of every so many milliseconds.
SYNCED: Final = {"synced": 1_000}

Handler = Callable[[HttpRequest], HttpResponseBase]
AsyncHandler = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


def view(request: HttpRequest) -> HttpResponse:
    """Do the least that a view does."""
    return HttpResponse(b"ok")


async def async_view(request: HttpRequest) -> HttpResponse:
    """Do the same on an event loop."""
    return HttpResponse(b"ok")


urlpatterns = [
    *(path(f"{name}/", view, name=name) for name in RULES),
    *(path(f"async/{name}/", async_view, name=name) for name in RULES),
]


def set_up(url: str, folder: str, *, namespace: str = "inprocess", **more: Any) -> None:
    """Configure Django with a database in this folder, the limiter on the Redis at `url`, and rules.

    more: further settings.
    """
    settings.configure(
        SECRET_KEY="only for the benchmark",
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        ROOT_URLCONF=__name__,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(folder, "db.sqlite3")}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_ratelimiter"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        CACHES={
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url},
            "builtin": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url},
        },
        # A busy machine shall not make us decide without Redis, which would be quick.
        RATELIMITER={"CACHE_ALIAS": "default", "DEADLINE_MS": 2_000, "NAMESPACE": namespace},
        LOGGING_CONFIG=None,
        **more,
    )
    logging.getLogger("django.request").setLevel(logging.CRITICAL)  # Django's own line for each 429 is not ours
    logging.getLogger("django_ratelimiter").addHandler(logging.NullHandler())
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    make_rules()


def make_tier() -> None:
    """Make a tier, which holders of the API key have."""
    from django_ratelimiter.identity import hash_api_key
    from django_ratelimiter.models import Tier, TierAssignment
    from django_ratelimiter.rules.cache import editing

    with editing():
        tier = Tier.objects.create(slug="pro", name="Pro", rank=1)
        TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key(KEY))


def make_rules() -> None:
    """Make the rules as an operator would in the admin."""
    from django_ratelimiter.models import Rule, RuleLimit
    from django_ratelimiter.rules.cache import editing

    with editing():
        for name, rules in RULES.items():
            for number, (partition_by, quota, seconds, algorithm) in enumerate(rules):
                slug = f"{name}-{number}"
                rule = Rule.objects.create(
                    slug=slug,
                    name=slug,
                    mode="enforce",
                    view_name=name,
                    partition_by=partition_by,
                    sync_interval_ms=SYNCED.get(name),
                )
                RuleLimit.objects.create(rule=rule, quota=quota, window_seconds=seconds, algorithm=algorithm)


def address(caller: int) -> str:
    """Return the IP address of this caller."""
    return f"10.{caller >> 16 & 255}.{caller >> 8 & 255}.{caller & 255}"


_factory = RequestFactory()


def new_request(name: str, caller: int, *, on_loop: bool = False) -> HttpRequest:
    """Return a new request of this caller for the view of this name: anonymous, or, for "known", signed in with a key.

    on_loop: for the asynchronous view.
    """
    from django.contrib.auth.models import AnonymousUser, User

    known = name == "known"
    fields: dict[str, Any] = {"HTTP_X_API_KEY": KEY} if known else {}
    request = _factory.get(f"/{'async/' * on_loop}{name}/", REMOTE_ADDR=address(caller), **fields)
    user = User(pk=caller, username="someone") if known else AnonymousUser()

    async def auser() -> User | AnonymousUser:
        return user

    request.user = user
    request.auser = auser
    return request


def sync_handler(*middleware: str) -> Handler:
    """Return Django's own path of a request, with this middleware and no other."""
    settings.MIDDLEWARE = list(middleware)
    handler = BaseHandler()
    handler.load_middleware()
    return handler.get_response


def async_handler(*middleware: str) -> AsyncHandler:
    """Return the same for event loops."""
    settings.MIDDLEWARE = list(middleware)
    handler = BaseHandler()
    handler.load_middleware(is_async=True)
    return handler.get_response_async
