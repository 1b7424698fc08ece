"""A customer's page and the search for customers: nothing is green that is not known, whatever the customer came by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse

from django_ratelimiter import backend, limiter
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection import members
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.inspection.reset import forget
from django_ratelimiter.models import (
    AccessEntry,
    Rule,
    RuleLimit,
    Tier,
    TopCaller,
    TopPartition,
    UsageBatch,
    UsageBucket,
)
from django_ratelimiter.plans import CallerIdentity
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.reports.coverage import HOUR
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from tests.browser import Browser

from ...test_unreachable import unreachable
from ..pages import IN_BROWSER, open_as, page_of, shown, text_of
from .page import CALLER, ask, links, press, save

pytestmark = pytest.mark.django_db

SEARCH = reverse("admin:django_ratelimiter_search")
KEYS = {"secret-7": "shop-7", "secret-8": "shop-8"}


def find_key(raw: str) -> str | None:
    return KEYS.get(raw)


def customer_of(identity: CallerIdentity) -> Group | None:
    """The group of the user, or the only one of the keys."""
    if identity.user is not None:
        return identity.user.groups.first()  # type: ignore[no-any-return]
    return Group.objects.first() if identity.api_key else None


def callers_of(customer: Group) -> Iterable[tuple[str, Any]]:
    """Its users and keys."""
    yield from (("user", user.pk) for user in customer.user_set.order_by("pk"))
    yield from (("api_key", name) for name in KEYS.values())


def broken(customer: Group) -> Iterable[tuple[str, Any]]:
    raise LookupError("secret")


def nobody(customer: Group) -> Iterable[tuple[str, Any]]:
    return [("user", None)]


def customers() -> dict[str, Any]:
    """The settings."""
    names = {"CUSTOMER": customer_of, "CUSTOMER_CALLERS": callers_of, "API_KEY_RESOLVER": find_key}
    return {name: f"{__name__}.{function.__name__}" for name, function in names.items()}


@pytest.fixture
def configure(settings: Any) -> Callable[..., None]:
    def configure(**changes: Any) -> None:
        settings.RATELIMITER = {**settings.RATELIMITER, **customers(), **changes}

    return configure


@pytest.fixture
def acme(configure: Callable[..., None], free: Tier) -> Group:
    """A customer with two users and two keys."""
    configure()
    Tier.objects.update(default_for="authenticated")
    acme = Group.objects.create(name="Acme Ltd")
    for name in ("ann", "bob"):
        User.objects.create_user(name).groups.add(acme)
    return acme


def rule(slug: str, *names: str, quota: int = 3, **limit: Any) -> Rule:
    found = Rule(slug=slug, name=slug.title(), mode="enforce", partition_by=names, path_kind="exact", path="/")
    found.save()
    limit = limit or {"window_seconds": Decimal(3600)}
    RuleLimit.objects.create(rule=found, quota=quota, algorithm="fixed_window", **limit)
    return found


def ask_by_key(key: str, times: int = 1) -> None:
    for _ in range(times):
        limiter.check(RequestFactory().get("/", headers={"X-API-Key": key}))


def page(customer: Group) -> str:
    return f"{CALLER}?kind=customer&value={customer.pk}"


def state(client: Client, customer: Group) -> str:
    """The first sentence, as it is read, behind its colour; "" = there is none."""
    text = shown(client.get(page(customer)))
    found = re.search(r'ratelimiter-(\w+)" role="status" id="ratelimiter-state">(.*?)</p>', text, re.DOTALL)
    return " ".join(f"{found[1]} {re.sub('<[^>]*>', ' ', found[2])}".split()) if found else ""


def test_the_page_shows_each_rule_once_and_who_is_blocked_by_what(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer", quota=30, calendar="month")
    rule("searches", "user", quota=5)
    rule("exports", "api_key", quota=2)
    rule("items", "customer", "path:item")
    assert state(admin_client, acme).startswith("good not blocked")
    ask_by_key("secret-7", 3)
    ask(acme.user_set.get(username="bob"))
    assert state(admin_client, acme).startswith("bad blocked As API key shop-7, by Exports until")
    response = admin_client.get(page(acme))
    text = text_of(response)
    assert "<h1>Customer Acme Ltd</h1>" in shown(response)
    assert page_of(acme) in shown(response)
    assert "3 of 30 this month" in text  # the third was rejected by the other rule
    assert "Exports: 2 of 2 per hour, again at" in text
    assert [each["name"] for each in response.context["members"]] == [
        "API key shop-7", *(f"user {user} (id {user.pk})" for user in acme.user_set.order_by("-pk")), "API key shop-8"
    ]  # fmt: skip
    assert [(rule.slug, names) for rule, _url, names in response.context["unread"]] == [("items", ["path's item"])]
    key = admin_client.get(response.context["members"][0]["url"])
    assert "Exports" in text_of(key)
    assert page(acme) in shown(key)


@pytest.mark.django_db(transaction=True)
def test_whoever_a_customer_comes_as_its_own_rules_block_it(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer", quota=30, calendar="month", timezone="America/Chicago")  # as the tests' time zone
    ann, bob = acme.user_set.order_by("pk")
    ask(ann, 20)
    ask_by_key("secret-7", 12)
    said = state(admin_client, acme)
    assert said.startswith("bad blocked One rule rejects requests of this caller now: Orders until")
    assert re.search(r"30 of 30 this month, again on \w+\.? 1, \d{4}", text_of(admin_client.get(page(acme))))
    as_bob = f"{CALLER}?kind=user&value=id%3A{bob.pk}"
    text = text_of(admin_client.get(as_bob))
    assert "One rule rejects requests of this caller now: Orders until" in text
    assert "shared by the customer" in text
    press(admin_client, as_bob)
    assert "30 of 30" in text_of(admin_client.get(page(acme)))  # only the counters of bob alone were reset
    forget(caller_of("user", f"id:{bob.pk}"))
    assert "30 of 30" in text_of(admin_client.get(page(acme)))
    assert "Checked: none of them blocks" in press(admin_client, page(acme))
    assert state(admin_client, acme).startswith("good not blocked")


def test_the_first_sentence_is_green_only_if_all_callers_are_known_to_pass(
    admin_client: Client, acme: Group, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule("orders", "customer")
    configure(CUSTOMER_CALLERS=None)
    assert state(admin_client, acme).startswith("good")  # no rule counts by user or key
    rule("searches", "user")
    assert state(admin_client, acme).startswith("warning it depends No rule that counts by customer rejects")
    for name, why in (("broken", "failed: LookupError"), ("nobody", "failed: ValueError")):
        configure(CUSTOMER_CALLERS=f"{__name__}.{name}")
        said = state(admin_client, acme)
        assert said.startswith("warning")
        assert why in said
        assert "secret" not in said
    configure()
    assert state(admin_client, acme).startswith("good")
    bob = acme.user_set.get(username="bob").pk
    denied = f"bad blocked As user bob (id {bob}), by an access entry."
    entry = AccessEntry.objects.create(action="deny", kind="user", value=str(bob))
    assert state(admin_client, acme) == denied
    AccessEntry.objects.create(action="allow", kind="customer", value=str(acme.pk))
    assert state(admin_client, acme) == denied
    entry.delete()
    assert state(admin_client, acme).startswith("good allowed")
    monkeypatch.setattr(members, "MAX_LOOKED_AT", 3)
    assert "Only 3 of its users and keys were looked at" in state(admin_client, acme)
    assert state(admin_client, acme).startswith("warning allowed")
    AccessEntry.objects.all().delete()
    assert state(admin_client, acme).startswith("warning it depends")
    with unreachable(), override_settings(RATELIMITER={**customers(), "CACHE_ALIAS": "ratelimit"}):
        assert state(admin_client, acme) == ""
        assert "Redis cannot be reached now" in text_of(admin_client.get(page(acme)))
        assert report_of(caller_of("customer", str(acme.pk))).blocked is None


def test_callers_that_were_rejected_lately_are_looked_at_first(
    admin_client: Client, acme: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule("exports", "api_key", quota=2)
    ask_by_key("secret-8", 3)
    monkeypatch.setattr(members, "MAX_LOOKED_AT", 1)
    assert state(admin_client, acme).startswith("bad blocked As API key shop-8, by Exports until")


def test_the_page_makes_as_many_queries_for_a_hundred_callers_and_many_rules(
    admin_client: Client, acme: Group, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "TIER_RESOLVER": f"{__name__}.plan_of"}
    rule("orders", "customer")
    rule("searches", "user")
    made, calls, engine = list[int](), list[int](), backend.get_engine()
    peek = engine.peek
    monkeypatch.setattr(engine, "peek", lambda charges: calls.append(len(charges)) or peek(charges))
    for names in (range(120), ()):
        admin_client.get(page(acme))  # which reads the new rules
        calls.clear()
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(page(acme)).status_code == 200
        made.append(len(queries))
        acme.user_set.add(*User.objects.bulk_create(User(username=f"user{number}") for number in names))
        Rule.objects.bulk_create(
            Rule(slug=f"rule-{number}", name="R", mode="enforce", partition_by=["user"]) for number in names[:20]
        )
        RuleLimit.objects.bulk_create(
            RuleLimit(rule=each, quota=5, window_seconds=60) for each in Rule.objects.filter(limits=None)
        )
        cache.invalidate()
    assert made[0] == made[1] <= 30
    assert calls == [1, 1_000, 1_000, 100]  # the customer's, then those of a hundred users under 21 rules


def plan_of(identity: CallerIdentity) -> str | None:
    return "free" if identity.customer and identity.customer.name else None


def test_a_customer_is_unblocked_denied_and_given_more(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer")
    ann = acme.user_set.order_by("pk")[0]
    ask(ann, 3)
    assert {*links(admin_client, page(acme))} == {"more", "tier", "allow", "deny"}
    save(admin_client, page(acme), "more")
    assert "3 of 6" in text_of(admin_client.get(page(acme)))
    assert ask(ann)
    save(admin_client, page(acme), "deny")
    assert state(admin_client, acme).startswith("bad denied")
    assert not ask(ann)
    assert AccessEntry.objects.get().subject == f"customer {acme.pk}"


def test_a_customer_is_found_by_what_its_own_admin_searches(
    admin_client: Client, acme: Group, operator: Callable[..., Client]
) -> None:
    def found(client: Client, text: str, **more: str) -> Any:
        return client.post(SEARCH, {"q": text, **more})

    for text in ("cme", "customer:Acme", f"customer:{acme.pk}"):
        assert found(admin_client, text)["Location"].endswith(page(acme)), text
    assert "Acme Ltd</a>" in shown(found(admin_client, "acm", suggest="1"))
    client = operator("unblock_caller")
    assert "Acme" not in shown(found(client, "acm", suggest="1"))
    assert "Nothing matches" in text_of(found(client, "acme"))
    agent = User.objects.get(username="operator")
    agent.user_permissions.set(Permission.objects.filter(codename__in=["unblock_caller", "view_group"]))
    assert found(client, "acme")["Location"].endswith(page(acme))


def test_names_of_customers_are_for_who_may_see_them(acme: Group, operator: Callable[..., Client]) -> None:
    client = operator("unblock_caller")
    assert f"<h1>Customer {acme.pk}</h1>" in shown(client.get(page(acme)))
    assert "Acme" not in shown(client.get(page(acme)))
    assert "ann" not in text_of(client.get(page(acme)))
    for codename in ("view_group", "reveal_caller"):
        User.objects.get(username="operator").user_permissions.set(
            Permission.objects.filter(codename__in=["unblock_caller", codename])
        )
        assert "<h1>Customer Acme Ltd</h1>" in shown(client.get(page(acme)))


def test_lists_of_callers_name_customers_with_one_query(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer")
    others = [Group.objects.create(name=f"Firm {number}") for number in range(5)]
    ask(acme.user_set.all()[0], 5)
    start = stored(floor(now() - HOUR / 60, Granularity.HOUR, UTC))
    UsageBatch.objects.create(batch_id="1:customers")
    UsageBucket.objects.create(rule_slug="orders", granularity="hour", start=start, allowed=42)
    for customer in (acme, *others):
        alias = digest(f"customer:{customer.pk}")
        at = {"granularity": "hour", "start": start, "partition": alias, "tail": alias.tail, "allowed": 7}
        TopCaller.objects.create(identity="customer", **at)
        TopPartition.objects.create(rule_slug="orders", **at)
    top = f"{reverse('admin:django_ratelimiter_usage_top_callers')}?identity=customer&period=24h"
    data = reverse("admin:django_ratelimiter_usage_data", args=["top"]) + "?identity=customer&period=24h"
    for url in (reverse("admin:django_ratelimiter_rejections"), top, data):
        with CaptureQueriesContext(connection) as queries:
            response = admin_client.get(url)
        assert f"customer: Acme Ltd (id {acme.pk})" in shown(response), url
        assert len([each for each in queries if 'FROM "auth_group"' in each["sql"]]) == 1
    [url] = re.findall(r'href="([^"]*)"[^>]*>(?:<[^>]*>)?customer: Acme', shown(admin_client.get(top)))
    assert "<h1>Customer Acme Ltd</h1>" in shown(admin_client.get(url))


def test_a_deleted_customer_is_not_green(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer")
    url = page(acme)
    acme.delete()
    assert "There is no such customer." in text_of(admin_client.get(url))
    assert 'class="ratelimiter-notice ratelimiter-good"' not in shown(admin_client.get(url))


@pytest.mark.urls("tests.admin.own_site")
def test_the_projects_own_page_shows_bars_and_leads_to_ours(
    acme: Group, admin_client: Client, operator: Callable[..., Client]
) -> None:
    rule("orders", "customer", quota=30)
    ask_by_key("secret-7", 12)
    url = f"/office/auth/group/{acme.pk}/change/"
    response = admin_client.get(url)
    assert "Orders: 12 of 30 per hour" in text_of(response)
    assert f'"{page(acme).replace("/admin/", "/office/")}"' in shown(response)
    assert "django_ratelimiter/control.css" in shown(response)
    assert admin_client.post(url, {"name": "Acme"}).status_code == 302
    assert "12 of 30" not in shown(admin_client.get("/office/auth/group/add/"))
    assert "12 of 30" not in shown(operator("view_group").get(url))


@pytest.mark.parametrize("kinds", [pytest.param(["customer", "user", "api_key"], marks=IN_BROWSER)])
def test_a_page_with_300_rules_fits_on_three_screens(
    live_server: Any, window: Browser, admin_user: User, acme: Group, kinds: list[str]
) -> None:
    Rule.objects.bulk_create(
        Rule(slug=f"rule-{number}", name=f"Rule {number}", mode="enforce", partition_by=[kinds[number % 3]])
        for number in range(300)
    )
    RuleLimit.objects.bulk_create(
        RuleLimit(rule=each, quota=1 + each.pk % 2, window_seconds=3600) for each in Rule.objects.all()
    )
    cache.invalidate()
    for user in acme.user_set.all():
        ask(user)
    ask_by_key("secret-7")
    window.resize(1280, 900)
    open_as(window, admin_user.username, f"{live_server}{page(acme)}")
    assert window.script("return document.querySelectorAll('#content-main tbody tr').length") > 100
    assert window.script("return document.documentElement.scrollHeight") <= 3 * 900
