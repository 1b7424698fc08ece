"""“What would this do?” above the form of a rule, also of a form that does not fit the saved rule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, RuleSetVersion, Tier, UsageSample
from django_ratelimiter.rules.formatting import moment_in_words
from django_ratelimiter.usage.times import Granularity, floor, now
from tests.admin.usage.test_pages import count
from tests.forecast.traffic import record

from .pages import BrowserForm, page_of, rule_form, shown, stored

pytestmark = pytest.mark.django_db

TYPED = {"slug": "export", "name": "Typed and not saved", "_forecast": "1"}
MAY = ("view_rule", "change_rule", "view_rulelimit", "change_rulelimit", "view_usage_report")


def yesterday(hour: int = 10) -> datetime:
    midnight = floor(now(), Granularity.DAY, timezone.get_current_timezone())
    return midnight - timedelta(hours=24 - hour)


@pytest.fixture
def traffic(rule: Rule) -> None:
    """A calm day: one of three free callers beyond 30 a minute."""
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    record(yesterday(), {"aaa": [40], "bbb": [12], "ccc": [3]}, rule="export", tier="free")


def ask(client: Client, rule: Rule, quota: int = 30, **fields: Any) -> Any:
    """Press the button with this quota for free callers."""
    limits = stored(*rule.limits.all())
    limits[0] |= {"quota": quota, "algorithm": "fixed_window"}
    return client.post(page_of(rule), rule_form(*limits, stored=len(limits), **(TYPED | fields)))


@pytest.mark.usefixtures("traffic")
def test_the_unsaved_values_are_looked_at_and_not_saved(admin_client: Client, rule: Rule) -> None:
    versions = RuleSetVersion.objects.count()
    response = ask(admin_client, rule)
    assert "About 16 (3 to 91) of about 48 callers would be rejected" in response.context["forecast"]["answer"]
    page = shown(response)
    assert 'value="Typed and not saved"' in page
    assert 'value="30"' in page
    assert "errornote" not in page
    rule.refresh_from_db()
    assert (rule.name, rule.limits.get(tier__slug="free").quota) == ("Export", 100)
    assert RuleSetVersion.objects.count() == versions


@pytest.mark.usefixtures("traffic")
def test_it_begins_with_the_answer_above_the_form(admin_client: Client, rule: Rule) -> None:
    page = shown(ask(admin_client, rule))
    answer = "About 16 (3 to 91) of about 48 callers would be rejected at least once. Now: probably 0, at most 61."
    why = "Figures are ranges, because only one caller in 16 is sampled."
    form = 'free 30/min, others 5/s <span class="ratelimiter-quiet">(in this form)</span></th>'
    caller, folded = "<code>aaa</code>, Free: 10 of 40", '<details class="ratelimiter-folded">'
    places = [page.index(each) for each in (answer, why, form, caller, folded, 'name="slug"')]
    assert places == sorted(places)
    assert moment_in_words(yesterday(0)) in page
    page = shown(admin_client.get(page_of(rule)))
    row = page[page.index('<div class="submit-row">') :]
    assert row.index('name="_save"') < row.index('name="_forecast"') < row.index("</div>")


def test_errors_come_first(admin_client: Client, rule: Rule) -> None:
    page = shown(ask(admin_client, rule, quota=0))
    assert "Correct the errors below" in page
    assert "errornote" in page


@pytest.mark.usefixtures("traffic")
def test_sentence_and_picture_agree(admin_client: Client, rule: Rule) -> None:
    """The limit of every tier comes first and changes as well, but only free callers are rejected."""
    record(yesterday(), {"ddd": [4], "eee": [5]}, rule="export", tier="pro")
    for quota, rejected in ((2, 3), (8, 2), (11, 2), (30, 1), (50, 0)):
        response = ask(admin_client, rule, quota, **{"limits-1-quota": "71"})
        [(limits, drawn)] = [row[:2] for row in response.context["forecast"]["quotas"] if row[2]]
        assert (limits, drawn) == (f"free {quota}/min, others 71/s", 16 * rejected)
        assert (f"About {16 * rejected} (" if rejected else "Probably 0, at most ") in shown(response)
        row = f'{16 * rejected} of 80</td><td><meter aria-hidden="true" min="0" max="80" value="{16 * rejected}">'
        assert row in shown(response)


@pytest.mark.parametrize("missing", ["view_usage_report", "change_rule"])
@pytest.mark.usefixtures("traffic")
def test_permissions(operator: Callable[..., Client], rule: Rule, missing: str) -> None:
    client = operator(*(each for each in MAY if each != missing))
    assert ask(client, rule).status_code == 403
    page = shown(client.get(page_of(rule), {"_forecast": "1"}))
    assert ("3 callers sampled" in page) == ("What does this do?" in page) == (missing == "change_rule")
    assert "What would this do?" not in page or missing == "change_rule"


@pytest.mark.usefixtures("traffic")
def test_callers_are_named_to_those_alone_who_may_know(operator: Callable[..., Client], rule: Rule) -> None:
    lovelace = digest("user:lovelace")
    UsageSample.objects.filter(partition_hash="aaa").update(partition_hash=lovelace, tail=lovelace.tail)
    client = operator(*MAY)
    assert "lovelace" not in shown(ask(client, rule))
    user = User.objects.get(username="operator")
    user.user_permissions.add(Permission.objects.get(codename="reveal_caller"))
    assert "lovelace" in shown(ask(client, rule))


def test_without_samples(admin_client: Client, rule: Rule) -> None:
    page = shown(ask(admin_client, rule))
    assert "It is not known whom this would reject: nothing is recorded in this time" in page
    assert "<meter" not in page
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    count(timedelta(hours=30), rule="export", allowed=7)
    assert "none of the 7 recorded requests is of a sampled caller" in shown(ask(admin_client, rule))


def test_without_anything_of_yesterday_it_begins_with_the_last_days(admin_client: Client, rule: Rule) -> None:
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    record(yesterday() - timedelta(days=2), {"aaa": [40]}, rule="export", tier="free")
    for response in (ask(admin_client, rule), admin_client.get(page_of(rule), {"_forecast": "1"})):
        forecast = response.context["forecast"]
        assert (forecast["period"], forecast["found"].sampled) == ("the last 7 days", 1)
        assert '<option value="7d" selected>' in shown(response)
    page = shown(ask(admin_client, rule, **{"forecast-period": "yesterday"}))
    assert "nothing is recorded in this time" in page


def test_new_rule_has_no_forecast_and_is_not_saved(admin_client: Client, rule: Rule) -> None:
    add = "/admin/django_ratelimiter/rule/add/"
    assert "What would this do?" not in shown(admin_client.get(add, {"_forecast": "1"}))
    assert "forecast" not in admin_client.post(add, rule_form({"quota": 1, "window_seconds": 60}, **TYPED)).context
    assert Rule.objects.count() == 1


@pytest.mark.usefixtures("traffic")
def test_who_may_only_look_chooses_by_links(operator: Callable[..., Client], rule: Rule) -> None:
    client = operator(*(each for each in MAY if each != "change_rule"))
    page = shown(client.get(page_of(rule), {"_forecast": "1"}))
    assert "forecast-period=7d" in page
    assert 'name="forecast-period"' not in page
    response = client.get(page_of(rule), {"_forecast": "1", "forecast-period": "7d"})
    assert response.context["forecast"]["period"] == "the last 7 days"


@pytest.mark.usefixtures("traffic")
def test_the_number_of_queries_is_fixed(
    admin_client: Client, rule: Rule, django_assert_max_num_queries: Any, django_assert_num_queries: Any
) -> None:
    ask(admin_client, rule)  # what a process asks once, like content types, depends on the tests that ran before
    with django_assert_max_num_queries(55) as few:
        ask(admin_client, rule)
    for number in range(12):
        Tier.objects.create(slug=f"t{number}", name=f"T{number}")
        record(yesterday(number), {f"who-{each}": [9] for each in range(9)}, rule="export", tier=f"t{number}")
    assert UsageSample.objects.count() == 111
    with django_assert_num_queries(len(few)):
        response = ask(admin_client, rule)
    assert response.context["forecast"]["found"].sampled == 111


@pytest.mark.usefixtures("traffic")
@pytest.mark.parametrize("period", ["9999-12-31", "0001-01-01", "soon"])
def test_what_is_no_period_is_named(admin_client: Client, rule: Rule, period: str) -> None:
    assert f"{period}' is not a period." in shown(ask(admin_client, rule, **{"forecast-period": period}))


REFUSED = "so nothing was saved now. What you typed is still here."
CHANGED = "Somebody else has changed this rule since you opened it."


@pytest.fixture
def sent(admin_client: Client, rule: Rule, traffic: None) -> dict[str, Any]:
    """What a browser would send that has opened the rule."""
    return BrowserForm(shown(admin_client.get(page_of(rule)))).sent


def test_a_limit_that_somebody_else_has_deleted(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    rule.limits.get(tier=None).delete()
    response = admin_client.post(page_of(rule), sent | {"_forecast": "1", "limits-0-quota": "30"})
    page = shown(response)
    assert CHANGED in page
    assert "errornote" not in page
    assert response.context["forecast"]["answer"]
    assert REFUSED in shown(admin_client.post(page_of(rule), BrowserForm(page).sent))
    assert [limit.quota for limit in rule.limits.all()] == [100]


def test_a_rule_whose_limits_are_all_to_be_deleted(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    rule.limits.filter(tier__slug="free").update(quota=30)
    sent = BrowserForm(shown(admin_client.get(page_of(rule)))).sent
    ticked = {"limits-0-DELETE": "on", "limits-1-DELETE": "on", "_forecast": "1"}
    response = admin_client.post(page_of(rule), sent | ticked)
    assert "Probably 0, at most" in response.context["forecast"]["answer"]


@pytest.mark.django_db(transaction=True)
def test_a_forecast_opens_no_transaction(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    """On SQLite it would keep others from writing."""
    with CaptureQueriesContext(connection) as queries:
        assert admin_client.post(page_of(rule), sent | {"_forecast": "1"}).status_code == 200
    assert [each["sql"] for each in queries if each["sql"].startswith(("BEGIN", "SAVEPOINT"))] == []
