"""Names of callers are hidden at every address of the admin from those without the permission."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.test import Client, RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine.base import Alias
from django_ratelimiter.identity import digest
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, TopCaller, TopPartition, UsageBatch, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.reports.coverage import HOUR
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from django_ratelimiter.values.digests import whole
from tests.admin_pages import Page
from tests.making import client_of, request_of

from .test_urls import addresses
from .usage.test_pages import TABLES

pytestmark = pytest.mark.django_db

#: A name by the rule that counts its caller; each text appears nowhere else.
ADDRESS, ORG, LOGIN, DENIED = "203.0.113.77", "zebra-corp", "zoe-the-caller", "203.0.113.66"

#: Where whoever may see names must see one.
LISTS: Final = {"rejections/", "usagebucket/rule/", "usagebucket/top.csv", "usagebucket/top-callers/"}


@pytest.fixture
def callers(settings: Any) -> dict[str, Alias]:
    """The aliases of callers by rule: each was rejected, and is a top caller. One more is denied by an access entry."""
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": ["user", "ip", "header:X-Org"]}
    zoe = User.objects.create_user(LOGIN)
    by = {"by-ip": ("ip", ADDRESS), "by-org": ("header:X-Org", ORG), "by-user": ("user", str(zoe.pk))}
    with cache.editing(User.objects.create_superuser("author"), "rules"):
        for slug, (name, _) in by.items():
            about = {"name": slug, "mode": "enforce", "path": "/hello/", "path_kind": "prefix"}
            rule = Rule.objects.create(slug=slug, partition_by=[name], **about)
            RuleLimit.objects.create(rule=rule, quota=1, window_seconds=3_600)
        AccessEntry.objects.create(action="deny", kind="ip", value=DENIED)
    get_engine().publish(storage.committed_version())
    for user in (zoe, AnonymousUser()):
        for _ in range(3):
            limiter.check(request_of(user, "/hello/", REMOTE_ADDR=ADDRESS, HTTP_X_ORG=ORG))
    assert not limiter.check(RequestFactory().get("/hello/", REMOTE_ADDR=DENIED)).allowed
    found = {slug: digest(f"{name}:{value}") for slug, (name, value) in by.items()}
    # That of the first minute below; and the next one if it begins until pages are opened.
    hours = {floor(now() + minutes * HOUR / 60, Granularity.HOUR, now().tzinfo) for minutes in (-5, 2)}
    UsageBatch.objects.create(batch_id="1:walk")
    for hour, (slug, who) in product(hours, found.items()):
        at: dict[str, Any] = {"granularity": "hour", "start": stored(hour)}
        UsageBucket.objects.create(rule_slug=slug, allowed=9, rejected=9, **at)
        TopPartition.objects.create(rule_slug=slug, partition=who, tail=who.tail, allowed=9, rejected=9, **at)
        TopCaller.objects.create(identity=by[slug][0], partition=who, tail=who.tail, allowed=9, rejected=9, **at)
    minute = stored(floor(now() - HOUR / 12, Granularity.MINUTE, now().tzinfo))
    UsageBucket.objects.bulk_create(UsageBucket(rule_slug=slug, allowed=9, start=minute) for slug in found)
    return found | {"denied": digest(f"ip:{DENIED}")}


def asked(callers: dict[str, Alias]) -> Iterator[str]:
    """Every address, with what makes it show a caller."""
    rule, version = Rule.objects.get(slug="by-ip").pk, storage.committed_version().number
    queries = [{}]
    for number, (slug, who) in enumerate(callers.items()):
        found = {"rule": slug, "caller": who, "reference": f"{slug}#{who[:8]}", "period": "24h"}
        queries.append({**found, "digest": whole(who) if number % 2 else who, "identity": "ip", "q": "zoe"})
    for name in sorted({*addresses(admin.site.get_urls()), "app_list"}):
        for args in ([], [rule], [version], ["django_ratelimiter"], *([table] for table in TABLES)):
            if url := Page(name, name, args=lambda args=args: args).url:
                yield from (f"{url}?{urlencode(query)}" for query in queries)


def seen_by(client: Client, callers: dict[str, Alias]) -> dict[str, set[str]]:
    """The names in the answers, by address."""
    found: dict[str, set[str]] = {}
    for url in asked(callers):
        response = client.get(url)
        assert response.status_code < 500, url
        text = b"".join(response).decode()
        found.setdefault(url.partition("?")[0], set()).update(
            name for name in (ADDRESS, ORG, LOGIN, DENIED) if name in text
        )
    return found


def staff(name: str, *, reveals: bool) -> Client:
    """Who has every permission of this app but, perhaps, one."""
    user = User.objects.create_user(name, is_staff=True)
    own = Permission.objects.filter(content_type__app_label="django_ratelimiter")
    user.user_permissions.set(own if reveals else own.exclude(codename="reveal_caller"))
    return client_of(user)


@pytest.mark.once
def test_nobody_sees_a_name_without_the_permission(
    callers: dict[str, Alias], redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        sees = seen_by(staff("with", reveals=True), callers)
        does_not = seen_by(staff("without", reveals=False), callers)
    assert {part for part in LISTS if not any(found for url, found in sees.items() if url.endswith(part))} == set()
    assert set.union(*sees.values()) == {ADDRESS, ORG, LOGIN, DENIED}
    of_entries = {url for url in does_not if "/accessentry/" in url}  # pages of entries, not of callers
    assert {url: found for url, found in does_not.items() if found and url not in of_entries} == {}
    logged = [record.getMessage() + str(record.__dict__) for record in caplog.records if "ratelimit" in record.name]
    kept = [*map(str, redis_client.keys()), *map(str, LogEntry.objects.values_list("object_repr", "change_message"))]
    assert not [text for text in (*logged, *kept) if any(name in text for name in (ADDRESS, ORG, LOGIN, DENIED))]
