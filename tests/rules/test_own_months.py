"""Months that begin on a caller's own day: by an assignment, by the project's code, and everywhere the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client

from django_ratelimiter import backend, limiter
from django_ratelimiter.engine import Limit, MemoryEngine
from django_ratelimiter.engine.calendars import Anchor
from django_ratelimiter.explain import Question, explain
from django_ratelimiter.headers.syntax import name_of
from django_ratelimiter.models import RuleSetState, Tier, TierAssignment
from django_ratelimiter.plans import CallerIdentity, Plan
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.tiers import NO_PLAN, assigned, granted
from tests.reference import calendar_window

from ..limiter.test_limiter import Broken
from ..making import Clock, client_of, make_rule, manage, request_of
from .build import limit_data, rule_data, snapshot

MONTH = {"window_seconds": None, "calendar": "month"}

RULES = RuleSet.from_snapshot(
    snapshot(
        rule_data(
            "calls",
            partition_by=["user"],
            limits=[
                limit_data(quota=50),
                limit_data(quota=300, **MONTH),
                limit_data(quota=200, anchor_day=15, timezone="Europe/Berlin", **MONTH),
                limit_data(quota=40, window_seconds=None, calendar="day"),
            ],
        ),
        rule_data("all", limits=[limit_data(**MONTH)]),
        rule_data("minutes", partition_by=["user"]),
        tiers=tuple(
            {"slug": slug, "name": slug, "rank": rank, "default_for": "none"}
            for rank, slug in enumerate(("free", "pro"))
        ),
    )
)
CALLS, ALL, MINUTES = sorted(RULES.rules, key=lambda rule: ["calls", "all", "minutes"].index(rule.slug))

NOW = datetime(2026, 11, 27, tzinfo=UTC)


class TestEntitlement:
    @pytest.mark.parametrize(
        ("rows", "plan", "expected"),
        [
            ([], NO_PLAN, None),
            ([], ("pro", None), None),
            ([], ("pro", Anchor(31, "Asia/Tokyo", time(6))), Anchor(31, "Asia/Tokyo", time(6))),
            ([("pro", None, 15)], NO_PLAN, Anchor(15)),
            ([("pro", None, None)], NO_PLAN, None),
            ([("gone", None, 15)], NO_PLAN, None),
            ([(None, None, 15), ("pro", None, None)], NO_PLAN, Anchor(15)),  # without a tier
            ([("pro", None, None)], ("free", Anchor(31)), Anchor(31)),
            ([("pro", None, 15)], ("free", Anchor(31, "Asia/Tokyo")), Anchor(15, "Asia/Tokyo")),
            ([("free", None, 3), ("pro", None, 15)], NO_PLAN, Anchor(15)),  # the higher rank
            ([("pro", None, 15), ("free", NOW, 3)], NO_PLAN, Anchor(3)),  # the one with dates
            ([("pro", None, 15), ("free", NOW, None)], NO_PLAN, Anchor(15)),  # "double until Friday" moves nothing
        ],
    )
    def test_when_the_months_begin(self, rows: Sequence[Any], plan: Any, expected: Anchor | None) -> None:
        found = [assigned(slug, at, None, Decimal(2), number, day) for number, (slug, at, day) in enumerate(rows)]
        assert granted(RULES, found, plan, is_anonymous=False).anchor == expected


class TestLimits:
    def test_months_begin_when_the_callers_do_and_the_lowest_of_them_remains(self) -> None:
        own = Anchor(3, "Asia/Tokyo", time(9))
        found = [record.limit for record in CALLS.limits_for(None, Decimal(2), own)]
        assert found == [
            Limit(100, 60, "fixed_window"),
            Limit(400, algorithm="fixed_window", calendar="month", timezone="Asia/Tokyo", anchor_day=3,
                  anchor_time=time(9)),
            Limit(80, algorithm="fixed_window", calendar="day"),
        ]  # fmt: skip
        reverse = replace(CALLS, limits={None: CALLS.limits[None][::-1]})
        assert [record.limit for record in reverse.limits_for(None, Decimal(2), own)] == found[::-1]
        assert [CALLS.has_months, ALL.has_months, MINUTES.has_months] == [True, False, False]
        assert ALL.limits_for(None, Decimal(2), own) == ALL.limits_for(None)
        assert MINUTES.limits_for(None, Decimal(1), own) == MINUTES.limits_for(None)

    def test_callers_see_one_name(self) -> None:
        rule = RuleSet.from_snapshot(
            snapshot(rule_data("calls", partition_by=["user"], limits=[limit_data(), limit_data(**MONTH)]))
        ).rules[0]
        names = [
            [name_of(rule, None, record.limit) for record in rule.limits_for(None, Decimal(1), own)]
            for own in (None, Anchor(15), Anchor(31, "Asia/Tokyo", time(9)))
        ]
        assert names == [["calls", "calls-month"]] * 3

    def test_a_counter_is_known_by_its_limit(self) -> None:
        _minute, month, *_ = [record.limit for record in CALLS.limits_for(None)]
        for own in (month, month.anchored(Anchor(31, "Asia/Tokyo", time(9)))):
            assert month.is_counted_in(f"calls:{'d' * 22}:2{own.tag}")
        assert not month.is_counted_in(f"calls:{'d' * 22}:fd")


def plan_of(identity: CallerIdentity) -> Any:
    return Plan(None, 15, "Asia/Tokyo", time(9)) if identity.user and identity.user.username == "ann" else None


def monthly(slug: str = "calls", quota: int = 300, **fields: Any) -> Any:
    return make_rule(slug, quota, algorithm="fixed_window", limit=MONTH, **{"partition_by": ["user"]} | fields)


@pytest.fixture
def ann() -> User:
    return User.objects.create(username="ann")


@pytest.fixture
def free() -> Tier:
    with cache.editing():
        return Tier.objects.create(slug="free", name="Free", default_for="authenticated")


@pytest.mark.django_db(transaction=True)
def test_rules_without_months_have_one_template_for_all(ann: User, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "TIER_RESOLVER": f"{__name__}.plan_of"}
    make_rule("minutes", partition_by=["user"])
    for user in (ann, User.objects.create(username="bob")):
        limiter.check(request_of(user))
    assert len(cache.current_rules().kept) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.api.urls")
class TestEverywhere:
    @pytest.fixture(params=["assignment", "resolver"])
    def own(self, request: pytest.FixtureRequest, ann: User, free: Tier, settings: Any) -> Anchor:
        """When ann's months begin."""
        monthly(path_kind="prefix", path="/hello/")
        if request.param == "resolver":
            settings.RATELIMITER = {**settings.RATELIMITER, "TIER_RESOLVER": f"{__name__}.plan_of"}
            return Anchor(15, "Asia/Tokyo", time(9))
        TierAssignment.objects.create(tier=free, user=ann, anchor_day=15)
        return Anchor(15)

    @pytest.fixture(autouse=True)
    def _no_rules_in_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_ratelimiter.rules.inline._registered", {})

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(backend, "_engine", MemoryEngine(clock))
        RuleSetState.objects.update(published=False)
        return clock

    def test_the_same_end_is_told(self, own: Anchor, ann: User, clock: Clock) -> None:
        bob, client = User.objects.create(username="bob"), Client()
        month = Limit(300, algorithm="fixed_window", calendar="month")
        for user, limit in ((ann, month.anchored(own)), (bob, month)):
            end = calendar_window(limit, clock.now_us)[1]
            client.force_login(user)
            response = client.get("/hello/")
            after = (end - clock.now_us) // 1_000_000
            assert response["RateLimit"] == f'"calls";r=299;t={after}'
            assert response["RateLimit-Policy"] == '"calls";q=300'
            assert response["X-RateLimit-Reset"] == str(end // 1_000_000)
            [told] = client.get("/limits/me/").json()["limits"]
            words = {Anchor(15): ", from day 15", None: ""}.get(own if user is ann else None, ", from day 15, 09:00")
            assert told["in_words"].endswith(words), told
            assert (told["remaining"], told["resets_in"], told["window_seconds"]) == (299, after, None)
            moment = datetime.fromtimestamp(end / 1_000_000, UTC)
            assert datetime.fromisoformat(told["resets_at"]) == moment
            [rule] = explain(Question(path="/hello/", user=user.username)).rules
            assert [each.verdict.reset_after for each in rule.counters] == [after]
            report = json.loads(manage("caller", "--user", user.username, "--json"))
            [counter] = report["counters"]
            assert (counter["used"], datetime.fromisoformat(counter["full_at"])) == (1, moment)
            zone, begins_at = (own.timezone or "", "09:00" if own.starts_at else "") if user is ann else ("", "")
            assert [report["tier"][name] for name in ("anchor_day", "timezone", "anchor_time")] == [
                15 if user is ann else None, zone, begins_at
            ]  # fmt: skip

    def test_a_reset_and_an_outage_are_of_the_same_month(
        self, own: Anchor, ann: User, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = client_of(ann)
        assert client.get("/hello/")["X-RateLimit-Remaining"] == "299"
        assert limiter.reset(user=ann) == ["calls"]
        assert client.get("/hello/")["X-RateLimit-Remaining"] == "299"
        called: list[Limit] = []
        monkeypatch.setattr(Limit, "scaled", lambda limit, *given, **options: called.append(limit) or limit)
        monkeypatch.setattr(backend, "_engine", Broken())
        client.get("/hello/")
        assert [Anchor(each.anchor_day, each.timezone, each.anchor_time) for each in called[:1]] == [own]

    @pytest.mark.parametrize("sync_interval_ms", [0, 60_000, -1])
    def test_redis_and_counts_of_a_process(self, ann: User, free: Tier, sync_interval_ms: int) -> None:
        monthly(path_kind="prefix", path="/hello/", sync_interval_ms=sync_interval_ms)
        today = datetime.now(UTC)
        own = Anchor((today + timedelta(days=9)).day)
        TierAssignment.objects.create(tier=free, user=ann, anchor_day=own.day)
        client = client_of(ann)
        month = Limit(300, algorithm="fixed_window", calendar="month").anchored(own)
        end = calendar_window(month, int(today.timestamp() * 1_000_000))[1] // 1_000_000
        for used in (1, 2, 3):
            response = client.get("/hello/")
            assert response["X-RateLimit-Remaining"] == str(300 - used)
            assert response["X-RateLimit-Reset"] == str(end)

    def test_another_day_begins_a_new_counter_and_the_old_one_is_kept(
        self, ann: User, free: Tier, clock: Clock
    ) -> None:
        monthly(path_kind="prefix", path="/hello/")
        assignment = TierAssignment.objects.create(tier=free, user=ann, anchor_day=15)
        client = client_of(ann)
        left = []
        for day in (15, 20, None, 15):
            TierAssignment.objects.filter(pk=assignment.pk).update(anchor_day=day)
            tiers.forget()
            left.append(client.get("/hello/")["X-RateLimit-Remaining"])
        assert left == ["299", "299", "299", "298"]


@pytest.mark.django_db
class TestAssignments:
    @pytest.mark.parametrize("day", [0, 32, -1])
    def test_days_are_from_1_to_31(self, ann: User, day: int) -> None:
        assignment = TierAssignment(tier=Tier.objects.create(slug="t", name="T"), user=ann, anchor_day=day)
        with pytest.raises(ValidationError, match="anchor_day"):
            assignment.full_clean()
        with pytest.raises(IntegrityError), transaction.atomic():
            assignment.save()
