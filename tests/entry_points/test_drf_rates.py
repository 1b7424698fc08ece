"""The rates of throttles in the place of REST framework's own: where they are written, and what they mean."""

from __future__ import annotations

from typing import ClassVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle

from django_ratelimiter.rules import inline
from django_ratelimiter.throttling import AnonRateThrottle

from .drf_views import factory, rates, statuses, view_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.drf_views")]


def test_rates_are_those_of_the_moment() -> None:
    view = view_of(AnonRateThrottle)
    assert statuses(view, 3) == [200] * 3
    with rates:
        assert statuses(view, 2) == [200, 429]
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"anon": "3/day"}}):
        assert statuses(view, 3) == [200, 200, 429]
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {}}), pytest.raises(ImproperlyConfigured):
        statuses(view, 1)


def test_rates_of_a_class_go_before_those_of_the_settings() -> None:
    class Rated(AnonRateThrottle):
        rate = "1/day"

    class Table(AnonRateThrottle):
        THROTTLE_RATES: ClassVar = {"anon": "4/day"}

    assert statuses(view_of(Rated), 2) == [200, 429]
    assert statuses(view_of(Table), 4) == [200, 200, 200, 429]  # one scope and one key: one count


def test_a_rate_of_zero_rejects_everybody(client: Client) -> None:
    class Rated(AnonRateThrottle):
        rate = "0/day"

    answer = view_of(Rated)(factory.get("/"))
    assert (answer.status_code, answer.headers.get("Retry-After")) == (429, None)


@pytest.mark.parametrize(
    ("rate", "parsed"),
    [
        ("10/min", (10, 60)),
        ("5/h", (5, 3_600)),
        ("1/day", (1, 86_400)),
        ("3/s", (3, 1)),
        ("3/sec", (3, 1)),
        ("3/seconds", (3, 1)),
        ("100/hour", (100, 3_600)),
        ("1_000/m", (1_000, 60)),
        ("0/minute", (0, 60)),
        (None, (None, None)),
    ],
)
def test_rates_mean_what_they_mean_to_the_framework(rate: str | None, parsed: tuple[int | None, int | None]) -> None:
    throttle = AnonRateThrottle()
    assert throttle.parse_rate(rate) == FrameworksThrottle.parse_rate(throttle, rate) == parsed


@pytest.mark.parametrize(
    "rate", ["10/month", "10/decade", "5/ms", "10", "ten/min", "10/min garbage", "10/", "/min", ""]
)
def test_what_would_be_misread_is_rejected(rate: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="is not a throttle rate"):
        AnonRateThrottle().parse_rate(rate)


def test_a_period_of_ones_own() -> None:
    class Rated(AnonRateThrottle):
        rate = "1/fortnight"

        def parse_rate(self, rate: str | None) -> tuple[int, int]:
            return 1, 14 * 86_400

    request = factory.get("/")
    view_of(Rated)(request)
    assert request.ratelimit.results[0].limit.window == 14 * 86_400


def test_what_cannot_be_enforced_says_why() -> None:
    class Rated(AnonRateThrottle):
        rate = "99999999999999999999/day"

    with pytest.raises(ImproperlyConfigured, match=r"Rated: '9+/day' cannot be enforced: quota"):
        statuses(view_of(Rated), 1)


def test_slugs_fit_where_slugs_of_rules_do() -> None:
    assert inline.slug_of("shop.views.order") == "code:shop.views.order"
    long = [inline.slug_of(f"{'package.' * number}view") for number in (9, 10)]
    assert len(set(long)) == 2
    assert all(len(slug) == 50 and slug.startswith("code:") for slug in long)
    assert inline.slug_of("f.<locals>.view") != inline.slug_of("f.-locals-.view")
