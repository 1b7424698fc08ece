"""The checks that the tables of this app exist, and only once."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.db import OperationalError

from django_ratelimiter import checks
from django_ratelimiter.rules.stored import tables

from .test_checks import ids

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_table_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_seen", set())


@pytest.fixture
def _without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_has_table", lambda *table: False)


@pytest.mark.usefixtures("_without_tables")
def test_missing_tables() -> None:
    [message] = checks.check_tables()
    assert ids([message]) == ["W016"]
    assert "migrate" in str(message.hint)


def test_with_tables() -> None:
    assert checks.check_tables() == []


@pytest.mark.usefixtures("_without_tables")
def test_the_command_that_makes_them_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "migrate"])
    assert checks.check_tables() == []


def test_a_database_that_is_down_is_not_one_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OperationalError("no such host")

    monkeypatch.setattr(tables, "_has_table", fail)
    assert checks.check_tables() == []


@pytest.mark.parametrize("name", ["django_ratelimiter", "django_ratelimiter.apps.DjangoRatelimiterConfig"])
def test_tables_of_each_tenant(name: str, settings: Any) -> None:
    assert checks.check_tenants() == []
    settings.TENANT_APPS = ["django.contrib.auth", name]
    assert ids(checks.check_tenants()) == ["E011"]
