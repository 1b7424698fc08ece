"""What staff may read: rules, usage and the top partitions."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.timezone import localtime

from django_ratelimiter.models import Tier, TopCaller, TopPartition, UsageBucket
from django_ratelimiter.usage.live import names
from django_ratelimiter.usage.times import Granularity, floor, stored

from .conftest import KEY, MakeRule, bucket, moment

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.urls")]

VIEWS = ["/limits/rules/", "/limits/rules/one/", "/limits/rules/one/partitions/", "/limits/usage/",
         "/limits/usage/totals/", "/limits/usage/top-callers/"]  # fmt: skip


def results(client: Client, url: str, **query: str) -> Any:
    response = client.get(url, query)
    assert response.status_code == 200, response.content
    return response.json()["results"]


class TestPermission:
    @pytest.mark.parametrize("url", VIEWS)
    def test_only_with_the_named_permission(
        self, make_rule: MakeRule, as_ann: Client, as_staff: Client, url: str
    ) -> None:
        make_rule("one")
        assert (Client().get(url).status_code, as_ann.get(url).status_code, as_staff.get(url).status_code) == (
            403,
            403,
            200,
        )

    def test_being_staff_is_not_enough(self, client: Client) -> None:
        client.force_login(User.objects.create(username="bob", is_staff=True))
        assert client.get("/limits/usage/").status_code == 403

    def test_nor_is_an_api_key(self, client: Client, pro: Tier) -> None:
        assert client.get("/limits/usage/", headers={"X-API-Key": KEY}).status_code == 403

    def test_nothing_can_be_changed(self, make_rule: MakeRule, as_staff: Client) -> None:
        make_rule("one", mode="off")
        for method in ("post", "put", "patch", "delete"):
            assert {getattr(as_staff, method)(url).status_code for url in VIEWS} == {405}


class TestRules:
    def test_limits_in_words_and_numbers(self, make_rule: MakeRule, as_staff: Client, free: Tier, pro: Tier) -> None:
        make_rule(
            "one",
            {
                None: [{"quota": 5, "window_seconds": 60, "burst": 9}],
                pro: [{"unlimited": True, "quota": None, "window_seconds": None}],
            },
            mode="shadow", methods=["GET"], partition_by=["user"],
        )  # fmt: skip
        [rule] = results(as_staff, "/limits/rules/")
        assert rule == as_staff.get("/limits/rules/one/").json()
        assert (rule["slug"], rule["mode"], rule["methods"]) == ("one", "shadow", ["GET", "HEAD"])
        assert (rule["counted_by"], rule["cost"]) == (["user"], 1)
        assert "5 per minute, token bucket, burst 9" in rule["in_words"]
        others, pros = sorted(rule["tiers"], key=lambda tier: tier["tier"] or "")
        assert (pros["tier"], pros["unlimited"], pros["limits"]) == ("pro", True, [])
        assert (others["tier"], others["unlimited"]) == (None, False)
        [limit] = others["limits"]
        assert limit["in_words"] == "5 per minute, token bucket, burst 9"
        assert (limit["quota"], limit["window_seconds"], limit["burst"], limit["calendar"]) == (5, 60, 9, None)

    def test_calendars_have_no_window(self, make_rule: MakeRule, as_staff: Client) -> None:
        calendar = {"quota": 5, "algorithm": "fixed_window", "window_seconds": None, "calendar": "month"}
        make_rule("one", {None: [calendar]})
        [limit] = as_staff.get("/limits/rules/one/").json()["tiers"][0]["limits"]
        assert (limit["window_seconds"], limit["calendar"]) == (None, "month")

    def test_by_mode(self, make_rule: MakeRule, as_staff: Client) -> None:
        for mode in ("off", "shadow", "enforce"):
            make_rule(f"is-{mode}", mode=mode)
        assert [rule["slug"] for rule in results(as_staff, "/limits/rules/", mode="shadow")] == ["is-shadow"]
        assert len(results(as_staff, "/limits/rules/")) == 3

    def test_pages(self, make_rule: MakeRule, as_staff: Client) -> None:
        for slug in ("one", "two", "three"):
            make_rule(slug)
        first = as_staff.get("/limits/rules/", {"page_size": 2}).json()
        assert (first["count"], [rule["slug"] for rule in first["results"]]) == (3, ["one", "three"])
        assert [rule["slug"] for rule in as_staff.get(first["next"]).json()["results"]] == ["two"]
        assert as_staff.get("/limits/rules/", {"page": 9}).status_code == 404

    @pytest.mark.parametrize("url", ["/limits/rules/{}/", "/limits/rules/{}/partitions/"])
    @pytest.mark.parametrize("slug", ["none", "a\0", "ü", "x" * 99])
    def test_a_rule_that_is_not_there(self, as_staff: Client, url: str, slug: str) -> None:
        response = as_staff.get(url.format(quote(slug)))
        assert (response.status_code, response.json()) == (404, {"detail": f"There is no rule “{slug}”."})


class TestUsage:
    def test_buckets_of_one_granularity(self, as_staff: Client) -> None:
        bucket(rule="b", allowed=1, granularity="hour")
        bucket(rule="a", tier="", allowed=3, rejected=2, degraded=1, granularity="hour", partitions=7)
        bucket(rule="a", tier="", allowed=3)
        bucket(timedelta(hours=30), granularity="hour")
        found = results(as_staff, "/limits/usage/")
        assert [(row["rule"], row["allowed"]) for row in found] == [("a", 3), ("b", 1)]
        assert (found[0]["tier"], found[0]["rejected"], found[0]["degraded"], found[0]["partitions"]) == ("", 2, 1, 7)
        [minute] = results(as_staff, "/limits/usage/", granularity="minute")
        assert (minute["granularity"], minute["partitions"]) == ("minute", None)
        assert len(results(as_staff, "/limits/usage/", period="7d", granularity="hour")) == 3

    def test_by_rule_and_tier(self, as_staff: Client) -> None:
        for rule, tier in (("a", "free"), ("a", ""), ("b", "free")):
            bucket(rule=rule, tier=tier, allowed=1)
        for url, more in (("/limits/usage/", {"granularity": "minute"}), ("/limits/usage/totals/", {})):

            def met(**query: str) -> list[tuple[str, str]]:
                return [(row["rule"], row["tier"]) for row in results(as_staff, url, **more, **query)]  # noqa: B023

            assert met(rule="a") == [("a", ""), ("a", "free")]
            assert met(tier="") == [("a", "")]
            assert met(rule="b", tier="free") == [("b", "free")]
            assert met(rule="none") == []

    def test_up_to_a_moment(self, as_staff: Client) -> None:
        kept = [bucket(timedelta(minutes=minutes)).start for minutes in (40, 30, 20, 10)]
        query = {"granularity": "minute", "period": "20m", "until": kept[2].isoformat()}
        assert [row["start"] for row in results(as_staff, "/limits/usage/", **query)] == [
            localtime(start).isoformat() for start in kept[:2]
        ]

    @pytest.mark.parametrize("until", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
    def test_the_ends_of_time(self, as_staff: Client, until: str) -> None:
        bucket()
        for url in ("/limits/usage/", "/limits/usage/totals/", "/limits/rules/gone/partitions/"):
            assert as_staff.get(url, {"until": until, "period": "366d"}).status_code in (200, 404)

    def test_wider_buckets_where_narrow_ones_are_deleted(self, as_staff: Client) -> None:
        now = timezone.now()
        for days, granularity in ((0, "minute"), (20, "hour"), (30, "hour"), (120, "day")):
            at = floor(now - timedelta(days=days), Granularity(granularity), timezone.get_default_timezone())
            UsageBucket.objects.create(rule_slug="rule", granularity=granularity, start=stored(at), allowed=days)
        for days, granularity in ((20, "hour"), (120, "day")):
            until = (now - timedelta(days=days) + timedelta(minutes=1)).isoformat()
            [row] = results(as_staff, "/limits/usage/", period="10m", until=until)
            assert (row["granularity"], row["allowed"]) == (granularity, days)
            assert results(as_staff, "/limits/usage/", period="10m", until=until, granularity="minute") == []

    def test_days_are_those_of_the_clock(self, as_staff: Client, settings: Any) -> None:
        settings.TIME_ZONE = "Europe/Berlin"
        for hour in (21, 22):
            start = stored(datetime(2025, 10, 25, hour, tzinfo=UTC))
            UsageBucket.objects.create(rule_slug="rule", granularity="hour", start=start)
        query = {"granularity": "hour", "period": "1d", "until": "2025-10-27T00:00:00"}  # the day had 25 hours
        assert [row["start"] for row in results(as_staff, "/limits/usage/", **query)] == ["2025-10-26T00:00:00+02:00"]

    def test_pages_follow_each_other_without_gap_or_overlap(self, as_staff: Client) -> None:
        for minutes in (7, 6, 5):
            for rule in ("a", "b", "c"):
                bucket(timedelta(minutes=minutes), rule=rule)
        url, seen = f"/limits/usage/?{urlencode({'granularity': 'minute', 'page_size': 2})}", []
        while url:
            page = as_staff.get(url).json()
            seen += [(row["start"], row["rule"]) for row in page["results"]]
            url = page["next"]
        assert len(seen) == 9
        assert seen == sorted(set(seen))

    def test_totals(self, as_staff: Client) -> None:
        bucket(allowed=6, rejected=3, shadow_rejected=1, soft_exceeded=2, degraded=4)
        bucket(timedelta(minutes=6), allowed=10)
        assert results(as_staff, "/limits/usage/totals/", period="1h") == [
            {"rule": "rule", "tier": "free", "allowed": 16, "rejected": 3, "shadow_rejected": 1, "soft_exceeded": 2,
             "degraded": 4, "rejection_rate": 0.15}
        ]  # fmt: skip


class TestPartitions:
    def top(self, *ago: int, granularity: str = "hour", **figures: Any) -> None:
        for hours in ago:
            TopPartition.objects.create(
                rule_slug="gone", granularity=granularity, start=moment(timedelta(hours=hours)), **figures
            )

    def test_the_top_callers_first(self, as_staff: Client) -> None:
        self.top(1, 2, partition="x", allowed=10, rejected=1)
        self.top(1, partition="y", allowed=15, rejected=5)
        self.top(1, partition="y", allowed=99, granularity="day")
        url = "/limits/rules/gone/partitions/"
        x = {"partition": "x", "allowed": 20, "rejected": 2, "estimated": False}
        y = {"partition": "y", "allowed": 15, "rejected": 5, "estimated": False}
        assert results(as_staff, url) == [{**x, "name": None}, {**y, "name": None}]
        assert results(as_staff, url, by="rejected") == [{**y, "name": None}, {**x, "name": None}]
        names.remember("x", "api_key", "a1" * 32)
        User.objects.get(username="staff").user_permissions.add(Permission.objects.get(codename="reveal_caller"))
        assert results(as_staff, url)[0]["name"] == {"kind": "api_key", "value": "a1" * 32}
        assert [row["partition"] for row in results(as_staff, url, period="30d")] == ["y"]

    @pytest.mark.parametrize(("days", "granularity"), [(0, "hour"), (120, "day")])
    def test_of_all_that_the_period_touches(self, as_staff: Client, days: int, granularity: str) -> None:
        at = timezone.now() - timedelta(days=days)
        start = floor(at, Granularity(granularity), timezone.get_default_timezone())
        UsageBucket.objects.create(rule_slug="gone", granularity=granularity, start=stored(start))
        TopPartition.objects.create(
            rule_slug="gone", granularity=granularity, start=stored(start), partition="x", allowed=5
        )
        query = {"period": "1m", "until": (start + timedelta(minutes=50)).isoformat()}
        assert [row["allowed"] for row in results(as_staff, "/limits/rules/gone/partitions/", **query)] == [5]

    def test_an_estimate_below_100_is_no_figure_and_comes_last(self, as_staff: Client) -> None:
        self.top(1, partition="few", allowed=96, estimated=True)
        self.top(1, partition="exact", allowed=3)
        exact, few = results(as_staff, "/limits/rules/gone/partitions/")
        assert (exact["allowed"], exact["estimated"], few["allowed"], few["estimated"]) == (3, False, None, True)


class TestTopCallers:
    def test_over_all_rules_with_names_for_who_may_see_them(self, as_staff: Client) -> None:
        for who, identity, allowed in (("x", "user", 10), ("y", "user", 30), ("z", "ip", 99)):
            at = {"granularity": "hour", "start": moment(timedelta(hours=1)), "allowed": allowed, "rejected": 5}
            TopCaller.objects.create(partition=who, identity=identity, **at)
        UsageBucket.objects.create(rule_slug="one", granularity="hour", start=at["start"], allowed=70)
        names.remember("y", "user", "42")
        url = "/limits/usage/top-callers/"
        y, x = results(as_staff, url)
        assert y == {
            "partition": "y", "name": None, "requests": 35, "allowed": 30, "rejected": 5, "share": 0.5,
            "requests_before": None, "estimated": False,
        }  # fmt: skip
        assert x["partition"] == "x"
        assert [row["partition"] for row in results(as_staff, url, identity="ip", by="rejected")] == ["z"]
        User.objects.get(username="staff").user_permissions.add(Permission.objects.get(codename="reveal_caller"))
        assert results(as_staff, url, page_size="1")[0]["name"] == {"kind": "user", "value": "42"}
        assert results(as_staff, url, period="last-month", until="2020-02-02") == []
        today = localtime().date().isoformat()
        assert results(as_staff, url, period="today", until=today) == results(as_staff, url, period="today")


class TestWrongQueries:
    @pytest.mark.parametrize(
        ("query", "name", "told"),
        [
            ({"period": "2w"}, "period", "Write a length such as 90m, 36h or 30d"),
            ({"period": "367d"}, "period", "at most 366d"),
            ({"period": "0h"}, "period", "Write a length"),
            ({"period": ""}, "period", "Write a length"),
            ({"period": "24h\n"}, "period", "Write a length"),
            ({"granularity": "week"}, "granularity", "not a valid choice"),
            ({"until": "yesterday"}, "until", "Datetime has wrong format"),
            ({"until": "0000-01-01"}, "until", "Datetime has wrong format"),
            ({"rule": ""}, "rule", "A slug has at most 50 letters"),
            ({"rule": "a\0"}, "rule", "Null characters are not allowed."),
            ({"tier": "x" * 51}, "tier", "A slug has at most 50 letters"),
            ({"page_size": "many"}, "page_size", "A valid integer is required."),
            ({"page_size": "1001"}, "page_size", "less than or equal to 1000"),
        ],
    )
    def test_say_what_is_wrong(self, as_staff: Client, query: dict[str, str], name: str, told: str) -> None:
        response = as_staff.get("/limits/usage/", query)
        assert (response.status_code, list(response.json())) == (400, [name])
        assert told.replace("“", '"').replace("”", '"') in response.json()[name][0]

    def test_an_identity_that_no_rule_can_count_by(self, as_staff: Client) -> None:
        url = "/limits/usage/top-callers/"
        [says] = as_staff.get(url, {"identity": "nope"}).json()["identity"]
        assert says.startswith("There is no identity “nope”. Write one of user, ip, api_key, session, host, ")
        at = moment(timedelta(days=900))
        TopCaller.objects.create(partition="x", identity="nope", granularity="day", start=at)  # removed from IDENTITIES
        for known in ("nope", "session", "header:X-Org"):
            assert as_staff.get(url, {"identity": known}).status_code == 200

    @pytest.mark.parametrize("url", ["/limits/rules/?mode=on", "/limits/rules/?page=0", "/limits/usage/totals/?rule="])
    def test_wherever_they_are_asked(self, as_staff: Client, url: str) -> None:
        assert as_staff.get(url).status_code == 400

    @pytest.mark.parametrize("position", ["never", "0001-01-01T00:00:00+14:00", "2025-02-30", ""])
    def test_a_cursor_that_nobody_gave(self, as_staff: Client, position: str) -> None:
        cursor = b64encode(urlencode({"p": position}, doseq=True).encode()).decode()
        assert as_staff.get("/limits/usage/", {"cursor": cursor}).status_code == 404


@pytest.mark.parametrize("url", ["rules/", "rules/one/", "rules/one/partitions/", "usage/", "usage/totals/"])
def test_a_fixed_number_of_queries(make_rule: MakeRule, as_staff: Client, url: str) -> None:
    def fill(number: int) -> None:
        slug = f"rule-{number}"
        make_rule(slug)
        bucket(granularity="hour", rule=slug, allowed=1)
        TopPartition.objects.create(
            rule_slug="one", granularity="hour", start=moment(timedelta(hours=1)), partition=slug
        )

    make_rule("one")
    fill(0)
    as_staff.get(f"/limits/{url}")
    with CaptureQueriesContext(connection) as few:
        as_staff.get(f"/limits/{url}")
    for number in range(1, 20):
        fill(number)
    as_staff.get(f"/limits/{url}")
    with CaptureQueriesContext(connection) as many:
        as_staff.get(f"/limits/{url}")
    assert len(many) == len(few) < 12


def test_limited_by_the_rules_of_its_scope(make_rule: MakeRule, as_staff: Client) -> None:
    make_rule("reports", {None: [{"quota": 2}]}, scope="ratelimit-reports", partition_by=["user"])
    assert [as_staff.get("/limits/usage/").status_code for _ in range(3)] == [200, 200, 429]


@override_settings(REST_FRAMEWORK={"DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning"})
def test_a_projects_versions_are_no_matter(as_staff: Client) -> None:
    assert as_staff.get("/limits/usage/").status_code == 200


@pytest.mark.parametrize("url", [*VIEWS, "/limits/me/", "/limits/usage/?period=2w"])
def test_read_in_a_browser(make_rule: MakeRule, as_staff: Client, url: str) -> None:
    make_rule("one")
    bucket(granularity="hour")
    response = as_staff.get(url, headers={"Accept": "text/html"})
    assert response["Content-Type"].startswith("text/html")
    assert response.status_code == (400 if "2w" in url else 200)
