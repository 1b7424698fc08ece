"""The admin's pages of this app, in one place: who may open them, and a site with enough in it to look at.

Whoever adds a page adds a line to PAGES. The test of addresses opens each as four kinds of users, the one in a browser
under a strict Content-Security-Policy, and `python -m tests.screenshots` takes a picture of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from urllib.parse import urlencode

from django.contrib.auth.models import AnonymousUser, Permission, User
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.conf import settings
from django_ratelimiter.identity import digest
from django_ratelimiter.models import (
    AccessEntry,
    CallerUsage,
    Rule,
    RuleLimit,
    Tier,
    TierAssignment,
    TopCaller,
    TopPartition,
    UsageBatch,
    UsageBucket,
    UsageSample,
)
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.reports.coverage import DAY, HOUR
from django_ratelimiter.usage.times import Granularity, buckets, floor, now, stored

from .making import request_of


@dataclass(frozen=True)
class Page:
    """A page. name: of its picture. url_name: without "admin:"; args and query: may be made from the rows of `fill`.

    viewer: the status that somebody gets who may view everything and change nothing.
    """

    name: str
    url_name: str
    query: dict[str, str] | Callable[[], dict[str, str]] = field(default_factory=dict)
    args: Callable[[], list[object]] = list
    viewer: int = 200
    is_home: bool = False

    @property
    def url(self) -> str:
        """Its address; "" where this project does not have the page."""
        try:
            address = reverse(f"admin:{self.url_name}", args=self.args())
        except NoReverseMatch:
            return ""
        query = self.query() if callable(self.query) else self.query
        return f"{address}?{urlencode(query)}" if query else address


def first(model: type) -> Callable[[], list[object]]:
    return lambda: [model.objects.order_by("pk").first().pk]  # type: ignore[attr-defined]


def latest(back: int = 0) -> str:
    """The key of the version in force, or of one this number of versions before."""
    version = storage.committed_version()
    return f"{version.number - back}-{version.epoch}"


def blocked() -> User:
    """The user whom a rule rejects."""
    return User.objects.get(username="ann")


#: An address that has logged in too often.
ADDRESS: Final = "192.0.2.7"


PAGES: Final = [
    Page("home", "index", is_home=True),
    Page("overview", "app_list", args=lambda: ["django_ratelimiter"]),
    Page("search", "django_ratelimiter_search"),
    Page("enforcement", "django_ratelimiter_enforcement", viewer=403),
    Page("rules", "django_ratelimiter_rule_changelist"),
    Page("rule", "django_ratelimiter_rule_change", args=first(Rule)),
    Page("rule-changed", "django_ratelimiter_rule_change", args=lambda: [changed_rule().pk]),
    Page("rule-forecast", "django_ratelimiter_rule_change", {"_forecast": "1"}, args=first(Rule)),
    Page("rule-add", "django_ratelimiter_rule_add", viewer=403),
    Page("rule-log", "django_ratelimiter_rule_history", args=first(Rule)),
    Page("rule-delete", "django_ratelimiter_rule_delete", args=first(Rule), viewer=403),
    Page("tiers", "django_ratelimiter_tier_changelist"),
    Page("tier", "django_ratelimiter_tier_change", args=first(Tier)),
    Page("assignments", "django_ratelimiter_tierassignment_changelist"),
    Page("assignment", "django_ratelimiter_tierassignment_change", args=first(TierAssignment)),
    Page("assignment-add", "django_ratelimiter_tierassignment_add", viewer=403),
    Page("access", "django_ratelimiter_accessentry_changelist"),
    Page("access-entry", "django_ratelimiter_accessentry_change", args=first(AccessEntry)),
    Page("usage", "django_ratelimiter_usagebucket_changelist", {"period": "24h"}),
    Page("usage-of-a-rule", "django_ratelimiter_usage_rule", {"period": "24h", "rule": "search"}),
    Page("top-callers", "django_ratelimiter_usage_top_callers"),
    Page("usage-per-caller", "django_ratelimiter_usage_callers", {"period": "7d"}),
    # Each is left out where a project has none.
    Page("explain", "django_ratelimiter_explain"),
    Page(
        "explained",
        "django_ratelimiter_explain",
        lambda: {"method": "GET", "path": "/api/export/", "user": str(blocked().pk), "ip": ADDRESS},
    ),
    Page("caller", "django_ratelimiter_caller", {"kind": "ip", "value": ADDRESS}),
    Page("caller-blocked", "django_ratelimiter_caller", lambda: {"kind": "user", "value": str(blocked().pk)}),
    Page("customer", "django_ratelimiter_caller", {"kind": "customer", "value": "1"}),
    Page("caller-search", "django_ratelimiter_caller"),
    Page("history", "django_ratelimiter_history"),
    Page("history-version", "django_ratelimiter_history_version", args=lambda: [latest()]),
    Page("history-bring-back", "django_ratelimiter_history_bring_back", args=lambda: [latest(back=1)], viewer=403),
    Page("rejections", "django_ratelimiter_rejections"),
]


def changed_rule() -> Rule:
    """The rule that was changed last where the pages are pictured; elsewhere some rule."""
    return Rule.objects.filter(slug="export").first() or Rule.objects.earliest("pk")


def pages() -> Iterator[Page]:
    """The pages that this project has."""
    return (page for page in PAGES if page.url)


def users() -> dict[str, User]:
    """A superuser, somebody who may view everything, and somebody of the staff who may do nothing."""
    found = {
        "superuser": User.objects.create_superuser("admin", password="secret"),
        "viewer": User.objects.create_user("viewer", password="secret", is_staff=True),
        "staff": User.objects.create_user("staff", password="secret", is_staff=True),
    }
    viewed = Permission.objects.filter(content_type__app_label="django_ratelimiter", codename__startswith="view_")
    found["viewer"].user_permissions.set(viewed)
    return found


def fill(author: User) -> None:
    """Rules, callers and a day's usage, as of a small site."""
    _rules(author)
    ann = User.objects.create_user("ann")
    pro = Tier.objects.get(slug="pro")
    TierAssignment.objects.create(tier=pro, user=author, ends_at=stored(now() + 5 * DAY))
    TierAssignment.objects.create(tier=pro, user=ann, reason="Pays for it")
    AccessEntry.objects.create(kind="ip", value="203.0.113.0/24", action="deny", reason="Scraper")
    get_engine().publish(storage.committed_version())
    others = [User.objects.create_user(name) for name in ("paula", "erik", "mia", "tom", "lena", "omar", "sofia")]
    _usage([*others[:3], ann, *others[3:]], now())
    _requests(ann)
    hour = stored(now().replace(minute=0, second=0, microsecond=0) - DAY)
    CallerUsage.objects.create(rule_slug="export", identity="user", value=str(ann.pk), hour=hour, allowed=9, units=21)
    if settings.CUSTOMER:  # where the pictures are taken
        from tests import pictured_customer

        pictured_customer.fill(author, others[0], ask)


def _rules(author: User) -> None:
    with cache.editing(author, "Rules for the API"):
        free = Tier.objects.create(slug="free", name="Free", rank=1, default_for="anonymous")
        pro = Tier.objects.create(slug="pro", name="Pro", rank=2)
        for slug, name, path, quotas in (
            ("search", "Search", "/api/search/", (60, 600)),
            ("export", "Export of reports", "/api/export/", (5, 20)),
            ("login", "Login", "/accounts/login/", (20, 20)),
            ("uploads", "Uploads", "/api/uploads/", (20, 200)),
        ):
            mode = "shadow" if slug == "uploads" else "enforce"
            partition_by = ["ip"] if slug == "login" else ["user"]
            rule = Rule.objects.create(
                slug=slug, name=name, path=path, path_kind="prefix", mode=mode, partition_by=partition_by,
                exact_usage=slug == "export",
            )  # fmt: skip
            for tier, quota in zip((free, pro), quotas, strict=True):
                RuleLimit.objects.create(rule=rule, tier=tier, quota=quota, window_seconds=Decimal(60))
        search = Rule.objects.get(slug="search")
        RuleLimit.objects.create(rule=search, quota=20, window_seconds=Decimal(60))
        Rule.objects.create(slug="invoices", name="Invoices", view_name="invoice", mode="enforce", owner="file")
    with cache.editing(author, "rule login saved", "Somebody tries passwords"):
        RuleLimit.objects.filter(rule__slug="login").update(quota=10)
    with cache.editing(author, "rule export saved", "The old limits were too tight"):
        RuleLimit.objects.filter(rule__slug="export", tier=pro).update(quota=15, window_seconds=Decimal(3_600))


def _requests(ann: User) -> None:
    """What was asked just now: a user and an address have used up what they may, and some others."""
    addresses = [(ADDRESS, 13), *((f"198.51.100.{number}", 10 + number) for number in range(1, 5))]
    for address, times in addresses:
        ask("/accounts/login/", AnonymousUser(), address, times)
    ask("/api/search/", ann, ADDRESS, 9)
    ask("/api/export/", ann, ADDRESS, 17)
    ask("/api/search/", AnonymousUser(), "203.0.113.9", 6)  # whom an access entry denies


def ask(path: str, user: User | AnonymousUser, address: str, times: int, **meta: str) -> None:
    """Ask so often."""
    for _ in range(times):
        limiter.check(request_of(user, path, REMOTE_ADDR=address, **meta))


def _samples(midnight: datetime) -> None:
    """A calm day, and one of an attack, of the sampled callers of a rule."""
    samples, hours = [], []
    for day, is_attacked in ((1, False), (3, True)):
        for hour in range(24):
            start = midnight - timedelta(hours=24 * day - hour)
            met = {"free": [0, 0], "pro": [0, 0]}
            for place in range(90):
                tier, quota = ("pro", 600) if place % 5 == 4 else ("free", 60)
                count = (2 + 150 // (place + 1)) * (4 + (hour * 7 + place) % 9) // 12
                count += 900 if is_attacked and place < 4 and 8 <= hour < 12 else 0
                whose = {"rule_slug": "search", "tier_slug": tier, "partition_hash": digest(f"user:{place + 100}")}
                samples.append(UsageSample(minute=stored(start + timedelta(minutes=place % 60)), count=count, **whose))
                for side, requests in enumerate((min(count, quota), max(count - quota, 0))):
                    met[tier][side] += 16 * requests
            hours += [
                UsageBucket(rule_slug="search", tier_slug=tier, granularity="hour", start=stored(start), **figures)
                for tier, sums in met.items()
                for figures in [dict(zip(("allowed", "rejected"), sums, strict=True))]
            ]
    UsageSample.objects.bulk_create([sample for sample in samples if sample.count], batch_size=1_000)
    UsageBucket.objects.bulk_create(hours)


def _usage(customers: list[User], moment: datetime) -> None:
    minute, midnight = (floor(moment, each, UTC) for each in (Granularity.MINUTE, Granularity.DAY))
    UsageBatch.objects.create(batch_id="1:demo")
    rows = []
    for ago in range(1, 24 * 60):
        wave = 30 + (ago * 7) % 40 + (60 if 20 < ago < 32 else 0)
        for place, slug in enumerate(("search", "export", "login", "uploads")):
            rejected = max(wave - 55, 0) // (place + 1)
            sums = {"shadow_rejected" if slug == "uploads" else "rejected": rejected}
            start = stored(minute - timedelta(minutes=ago))
            rows.append(UsageBucket(rule_slug=slug, tier_slug="free", start=start, allowed=wave, **sums))
    for ago in range(24):
        start, wave = stored(midnight + ago * HOUR), 1_500 + (ago * 700) % 2_400
        rows += [
            UsageBucket(
                rule_slug=slug, tier_slug="free", granularity="hour", start=start, allowed=wave, rejected=wave // 9
            )
            for slug in ("search", "export", "login")
            if midnight + ago * HOUR < moment - HOUR
        ]
    UsageBucket.objects.bulk_create(rows, batch_size=1_000)
    _samples(midnight)
    hour = floor(moment - HOUR / 60, Granularity.HOUR, UTC)
    days = list(buckets(moment - 30 * DAY, moment, Granularity.DAY, timezone.get_default_timezone()))[::-1]
    for place, customer in enumerate(customers):
        client = digest(f"user:{customer.pk}")
        sums = {"partition": client, "tail": client.tail, "allowed": 400 - 30 * place, "rejected": 500 // (place + 1)}
        of_rule, at = "export" if place % 3 else "search", {"granularity": "hour", "start": stored(hour)}
        TopPartition.objects.create(rule_slug=of_rule, **at, **sums)
        TopCaller.objects.create(identity="user", **at, **sums)
        for ago in range(0, 29, 1 + place):
            sums |= {"allowed": 400 + 97 * (ago * 7 % 5), "rejected": 40 * (ago * 11 % 3)}
            TopCaller.objects.create(identity="user", granularity="day", start=stored(days[ago]), **sums)
