"""What the limiter adds to a request: `python -m benchmarks.path` (REDIS_SERVER and REDIS_URL choose the server).

Three rules by user, API key and address, on a real Redis, with everything on: version, usage, tiers. Each request is a
new one, the process is warm. Every round times each contestant in turn, on one processor that they share with the
server, so that a busy machine is busy for all of them; the table tells the median round, and its ratio to the floor
of `benchmarks.floor`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import django
import redis
from django.conf import settings  # noqa: TID251  this is a project of its own
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory
from django.urls import path, resolve
from django.utils.functional import SimpleLazyObject

from example_project.redis_server import redis_url

from .floor import FLOOR

ROUNDS, CALLS = 40, 200
KEY = "a-key-that-is-known"
#: A signed-in caller with an API key, and somebody of whom only the address is known.
RULES = {"by-user": ["user"], "by-key": ["api_key"], "by-address": ["ip"]}
RULES_OF_ANONYMOUS = {"addresses": ["ip"], "agents": ["ip", "header:User-Agent"], "everybody": []}


def view(request: HttpRequest) -> HttpResponse:
    """The least that a view does."""
    return HttpResponse(b"ok")


urlpatterns = [path(f"{name}/", view, name=name) for name in ("known", "anonymous", "free")]


class Contestant(NamedTuple):
    """What is timed. call: takes a new request. request: makes one. less: the name of what to subtract, if any."""

    call: Callable[[Any], object]
    request: Callable[[], Any]
    less: str | None = None


def set_up(url: str, folder: str) -> None:
    """Django with a database in this folder, the limiter on the Redis at `url`, and rules."""
    settings.configure(
        SECRET_KEY="only for the benchmark",
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        ROOT_URLCONF="benchmarks.path",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(folder, "db.sqlite3")}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_ratelimiter"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        CACHES={
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "ratelimit": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url},
        },
        RATELIMITER={"CACHE_ALIAS": "ratelimit"},
        LOGGING_CONFIG=None,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    make_rules()


def make_rules() -> None:
    """What an operator would make in the admin."""
    from django_ratelimiter.identity import hash_api_key
    from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment
    from django_ratelimiter.rules import cache

    with cache.editing():
        tier = Tier.objects.create(slug="pro", name="Pro", rank=1)
        TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key(KEY))
        for view_name, rules in (("known", RULES), ("anonymous", RULES_OF_ANONYMOUS)):
            for slug, partition_by in rules.items():
                rule = Rule.objects.create(
                    slug=slug, name=slug, mode="enforce", view_name=view_name, partition_by=partition_by
                )
                RuleLimit.objects.create(rule=rule, quota=10_000_000, window_seconds=60)
                RuleLimit.objects.create(rule=rule, tier=tier, quota=20_000_000, window_seconds=60)


def request(name: str, address: str = "192.0.2.1", *, known: bool = False) -> HttpRequest:
    """A new request for the view of this name, as it is when its view has been found."""
    from django.contrib.auth.models import AnonymousUser, User

    fields: dict[str, Any] = {"HTTP_X_API_KEY": KEY} if known else {}
    made = RequestFactory().get(f"/{name}/", REMOTE_ADDR=address, HTTP_USER_AGENT="benchmark", **fields)
    who = User(pk=42, username="someone") if known else AnonymousUser()
    made.user = SimpleLazyObject(lambda: who)  # type: ignore[assignment]
    made.resolver_match = resolve(made.path)
    return made


def handler(*middleware: str) -> Callable[[HttpRequest], HttpResponseBase]:
    """Django's own path of a request, with this middleware."""
    settings.MIDDLEWARE = list(middleware)
    made = BaseHandler()
    made.load_middleware()
    return made.get_response


def contestants(client: redis.Redis) -> dict[str, Contestant]:
    """What is timed, the floor first."""
    from django_ratelimiter import limiter
    from django_ratelimiter.backend import get_engine

    sha, engine = client.script_load(FLOOR), get_engine()
    decision = limiter.check(request("known", known=True))
    charges = [result.verdict.charge for result in decision.results if result.verdict]
    assert len(charges) == len(limiter.check(request("anonymous")).results) == 3
    others = count(1)

    def known() -> HttpRequest:
        return request("known", known=True)

    def someone_else() -> HttpRequest:
        number = next(others)
        return request("anonymous", f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}")

    def anonymous() -> HttpRequest:
        return request("anonymous")

    def free() -> HttpRequest:
        return request("free")

    bare, limited = handler(), handler("django_ratelimiter.middleware.RateLimitMiddleware")
    return {
        "floor: one bucket, client.evalsha": Contestant(
            lambda _: client.evalsha(sha, 1, "benchmark:floor", 1_000_000, 16_666, 1), free
        ),
        "engine: three charges": Contestant(lambda _: engine.check(charges, version=decision.version), free),
        "check: three rules": Contestant(limiter.check, known),
        "check: three rules, anonymous": Contestant(limiter.check, anonymous),
        "check: three rules, new addresses": Contestant(limiter.check, someone_else),
        "check: no rule": Contestant(limiter.check, free),
        "view without the limiter": Contestant(bare, known),
        "view, three rules: added": Contestant(limited, known, "view without the limiter"),
        "view, three rules, anonymous: added": Contestant(limited, anonymous, "view without the limiter"),
        "view, no rule: added": Contestant(limited, free, "view without the limiter"),
    }


def timed(call: Callable[[Any], object], request: Callable[[], Any]) -> float:
    """Microseconds of one call: the mean of a round. Making its request takes no part in that."""
    took = 0.0
    for _ in range(CALLS):
        made = request()
        began = perf_counter()
        call(made)
        took += perf_counter() - began
    return took / CALLS * 1_000_000


def measured(calls: dict[str, Contestant], rounds: int = ROUNDS) -> list[dict[str, float]]:
    """Microseconds of one call of each, in each round."""
    found = []
    for _ in range(rounds):
        figures: dict[str, float] = {}
        for name, each in calls.items():
            took = timed(each.call, each.request)
            figures[name] = took - figures[each.less] if each.less else took
        found.append(figures)
    return found


def main() -> None:
    """Measure and print."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # what is started from here on shares it
    with redis_url() as url, redis.Redis.from_url(url) as client, tempfile.TemporaryDirectory() as folder:
        set_up(url, folder)
        calls = contestants(client)
        measured(calls, 2)
        rounds = measured(calls)
    print(f"redis-py {redis.__version__}, Django {django.__version__}, median of {ROUNDS} rounds of {CALLS} calls\n")
    print(f"{'':36}{'us a call':>10}{'to the floor':>14}")
    floor = next(iter(calls))
    for name in calls:
        ratio = median(each[name] / each[floor] for each in rounds)
        print(f"{name:36}{median(each[name] for each in rounds):10.1f}{ratio:14.2f}")


if __name__ == "__main__":
    main()
