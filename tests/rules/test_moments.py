"""Moments are told in one format, and near ones by how far away they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import translation

from django_ratelimiter.rules.formatting import moment_in_words, until_in_words

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
