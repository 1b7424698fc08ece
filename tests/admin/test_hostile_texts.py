"""Nothing that comes from a request, a rule or a header is a tag or an attribute of a page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, Group, User
from django.test import Client, override_settings
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.identity import digest
from django_ratelimiter.models import (
    AccessEntry,
    Rule,
    RuleLimit,
    Tier,
    TierAssignment,
    TopPartition,
    UsageBatch,
    UsageBucket,
)
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from tests.admin_pages import Page
from tests.making import request_of

pytestmark = [pytest.mark.django_db, pytest.mark.once]

#: Ends whatever it may stand in: an attribute, a comment, a script, a title.
EVIL: Final = '\'"--></script></title></textarea><evil onx="1">{{ 7|add:7 }}'
#: As above where slugs, digests and the like are short.
SHORT: Final = "'\"><evil onx>"
ADDRESS: Final = "192.0.2.7"

#: What the pages take from an address.
PARAMETERS: Final = (
    *("rule", "tier", "period", "by", "caller", "since", "until", "kind", "value", "is", "digest", "q", "p", "o", "e"),
    *("method", "path", "view", "scope", "user", "ip", "status", "api_key", "from", "to", "slug", "older"),
    "limits-0-quota",
    *("copy", "view_name", "part", "quota", "window_seconds", "algorithm", "cost", "partition_by", "name"),
    *("curl", "pasted", "session", "identity", "body", "act", "reason", "token", "multiplier", "date", "message"),
)


class Tags(HTMLParser):
    """Notes whether a page has a tag, or an attribute, of the hostile texts."""

    found = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found = self.found or tag == "evil" or any(name.startswith("onx") for name, _ in attrs)


def is_clean(response: Any) -> bool:
    """Whether no such text is more than text."""
    if not response["Content-Type"].startswith("text/html"):
        return bool(response["X-Content-Type-Options"] == "nosniff")
    page = b"".join(response).decode()
    tags = Tags()
    tags.feed(page)
    return not tags.found and "<evil" not in page and " 14" not in page.partition("7|add")[0][-3:]


@pytest.fixture
def hostile(admin_client: Client, admin_user: User) -> Client:
    """A site each of whose texts is hostile, and some that SQL may have written."""
    User.objects.filter(pk=admin_user.pk).update(username=EVIL, email=EVIL)
    with cache.editing(admin_user, EVIL, EVIL):
        tier = Tier.objects.create(slug="evil", name=EVIL, default_for="authenticated")
        rule = Rule.objects.create(
            slug="evil", name=EVIL, description=EVIL, message=EVIL, path=f"/{EVIL}", path_kind="prefix", mode="enforce"
        )
        RuleLimit.objects.create(rule=rule, tier=tier, quota=1, window_seconds=Decimal(60))
        Rule.objects.create(slug="named", name=EVIL, view_name=EVIL, scope=EVIL, mode="enforce")
        Rule.objects.create(slug=SHORT, name=EVIL, mode="enforce", partition_by=[f"header:{SHORT}"])
        split = Rule.objects.create(slug="split", name=EVIL, mode="enforce", partition_by=["header:X-Org", "user"])
        RuleLimit.objects.create(rule=split, quota=1, window_seconds=Decimal(60))
    with cache.editing(admin_user, EVIL, EVIL):
        RuleLimit.objects.update(quota=2)
    get_engine().publish(storage.committed_version())
    TierAssignment.objects.create(tier=tier, user=admin_user, reason=EVIL, ends_at=stored(now() + timedelta(days=1)))
    TierAssignment.objects.create(tier=tier, group=Group.objects.create(name=EVIL), reason=EVIL)
    TierAssignment.objects.create(tier=tier, partition=f"header:X-Org={EVIL}", reason=EVIL)
    AccessEntry.objects.create(kind="user", value=SHORT, reason=EVIL)
    AccessEntry.objects.create(kind="user", value=str(admin_user.pk), reason=EVIL, action="allow")
    _used()
    _asked(User.objects.get())
    return admin_client


def _used() -> None:
    """Usage whose names are hostile: the engine's counts come from the labels of anybody's rules."""
    UsageBatch.objects.create(batch_id=EVIL)
    for granularity, width in (
        (Granularity.MINUTE, timedelta(minutes=1)),
        (Granularity.HOUR, timedelta(0)),
        (Granularity.DAY, timedelta(0)),
    ):
        start = stored(floor(now(), granularity, now().tzinfo) - width)
        for slug in (SHORT, "evil"):
            UsageBucket.objects.create(
                rule_slug=slug, tier_slug=SHORT, granularity=granularity, start=start, allowed=1, rejected=5
            )
        if granularity is not Granularity.MINUTE:
            TopPartition.objects.create(
                rule_slug="evil", granularity=granularity, start=start, partition=SHORT, rejected=9
            )
            evil = digest(f"user:{EVIL}")
            TopPartition.objects.create(
                rule_slug="evil", granularity=granularity, start=start, partition=evil, tail=evil.tail, rejected=9
            )


def _asked(user: User) -> None:
    """Requests that were rejected, with hostile paths and fields, and engines' records that are no less so."""
    for whom in (user, AnonymousUser()):
        for _ in range(4):
            limiter.check(request_of(whom, f"/{EVIL}", HTTP_X_ORG=EVIL, HTTP_USER_AGENT=EVIL))
    charge = Charge(f"evil:{SHORT}", Limit(1, 60), cost=2, usage=f"evil|{SHORT}")
    get_engine().check([charge])


def addresses() -> Iterator[str]:
    """The pages as they are, and each asked with hostile parameters."""

    from tests.admin.test_urls import addresses as known

    rule, version = Rule.objects.get(slug="evil"), storage.committed_version().number
    user = User.objects.get().pk
    everything = urlencode(dict.fromkeys(PARAMETERS, EVIL))
    for name in sorted({*known(admin.site.get_urls())}):
        for args in ([], [rule.pk], [version], [EVIL]):
            if url := Page(name, name, args=lambda args=args: args).url:
                yield from (url, f"{url}?{everything}")
    yield from (reverse("admin:index"), reverse("admin:app_list", args=["django_ratelimiter"]))
    for name, query in (
        ("caller", {"kind": "user", "value": user}),
        ("caller", {"kind": "partition", "value": f"header:X-Org={EVIL}"}),
        ("caller", {"kind": "user", "value": user, "is": f"header:X-Org={EVIL}"}),
        ("caller", {"digest": SHORT, "rule": "evil"}),
        ("caller", {"kind": "user", "value": EVIL}),
        ("caller", {"kind": "ip", "value": ADDRESS}),
        ("caller", {"kind": "partition", "value": EVIL}),
        ("explain", {"method": "GET", "path": f"/{EVIL}", "user": user}),
        ("explain", {"method": "GET", "view": EVIL, "scope": EVIL, "ip": EVIL}),
        ("usage_rule", {"rule": "evil", "caller": SHORT, "by": "rejected"}),
        ("usage_rule", {"rule": SHORT, "tier": SHORT}),
        ("rejections", {"rule": "evil"}),
    ):
        yield f"{reverse(f'admin:django_ratelimiter_{name}')}?{urlencode(query)}"
    yield reverse("admin:django_ratelimiter_history_bring_back", args=[version - 1])


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 10_000, "REVEAL": ["user", "ip"]})
def test_no_text_is_more_than_text(hostile: Client) -> None:
    for url in addresses():
        assert is_clean(hostile.get(url)), url


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 10_000, "REVEAL": ["user", "ip"]})
def test_nor_if_it_was_sent_in_a_form(hostile: Client) -> None:
    everything = dict.fromkeys(PARAMETERS, EVIL)
    rule, version = Rule.objects.get(slug="evil"), storage.committed_version().number
    user = urlencode({"kind": "user", "value": User.objects.get().pk})
    for name, args in (
        *(("search", ()), ("explain", ()), ("caller", ()), ("enforcement", ())),
        *((f"{model}_add", ()) for model in ("rule", "tier", "tierassignment", "accessentry")),
        *(("rule_change", (rule.pk,)), ("history_bring_back", (version - 1,))),
    ):
        url = reverse(f"admin:django_ratelimiter_{name}", args=args)
        for sent in (
            everything,
            {**everything, "kind": "partition", "rule": "evil"},
            {"q": EVIL, "pasted": f"curl {EVIL}"},
        ):
            assert is_clean(hostile.post(url, sent, follow=True)), (url, sent)
    for act in ("reset", "more", "tier", "allow", "deny"):
        sent = {**everything, "act": act}
        url = f"{reverse('admin:django_ratelimiter_caller')}?{user}"
        assert is_clean(hostile.post(url, sent, follow=True)), act
