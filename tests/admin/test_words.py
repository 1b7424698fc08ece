"""Rules in plain words; moments in one format, and near ones by how far away they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import translation

from django_ratelimiter.admin.formatting import IDENTITY_LABELS, breakable, place_in_words
from django_ratelimiter.engine.limits import OPTIONS, Limit
from django_ratelimiter.models import Rule
from django_ratelimiter.rules import formatting
from django_ratelimiter.rules.formatting import limit_in_words, moment_in_words, until_in_words
from django_ratelimiter.rules.records import LimitRecord
from django_ratelimiter.values.partitions import IDENTITIES


def test_a_line_may_end_behind_each_slash_within_a_path() -> None:
    assert breakable("GET · /accounts/login/ <b>") == "GET · /accounts/<wbr>login/ &lt;b&gt;"


def test_every_identity_has_a_label() -> None:
    assert tuple(IDENTITY_LABELS) == IDENTITIES


class TestWords:
    @pytest.mark.parametrize(
        ("limit", "words"),
        [
            (Limit(100, 60), "100 per minute, sliding window"),
            (Limit(1, 1, "fixed_window"), "1 per second, fixed window"),
            (Limit(10_000, 86_400), "10,000 per day, sliding window"),
            (Limit(5, 90), "5 per 90 seconds, sliding window"),
            (Limit(5, 1_209_600), "5 per 2 weeks, sliding window"),
            (Limit(5, Decimal("0.25")), "5 per 0.25 seconds, sliding window"),
            (Limit(10, 60, "token_bucket", burst=20), "10 per minute, token bucket, burst 20"),
            (Limit(10, 3_600, soft_quota=8), "10 per hour, sliding window, soft quota 8"),
            (Limit(10, 60, "sliding_window_log"), "10 per minute, sliding window, exact"),
            (Limit(10, 60, "sliding_window_slots"), "10 per minute, sliding window, 10 slots"),
            (Limit(10, 60, "sliding_window_slots", slots=6), "10 per minute, sliding window, 6 slots"),
            (
                Limit(10, 60, "fixed_window", anchor="first_request"),
                "10 per minute, fixed window, from the first request",
            ),
            (
                Limit(100, None, "fixed_window", calendar="month", timezone="Europe/Berlin", anchor_day=31),
                "100 per calendar month in Europe/Berlin, from day 31",
            ),
            (Limit(100, None, "fixed_window", calendar="week"), "100 per calendar week in UTC"),
            (
                Limit(10, 60, "token_bucket", refill="interval", burst=20),
                "10 per minute, token bucket, refilled all at once, burst 20",
            ),
            (Limit(10, 60, "gcra"), "10 per minute, GCRA"),
            (Limit(10, 60, "leaky_bucket", burst=5), "10 per minute, leaky bucket, burst 5"),
            (Limit(10, 60, "concurrency", soft_quota=8), "10 at once, each for a minute at most, soft quota 8"),
        ],
    )
    def test_limits(self, limit: Limit, words: str) -> None:
        assert limit_in_words(LimitRecord(limit)) == words

    def test_how_long_a_worker_may_sleep(self) -> None:
        record = LimitRecord(Limit(10, 60, "leaky_bucket"), max_delay=1.5)
        assert limit_in_words(record) == "10 per minute, leaky bucket, held for 1.5 seconds at most"

    def test_an_option_without_words_is_told_by_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(formatting, "OPTIONS", {**OPTIONS, "grace": None})
        limit = Limit(10, 60, "gcra", burst=20)
        limit.__dict__["grace"] = 7
        assert limit_in_words(LimitRecord(limit)) == "10 per minute, GCRA, burst 20, grace 7"

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({}, "every request"),
            ({"methods": ["GET", "POST"], "path": "/a/", "path_kind": "exact"}, "GET, POST · /a/"),
            ({"path": "/a/%s", "path_kind": "prefix"}, "/a/%s…"),
            ({"path": "a/<int:pk>/", "path_kind": "route", "scope": "big"}, "route a/<int:pk>/ · scope big"),
            ({"view_name": "api:export"}, "view api:export"),
            ({"methods": {"GET": 1}, "path_kind": "glob"}, "every request"),
        ],
    )
    def test_places(self, values: dict[str, Any], words: str) -> None:
        assert place_in_words(Rule(**values)) == words


NOW = datetime(2026, 11, 22, 22, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (timedelta(seconds=36.5), "Nov. 22, 2026, 4:31 p.m. CST (in 37 seconds)"),
        (timedelta(seconds=48), "Nov. 22, 2026, 4:31 p.m. CST (in 48 seconds)"),
        (timedelta(seconds=60), "Nov. 22, 2026, 4:32 p.m. CST (in a minute)"),
        (timedelta(hours=2), "Nov. 22, 2026, 6:31 p.m. CST"),
        (timedelta(seconds=-1), "Nov. 22, 2026, 4:31 p.m. CST"),
    ],
)
def test_an_end_is_never_told_too_early(after: timedelta, text: str) -> None:
    assert until_in_words(NOW + after, NOW) == text


def test_in_the_readers_language() -> None:
    with translation.override("de"):
        assert moment_in_words(NOW) == "22. November 2026 16:30"


def test_without_time_zones_of_django(settings: Any) -> None:
    """Moments of counters have a zone all the same."""
    settings.USE_TZ = False
    assert "(in" in until_in_words(datetime.now(UTC) + timedelta(seconds=30))
    assert "(in" in until_in_words(datetime.now() + timedelta(seconds=30))  # noqa: DTZ005  as Django has it then
