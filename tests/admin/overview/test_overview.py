"""The app's front page in the admin, with how the limiter stands and what needs attention, and the notice at home."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from time import time
from typing import Any
from weakref import WeakValueDictionary

import pytest
import redis
from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse
from django.utils.translation import override

from django_ratelimiter.admin.overview import page, state
from django_ratelimiter.admin.rules.admin import HOME_TEMPLATE, RuleAdmin
from django_ratelimiter.backend import get_engine
from django_ratelimiter.checks.common import SYMPTOMS
from django_ratelimiter.engine import Charge, Limit, breaker
from django_ratelimiter.engine.base import Engine, Version
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion, Tier, UsageBatch, UsageBucket, UsageEpisode
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.formatting import moment_in_words
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.collector.alerts import Lag
from django_ratelimiter.usage.reports.coverage import DAY, HOUR
from django_ratelimiter.usage.times import now, stored
from example_project.redis_server import free_port
from tests.admin.usage.test_pages import count

from ...making import update
from ..pages import page_of, shown

pytestmark = pytest.mark.django_db

OVERVIEW = reverse("admin:app_list", args=["django_ratelimiter"])
EVERYTHING_VIEWED = ("view_rule", "view_usage_report")


def text_of(response: Any) -> str:
    """What the overview says, without tags."""
    page = shown(response)
    start = page.index('<div class="ratelimiter-control')
    return " ".join(re.sub(r"<[^>]*>", " ", page[start : page.index('<div id="content-main"')]).split())


@pytest.fixture
def saved(rule: Rule, admin_user: User) -> Rule:
    """A rule that is in force, as a version that says who saved it. Usage has been collected."""
    UsageBatch.objects.create(batch_id="0:x", collected_at=now())
    cache.invalidate(admin_user, "Rule Export saved")
    get_engine().publish(storage.committed_version())
    return rule


@pytest.fixture(autouse=True)
def _own_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the breakers of engines that other tests have left behind."""
    monkeypatch.setattr("django_ratelimiter.engine.breaker._breakers", WeakValueDictionary())


def nowhere() -> dict[str, Any]:
    """Caches whose Redis is not there."""
    ratelimit = {**settings.CACHES["ratelimit"], "LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    return {**settings.CACHES, "ratelimit": ratelimit}


def test_names_the_database_that_lacks_the_tables(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "primary", lambda: "limits")
    monkeypatch.setattr(page.tables, "exists", lambda *_given: False)
    assert "Run manage.py migrate --database limits." in text_of(admin_client.get(OVERVIEW))


def test_knows_no_rejections_before_usage_was_collected(
    admin_client: Client, saved: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    UsageBatch.objects.all().delete()
    text = text_of(admin_client.get(OVERVIEW))
    assert text.startswith("Needs attention warning Nothing has been collected yet")
    assert text.count("Run manage.py ratelimit collect") == text.count("collected") == 1
    assert "Rejected in the last hour" not in text
    assert "wait in Redis" not in text
    with monkeypatch.context() as waiting:
        waiting.setattr(state, "lag", lambda: Lag(30.0, 2))
        text = text_of(admin_client.get(OVERVIEW))
        assert "Requests have been counted, and wait in Redis." in text
        assert "no request had" not in text
    UsageBatch.objects.create(batch_id="1", collected_at=now())
    text = text_of(admin_client.get(OVERVIEW))
    assert "Nothing has been collected yet" not in text
    assert "0 allowed, 0 rejected" in text
    assert "No request was rejected." in text


def test_says_how_the_limiter_stands(admin_client: Client, saved: Rule) -> None:
    text = text_of(admin_client.get(OVERVIEW))
    assert "Enforcement on Requests are decided" in text
    assert "Does a limit reject everybody, or nobody, or count twice?" in text
    assert re.search(r"Version \d+ Saved .* by admin What Rule Export saved", text)
    assert "not yet in force everywhere" not in text
    assert text.startswith("Nothing needs attention.")
    assert re.search(
        r"Redis answers Server redis://127\.0\.0\.1:\d+/\d+ .* Round trip [\d.]+ ms Circuit breaker closed", text
    )
    assert "Latest counts arrived less than a minute ago" in text


def test_says_since_when_and_by_whom_it_is_stopped(admin_client: Client, admin_user: User, saved: Rule) -> None:
    cache.switch_enforcement(False, admin_user, "403 for all of Acme")
    text = text_of(admin_client.get(OVERVIEW))
    assert re.search(r"Enforcement stopped Since .*, by admin Why 403 for all of Acme Version", text)
    assert shown(admin_client.get(OVERVIEW)).count("All enforcement is stopped") == 1
    assert "Resume enforcement" in text


def test_says_that_the_settings_stop_it(admin_client: Client, saved: Rule) -> None:
    with override_settings(RATELIMITER={**settings.RATELIMITER, "ENABLED": False}):
        response = admin_client.get(OVERVIEW)
    assert "Enforcement stopped" in text_of(response)
    assert shown(response).count("RATELIMITER['ENABLED'] is False") == 1


def test_without_redis_it_says_degraded(admin_client: Client, saved: Rule) -> None:
    with override_settings(CACHES=nowhere()):
        for _ in range(3):  # at last the breaker is open
            text = text_of(admin_client.get(OVERVIEW))
            assert text.startswith("Needs attention error Redis does not answer this process")
            assert text.count("failure policy") == 1
            assert "Enforcement degraded" in text
            assert "Redis does not answer Server" in text
        assert breaker.changed_at is not None
        began = moment_in_words(datetime.fromtimestamp(breaker.changed_at, UTC))
    assert "open: this process asks again" in text
    since = re.search(r"Enforcement degraded Since (.+?) Version ", text)
    assert since
    assert since[1] == began
    assert "degraded Since" not in text_of(admin_client.get(OVERVIEW))


@pytest.mark.parametrize(
    ("alias", "says"), [("default", "is not a Redis cache"), ("wrong", "CACHES['wrong']['LOCATION'] cannot be read")]
)
def test_an_engine_that_cannot_be_built_is_no_error_page(
    admin_client: Client, saved: Rule, alias: str, says: str
) -> None:
    wrong = {**settings.CACHES["ratelimit"], "LOCATION": "redis://svc:hunter2/xyz@127.0.0.1:1/1"}
    with override_settings(CACHES={**settings.CACHES, "wrong": wrong}, RATELIMITER={"CACHE_ALIAS": alias}):
        text = text_of(admin_client.get(OVERVIEW))
    assert "Enforcement degraded" in text
    assert says in text
    assert "hunter2" not in text


def test_a_version_that_was_not_published_is_not_in_force_everywhere(admin_client: Client, saved: Rule) -> None:
    newer = storage.committed_version()
    storage.state().update(number=newer.number + 1)
    text = text_of(admin_client.get(OVERVIEW))
    assert text.count("not yet in force everywhere") == 1
    assert (
        f"error Version {newer.number + 1} is not yet in force everywhere: Redis still has version {newer.number}."
        in text
    )


class Sharded:
    """An engine with four shards, two of which do not answer."""

    shards = 4

    def __init__(self, engine: Engine, problem: str = "") -> None:
        self.engine, self.check, self.problem = self, engine.check, problem

    def versions(self) -> list[Version | None]:
        if self.problem:
            raise EngineUnavailable(self.problem)
        latest = storage.committed_version()
        return [latest, latest._replace(number=latest.number - 1)]


def test_one_shard_with_an_older_version_is_not_yet_everywhere(
    admin_client: Client, saved: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Sharded(get_engine())
    monkeypatch.setattr(state, "get_engine", lambda: engine)
    text, number = text_of(admin_client.get(OVERVIEW)), storage.committed_version().number
    still = f"Redis still has version {number - 1} in 1 of 2 shards."
    assert f"error Version {number} is not yet in force everywhere: {still}" in text
    assert "error 2 shards of Redis do not answer." in text


def test_shards_that_cannot_be_read_are_no_error_page(
    admin_client: Client, saved: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Sharded(get_engine(), "NOPERM")
    monkeypatch.setattr(state, "get_engine", lambda: engine)
    text = text_of(admin_client.get(OVERVIEW))
    assert "Enforcement on" in text
    assert "Problem NOPERM" in text


def test_an_outage_of_this_process_is_told_for_five_minutes(
    admin_client: Client, saved: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "warning This process did not reach Redis for a while in the last 5 minutes."
    for seconds, is_told in ((60, True), (400, False)):
        monkeypatch.setattr(breaker, "changed_at", time() - seconds)
        assert (told in text_of(admin_client.get(OVERVIEW))) is is_told


def test_asks_redis_three_times(admin_client: Client, saved: Rule, redis_client: redis.Redis) -> None:
    UsageBatch.objects.create(batch_id="1:x")
    admin_client.get(OVERVIEW)
    before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    total = redis_client.info("stats")["total_commands_processed"]
    admin_client.get(OVERVIEW)
    after = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    scripted = 1  # the script's own GET counts as a command
    peeked = 4  # a second script, which reads the counters that all callers share
    assert after - before == 2
    pipeline = 1  # the proxies
    assert redis_client.info("stats")["total_commands_processed"] - total <= 4 + scripted + peeked + pipeline


def test_shows_the_last_hour(admin_client: Client, saved: Rule) -> None:
    count(HOUR / 2, rule="export", allowed=90, rejected=10, degraded=3)
    count(HOUR / 3, rule="export", tier="pro", allowed=10, rejected=30)
    count(HOUR / 3, rule="gone", shadow_rejected=4)
    count(2 * HOUR, rule="old", rejected=500)
    response = admin_client.get(OVERVIEW)
    text = text_of(response)
    assert "100 allowed, 40 rejected, 4 would be rejected by rules in shadow" in text
    assert re.search(r"in each minute from \d\d:\d\d to \d\d:\d\d C[SD]T: at most 30", shown(response))
    assert re.search(r"Export 100 40 0 .*gone 0 0 4", text)
    assert "old" not in text
    assert "3 requests were decided without Redis in the last hour." in text
    page = shown(response)
    assert f'<a href="{page_of(saved)}">Export</a>' in page
    assert "style=" not in page[page.index('<div class="ratelimiter-control') : page.index('<div id="content-main"')]


def test_names_rules_that_need_attention(admin_client: Client, saved: Rule) -> None:
    Rule.objects.create(slug="nowhere", name="Nowhere", view_name="helo", mode="enforce")
    Rule.objects.create(slug="off", name="Off", view_name="nothing", mode="off")
    Rule.objects.create(slug="wrong", name="Wrong", path="no slash", path_kind="exact", mode="enforce")
    cache.invalidate()
    response = admin_client.get(OVERVIEW)
    text = text_of(response)
    why = "No view is named “helo”, so this rule matches no request. Did you mean “hello”?"
    assert f"warning Matches no request: Nowhere {why}" in text
    assert "error Not in force: Wrong" in text
    assert "Off" not in text.partition("Needs attention")[2].partition("Enforcement")[0]
    assert f'<a href="{page_of(Rule.objects.get(slug="nowhere"))}">Nowhere</a>' in shown(response)
    assert f'<a href="{SYMPTOMS}"' in shown(response)
    with override("de"):
        in_german = text_of(admin_client.get(OVERVIEW))
    assert "Nowhere" in in_german
    assert why not in in_german
    Rule.objects.bulk_create(Rule(slug=f"r{n}", name=f"R{n}", view_name="none", mode="enforce") for n in range(6))
    cache.invalidate()
    assert "2 more rules have the same problem" in text_of(admin_client.get(OVERVIEW))


@pytest.mark.parametrize(("counted", "used", "named"), [(40, None, True), (40, 5, False), (5, None, False)])
def test_names_rules_that_matched_nothing_for_30_days(
    admin_client: Client, saved: Rule, counted: int, used: int | None, named: bool
) -> None:
    """Only where usage was counted for so long, and the rule was in force all the time."""
    count(counted * DAY, rule="another", allowed=1)
    if used is not None:
        count(used * DAY, rule="export", allowed=1)
    assert "matched no request for 30 days" not in text_of(admin_client.get(OVERVIEW))  # it was saved just now
    RuleSetVersion.objects.update(created_at=stored(now() - 35 * DAY))
    assert ("1 rule has matched no request for 30 days: Export" in text_of(admin_client.get(OVERVIEW))) is named


def test_names_checks_and_late_counts(admin_client: Client, saved: Rule, redis_client: redis.Redis) -> None:
    middleware = [name for name in settings.MIDDLEWARE if "ratelimiter" not in name]
    UsageEpisode.objects.create(name="behind")
    UsageEpisode.objects.update(began_at=stored(now() - HOUR))
    UsageEpisode.objects.create(name="rejecting:export")
    UsageBatch.objects.create(batch_id="1:x")
    with override_settings(MIDDLEWARE=middleware):
        text = text_of(admin_client.get(OVERVIEW))
    assert "(django_ratelimiter.W001)" in text
    assert "Counts have been waiting in Redis for 60 minutes." in text
    assert re.search(r"A rule rejects unusually many requests since [^·]{10,40}: Export", text)
    assert "Latest counts arrived less than a minute ago" in text


@pytest.mark.parametrize(
    ("codenames", "parts"),
    [
        (["view_rule"], {"Version": True, "Server redis": True, "Rejected in the last hour": False}),
        (["view_usage_report"], {"Version": False, "Server redis": False, "Rejected in the last hour": True}),
        (["view_usage_report", "switch_enforcement"], {"Stop all enforcement": True}),
        ([*EVERYTHING_VIEWED], {"Version": True, "Rejected in the last hour": True, "Stop all enforcement": False}),
    ],
)
def test_shows_each_what_they_may_see(
    operator: Callable[..., Client], saved: Rule, codenames: list[str], parts: dict[str, bool]
) -> None:
    text = text_of(operator(*codenames).get(OVERVIEW))
    assert {part: part in text for part in parts} == parts
    assert "Enforcement on" in text


def test_what_is_wrong_with_rules_is_for_who_may_see_rules(operator: Callable[..., Client], saved: Rule) -> None:
    Rule.objects.create(slug="nowhere", name="Nowhere", view_name="helo", mode="enforce")
    cache.invalidate()
    get_engine().publish(storage.committed_version())
    assert "Nothing needs attention." in text_of(operator("view_usage_report").get(OVERVIEW))


def test_shows_nothing_to_who_may_see_neither_rules_nor_usage(operator: Callable[..., Client], saved: Rule) -> None:
    response = operator("view_tier").get(OVERVIEW)
    assert response.status_code == 200
    assert "ratelimiter-card" not in shown(response)


EVERYBODY = digest("")


@pytest.fixture
def site_wide(free: Tier) -> Rule:
    rule = Rule.objects.create(slug="site", name="Whole site", mode="enforce", path="/", path_kind="prefix")
    for tier, quota in ((None, 10), (free, 5)):
        RuleLimit.objects.create(
            rule=rule, tier=tier, quota=quota, window_seconds=Decimal(3600), algorithm="sliding_window_counter"
        )
    cache.invalidate()
    count(timedelta(minutes=2), rule="site", rejected=3)
    return rule


def spend(units: int) -> None:
    get_engine().check([Charge(f"site:{EVERYBODY}", Limit(10, 3600), cost=units)])


@pytest.mark.parametrize(("spent", "is_named"), [(4, False), (5, True), (10, True)])
def test_a_rule_that_all_have_used_up_is_named(
    admin_client: Client, site_wide: Rule, spent: int, is_named: bool
) -> None:
    """By the lowest limit of its tiers, with the page where the counter is seen."""
    spend(spent)
    response = admin_client.get(OVERVIEW)
    found = "error The whole site is at its limit, by the rule: Whole site Until " in text_of(response)
    assert found is is_named
    assert (f"?digest={EVERYBODY}&rule=site" in shown(response)) is is_named


@pytest.mark.parametrize("changes", [{"mode": "shadow"}, {"partition_by": ["ip"]}])
def test_a_used_up_rule_in_shadow_or_of_each_caller_is_not_named(
    admin_client: Client, site_wide: Rule, changes: dict[str, object]
) -> None:
    spend(10)
    update(Rule, **changes)
    assert "at its limit" not in text_of(admin_client.get(OVERVIEW))


def test_a_used_up_rule_is_named_before_its_usage_is_collected_and_by_what_it_is_for(
    admin_client: Client, site_wide: Rule
) -> None:
    UsageBucket.objects.all().delete()
    update(Rule, path="/api/", methods=["POST"])
    spend(10)
    assert "error POST /api/ is at its limit, by the rule: Whole site" in text_of(admin_client.get(OVERVIEW))


@pytest.mark.parametrize("waits", [False, True])
def test_a_quiet_site_is_told_from_a_late_collector(
    admin_client: Client, site_wide: Rule, redis_client: redis.Redis, *, waits: bool
) -> None:
    batch = UsageBatch.objects.create(batch_id="1:x")
    UsageBatch.objects.filter(pk=batch.pk).update(collected_at=stored(now() - HOUR))
    if waits:
        redis_client.sadd("{rl:0}:batches", "1000:0:x")
    text = text_of(admin_client.get(OVERVIEW))
    told = re.search(r"Latest counts arrived 1\shour ago(; nothing is waiting)? ", text)
    assert told is not None
    assert (told[1] is None) is waits
    assert ("Counts have been waiting in Redis for" in text) is waits


def test_another_site_of_the_same_name_changes_no_page(admin_client: Client, saved: Rule) -> None:
    others = [AdminSite() for _ in range(20)]  # Django keeps sites in a set without an order
    assert "Latest counts arrived" in text_of(admin_client.get(OVERVIEW))
    assert {each.name for each in others} == {"admin"}


HOME = reverse("admin:index")
NOTICE = 'id="ratelimiter-stopped"'
STOPPED = "All enforcement is stopped: no request is limited"
DEGRADED = "Redis does not answer this process"

#: The other order; most projects have Django's apps first, as the settings of the tests have.
ABOVE = ["django_ratelimiter", *(app for app in settings.INSTALLED_APPS if app != "django_ratelimiter")]


@pytest.fixture(params=[ABOVE, settings.INSTALLED_APPS], ids=["above", "below"])
def order(request: pytest.FixtureRequest) -> Any:
    """Our app above django.contrib.admin, and below it."""
    with override_settings(INSTALLED_APPS=request.param):
        yield


@pytest.mark.usefixtures("order")
def test_a_notice_is_there_while_enforcement_is_stopped(admin_client: Client, rule: Rule) -> None:
    assert NOTICE not in shown(admin_client.get(HOME))
    cache.switch_enforcement(False)
    page = shown(admin_client.get(HOME))
    assert page.count(NOTICE) == 1
    assert STOPPED in page
    assert f'<a href="{OVERVIEW}">Overview</a>' in page
    assert "Site administration" in page


def test_a_notice_is_there_while_redis_is_not(admin_client: Client, rule: Rule) -> None:
    with override_settings(CACHES=nowhere()):
        page = shown(admin_client.get(HOME))
    assert DEGRADED in page
    assert page.count(NOTICE) == 1
    assert DEGRADED not in shown(admin_client.get(HOME))


@pytest.mark.parametrize(("codename", "sees"), [("view_rule", True), ("view_user", False)])
def test_the_notice_is_for_staff_of_this_app(operator: Callable[..., Client], codename: str, sees: bool) -> None:
    cache.switch_enforcement(False)
    assert (NOTICE in shown(operator(codename).get(HOME))) is sees


@pytest.mark.parametrize(
    "template",
    [
        '{% extends "admin/index.html" %}{% block content %}ours{{ block.super }}{% endblock %}',
        '{% extends "admin/index.html" %}{% load ratelimiter_admin %}'
        "{% block messages %}{% limiter_notice %}ours{{ block.super }}{% endblock %}",
    ],
)
@pytest.mark.usefixtures("order")
def test_the_notice_is_in_a_template_of_the_projects_own(
    admin_client: Client, tmp_path: Path, template: str, admin_user: User
) -> None:
    """It is extended, and may ask for the notice itself: it is shown once."""
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin/index.html").write_text(template)
    cache.switch_enforcement(False)
    with override_settings(TEMPLATES=[{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]):
        page = shown(admin_client.get(HOME))
    assert "ours" in page
    assert page.count(NOTICE) == 1


def test_the_template_that_a_site_has_chosen_is_left_to_it() -> None:
    class OwnSite(AdminSite):
        index_template = "office/index.html"

    for site, template in ((OwnSite(), "office/index.html"), (AdminSite(), HOME_TEMPLATE)):
        site.register(Rule, RuleAdmin)
        assert site.index_template == template
    without = AdminSite()
    without.register(User)
    assert without.index_template is None
