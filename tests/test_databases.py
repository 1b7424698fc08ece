"""Differences between databases change no result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, models, transaction
from django.test import Client

from django_ratelimiter.databases import compares_bytes, spelled
from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.models import Rule, RuleSetVersion, Tier, TopPartition, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
from django_ratelimiter.usage.collector import collect as collecting

from .making import make_rule


def elsewhere(edit: Callable[[], object]) -> None:
    """Do this in another thread, with a connection of its own, and wait for it."""

    def work() -> None:
        try:
            edit()
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def repeatable_read(transactional_db: None) -> Iterator[None]:
    """Transactions read what was there when they began, as MySQL's and MariaDB's own default has it."""
    if connection.vendor == "sqlite":
        pytest.skip("has no such level")
    level: Any = "repeatable read"
    if connection.vendor == "postgresql":
        from psycopg import IsolationLevel

        level = IsolationLevel.REPEATABLE_READ
    options = connection.settings_dict.setdefault("OPTIONS", {})
    options["isolation_level"] = level
    connection.close()
    yield
    del options["isolation_level"]
    connection.close()


@pytest.fixture
def rule(transactional_db: None) -> Rule:
    return make_rule("hello", 100, algorithm="sliding_window_counter", path="/hello/", path_kind="exact")


@pytest.mark.usefixtures("repeatable_read")
def test_stale_rules_are_renewed_within_an_older_transaction(rule: Rule, client: Client) -> None:
    assert client.get("/hello/").status_code == 200
    epoch = storage.committed_version().epoch
    with transaction.atomic():
        assert not User.objects.exists()  # from here on it sees what was there now
        elsewhere(lambda: (rule.limits.update(quota=1), cache.invalidate()))
        assert client.get("/hello/").status_code == 429
    assert storage.committed_version().epoch == epoch
    assert cache.current_rules().version == storage.committed_version()


@pytest.fixture
def snapshots_unknown_to_django(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Transactions see what was there when they first read, and Django's settings do not say so."""
    asking = {
        "sqlite": ("PRAGMA journal_mode=WAL", "PRAGMA journal_mode=DELETE"),
        "postgresql": (
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
        ),
    }.get(connection.vendor)
    if asking is None:
        pytest.skip("reads so by its own default, which is known")
    with connection.cursor() as cursor:
        cursor.execute(asking[0])
    if connection.vendor == "sqlite":
        monkeypatch.setattr(connection, "transaction_mode", None)
    yield
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute(asking[1])


@pytest.mark.usefixtures("snapshots_unknown_to_django")
def test_rules_are_renewed_where_only_the_server_knows_how_transactions_read(rule: Rule, client: Client) -> None:
    test_stale_rules_are_renewed_within_an_older_transaction(rule, client)


@pytest.mark.usefixtures("repeatable_read")
def test_an_edit_in_an_older_transaction_loses_nothing(rule: Rule) -> None:
    if connection.vendor == "postgresql" or (connection.mysql_is_mariadb and connection.mysql_version >= (11, 6, 2)):
        pytest.skip("rejects such an edit")
    with transaction.atomic():
        assert Rule.objects.count() == 1
        elsewhere(lambda: Rule.objects.create(slug="other", name="Other"))
        with cache.editing():
            rule.priority = 7
            rule.save()
    latest = RuleSetVersion.objects.latest("epoch", "number").snapshot
    assert sorted(each["slug"] for each in latest["rules"]) == ["hello", "other"]
    assert {each["slug"]: each["priority"] for each in latest["rules"]}["hello"] == 7


@pytest.mark.django_db
def test_texts_that_differ_in_case_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine()
    monkeypatch.setattr(collecting, "get_engine", lambda: engine)
    limit = Limit(100, 86_400, "fixed_window")
    now_us = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp()) * 1_000_000
    for label, caller in (("Api|", "aB"), ("Api|", "Ab"), ("api|", "ab"), ("äpi|", "ab")):
        charge = Charge(f"{label}:{caller}", limit, usage=label, partition=caller)
        engine.check([charge], now_us=now_us)
    assert collecting.collect().requests == 4
    hours = UsageBucket.objects.filter(granularity="hour").order_by("pk").values_list("rule_slug", "allowed")
    assert sorted(hours) == [("Api", 2), ("api", 1), ("äpi", 1)]
    tops = TopPartition.objects.filter(granularity="hour").values_list("rule_slug", "partition", "allowed")
    assert sorted(tops) == [("Api", "Ab", 1), ("Api", "aB", 1), ("api", "ab", 1), ("äpi", "ab", 1)]
    for slug in ("Same", "same"):
        Rule.objects.create(slug=slug, name=slug)


@pytest.mark.django_db
@pytest.mark.skipif("connection.features.supports_partial_indexes", reason="the database rejects the second")
def test_of_two_default_tiers_the_one_of_higher_rank_counts(caplog: pytest.LogCaptureFixture) -> None:
    for slug, rank in (("one", 1), ("three", 3), ("two", 2)):
        Tier.objects.create(slug=slug, name=slug, rank=rank, default_for="anonymous")
    snapshot = snapshot_of_rows()
    assert [tier["default_for"] for tier in snapshot["tiers"]] == ["none", "none", "anonymous"]
    tier = RuleSet.from_snapshot(snapshot).default_tiers.get("anonymous")
    assert tier is not None
    assert tier.slug == "three"
    told = "Tiers one, two, three are all the default for anonymous callers; only three, of the highest rank, is used."
    assert told in caplog.messages


@pytest.mark.parametrize(
    ("field", "vendor", "expected"),
    [
        (models.BigAutoField(), "mysql", True),
        (models.UUIDField(), "mysql", True),
        (models.CharField(), "mysql", False),
        (models.EmailField(), "mysql", False),
        (models.CharField(), "postgresql", True),
        (models.CharField(db_collation="NOCASE"), "sqlite", False),
    ],
)
def test_whether_two_primary_keys_may_be_one(
    monkeypatch: pytest.MonkeyPatch, field: Any, vendor: str, expected: bool
) -> None:
    monkeypatch.setattr(connections["default"], "vendor", vendor)
    assert compares_bytes(field, "default") is expected


#: Spellings of one name, in the eyes of some database: case, accents, invisible characters, digits, letters alike.
SPELLINGS = ["JOSS7", "jóss7", "jo\u0301ss7", "joß7", "jo\u200bss7", "joss\u0667", "joss7 ", "\uff4aoss7", "jo\u017fs7"]


@pytest.mark.django_db
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_who_is_one_account_in_the_database_is_one_value(spelling: str) -> None:
    """On MariaDB and MySQL more spellings find the account than elsewhere."""
    User.objects.create(username="joss7")
    if User.objects.filter(username=spelling).exists() or spelling.strip().lower() == "joss7":
        assert spelled("field:username", spelling) == spelled("field:username", "joss7")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_where_log_in_names_are_compared_loosely_so_are_fields(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.setattr(User.username.field, "db_collation", "loose")
    assert spelled("field:username", spelling) == spelled("field:username", "joss7")
    assert spelled("header:X-User", spelling) == spelling.strip()
