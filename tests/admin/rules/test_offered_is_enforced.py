"""What the admin offers is what is enforced: from the form through the middleware to the 429, on the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

import pytest

from django_ratelimiter.admin.rules.forms import SingleLimitForm
from django_ratelimiter.engine import Algorithm
from django_ratelimiter.models import RuleLimit
from django_ratelimiter.models.options import NOT_GIVEN, columns_used

from .stories import MINUTE, STORIES, Step, Story, play
from .visitor import PATH, Visitor

pytestmark = pytest.mark.urls("tests.entry_points.urls")

FIELDS = SingleLimitForm().fields


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_what_is_saved_is_what_happens(visitor: Visitor, save: Callable[..., RuleLimit], story: Story) -> None:
    limit = save(story.columns)
    assert play(story, visitor.ask, visitor.close) == story.steps
    [result] = visitor.latest.wsgi_request.ratelimit.results
    assert (result.limit, result.limit.algorithm) == (limit.to_limit(), story.columns["algorithm"])
    quota, rest = _shown(limit)
    assert visitor.latest["RateLimit-Policy"] == f'"export";q={quota}{rest}'
    assert visitor.latest["X-RateLimit-Limit"] == str(quota)


def _shown(limit: RuleLimit) -> tuple[int, str]:
    """Return the quota that clients are shown, and what follows it in the policy. All stories allow 5 in 60 seconds."""
    if limit.algorithm == Algorithm.CONCURRENCY:
        return 5, ';qu="concurrent-requests"'
    if limit.calendar:
        return 5, ""
    capacity = limit.burst or 5
    windows = ceil(capacity / 5) if limit.refill == "interval" else capacity / 5
    return capacity, f";w={ceil(60 * windows)}"


def test_every_offer_has_a_story() -> None:
    tried = {
        (story.columns["algorithm"], column, str(story.columns.get(column, absent)) if _chosen(column) else "a value")
        for story in STORIES
        for column, absent in NOT_GIVEN.items()
        if _chosen(column) or column in story.columns
    }
    assert set(_offers()) <= tried


def _chosen(column: str) -> bool:
    return hasattr(FIELDS[column], "choices")


def _offers() -> Iterator[tuple[str, str, str]]:
    """Algorithm, column and value, for all that the form shows with it."""
    calendars = [value for value, _label in FIELDS["calendar"].choices]
    for algorithm, _label in FIELDS["algorithm"].choices:
        for column in set().union(*(columns_used(algorithm, calendar) for calendar in calendars)):
            values = [value for value, _label in FIELDS[column].choices] if _chosen(column) else ["a value"]
            yield from ((algorithm, column, value) for value in values)


@pytest.mark.parametrize(("counts", "remaining"), [("", "1"), ("on", "0")])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_rejections_count_where_the_box_is_ticked(
    visitor: Visitor, save: Callable[..., RuleLimit], algorithm: str, counts: str, remaining: str
) -> None:
    save({**MINUTE, "algorithm": algorithm, "max_delay_ms": 60_000}, cost="2", count_refusals=counts)
    assert [visitor.ask(Step(0, 0, 0).at_us).allowed for _ in range(2)] == [True, True]
    rejected = visitor.client.get(PATH), visitor.client.get(PATH)
    assert [response.status_code for response in rejected] == [429, 429]
    assert rejected[1]["X-RateLimit-Remaining"] == remaining


@pytest.mark.parametrize(("charged", "admitted"), [("any", 5), ("success", 5), ("failure", 8)])
def test_what_was_spent_is_kept_as_the_response_says(
    visitor: Visitor, save: Callable[..., RuleLimit], charged: str, admitted: int
) -> None:
    save(MINUTE, cost="1", charge_when=charged)
    answers = []
    for _ in range(8):
        answers.append(visitor.ask(Step(0, 0, 0).at_us).allowed)
        visitor.close(visitor.engine.now_us, len(visitor.open))
    assert answers == [True] * admitted + [False] * (8 - admitted)


def test_unlimited_is_not_limited(visitor: Visitor, save: Callable[..., RuleLimit]) -> None:
    save({"unlimited": "on"})
    responses = [visitor.client.get(PATH) for _ in range(20)]
    assert {response.status_code for response in responses} == {200}
    assert "RateLimit" not in responses[0]
