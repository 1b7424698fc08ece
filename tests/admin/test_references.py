"""From the reference in a rejected response to the caller: by the search, the page that explains, shell and API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.test import Client
from django.urls import reverse

from django_ratelimiter.backend import get_engine
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection import counters, references
from django_ratelimiter.inspection.caller import UnknownCaller, caller_of
from django_ratelimiter.models import Rule, RuleLimit, Tier, TopPartition
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from tests.admin.callers.page import CALLER
from tests.making import MakeRule, client_of, failing, manage, update

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]

SEARCH = reverse("admin:django_ratelimiter_search")
EXPLAIN = reverse("admin:django_ratelimiter_explain")
ALL = ("view_rule", "view_usage_report", "view_tierassignment", "unblock_caller")


@pytest.fixture
def rejected(make_rule: MakeRule, people: None, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What a rejected client was sent, and what was logged."""
    make_rule("export", quota=1, partition_by=["header:X-Org"], path_kind="exact", path="/hello/")
    client = Client(headers={"X-Org": "acme"})
    client.get("/hello/")
    response = client.get("/hello/")
    page = client.get("/hello/", headers={"Accept": "text/html"}).content.decode()
    text = client.get("/hello/", headers={"Accept": "text/plain"}).content.decode()
    [record, *_] = [each for each in caplog.records if "was rejected" in each.message]
    return {"problem": response.json(), "field": response["X-RateLimit-Reference"], "page": page, "text": text,
            "logged": record.reference}  # fmt: skip


def test_all_of_them_name_it_alike(rejected: dict[str, Any], operator: Callable[..., Client]) -> None:
    reference = f"export#{digest('header:X-Org:acme')[:8]}"
    assert rejected["problem"]["reference"] == rejected["field"] == rejected["logged"] == reference
    assert f"<code>{reference}</code>" in rejected["page"]
    assert rejected["text"].endswith(f"Reference: {reference}\n")
    client = operator(*ALL)
    assert reference in client.get(reverse("admin:django_ratelimiter_rejections")).content.decode()
    caller = client.get(reverse("admin:django_ratelimiter_caller"), {"digest": digest("header:X-Org:acme")})
    assert reference in caller.content.decode()


@pytest.mark.parametrize("mail", ["{}", "Ticket word#12345678 of today, again. Reference: {}. Please help."])
def test_search_and_other_pages_find_the_caller(
    rejected: dict[str, Any], operator: Callable[..., Client], mail: str
) -> None:
    client, found = operator(*ALL), digest("header:X-Org:acme")
    typed = mail.format(rejected["field"].upper())
    response = client.post(SEARCH, {"q": typed})
    assert (response.status_code, f"digest={found}" in response.url) == (302, True)
    response = client.post(reverse("admin:django_ratelimiter_caller"), {"kind": "reference", "value": typed})
    assert response.url.endswith(f"?digest={found}&rule=export")
    explained = client.post(EXPLAIN, {"method": "GET", "pasted": mail.format(rejected["field"])})
    assert explained.context["form"].initial["reference"] == rejected["field"]
    summary = json.loads(manage("caller", "--reference", typed, "--json"))
    assert (summary["caller"]["digest"], summary["blocked"]) == (found, True)
    assert summary["rejections"][0]["reference"] == rejected["field"]


def facts(page: Any) -> dict[str, str]:
    """The facts that a page shows below "The rejection"."""
    part = " ".join(page.content.decode().partition('id="ratelimiter-rejection"')[2].partition("</section>")[0].split())
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", part)
    return {name: " ".join(re.sub(r"<[^>]*>", " ", value).split()) for name, value in found}


def test_the_page_of_a_reference_says_what_is_known_of_the_rejection(
    rejected: dict[str, Any], operator: Callable[..., Client]
) -> None:
    client, sent = operator(*ALL), {"q": rejected["field"]}
    page = client.post(SEARCH, sent, follow=True)
    text = " ".join(page.content.decode().split())
    assert '<span class="ratelimiter-badge ratelimiter-blocked">blocked</span> One rule rejects' in text
    assert "Whether this caller is blocked now is not known" not in text
    known = facts(page)
    assert known["Rule"] == f"export {rejected['field']}"
    assert known["Limit now"] == "1 per day, token bucket"
    assert re.fullmatch("3 since .*, last .* C[SD]T", known["Rejected"])
    assert known["Now"].startswith("Rejected until ")
    get_engine().reset([counter.charge for counter in page.context["report"].counters])
    freed = client.get(page.redirect_chain[-1][0])
    assert "The rules that rejected this caller lately would allow a request now." in freed.content.decode()
    assert facts(freed)["Now"] == "Allowed again"


def test_a_rejection_stays_known_when_the_rule_limits_the_caller_no_more(
    rejected: dict[str, Any], operator: Callable[..., Client]
) -> None:
    tier = Tier.objects.create(slug="free", name="Free", default_for="authenticated")
    RuleLimit.objects.create(rule=Rule.objects.get(), tier=tier, unlimited=True)
    RuleLimit.objects.filter(tier=None).delete()
    cache.invalidate()
    client = operator(*ALL)
    caller = client.post(SEARCH, {"q": rejected["field"]}, follow=True)
    assert facts(caller)["Rejected"].startswith("3 since ")
    assert (facts(caller)["Limit now"], facts(caller)["Now"]) == ("\u2013", "Not known")


def test_pages_of_a_rejection_lead_to_what_would_happen_now(
    make_rule: MakeRule, people: None, operator: Callable[..., Client]
) -> None:
    rule = make_rule("hello", quota=1, partition_by=["user"], path_kind="exact", path="/hello/")
    ann = User.objects.get(username="ann")
    visitor = client_of(ann)
    for _ in range(3):
        visitor.get("/hello/")
    client = operator(*ALL, "reveal_caller")
    [row] = client.get(reverse("admin:django_ratelimiter_rejections")).context["rows"]
    update(RuleLimit.objects.filter(rule=rule), quota=5)
    caller = client.get(row["caller_url"], follow=True)
    assert facts(caller)["Rejected"].startswith("2 since ")
    assert facts(caller)["Now"] == "Allowed again"
    assert caller.context["rejections"] == []
    [listed] = client.get(row["caller_url"].partition("&rule")[0], follow=True).context["rejections"]
    pages = [client.get(each["explain_url"]) for each in (row, caller.context, listed)]
    pages.append(client.post(EXPLAIN, {"method": "GET", "pasted": row["reference"]}))  # of a caller whose name is known
    for each in pages:
        assert (each.context["answer"], each.context["explanation"].logged.found) == ("Allowed.", True)


def test_one_that_is_known_no_more_leads_to_the_page_that_explains(
    rejected: dict[str, Any], operator: Callable[..., Client]
) -> None:
    with pytest.raises(UnknownCaller, match="Ask who the caller is"):
        caller_of("reference", "export#AAAAAAAA")
    response = operator(*ALL).post(SEARCH, {"q": "export#AAAAAAAA"})
    assert "explain/?reference=export%23AAAAAAAA" in response.url


def test_without_redis_it_is_not_called_unknown(
    rejected: dict[str, Any], operator: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (references, counters):
        monkeypatch.setattr(module, "recent", failing(EngineUnavailable("gone")))
    client, typed = operator(*ALL), rejected["field"]
    with pytest.raises(CommandError, match=r"^Redis cannot be reached now: gone$"):
        manage("caller", "--reference", typed)
    asked = {"kind": "reference", "value": typed}
    for response in (client.get(CALLER, asked), client.post(CALLER, asked)):
        assert response.context["problem"] == "Redis cannot be reached now, so this caller cannot be found: gone"
    found = client.post(SEARCH, {"q": f"Why {typed} today"})
    assert "explain/?reference=export%23" in found.url
    unread = "Redis cannot be reached now, so the caller cannot be found."
    assert unread in client.get(found.url).content.decode()
    top = {"rule_slug": "export", "granularity": "hour", "partition": digest("header:X-Org:acme"), "rejected": 7}
    TopPartition.objects.create(**top, start=stored(floor(now(), Granularity.HOUR, now().tzinfo)))
    page = client.get(found.url)
    assert len(page.context["logged_urls"]) == 1
    assert unread not in page.content.decode()


def test_top_partitions_know_older_ones(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    found = digest("user:42")
    hour = stored(floor(now(), Granularity.HOUR, now().tzinfo))
    TopPartition.objects.create(rule_slug="export", granularity="hour", start=hour, partition=found, rejected=7)
    assert caller_of("reference", f"export#{found[:8]}").digest == found
    with pytest.raises(UnknownCaller):
        caller_of("reference", f"other#{found[:8]}")
    monkeypatch.setattr(references, "recent", failing(EngineUnavailable("gone")))
    assert caller_of("reference", f"export#{found[:8]}").digest == found


def test_nobody_without_a_permission_finds_a_caller(rejected: dict[str, Any], operator: Callable[..., Client]) -> None:
    client = operator("view_usage_report", "view_rule")
    response = client.post(SEARCH, {"q": rejected["field"]})
    assert "explain/?reference=" in response.url
    shown = client.post(EXPLAIN, {"pasted": rejected["field"]})
    assert digest("header:X-Org:acme") not in shown.content.decode()


def test_the_fields_take_a_whole_response(operator: Callable[..., Client]) -> None:
    page = operator(*ALL).get(SEARCH).content.decode()
    assert 'name="q" maxlength="10000"' in page


@pytest.fixture
def shared(make_rule: MakeRule, people: None) -> str:
    """The reference of a rejection by a rule whose counter all callers share."""
    make_rule("Site", quota=1, partition_by=[], path_kind="exact", path="/hello/")
    Client().get("/hello/")
    return str(Client().get("/hello/")["X-RateLimit-Reference"])


def test_of_a_shared_counter_the_pages_say_that_nobody_is_meant(shared: str, operator: Callable[..., Client]) -> None:
    client = operator(*ALL)
    rule = Rule.objects.get(slug="Site")
    address = reverse("admin:django_ratelimiter_rule_change", args=[rule.pk])
    for url, sent in (
        ("search", {"q": shared.lower()}),
        ("caller", {"kind": "reference", "value": shared.upper()}),
    ):
        page = client.post(reverse(f"admin:django_ratelimiter_{url}"), sent, follow=True)
        text = " ".join(page.content.decode().split())
        assert "<h1>All callers together</h1>" in text
        assert f'All callers share one counter of this rule: <a href="{address}">{rule.name}</a>.' in text
        assert f"explain/?{urlencode({'reference': shared})}" in text
        assert [row["counter"].rule.slug for row in page.context["counters"]] == ["Site"]
        assert "Reset all counters" not in text
        assert "Whether this caller is blocked" not in text
    page = client.get(EXPLAIN, {"reference": shared.lower()})
    assert page.context["explanation"].logged.found
    update(Rule, path_kind="any", path="")  # so no request is known that it matches
    page = client.get(EXPLAIN, {"reference": shared.lower()})
    text = " ".join(page.content.decode().split())
    assert "All callers share the counter of this rule" in text
    assert f'<a href="{address}">Open the rule Site</a>' in text
    assert page.context["logged_urls"] == []
