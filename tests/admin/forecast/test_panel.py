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

from django_ratelimiter.forecast.answer import CALLERS, in_words
from django_ratelimiter.forecast.tally import AFTER
from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, RuleSetVersion, Tier, UsageSample
from django_ratelimiter.rules.formatting import moment_in_words
from django_ratelimiter.usage.times import Granularity, floor, now
from tests.admin.usage.test_pages import count
from tests.forecast.traffic import record

from ..pages import BrowserForm, page_of, rule_form, shown, stored

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


def tiers_of(response: Any) -> dict[str, dict[str, str]]:
    """What the table says of the callers of each tier."""
    return {
        name: {what: in_words(each.callers) for what, each in zip(("before", "after", "newly"), effects, strict=True)}
        for name, *effects in response.context["forecast"]["tiers"]
    }


@pytest.mark.usefixtures("traffic")
def test_the_unsaved_values_are_looked_at_and_not_saved(admin_client: Client, rule: Rule) -> None:
    versions = RuleSetVersion.objects.count()
    response = ask(admin_client, rule)
    assert tiers_of(response)["Free"]["after"].startswith("about 16 ")
    assert tiers_of(response)["Free"]["before"].startswith("about 0 ")
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
    answer = "About 33 in 100 callers would be rejected at least once, at worst 80. Now: nobody."
    assert (
        page.index(answer)
        < page.index("1 of 3 sampled callers (33.3 %)")
        < page.index("<code>aaa</code>, Free: 10 of 40")
    )
    assert (
        page.index("<code>aaa</code>") < page.index('<details class="ratelimiter-folded">') < page.index('name="slug"')
    )
    assert moment_in_words(yesterday(0)) in page
    assert "<figcaption>" not in page
    page = shown(admin_client.get(page_of(rule)))
    row = page[page.index('<div class="submit-row">') :]
    assert row.index('name="_save"') < row.index('name="_forecast"') < row.index("</div>")


@pytest.mark.usefixtures("traffic")
def test_the_number_of_the_line_goes_into_the_form(admin_client: Client, rule: Rule) -> None:
    line = {"forecast-limit": "limits-0", "forecast-quota": "11"}
    response = ask(admin_client, rule, **line)
    assert response.context["forecast"]["line"]["quota"] == 11
    assert "2 of 3 sampled callers (66.7 %)" in shown(response)
    assert ">Quota per minute</label>" in shown(response)
    response = ask(admin_client, rule, **line, _forecast_take="1")
    assert response.context["inline_admin_formsets"][0].formset.forms[0]["quota"].value() == "11"
    assert tiers_of(response)["Free"]["after"].startswith("about 32 ")
    assert rule.limits.get(tier__slug="free").quota == 100


@pytest.mark.usefixtures("traffic")
def test_the_number_of_another_limit_is_not_taken(admin_client: Client, rule: Rule) -> None:
    other = {"forecast-limit": "limits-1", "forecast-quota": "11", "forecast-quota_of": "limits-0:30"}
    for taken in ({}, {"_forecast_take": "1"}):
        response = ask(admin_client, rule, **other, **taken)
        line = response.context["forecast"]["line"]
        forms = response.context["inline_admin_formsets"][0].formset.initial_forms
        assert (line["name"], line["quota"]) == ("limits-1", forms[1].instance.quota)
        assert sorted(int(form["quota"].value()) for form in forms) == [5, 30]
    own = other | {"forecast-quota_of": "limits-1:5"}
    assert ask(admin_client, rule, **own).context["forecast"]["line"]["quota"] == 11


@pytest.mark.usefixtures("traffic")
def test_the_line_follows_a_number_that_is_typed_into_the_form(admin_client: Client, rule: Rule) -> None:
    moved = {"forecast-limit": "limits-0", "forecast-quota": "11", "forecast-quota_of": "limits-0:30"}
    for quota, placed in ((30, 11), (2, 2)):
        response = ask(admin_client, rule, quota, **moved)
        assert response.context["forecast"]["line"]["quota"] == placed
    assert 'name="forecast-quota_of" value="limits-0:2"' in shown(response)
    assert "All 3 sampled callers (of about 48) would be rejected" in shown(response)
    assert "3 of 3 sampled callers (100 %)" in shown(response)


@pytest.mark.usefixtures("traffic")
@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket", "sliding_window_log", "sliding_window_counter"])
def test_sentence_and_picture_agree_whichever_tier_comes_first(
    admin_client: Client, rule: Rule, algorithm: str
) -> None:
    """The limit of every tier comes first and changes as well, but only free callers are rejected."""
    record(yesterday(), {"ddd": [4], "eee": [5]}, rule="export", tier="pro")
    limits = {"limits-0-algorithm": algorithm, "limits-1-quota": "71"}
    for quota in (2, 8, 11, 30, 50):
        response = ask(admin_client, rule, quota, **limits)
        line, found = response.context["forecast"]["line"], response.context["forecast"]["found"]
        rejected = found.tally.total.triple(CALLERS, AFTER)[1]
        is_some = quota < 30 or (quota == 30 and algorithm != "token_bucket")
        assert (line["drawn"].above, rejected > 0) == (rejected, is_some)
        if rejected:
            assert (line["name"], line["of_tier"]) == ("limits-0", "Free: 3 of the 5 sampled callers")
            assert f"About {20 * rejected} in 100 callers" in response.context["forecast"]["answer"]
    assert "obody of 5 sampled callers" in shown(response)


@pytest.mark.usefixtures("traffic")
def test_day_is_needed(admin_client: Client, rule: Rule) -> None:
    assert "Choose the day." in shown(ask(admin_client, rule, **{"forecast-period": "day"}))


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


def test_errors_come_first(admin_client: Client, rule: Rule) -> None:
    page = shown(ask(admin_client, rule, quota=0))
    assert "Correct the errors below" in page
    assert "errornote" in page


def test_without_samples(admin_client: Client, rule: Rule) -> None:
    page = shown(ask(admin_client, rule))
    assert "It is not known whom this would reject: nothing is recorded in this time" in page
    assert "ratelimiter-quota-line" not in page
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    count(timedelta(hours=30), rule="export", allowed=7)
    assert "there is no sample of the 7 recorded requests" in shown(ask(admin_client, rule))


def test_without_anything_of_yesterday_it_begins_with_the_last_days(admin_client: Client, rule: Rule) -> None:
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    record(yesterday() - timedelta(days=2), {"aaa": [40]}, rule="export", tier="free")
    for response in (ask(admin_client, rule), admin_client.get(page_of(rule), {"_forecast": "1"})):
        forecast = response.context["forecast"]
        assert (forecast["period"], forecast["found"].sampled) == ("the last 7 days", 1)
        assert '<option value="7d" selected>' in shown(response)
    page = shown(ask(admin_client, rule, **{"forecast-period": "yesterday"}))
    assert "nothing is recorded in this time" in page


def test_a_new_rule_is_forecast_from_a_rule_that_records_its_requests(admin_client: Client, rule: Rule) -> None:
    add = "/admin/django_ratelimiter/rule/add/"
    assert "What would this do?" in shown(admin_client.get(add))
    saved = Rule.objects.get(pk=rule.pk)
    target = {name: getattr(saved, name) for name in ("path_kind", "path", "view_name", "scope", "missing_partition")}
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"], methods=["GET"])
    record(yesterday(), {"aaa": [40], "bbb": [12]}, rule="export", tier="free")
    limit = {"quota": 30, "algorithm": "fixed_window", "window_seconds": 60}
    form = rule_form(limit, **(TYPED | target | {"slug": "new", "methods": ["GET"]}))
    response = admin_client.post(add, form)
    assert response.context["forecast"]["recorded_by"] == "Export"
    assert tiers_of(response)["Free"]["after"].startswith("about 16 ")
    assert Rule.objects.count() == 1
    page = shown(admin_client.post(add, form | {"partition_by": ["ip"]}))
    assert "Nothing is known about these requests" in page
    assert "aaa" not in page


def test_a_new_rule_shows_no_caller_without_the_permission(operator: Callable[..., Client], rule: Rule) -> None:
    client = operator("view_rule", "add_rule", "add_rulelimit", "view_rulelimit")
    add = "/admin/django_ratelimiter/rule/add/"
    assert "What would this do?" not in shown(client.get(add, {"_forecast": "1"}))
    assert client.post(add, rule_form({"quota": 1, "window_seconds": 60}, **TYPED)).status_code == 403
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
    assert len(tiers_of(response)) == 13


@pytest.mark.usefixtures("traffic")
def test_a_day_too_far_away(admin_client: Client, rule: Rule) -> None:
    for day in ("9999-12-31", "0001-01-01"):
        page = shown(ask(admin_client, rule, **{"forecast-period": "day", "forecast-day": day}))
        assert "Ensure this value is" in page


REFUSED = "so nothing was saved now. What you typed is still here."
CHANGED = "Somebody else has changed this rule since you opened it."


@pytest.fixture
def sent(admin_client: Client, rule: Rule) -> dict[str, Any]:
    """What a browser would send that has opened the rule."""
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    record(yesterday(), {"aaa": [40], "bbb": [12]}, rule="export", tier="free")
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
    [tier] = tiers_of(admin_client.post(page_of(rule), sent | ticked)).values()
    assert tier["newly"] == "0" or tier["newly"].startswith("about 0 ")
    assert tier["after"].startswith(("0", "about 0 "))


@pytest.mark.django_db(transaction=True)
def test_a_forecast_opens_no_transaction(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    """On SQLite it would keep others from writing."""
    with CaptureQueriesContext(connection) as queries:
        assert admin_client.post(page_of(rule), sent | {"_forecast": "1"}).status_code == 200
    assert [each["sql"] for each in queries if each["sql"].startswith(("BEGIN", "SAVEPOINT"))] == []
