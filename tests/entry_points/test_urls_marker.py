"""The marker `urls` of pytest-django: each test's exempt paths are those of its own addresses."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from django_ratelimiter.middleware import exemption


@pytest.mark.parametrize(
    "expected", [pytest.param("", marks=pytest.mark.urls("tests.entry_points.drf_views")), pytest.param("exempt")]
)
def test_the_admin_is_exempt_where_there_is_one(expected: str) -> None:
    """In whatever order these two run: without care, the second finds the paths of the first."""
    assert exemption(RequestFactory().get("/admin/")) == expected
