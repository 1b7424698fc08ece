"""Tiers, assignments, access entries, versions and counts: what the database and the forms reject."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, connection, transaction

from django_ratelimiter.models import (
    AccessEntry,
    RuleSetState,
    RuleSetVersion,
    Tier,
    TierAssignment,
    UsageBucket,
)
from django_ratelimiter.values import access

from .rejections import assert_database_rejects, rejected

pytestmark = pytest.mark.django_db

HASH = "ab" * 32
FRIDAY = datetime(2026, 11, 27, tzinfo=UTC)


class TestState:
    @pytest.fixture(autouse=True)
    def _migrated(self) -> None:
        """Make the row as the migration does: an earlier test may have flushed it away."""
        RuleSetState.objects.all().delete()
        migration = import_module("django_ratelimiter.migrations.0001_initial")
        migration.create_state(apps, Mock(connection=connection))  # all it asks of a schema editor

    def test_migration_makes_the_one_row(self) -> None:
        state = RuleSetState.objects.get()
        assert (state.pk, state.number) == (1, 0)
        assert 1_700_000_000_000 < state.epoch < 10_000_000_000_000  # Unix milliseconds

    def test_there_is_no_second_row(self) -> None:
        assert_database_rejects("ratelimiter_state_one_row", RuleSetState(id=2, epoch=1))
        with pytest.raises(IntegrityError), transaction.atomic():
            RuleSetState.objects.create(epoch=1)

    def test_a_number_is_given_once_per_epoch(self) -> None:
        RuleSetVersion.objects.create(number=7, epoch=1, snapshot={})
        RuleSetVersion.objects.create(number=7, epoch=2, snapshot={})
        assert_database_rejects("ratelimiter_version_number", RuleSetVersion(number=7, epoch=1, snapshot={}))


class TestTier:
    @pytest.mark.parametrize("kind", ["anonymous", "authenticated"])
    def test_one_default_each(self, kind: str) -> None:
        Tier.objects.create(slug="first", name="First", default_for=kind)
        second = Tier(slug="second", name="Second", default_for=kind)
        assert rejected(second) == {"__all__": ["Another tier is already the default for these callers."]}
        assert_database_rejects("ratelimiter_tier_one_default", second)


class TestAssignment:
    @pytest.mark.parametrize(
        "chosen",
        [(), ("user", "group"), ("user", "api_key_hash"), ("user", "group", "api_key_hash"), ("group", "partition")],
    )
    def test_exactly_one_subject(self, tier: Tier, chosen: tuple[str, ...]) -> None:
        subjects = {
            "user": User.objects.create(username="ada"),
            "group": Group.objects.create(name="staff"),
            "api_key_hash": HASH,
            "partition": "ip:192.0.2.7",
        }
        row = TierAssignment(tier=tier, **{name: subjects[name] for name in chosen})
        assert rejected(row) == {"__all__": ["Choose exactly one of user, group, API key and partition."]}
        assert_database_rejects("ratelimiter_assignment_one_subject", row)

    def test_a_subject_is_in_a_tier_once(self, tier: Tier) -> None:
        other = Tier.objects.create(slug="pro", name="Pro")
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        subjects: list[dict[str, Any]] = [
            {"user": user},
            {"group": group},
            {"api_key_hash": HASH},
            {"partition": "ip:192.0.2.7"},
        ]
        for subject in subjects:
            TierAssignment.objects.create(tier=tier, **subject)
            TierAssignment.objects.create(tier=other, **subject)
            for ends_at in (datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)):
                TierAssignment.objects.create(tier=tier, ends_at=ends_at, **subject)
        for subject in subjects:
            row = TierAssignment(tier=tier, **subject)
            assert "already" in rejected(row)["__all__"][0]
            assert_database_rejects("ratelimiter_assignment_(user|group|api_key|partition)", row)

    @pytest.mark.parametrize(
        ("values", "field", "constraint"),
        [
            ({"multiplier": Decimal(0)}, "multiplier", "multiplier"),
            ({"multiplier": Decimal(-1)}, "multiplier", "multiplier"),
            ({"starts_at": FRIDAY, "ends_at": FRIDAY}, "__all__", "dates"),
        ],
    )
    def test_grants_something_for_some_time(
        self, tier: Tier, values: dict[str, Any], field: str, constraint: str
    ) -> None:
        row = TierAssignment(tier=tier, api_key_hash=HASH, **values)
        assert field in rejected(row)
        assert_database_rejects(f"ratelimiter_assignment_{constraint}", row)

    @pytest.mark.parametrize(
        ("typed", "kept"),
        [
            ("ip:192.0.2.7", "ip:192.0.2.7"),
            ("ip:192.0.2.7/24", "ip:192.0.2.0/24"),
            ("ip:::ffff:192.0.2.7", "ip:192.0.2.7"),
            ("ip:2001:DB8:0::/48", "ip:2001:db8::/48"),
            ("user:7|ip:192.0.2.7", "user:7|ip:192.0.2.7"),
            ("user:a%7Cb", "user:a%7Cb"),
            ("user:Ann|field:email: Ann@example.org", "user:Ann|field:email:ann@example.org"),
        ],
    )
    def test_a_partition_is_kept_as_requests_have_it(self, tier: Tier, typed: str, kept: str) -> None:
        row = TierAssignment(tier=tier, partition=typed)
        row.full_clean()
        assert (row.partition, row.subject) == (kept, kept)

    @pytest.mark.parametrize(
        ("typed", "says"),
        [
            ("acme", "Enter a kind of value"),
            ("ip:", "Enter a kind of value"),
            ("no-such thing:acme", "Unknown kind of value"),
            ("ip:300.0.2.7", "Not an address or network"),
            ("ip:2001:db8::7", "2001:db8::/64"),
        ],
    )
    def test_a_partition_that_no_request_has_is_rejected(self, tier: Tier, typed: str, says: str) -> None:
        assert says in rejected(TierAssignment(tier=tier, partition=typed))["partition"][0]

    @pytest.mark.parametrize("text", ["raw-key", HASH.upper(), HASH[:-1], HASH + "\n"])
    def test_a_raw_key_is_no_hash(self, tier: Tier, text: str) -> None:
        assert "api_key_hash" in rejected(TierAssignment(tier=tier, api_key_hash=text))

    def test_names_its_subject_but_never_the_whole_hash(self, tier: Tier) -> None:
        assert str(TierAssignment(tier=tier, user=User(pk=1, username="ada"))) == "user ada: Free"
        assert str(TierAssignment(tier=tier, group=Group(pk=1, name="staff"))) == "group staff: Free"
        assert str(TierAssignment(tier=tier, api_key_hash=HASH)) == "API key abababab…: Free"


def test_usage_is_counted_once_per_rule_tier_and_minute() -> None:
    from datetime import UTC, datetime

    values: dict[str, Any] = {"rule_slug": "api", "start": datetime(2026, 1, 1, tzinfo=UTC)}
    UsageBucket.objects.create(**values)
    UsageBucket.objects.create(tier_slug="free", **values)
    assert_database_rejects("ratelimiter_usage_bucket", UsageBucket(**values))


DIGEST = "aB_-" * 5 + "xy"


def test_choices_of_an_access_entry_are_those_of_the_list() -> None:
    assert set(AccessEntry.Action.values) == set(access.ACTIONS)
    assert set(AccessEntry.Kind.values) == set(access.KINDS)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("ip", "192.0.2.7/24", "192.0.2.0/24"),
        ("ip", "::ffff:192.0.2.7", "192.0.2.7"),
        ("ip", "2001:DB8::/48", "2001:db8::/48"),
        ("user", "007", "7"),
        ("user", "shop.Device:7", "shop.Device:7"),
        ("api_key", HASH, HASH),
        ("digest", f"ip:{DIGEST}", f"ip:{DIGEST}"),
        ("digest", f"user|header:X-Org or ip:{DIGEST}", f"user|header:X-Org or ip:{DIGEST}"),
    ],
)
def test_the_value_of_an_access_entry_is_kept_as_requests_have_it(kind: str, value: str, kept: str) -> None:
    row = AccessEntry(kind=kind, value=value)
    row.full_clean()
    assert (row.value, row.action) == (kept, "deny")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ip", "300.0.2.7"),
        ("user", "ada"),
        ("api_key", "raw-key"),
        ("api_key", HASH + "\n"),
        ("digest", DIGEST),
        ("digest", f"ip or:{DIGEST}"),
        ("digest", "ip:192.0.2.7"),
    ],
)
def test_a_value_of_an_access_entry_that_no_request_has_is_rejected(kind: str, value: str) -> None:
    assert set(rejected(AccessEntry(kind=kind, value=value))) == {"value"}


def test_the_database_rejects_a_digest_without_what_it_is_counted_by() -> None:
    assert_database_rejects("ratelimiter_access_entry_digest", AccessEntry(kind="digest", value=DIGEST))


def test_there_is_one_access_entry_for_each_caller() -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.7", action="allow")
    AccessEntry.objects.create(kind="user", value="192.0.2.7")
    row = AccessEntry(kind="ip", value="192.0.2.7", action="deny")
    assert "already" in rejected(row)["__all__"][0]
    assert_database_rejects("ratelimiter_access_entry_value", row)


def test_an_access_entry_names_whom_it_is_about_but_never_the_whole_hash() -> None:
    assert str(AccessEntry(kind="ip", value="192.0.2.7")) == "deny 192.0.2.7"
    assert str(AccessEntry(kind="user", value="7", action="allow")) == "allow user 7"
    assert str(AccessEntry(kind="api_key", value=HASH)) == "deny API key abababab…"
