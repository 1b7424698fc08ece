"""A trace of requests, sent for real with a frozen clock, and written as a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from django.contrib.auth.models import AnonymousUser, User
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, QueryDict
from django.test import override_settings
from django.utils import timezone

from django_ratelimiter.decision import Decision
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache

START_US = 1_700_000_000_000_000
MIDDLEWARE = "django_ratelimiter.middleware.RateLimitMiddleware"
KEYS = ("one-key", "another-key")
PATHS = ("/plain/", "/items/1/", "/items/2/", "/search/", "/api/", "/nothing/", "/static/file")


class Asked(NamedTuple):
    """One request. user: a name; empty = nobody."""

    now_us: int
    method: str
    path: str
    address: str
    user: str
    api_key: str
    org: str
    status: int
    duration_us: int
    page: str = ""
    host: str = "testserver"


def trace(length: int, seed: int = 4) -> Iterator[Asked]:
    """Users, keys and strangers: in crowds, alone, and after a break."""
    random = Random(seed)
    now_us = START_US
    for _ in range(length):
        now_us += random.choice((0, 1, 1_000, 50_000, 333_333)) if random.random() < 0.99 else 20_000_000
        yield Asked(
            now_us,
            random.choice(("GET", "GET", "POST")),
            random.choice(PATHS),
            f"203.0.113.{random.randrange(8)}",
            random.choice(("", "", "ann", "bob", "eve", "zoe", "nobody-here")),
            random.choice(("", "", *KEYS, "invented")),
            random.choice(("", "acme", "umbrella")),
            random.choice((200, 200, 302, 401, 500)),
            random.choice((0, 1_500, 2_000_000)),
            random.choice(("", "2", "+2+", "3")),
            random.choice(("testserver", "TestServer:80")),
        )


def make_rules() -> None:
    """Make rules of all algorithms, modes, partitions and tiers, and entries of the access list."""
    ann, bob, eve = (User.objects.create(username=name) for name in ("ann", "bob", "eve"))
    User.objects.create(username="zoe")
    with cache.editing():
        free = Tier.objects.create(slug="free", name="Free", rank=1, default_for="authenticated")
        gold = Tier.objects.create(slug="gold", name="Gold", rank=9)
        minute, ten = {"window_seconds": 60}, {"window_seconds": 10}
        _rule("all", [("sliding_window_log", 300, None, minute)])
        _rule("ip", [("sliding_window_counter", 60, None, minute)], partition_by=["ip"], priority=3)
        _rule("user", [("token_bucket", 6, None, ten | {"burst": 9})], partition_by=["user"], missing_partition="ip")
        _rule("write", [("gcra", 12, None, ten)], partition_by=["ip"], methods=["POST"], cost=2, count_refusals=True)
        _rule("tried", [("fixed_window", 5, None, ten)], partition_by=["user", "ip"], mode="shadow")
        _rule("off", [("fixed_window", 1, None, minute)], mode="off")
        _rule("tiers", [("sliding_window_slots", 20, None, minute), ("fixed_window", 30, free, ten),
              ("fixed_window", 45, gold, ten | {"soft_quota": 20}), ("gcra", 400, gold, minute)],
              partition_by=["user"])  # fmt: skip
        _rule("queue", [("leaky_bucket", 30, None, ten | {"burst": 8, "max_delay_ms": 1_500})], path="/items/",
              path_kind="prefix", partition_by=["path:item"])  # fmt: skip
        _rule("busy", [("concurrency", 4, None, minute)], path="/plain/", path_kind="exact")
        _rule("key", [("token_bucket", 40, None, minute | {"refill": "interval"})], partition_by=["api_key"])
        _rule("org", [("fixed_window", 50, None, minute | {"anchor": "first_request"})], partition_by=["header:X-Org"],
              missing_partition="deny", view_name="item")  # fmt: skip
        _rule("billing", [("fixed_window", 400, None, {"calendar": "month"})], partition_by=["user"])
        _rule("pages", [("fixed_window", 20, None, minute)], partition_by=["query:page"], missing_partition="ip")
        _rule("hosts", [("fixed_window", 90, None, minute)], partition_by=["host"])
        _rule("login", [("fixed_window", 6, None, minute)], charge_when="failure", partition_by=["ip"], scope="search")
        _rule("done", [("sliding_window_log", 9, None, minute)], charge_when="success", scope="api")
        _rule("month", [("fixed_window", 5_000, None, {"calendar": "day", "timezone": "Europe/Berlin"})])
    for given in ({"user": ann, "tier": gold, "anchor_day": 31}, {"user": eve, "tier": free, "multiplier": 2},
                  {"api_key_hash": hash_api_key(KEYS[0]), "tier": gold, "multiplier": "1.5"},
                  {"user": bob, "tier": gold, "ends_at": timezone.now() + timezone.timedelta(days=1)}):  # fmt: skip
        TierAssignment.objects.create(**given)
    for action, kind, value in (
        ("allow", "ip", "203.0.113.6"),
        ("deny", "ip", "203.0.113.7"),
        ("deny", "api_key", hash_api_key(KEYS[1])),
        ("allow", "user", str(eve.pk)),
    ):
        AccessEntry.objects.create(action=action, kind=kind, value=value)


def _rule(slug: str, limits: list[tuple[str, int, Tier | None, dict[str, Any]]], **fields: Any) -> None:
    rule = Rule.objects.create(slug=slug, name=slug, **{"mode": "enforce", **fields})
    for algorithm, quota, tier, options in limits:
        RuleLimit.objects.create(rule=rule, tier=tier, algorithm=algorithm, quota=quota, **options)


def send(asked: list[Asked], clock: Any) -> list[list[Any]]:
    """Send each request when its time has come, end its response when it has, and return what was decided."""
    with override_settings(MIDDLEWARE=[MIDDLEWARE]):
        handler = BaseHandler()
        handler.load_middleware()
    users = {user.username: user for user in User.objects.all()}
    in_flight: list[tuple[int, int, Any]] = []
    found = []
    for number, each in enumerate(asked):
        clock.now_us = each.now_us
        while in_flight and in_flight[0][0] <= each.now_us:
            heappop(in_flight)[2].close()
        request = _request(each, users)
        handler.get_response(request)
        found.append(told(getattr(request, "ratelimit", None)))
        heappush(in_flight, (each.now_us + each.duration_us + _held(request), number, request))
    return found


def _held(request: Any) -> int:
    decision = getattr(request, "ratelimit", None)
    delays = [each.verdict.delay for each in decision.results if each.mode == "enforce"] if decision else []
    return round(max(delays, default=0) * 1_000_000) if decision and decision.allowed else 0


def _request(each: Asked, users: dict[str, User]) -> HttpRequest:
    request = HttpRequest()
    request.method, request.path, request.path_info = each.method, each.path, each.path
    request.META = {"REQUEST_METHOD": each.method, "REMOTE_ADDR": each.address}
    request.META |= {"SERVER_NAME": "testserver", "SERVER_PORT": "80"}
    request.META |= {"QUERY_STRING": f"page={each.page}", "HTTP_HOST": each.host}
    request.GET = QueryDict(request.META["QUERY_STRING"])  # type: ignore[assignment]
    for name, value in (("HTTP_X_API_KEY", each.api_key), ("HTTP_X_ORG", each.org)):
        if value:
            request.META[name] = value
    request.given = users.get(each.user) or AnonymousUser()  # type: ignore[attr-defined]
    request.answer = each.status  # type: ignore[attr-defined]
    if each.path == "/api/" and each.user in users:  # DRF finds out who it is, from what the client sends
        request.META["HTTP_AUTHORIZATION"] = "Bearer"
        request.user = AnonymousUser()
    else:
        request.user = request.given  # type: ignore[attr-defined]
    return request


def told(decision: Decision | None) -> list[Any]:
    """Return all that a decision says."""
    if decision is None:
        return [True]
    verdicts = [(each.rule.slug, each.verdict) for each in decision.results if each.verdict]
    binding = decision.binding
    return [
        decision.allowed,
        decision.retry_after,
        (binding.rule.slug, binding.verdict.remaining) if binding and binding.verdict else None,
        *(
            (slug, verdict.allowed, verdict.remaining, verdict.retry_after, verdict.reset_after, verdict.delay)
            for slug, verdict in verdicts
        ),
    ]


def write_log(asked: list[Asked], path: Path) -> Path:
    """Write the trace as JSON lines."""
    with path.open("w") as file:
        for each in asked:
            fields = {
                "start_time": f"{each.now_us // 1_000_000}.{each.now_us % 1_000_000:06d}",
                "remote_addr": each.address,
                "remote_user": each.user or "-",
                "request_method": each.method,
                "request_uri": f"{each.path}?page={each.page}",
                "status": each.status,
                "request_time": f"{each.duration_us / 1_000_000:.6f}",
                "http_x_api_key": each.api_key,
                "http_x_org": each.org,
                "http_host": each.host,
            }
            file.write(json.dumps(fields) + "\n")
    return path
