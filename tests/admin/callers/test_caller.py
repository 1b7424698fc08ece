"""A caller's page: what it shows, what it does, who may, and that nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter import limiter
from django_ratelimiter.admin.callers.act_forms import days
from django_ratelimiter.backend import get_engine
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment, TopPartition, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from ..pages import shown

pytestmark = pytest.mark.django_db

CALLER = reverse("admin:django_ratelimiter_caller")


@pytest.fixture(autouse=True)
def _no_rules_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.rules.inline.registered", tuple)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def page(ann: User, free: Tier) -> str:
    """The page of a user who is blocked by one of two rules."""
    Tier.objects.update(default_for="authenticated")
    for slug, quota in (("export", 3), ("search", 100)):
        rule = Rule(slug=slug, name=slug.title(), mode="enforce", partition_by=["user"], path_kind="exact", path="/")
        rule.save()
        RuleLimit.objects.create(rule=rule, quota=quota, window_seconds=Decimal(3600), algorithm="fixed_window")
    ask(ann, 3)
    return f"{CALLER}?kind=user&value=id%3A{ann.pk}"


def ask(user: User, times: int = 1, **meta: str) -> bool:
    for _ in range(times):
        request = RequestFactory().get("/", **meta)
        request.user = user
        allowed = limiter.check(request).allowed
    return allowed


def press(client: Client, page: str, act: str, **fields: str) -> str:
    """Press a button of the page, as a browser would, and return the page that comes next."""
    context = client.get(page).context
    sent = {"token": context["token"], "reason": "he called", "until": days()[-1].value, **fields}
    response = client.post(page, {**sent, "act": act}, follow=True)
    assert response.redirect_chain == [(page, 302)]
    return shown(response)


def test_says_who_is_blocked_by_what_and_why(admin_client: Client, page: str, ann: User) -> None:
    text = shown(admin_client.get(page))
    assert f"<h1>User {ann.pk}, ann</h1>" in text
    assert f'<a href="{reverse("admin:auth_user_change", args=[ann.pk])}">ann</a>' in text
    assert "One rule rejects requests of this caller now until" in " ".join(text.split())
    assert "3 of 3" in text
    assert "3 of 100" in text
    assert "the default of authenticated callers" in text
    export = Rule.objects.get(slug="export")
    assert f'<a href="{reverse("admin:django_ratelimiter_rule_change", args=[export.pk])}">Export</a>' in text
    assert text.index(">Export<") < text.index(">Search<")  # what blocks comes first


def test_unblocked_and_doubled_until_friday_in_two_clicks_and_a_reason(
    admin_client: Client, page: str, ann: User
) -> None:
    text = press(admin_client, page, "reset")
    assert "Reset 2 counters: export, search. Checked: none of them blocks the caller now." in text
    assert "No rule rejects this caller now." in text
    assert 'value="he called"' in text  # the reason is typed once
    friday = next(day for day in days() if day.is_chosen)
    text = press(admin_client, page, "more", until=friday.value, multiplier="2")
    assert "2 times each limit until" in text
    assert "Checked: it is in force" in text
    assert "0 of 6" in text
    assert "each limit \u00d7 2" in text
    [row] = TierAssignment.objects.all()
    assert timezone.localtime(row.ends_at).isoformat()[:19] == f"{_next_day(friday.value)}T00:00:00"
    assert ask(ann, 6)
    assert not ask(ann)
    assert LogEntry.objects.count() == 3  # the reset, the grant, and the new row
    assert "What operators did" in text
    other = User.objects.create_user("bob")
    assert 'value="he called"' not in shown(admin_client.get(f"{CALLER}?kind=user&value={other.pk}"))
    assert "he called" in text


def _next_day(text: str) -> str:
    return (date.fromisoformat(text) + timedelta(days=1)).isoformat()


def test_resets_gives_back_and_ends_leases_of_one_counter(admin_client: Client, page: str, ann: User) -> None:
    assert "2 of 3 are left now" in press(admin_client, page, "give:export:f3600", **{"units:export:f3600": "2"})
    assert "Reset 1 counter: search." in press(admin_client, page, "reset:search:f3600")
    jobs = Rule.objects.create(slug="jobs", name="Jobs", mode="enforce", partition_by=["user"])
    RuleLimit.objects.create(rule=jobs, quota=1, window_seconds=Decimal(60), algorithm="concurrency")
    ask(ann)
    [name] = [row.counter.name for row in admin_client.get(page).context["counters"] if row.counter.rule.slug == "jobs"]
    response = admin_client.get(f"{page}&leases={name}")
    assert "In progress: Jobs" in shown(response)
    [lease] = response.context["leases"]
    assert "1 of 1 are free now" in press(admin_client, f"{page}&leases={quote(name)}", lease.value)


def test_denies_and_allows(admin_client: Client, page: str, ann: User) -> None:
    assert "An access entry rejects every request" in press(admin_client, page, "deny")
    assert not ask(ann)
    text = press(admin_client, page, "allow")
    assert f"Nothing was changed. The access entry “deny user {ann.pk}” is in force until" in text
    AccessEntry.objects.all().delete()
    assert "allows this caller past all rules until" in press(admin_client, page, "allow")
    assert ask(ann, 5)
    assert AccessEntry.objects.get().action == "allow"


@pytest.mark.parametrize(
    "wrong",
    [{"reason": ""}, {"reason": " "}, {"token": "forged"}, {"act": "nothing"}, {"act": "reset:nothing:f60"},
     {"act": "give:export:f3600"}, {"act": "give:export:f3600", "units:export:f3600": "-1"},
     {"act": "more", "multiplier": "0"}, {"act": "more", "multiplier": "NaN"}, {"act": "more", "until": "2020-01-01"},
     {"act": "more", "until": "soon"}, {"act": "more", "date": "9999-12-31"}, {"act": "tier", "tier": "gold"},
     {"act": "end:x:export:f3600"}, {"act": "end:1:export:f3600"}],
)  # fmt: skip
def test_what_is_wrong_is_said_and_changes_nothing(admin_client: Client, page: str, wrong: dict[str, str]) -> None:
    text = press(admin_client, page, **{"act": "reset", "multiplier": "2", **wrong})  # type: ignore[arg-type]
    assert "Nothing was changed." in text
    assert "3 of 3" in text
    assert not LogEntry.objects.exists()
    assert not TierAssignment.objects.exists()


def test_a_form_that_is_sent_twice_is_obeyed_once(admin_client: Client, page: str) -> None:
    token = admin_client.get(page).context["token"]
    sent = {"token": token, "reason": "he called", "act": "give:export:f3600", "units:export:f3600": "1"}
    assert "1 of 3 are left now" in shown(admin_client.post(page, sent, follow=True))
    assert "This was done already" in shown(admin_client.post(page, sent, follow=True))
    assert "2 of 3" in shown(admin_client.get(page))


def test_a_form_from_elsewhere_is_refused(ann: User, page: str, admin_user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    token = client.get(page).context["token"]
    response = client.post(page, {"token": token, "reason": "he called", "act": "reset"})
    assert response.status_code == 403
    assert not ask(ann)


UNBLOCK, GRANT = ["Reset all counters", ">Give back<"], ["Allow more", "Change tier", "Deny every request"]


@pytest.mark.parametrize(
    ("permissions", "status", "buttons"),
    [([], 403, []), (["view_rule", "view_usage_report"], 403, []), (["view_tierassignment"], 200, []),
     (["unblock_caller"], 200, UNBLOCK), (["grant_caller"], 200, GRANT),
     (["unblock_caller", "grant_caller"], 200, [*UNBLOCK, *GRANT])],
)  # fmt: skip
def test_each_act_takes_its_own_permission(
    operator: Callable[..., Client], page: str, ann: User, permissions: list[str], status: int, buttons: list[str]
) -> None:
    client = operator(*permissions)
    response = client.get(page)
    assert response.status_code == status
    assert [each for each in [*UNBLOCK, *GRANT] if each in shown(response)] == buttons
    assert client.get(f"{CALLER}?kind=user&value=424242").status_code == status  # whoever that is
    assert client.get(CALLER).status_code == status
    acts = {"reset": "unblock_caller", "more": "grant_caller", "deny": "grant_caller"}
    for act, permission in acts.items():
        token = client.get(page).context["token"] if status == 200 else ""
        sent = {"token": token, "reason": "x", "act": act, "multiplier": "2", "until": days()[-1].value}
        assert client.post(page, sent).status_code == (302 if permission in permissions else 403)
    assert TierAssignment.objects.count() == AccessEntry.objects.count() == int("grant_caller" in permissions)


def test_a_stranger_has_to_log_in(client: Client, page: str) -> None:
    assert urlsplit(client.get(page)["Location"]).path == reverse("admin:login")


def test_shows_the_name_usage_and_links_to_those_alone_who_may(
    operator: Callable[..., Client], page: str, ann: User
) -> None:
    text = shown(operator("unblock_caller").get(page))
    assert "ann" not in text.replace("cannot", "")
    assert "Known usage" not in text
    assert reverse("admin:django_ratelimiter_rule_changelist") not in text


def test_lookups_keep_secrets_out_of_addresses(admin_client: Client, page: str) -> None:
    response = admin_client.post(CALLER, {"kind": "api_key", "value": "s3cret"})
    assert parse_qs(urlsplit(response["Location"]).query) == {"kind": ["api_key"], "value": [hash_api_key("s3cret")]}
    assert "API key" in shown(admin_client.get(response["Location"]))
    key = Session.objects.get().session_key
    response = admin_client.post(CALLER, {"kind": "session", "value": key})
    assert key not in response["Location"]
    assert "3 of 3" not in shown(admin_client.get(response["Location"]))
    for kind, value in (("api_key", "s3cret"), ("session", key)):
        assert value not in admin_client.get(CALLER, {"kind": kind, "value": value})["Location"]


def no_account(raw: str) -> str | None:
    """An API_KEY_RESOLVER that knows one key, and returns another as it is."""
    return {"s3cret": "account-7", "plain-key": "plain-key"}.get(raw)


def test_no_key_is_in_an_address_or_kept_where_a_resolver_knows_keys(
    admin_client: Client, page: str, settings: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_RESOLVER": "tests.admin.callers.test_caller.no_account"}
    for kind, value, named in (
        ("api_key", "s3cret", {"kind": ["api_key"], "value": ["value:account-7"]}),
        ("api_key", "unknown-key", {"kind": ["api_key"], "value": [hash_api_key("unknown-key")]}),
        ("api_key", "plain-key", None),
        ("partition", "session:abcdefgh", None),
        ("partition", "api_key:s3cret|ip:192.0.2.7", None),
        ("partition", "api_key:value:account-7", {"kind": ["partition"], "value": ["api_key:value:account-7"]}),
        ("session", "abcdefgh", None),
    ):
        response = admin_client.post(CALLER, {"kind": kind, "value": value})
        query = parse_qs(urlsplit(response["Location"]).query)
        assert query == named if named else set(query) == {"digest"}
        assert admin_client.get(response["Location"]).status_code == 200
        if "kind=api_key" in response["Location"]:
            assert admin_client.get(response["Location"]).context["caller"].open_value == query["value"][0]
        kept = str(dict(admin_client.session))
        for secret in ("s3cret", "unknown-key", "plain-key", "abcdefgh"):
            assert secret not in kept
        if named is None:
            assert set(
                parse_qs(urlsplit(admin_client.get(CALLER, {"kind": kind, "value": value})["Location"]).query)
            ) == {"digest"}
    found = admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": "s3cret"})
    assert admin_client.get(found["Location"]).context["caller"].known == {"api_key": "account-7"}


def test_what_else_is_known_is_sent_in_the_body_and_secrets_stay_out_of_addresses(
    admin_client: Client, page: str, ann: User
) -> None:
    for slug, names in (("org", ["header:X-Org"]), ("device", ["session"]), ("key", ["api_key"])):
        rule = Rule.objects.create(slug=slug, name=slug, mode="enforce", partition_by=["user", *names])
        RuleLimit.objects.create(rule=rule, quota=7, window_seconds=Decimal(60))
    press(admin_client, page, "reset")
    ask(ann, HTTP_X_ORG="acme")
    assert '<form method="post" class="ratelimiter-fields"' in shown(admin_client.get(page))
    response = admin_client.post(
        page, {"know": "1", "is:header:X-Org": "acme", "is:session": "", "is:api_key": "s3cret"}
    )
    assert response.status_code == 302
    query = parse_qs(urlsplit(response["Location"]).query)
    assert query["is:api_key"] == [hash_api_key("s3cret")]
    assert "is:session" not in query
    assert "1 of 7" in shown(admin_client.get(response["Location"]))
    shown_at_once = admin_client.post(page, {"know": "1", "is:session": "abcdefgh"})
    assert shown_at_once.status_code == 200
    assert [row.counter.rule.slug for row in shown_at_once.context["counters"]].count("device") == 1
    assert "abcdefgh" not in shown(shown_at_once)
    assert 'name="act"' not in shown(shown_at_once)
    assert admin_client.get(f"{page}&is:session=abcdefgh")["Location"] == page
    assert "s3cret" not in admin_client.get(f"{page}&is:api_key=s3cret")["Location"]
    assert "Say who" not in shown(admin_client.get(f"{page}&is=nonsense"))


def test_entries_and_assignments_are_for_who_may_see_them(
    operator: Callable[..., Client], page: str, ann: User, free: Tier
) -> None:
    AccessEntry.objects.create(kind="user", value=str(ann.pk), action="deny", reason="for fraud")
    TierAssignment.objects.create(user=ann, tier=free, reason="as a trial")
    client = operator("unblock_caller", "grant_caller")
    texts = ("You may not see access entries.", "for fraud", "You may not see tier assignments.", "as a trial")
    for codenames, seen in (
        ([], [True, False, True, False]),
        (["change_accessentry"], [False, True, True, False]),
        (["view_tierassignment"], [True, False, False, True]),
        (["view_tierassignment", "view_accessentry"], [False, True, False, True]),
    ):
        permissions = Permission.objects.filter(codename__in=["unblock_caller", *codenames])
        User.objects.get(username="operator").user_permissions.set(permissions)
        text = shown(client.get(page))
        assert [each in text for each in texts] == seen, codenames


@pytest.mark.parametrize(("kind", "value"), [("ip", "x"), ("colour", "red"), ("user", "\0"), ("partition", "<b>")])
def test_who_is_nobody_is_said_beside_the_form(admin_client: Client, kind: str, value: str) -> None:
    for response in (
        admin_client.get(CALLER, {"kind": kind, "value": value}),
        admin_client.post(CALLER, {"kind": kind, "value": value}),
    ):
        assert response.status_code == 200
        assert 'role="alert"' in response.content.decode()


def test_a_digest_leads_to_counters_and_to_the_name_once_looked_up(admin_client: Client, page: str) -> None:
    digest = admin_client.get(page).context["caller"].digest
    assert "<h1>User" in shown(admin_client.get(f"{CALLER}?digest={digest}"))  # looked up just now
    session = admin_client.session
    del session["ratelimiter_callers"]
    session.save()
    text = shown(admin_client.get(f"{CALLER}?digest={digest}&rule=export"))
    assert f"<h1>Client {digest}</h1>" in text
    assert "3 of 3" in text
    assert "Allow more" not in text
    assert "none of them blocks" in press(admin_client, f"{CALLER}?digest={digest}&rule=export", "reset")


def test_shows_what_cannot_be_known_and_takes_it(admin_client: Client, page: str, ann: User) -> None:
    rule = Rule.objects.create(slug="org", name="Org", mode="enforce", partition_by=["user", "header:X-Org"])
    RuleLimit.objects.create(rule=rule, quota=7, window_seconds=Decimal(60))
    press(admin_client, page, "reset")
    ask(ann, HTTP_X_ORG="acme")
    assert 'name="is:header:X-Org"' in shown(admin_client.get(page))
    assert "1 of 7" in shown(admin_client.get(f"{page}&is:header:X-Org=acme"))


def test_shows_usage_by_day(admin_client: Client, page: str) -> None:
    digest = admin_client.get(page).context["caller"].digest
    start = stored(floor(now(), Granularity.DAY, timezone.get_default_timezone()))
    for partition, denied in ((digest, 7_431), ("x" * 22, 9_999)):
        TopPartition.objects.create(
            rule_slug="export", granularity="day", start=start, partition=partition, allowed=1, denied=denied
        )
    text = shown(admin_client.get(page))
    assert ">7431<" in text
    assert "9999" not in text


def test_nothing_typed_reaches_the_page_as_html(admin_client: Client, page: str) -> None:
    evil = "<script>alert(1)</script>"
    for query in ({"kind": "partition", "value": f"header:X={evil}"}, {"kind": evil, "value": evil}, {"digest": evil}):
        assert evil not in admin_client.get(CALLER, query).content.decode()
    sent = {"token": "x", "reason": evil, "act": evil}
    assert evil not in admin_client.post(page, sent, follow=True).content.decode()


@pytest.fixture
def many(ann: User) -> None:
    tier = Tier.objects.create(slug="big", name="Big", rank=9)
    for number in range(500):
        rule = Rule(slug=f"rule-{number}", name=f"Rule {number}", mode="enforce", partition_by=["user"])
        rule.save()
    RuleLimit.objects.bulk_create(
        [RuleLimit(rule=rule, quota=10, window_seconds=Decimal(60)) for rule in Rule.objects.all()]
    )
    TierAssignment.objects.bulk_create(
        [TierAssignment(tier=tier, partition=f"header:X-Org:{number}") for number in range(2_000)]
    )
    TierAssignment.objects.create(tier=tier, user=ann)
    cache.invalidate()


def test_five_hundred_rules_take_one_call_and_few_queries(
    admin_client: Client,
    many: None,
    ann: User,
    redis_client: redis.Redis,
    settings: Any,
    django_assert_max_num_queries: Any,
) -> None:
    # The middleware asks by itself for the version, once in this time.
    settings.RATELIMITER = {**settings.RATELIMITER, "VERSION_CHECK_INTERVAL": 3_600}
    page = f"{CALLER}?kind=user&value={ann.pk}"
    admin_client.get(page)
    before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    with django_assert_max_num_queries(20):
        response = admin_client.get(page)
    assert len(response.context["counters"]) == 500
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


def test_friday_is_always_to_come() -> None:
    monday = date(2026, 11, 16)
    for ahead in range(7):
        today = monday + timedelta(days=ahead)
        [friday] = [day.value for day in days(today) if day.is_chosen]
        found = date.fromisoformat(friday)
        assert found.weekday() == 4
        assert 0 < (found - today).days <= 7


def test_a_user_and_a_client_of_a_report_link_to_it(admin_client: Client, page: str, ann: User) -> None:
    text = shown(admin_client.get(reverse("admin:auth_user_change", args=[ann.pk])))
    assert f'<a href="{page}">Rate limits</a>' in text
    assert "Rate limits</a></li>" not in shown(admin_client.get(reverse("admin:auth_user_add")))
    digest, hour = admin_client.get(page).context["caller"].digest, timezone.now().replace(minute=0, second=0)
    hour = hour.replace(microsecond=0) - timedelta(hours=1)
    for granularity in ("minute", "hour"):
        UsageBucket.objects.create(rule_slug="export", granularity=granularity, start=hour, allowed=1)
    TopPartition.objects.create(rule_slug="export", granularity="hour", start=hour, partition=digest, allowed=1)
    report = reverse("admin:django_ratelimiter_usagebucket_rule")
    link = f"{CALLER}?digest={digest}&rule=export"
    assert f'<a href="{link}"><code>{digest}</code></a>' in shown(admin_client.get(f"{report}?rule=export&period=24h"))
    assert "<h1>User" in shown(admin_client.get(link))


def test_the_list_of_assignments_leads_to_the_search(admin_client: Client) -> None:
    listed = shown(admin_client.get(reverse("admin:django_ratelimiter_tierassignment_changelist")))
    assert f'<a href="{CALLER}">Find a caller</a>' in listed


def test_links_are_shown_to_those_alone_who_may_follow(operator: Callable[..., Client], page: str, ann: User) -> None:
    client = operator("view_user", "view_usage_report")
    assert CALLER not in shown(client.get(reverse("admin:auth_user_change", args=[ann.pk])))
    assert client.get(page).status_code == 403


@pytest.mark.urls("tests.admin.callers.other_site")
def test_stays_on_its_own_site(admin_client: Client, page: str, ann: User) -> None:
    own = page.replace("/admin/", "/backoffice/")
    text = press(admin_client, own, "reset")
    assert "none of them blocks" in text
    assert 'href="/admin/' not in text
    assert f'<a href="/backoffice/auth/user/{ann.pk}/change/">ann</a>' in text
    assert own in shown(admin_client.get(f"/backoffice/auth/user/{ann.pk}/change/"))
    assert admin_client.post(own.partition("?")[0], {"kind": "user", "value": "ann"})["Location"] == own


def test_links_name_the_key_of_a_user_whose_key_is_the_name_of_another(
    admin_client: Client, page: str, ann: User
) -> None:
    User.objects.create_user(str(ann.pk))
    assert "Two users fit" in shown(admin_client.get(f"{CALLER}?kind=user&value={ann.pk}"))
    response = admin_client.get(page)
    assert response.context["caller"].user == ann
    query = parse_qs(urlsplit(response.context["explain_url"]).query)
    assert query["user"] == [f"id:{ann.pk}"]
    asked = admin_client.get(response.context["explain_url"] + "&path=/")
    assert asked.context["caller_url"] == page
    digest = response.context["caller"].digest
    assert admin_client.get(f"{CALLER}?digest={digest}").context["caller"].user == ann
    found = shown(admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": str(ann.pk)}))
    assert page in found
    assert "Two users fit" in shown(admin_client.get(asked.request["PATH_INFO"], {"path": "/", "user": str(ann.pk)}))


@pytest.mark.django_db(transaction=True)
def test_two_who_send_the_same_form_at_once_give_back_once(admin_client: Client, page: str, admin_user: User) -> None:
    token = admin_client.get(page).context["token"]
    sent = {"token": token, "reason": "he called", "act": "give:export:f3600", "units:export:f3600": "1"}
    clients = [Client() for _ in range(4)]
    for client in clients:
        client.force_login(admin_user)
    with ThreadPoolExecutor(4) as threads:
        assert {response.status_code for response in threads.map(lambda each: each.post(page, sent), clients)} == {302}
    assert "2 of 3" in shown(admin_client.get(page))
    assert LogEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_engine_is_called_outside_transactions(
    admin_client: Client, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ATOMIC_REQUESTS would open one for the whole request."""
    reset, open_now = get_engine().reset, []
    monkeypatch.setattr(
        get_engine(), "reset", lambda charges: open_now.append(connection.in_atomic_block) or reset(charges)
    )
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    text = press(admin_client, page, "reset")
    assert open_now == [False]
    number = LogEntry.objects.get().change_message.rpartition(" ")[2].removesuffix("]")
    assert f'<span class="ratelimiter-quiet">act {number}</span>' in text
    assert "A form that is sent twice" in text


def test_shows_the_last_refusals_where_the_engine_keeps_them(
    admin_client: Client, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusal(NamedTuple):
        rule: str
        partition: str
        at_us: int = 1_800_000_000_000_000
        since_us: int = 1_799_999_000_000_000
        times: int = 7_431
        shadow: bool = False
        tier: str = "free"

    digest = admin_client.get(page).context["caller"].digest
    recent = [Refusal("export", digest), Refusal("export", "x" * 22, times=9_999), Refusal("gone", digest)]
    monkeypatch.setattr(get_engine(), "recent_refusals", lambda limit: recent, raising=False)
    text = shown(admin_client.get(page))
    assert '<abbr title="about">≈</abbr> 7431 since' in text  # so many are counted from a sample
    assert len(admin_client.get(page).context["refusals"]) == 1
