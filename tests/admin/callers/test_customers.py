"""A customer's page and the search for customers: nothing is green that is not known, whatever the customer came by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse

from django_ratelimiter import backend, limiter
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.inspection import members
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.inspection.reset import forget
from django_ratelimiter.models import (
    AccessEntry,
    Rule,
    RuleLimit,
    Tier,
    TierAssignment,
    TopCaller,
    TopPartition,
    UsageBatch,
    UsageBucket,
)
from django_ratelimiter.plans import CallerIdentity
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.usage.reports.coverage import HOUR
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from tests.browser import Browser

from ...test_unreachable import unreachable
from ..pages import IN_BROWSER, open_as, page_of, permit, shown, text_of
from .page import CALLER, add_rule, ask, links, press, save

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


#: What `listed` gives.
pairs: list[Any] = []


def listed(customer: Group) -> list[Any]:
    return pairs


def find_row(raw: str) -> Tier | None:
    """The row of a key; rows of any model will do."""
    return Tier.objects.filter(slug=raw).first()


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
    return add_rule(slug, quota, limit, partition_by=names)


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
    said = "warning partly blocked 1 of 4 users and keys: as API key shop-7, by Exports until"
    assert state(admin_client, acme).startswith(said)
    response = admin_client.get(page(acme))
    text = text_of(response)
    assert "<h1>Customer Acme Ltd</h1>" in shown(response)
    assert page_of(acme) in shown(response)
    assert "3 of 30 used, 27 left; full again at" in text  # the third was rejected by the other rule
    assert "Exports (2 per hour): 2 of 2 used, 0 left; blocked until" in text
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
    text = text_of(admin_client.get(page(acme)))
    assert re.search(r"30 of 30 used, 0 left; blocked until \w+\.? 1, \d{4}, midnight", text)
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
    assert state(admin_client, acme).startswith("warning it depends No rule that could be checked rejects")
    configure(CUSTOMER_CALLERS=f"{__name__}.broken")
    said = state(admin_client, acme)
    assert said.startswith("warning")
    assert "failed: LookupError" in said
    assert "secret" not in said
    configure()
    assert state(admin_client, acme).startswith("good")
    bob = acme.user_set.get(username="bob").pk
    denied = f"warning partly blocked 1 of 4 users and keys: as user bob (id {bob}), by an access entry."
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


def find_assigned(raw: str) -> TierAssignment | None:
    """The row of a key, with its hash."""
    return TierAssignment.objects.filter(api_key_hash=hash_api_key(raw)).first()


def test_an_entry_for_the_hash_of_a_key_is_found_by_the_row_or_leaves_it_open(
    admin_client: Client, acme: Group, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = TierAssignment.objects.create(api_key_hash=hash_api_key("secret-5"), multiplier=2)
    entry = AccessEntry.objects.create(action="deny", kind="api_key", value=row.api_key_hash)
    assert state(admin_client, acme).startswith("warning it depends No rule")  # their keys are texts
    configure(API_KEY_RESOLVER=f"{__name__}.find_assigned", CUSTOMER_CALLERS=f"{__name__}.listed")
    monkeypatch.setattr(f"{__name__}.pairs", [("api_key", row)])
    assert re.search("blocked 1 of 1 users and keys: as API key .* by an access entry", state(admin_client, acme))
    key = admin_client.get(admin_client.get(page(acme)).context["members"][0]["url"])
    assert ("An access entry rejects every" in text_of(key), "api_key" in key.context["explain_url"]) == (True, False)
    entry.delete()
    assert state(admin_client, acme).startswith("good not blocked")


def test_a_user_with_another_tier_has_other_limits_than_the_customer(
    admin_client: Client, acme: Group, free: Tier
) -> None:
    orders, pro = rule("orders", "customer", quota=2), Tier.objects.create(slug="pro", name="Pro")
    RuleLimit.objects.create(rule=orders, tier=pro, quota=9, algorithm="fixed_window", window_seconds=3600)
    TierAssignment.objects.create(tier=pro, partition=f"customer:{acme.pk}")
    bob = acme.user_set.get(username="bob")
    TierAssignment.objects.create(tier=free, user=bob, anchor_day=2)
    ask(bob, 4)
    said = f"warning partly blocked 1 of 4 users and keys: as user bob (id {bob.pk}), by Orders until"
    assert state(admin_client, acme).startswith(said)
    assert "now: not known" in text_of(admin_client.get(page(acme))).lower()


def test_a_rule_by_more_values_that_has_rejected_it_lately_leaves_it_open(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer", "ip")
    rule("searches", "user", "ip")
    assert state(admin_client, acme).startswith("good not blocked")
    ann, bob = acme.user_set.order_by("pk")
    ask(ann, 4)
    ask(User.objects.create_user("eve"), 4)
    said = "have rejected it lately: Orders, Searches. Other rules need more values."
    assert state(admin_client, acme).endswith(said)
    as_bob = text_of(admin_client.get(f"{CALLER}?kind=user&value=id%3A{bob.pk}"))
    assert "have rejected it lately: Orders. Other rules" in as_bob  # of the customer
    assert report_of(caller_of("customer", str(acme.pk))).blocked is None


def test_callers_that_were_rejected_lately_are_looked_at_first(
    admin_client: Client, acme: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule("exports", "api_key", quota=2)
    ask_by_key("secret-8", 3)
    monkeypatch.setattr(members, "MAX_LOOKED_AT", 1)
    assert state(admin_client, acme).startswith(
        "warning partly blocked 1 of 1 users and keys: as API key shop-8, by Ex"
    )


@pytest.fixture
def key(acme: Group, configure: Callable[..., None]) -> Tier:
    """A key that is a row, and has used up its quota; `pairs` names the customer's callers."""
    configure(API_KEY_RESOLVER=f"{__name__}.find_row", CUSTOMER_CALLERS=f"{__name__}.listed")
    rule("exports", "api_key", quota=2)
    rule("searches", "user", quota=2)
    found = Tier.objects.create(slug="secret-5", name="Key 5")
    ask_by_key("secret-5", 3)
    return found


def test_callers_are_named_by_rows_primary_keys_and_texts(
    admin_client: Client, acme: Group, key: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = acme.user_set.get(username="bob")
    ask(bob, 3)
    named = f"django_ratelimiter.Tier:{key.pk}"
    for as_bob in (bob, bob.pk, str(bob.pk)):
        for as_key in (key, key.pk, named, f"value:{named}"):
            monkeypatch.setattr(f"{__name__}.pairs", [("user", as_bob), ("api_key", as_key)])
            said = state(admin_client, acme)
            assert said.startswith("bad blocked 2 of 2 users and keys: as "), (as_bob, as_key)
            assert f"as user bob (id {bob.pk}), by Searches until" in said
            assert "as API key Key 5, by Exports until" in said


def test_what_cannot_be_a_caller_is_said_and_nothing_is_green(
    admin_client: Client, acme: Group, key: Tier, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, hashed = acme.user_set.get(username="bob"), hash_api_key("secret-7")
    unknown = "django_ratelimiter.Tier:99 cannot be read: it is not known."
    unread = [
        (("api_key", 99), f"api_key {unknown}"),
        (("api_key", bob), f"api_key auth.User:{bob.pk} cannot be read: it is not known."),
        (("api_key", "secret-5"), "api_key django_ratelimiter.Tier:se… cannot be read: it is not known."),
        (("api_key", hashed), "This is the hash of a key"),
        (("user", 99), "user 99 cannot be read: it is not known."),
        (("user", "bob"), "user bob cannot be read"),
        (("user", None), "user cannot be read: give pairs"),
        (("ip", "secret-place"), "ip sec… cannot be read: This is not an IP address."),
        (("apikey", key), f"apikey django_ratelimiter.Tier:{key.pk} cannot be read"),
        (("customer", acme.pk), "customer cannot be read: give pairs"),
        (key, "Tier cannot be read: give pairs"),
    ]
    for pair, why in unread:
        monkeypatch.setattr(f"{__name__}.pairs", [("user", bob), pair])
        said = state(admin_client, acme)
        assert said.startswith("warning it depends No rule that could be checked rejects this caller now."), said
        assert why in said
        assert report_of(caller_of("customer", str(acme.pk))).blocked is None
        monkeypatch.setattr(f"{__name__}.pairs", [("user", bob), pair, ("api_key", key)])
        assert state(admin_client, acme).startswith("warning partly blocked 1 of 2 users and keys: as API key Key 5")
        assert why in text_of(admin_client.get(page(acme)))
    configure(CUSTOMER_CALLERS=f"{__name__}.listed")  # whose resolver returns texts
    texts = (hashed, False), (f"value:{hashed}", True), ("shop-9", True), (99, False)
    for value, is_read in texts:
        monkeypatch.setattr(f"{__name__}.pairs", [("api_key", value)])
        assert state(admin_client, acme).startswith("good" if is_read else "warning"), value
    configure(CUSTOMER_CALLERS=f"{__name__}.listed", API_KEY_RESOLVER=None)
    for value in (hashed, "secret-7"):
        monkeypatch.setattr(f"{__name__}.pairs", [("api_key", value)])
        assert "cannot be read: it is not known." in state(admin_client, acme)
    TierAssignment.objects.create(api_key_hash=hashed, tier=key)
    tiers.forget()
    for value in (hashed, "secret-7"):
        monkeypatch.setattr(f"{__name__}.pairs", [("api_key", value)])
        assert state(admin_client, acme).startswith("good"), value


def test_a_key_that_is_a_row_is_named_by_it_for_who_may_see_it(
    admin_client: Client,
    acme: Group,
    key: Tier,
    operator: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(f"{__name__}.pairs", [("api_key", key)])
    [member] = admin_client.get(page(acme)).context["members"]
    assert member["name"] == "API key Key 5"
    own = admin_client.get(member["url"])
    assert "<h1>API key Key 5</h1>" in shown(own)
    assert "Each key that counts as Key 5." in text_of(own)
    assert "These are for all keys of Key 5." in text_of(own)
    assert "django_ratelimiter.Tier:" not in text_of(own)
    client = operator("unblock_caller")
    assert f"API key django_ratelimiter.Tier:{key.pk}" in text_of(client.get(page(acme)))
    assert "Key 5" not in text_of(client.get(member["url"]))
    call_command("ratelimit", "caller", "--customer", str(acme.pk))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"customer Acme Ltd (id {acme.pk}) (")
    assert first.endswith("): blocked")
    assert "blocked: as api_key Key 5, by exports" in lines
    monkeypatch.setattr(f"{__name__}.pairs", [("api_key", key), ("user", acme.user_set.all()[0])])
    call_command("ratelimit", "caller", "--customer", str(acme.pk))
    assert capsys.readouterr().out.splitlines()[0].endswith("): partly blocked")
    call_command("ratelimit", "caller", "--api-key", "secret-5")
    assert f"({hash_api_key('secret-5')[:8]}…)" not in (line := capsys.readouterr().out.splitlines()[0])
    assert "of Key 5 (" in line


def test_a_key_that_is_a_row_is_found_by_its_text_and_by_its_own_admin(
    admin_client: Client, key: Tier, operator: Callable[..., Client]
) -> None:
    named = f"django_ratelimiter.Tier:{key.pk}"
    url = f"{CALLER}?kind=api_key&value=value%3A{named.replace(':', '%3A')}"
    assert "Nothing matches" in text_of(admin_client.post(SEARCH, {"q": "auth.User:1"}))  # of another model
    for text in (named, f"api_key:{named}", "Key 5", "api_key:ey 5"):
        assert admin_client.post(SEARCH, {"q": text})["Location"] == url, text
    assert "Key 5</a>" in shown(admin_client.post(SEARCH, {"q": "ey 5", "suggest": "1"}))
    Tier.objects.create(slug="secret-6", name="Key 50")
    assert admin_client.post(SEARCH, {"q": "key 5"})["Location"] == url
    client = operator("unblock_caller")
    assert client.post(SEARCH, {"q": named})["Location"] == url
    assert "Key 5" not in shown(client.post(SEARCH, {"q": "ey 5", "suggest": "1"}))


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
    assert made[1] <= made[0] <= 30
    assert calls == [1, 1_000, 1_000, 100]  # the customer's, then those of a hundred users under 21 rules


def plan_of(identity: CallerIdentity) -> str | None:
    return "free" if identity.customer and identity.customer.name else None


def test_a_customer_is_unblocked_denied_and_given_more(admin_client: Client, acme: Group) -> None:
    rule("orders", "customer")
    ann = acme.user_set.order_by("pk")[0]
    ask(ann, 3)
    assert {*links(admin_client, page(acme))} == {"more", "tier", "allow", "deny"}
    saved = save(admin_client, page(acme), "more")
    assert f"customer:{acme.pk}: their own tier" not in saved
    assert saved.count("Acme Ltd: their own tier") == 2  # in the message, and under why
    assert "3 of 6" in text_of(admin_client.get(page(acme)))
    assert ask(ann)
    save(admin_client, page(acme), "deny")
    assert state(admin_client, acme).startswith("bad denied")
    assert not ask(ann)
    assert AccessEntry.objects.get().subject == f"customer {acme.pk}"


def test_a_customer_is_found_by_what_its_own_admin_searches(
    admin_client: Client, acme: Group, operator: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(client: Client, text: str, **more: str) -> Any:
        return client.post(SEARCH, {"q": text, **more})

    for text in ("cme", "customer:Acme", f"customer:{acme.pk}"):
        assert found(admin_client, text)["Location"].endswith(page(acme)), text
    Group.objects.bulk_create(Group(name=f"{number} Acme Ltd") for number in range(12))
    typed, sent = shown(found(admin_client, "acme ltd", suggest="1")), shown(found(admin_client, "acme lt"))
    assert re.findall(">([^<]*)</a>", typed)[:2] == ["Acme Ltd", "11 Acme Ltd"]
    assert typed.count("At most 10 of each kind are shown") == sent.count("At most 10 of each kind are shown") == 1
    client = operator("unblock_caller")
    assert "Acme" not in shown(found(client, "acme ltd", suggest="1"))
    assert "Nothing matches" in text_of(found(client, "acme ltd"))
    permit("unblock_caller", "view_group")
    assert found(client, "acme ltd")["Location"].endswith(page(acme))
    fields = ["name__startswith", "user", "^name", "=user__email"]
    monkeypatch.setattr("django.contrib.auth.admin.GroupAdmin.search_fields", fields)
    rule("acme", "customer")
    acme.user_set.update(email="acme")
    listed = re.findall(r'>([^<]*)</a> <span class="ratelimiter-badge">([^<]*)<', shown(found(admin_client, "ACME")))
    assert listed == [("Acme", "Rule"), ("Acme Ltd", "Customer"), ("bob", "User"), ("ann", "User")]


def test_names_of_customers_are_for_who_may_see_them(acme: Group, operator: Callable[..., Client]) -> None:
    client = operator("unblock_caller")
    assert f"<h1>Customer {acme.pk}</h1>" in shown(client.get(page(acme)))
    assert "Acme" not in shown(client.get(page(acme)))
    assert "ann" not in text_of(client.get(page(acme)))
    for codename in ("view_group", "reveal_caller"):
        permit("unblock_caller", codename)
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
    TopCaller.objects.create(identity="user", granularity="hour", start=start, partition="x", allowed=9)
    top = f"{reverse('admin:django_ratelimiter_usage_top_callers')}?period=24h"
    data = reverse("admin:django_ratelimiter_usage_data", args=["top"]) + "?identity=customer&period=24h"
    for url in (reverse("admin:django_ratelimiter_rejections"), top, data):
        with CaptureQueriesContext(connection) as queries:
            response = admin_client.get(url)
        assert f"customer: Acme Ltd (id {acme.pk})" in shown(response), url
        assert len([each for each in queries if 'FROM "auth_group"' in each["sql"]]) == 1
    [url] = re.findall(r'href="([^"]*)"[^>]*>(?:<[^>]*>)?customer: Acme', shown(admin_client.get(top)))
    assert "<h1>Customer Acme Ltd</h1>" in shown(admin_client.get(url))


def test_a_name_or_a_deleted_row_is_no_customer(admin_client: Client, acme: Group) -> None:
    with pytest.raises(CommandError, match=r"^There is no such customer, .* Give its primary key\.$"):
        call_command("ratelimit", "caller", "--customer", "Acme Ltd")
    rule("orders", "customer")
    url = page(acme)
    acme.delete()
    assert "There is no such customer." in text_of(admin_client.get(url))
    assert 'class="ratelimiter-notice ratelimiter-good"' not in shown(admin_client.get(url))


@pytest.mark.urls("tests.admin.own_site")
def test_the_projects_own_page_shows_bars_and_leads_to_ours(
    acme: Group, admin_client: Client, operator: Callable[..., Client], configure: Callable[..., None]
) -> None:
    rule("orders", "customer", quota=30)
    ask_by_key("secret-7", 12)
    url = f"/office/auth/group/{acme.pk}/change/"
    response = admin_client.get(url)
    assert "not blocked Orders (30 per hour): 12 of 30 used, 18 left; full again at" in text_of(response)
    rule("exports", "api_key", quota=1)
    rule("pairs", "customer", "ip", quota=1)
    ask_by_key("secret-7", 2)
    assert "partly blocked Rules that count by more" in text_of(admin_client.get(url))
    configure(EXEMPT="operator.truth")  # everybody
    assert "exempt Orders" in text_of(admin_client.get(url))
    AccessEntry.objects.create(action="deny", kind="customer", value=str(acme.pk))
    assert "denied Orders" in text_of(admin_client.get(url))
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
    open_as(window, admin_user.username, f"{live_server}{page(acme)}")
    assert window.script("return document.querySelectorAll('#content-main tbody tr').length") > 100
    assert window.script("return document.documentElement.scrollHeight") <= 3 * 900
