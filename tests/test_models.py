"""The models: what the database refuses, what the forms refuse, and what fixtures can carry."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core import serializers
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, models, transaction

from django_ratelimiter.engine.limits import Limit
from django_ratelimiter.models import (
    Rule,
    RuleLimit,
    RuleSetState,
    RuleSetVersion,
    Tier,
    TierAssignment,
    UsageBucket,
)
from django_ratelimiter.rules import ruleset

pytestmark = pytest.mark.django_db

HASH = "ab" * 32


@pytest.fixture
def tier() -> Tier:
    return Tier.objects.create(slug="free", name="Free", rank=1)


@pytest.fixture
def rule() -> Rule:
    return Rule.objects.create(slug="api", name="API")


def refused(row: models.Model) -> dict[str, list[str]]:
    """What the forms say against a row, by field."""
    with pytest.raises(ValidationError) as caught:
        row.full_clean()
    return caught.value.message_dict


def assert_database_refuses(constraint: str, row: models.Model) -> None:
    """The row violates this constraint. SQLite names only the checks, and for unique ones the columns."""
    with pytest.raises(IntegrityError, match=rf"(?i){constraint}|UNIQUE constraint failed"), transaction.atomic():
        row.save(force_insert=True)


class TestState:
    def test_migration_makes_the_one_row(self) -> None:
        state = RuleSetState.objects.get()
        assert (state.pk, state.number) == (1, 0)
        assert 1_700_000_000_000 < state.epoch < 10_000_000_000_000  # Unix milliseconds

    def test_there_is_no_second_row(self) -> None:
        assert_database_refuses("ratelimiter_state_one_row", RuleSetState(id=2, epoch=1))
        with pytest.raises(IntegrityError), transaction.atomic():
            RuleSetState.objects.create(epoch=1)

    def test_a_number_is_given_once_per_epoch(self) -> None:
        RuleSetVersion.objects.create(number=7, epoch=1, snapshot={})
        RuleSetVersion.objects.create(number=7, epoch=2, snapshot={})
        assert_database_refuses("ratelimiter_version_number", RuleSetVersion(number=7, epoch=1, snapshot={}))


class TestTier:
    @pytest.mark.parametrize("kind", ["anonymous", "authenticated"])
    def test_one_default_each(self, kind: str) -> None:
        Tier.objects.create(slug="first", name="First", default_for=kind)
        second = Tier(slug="second", name="Second", default_for=kind)
        assert refused(second) == {"__all__": ["Another tier is the default for these callers already."]}
        assert_database_refuses("ratelimiter_tier_one_default", second)

    def test_many_tiers_are_nobodys_default(self) -> None:
        for slug in ("one", "two"):
            Tier.objects.create(slug=slug, name=slug)


class TestAssignment:
    @pytest.mark.parametrize(
        "chosen", [(), ("user", "group"), ("user", "api_key_hash"), ("user", "group", "api_key_hash")]
    )
    def test_exactly_one_subject(self, tier: Tier, chosen: tuple[str, ...]) -> None:
        subjects = {
            "user": User.objects.create(username="ada"),
            "group": Group.objects.create(name="staff"),
            "api_key_hash": HASH,
        }
        row = TierAssignment(tier=tier, **{name: subjects[name] for name in chosen})
        assert refused(row) == {"__all__": ["Choose exactly one of user, group and API key."]}
        assert_database_refuses("ratelimiter_assignment_one_subject", row)

    def test_a_subject_is_in_a_tier_once(self, tier: Tier) -> None:
        other = Tier.objects.create(slug="pro", name="Pro")
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        subjects: list[dict[str, Any]] = [{"user": user}, {"group": group}, {"api_key_hash": HASH}]
        for subject in subjects:
            TierAssignment.objects.create(tier=tier, **subject)
            TierAssignment.objects.create(tier=other, **subject)
        for subject in subjects:
            row = TierAssignment(tier=tier, **subject)
            assert "already" in refused(row)["__all__"][0]
            assert_database_refuses("ratelimiter_assignment_(user|group|api_key)", row)

    @pytest.mark.parametrize("text", ["raw-key", HASH.upper(), HASH[:-1], HASH + "\n"])
    def test_a_raw_key_is_no_hash(self, tier: Tier, text: str) -> None:
        assert "api_key_hash" in refused(TierAssignment(tier=tier, api_key_hash=text))

    def test_names_its_subject_but_never_the_whole_hash(self, tier: Tier) -> None:
        assert str(TierAssignment(tier=tier, user=User(pk=1, username="ada"))) == "user ada: Free"
        assert str(TierAssignment(tier=tier, group=Group(pk=1, name="staff"))) == "group staff: Free"
        assert str(TierAssignment(tier=tier, api_key_hash=HASH)) == "API key abababab…: Free"


class TestRule:
    def test_choices_are_those_of_the_rule_set(self) -> None:
        for choices, known in (
            (Rule.Mode, ruleset.MODES),
            (Rule.PathKind, ruleset.PATH_KINDS),
            (Rule.MissingPartition, ruleset.MISSING_PARTITION),
            (Rule.FailurePolicy, ruleset.FAILURE_POLICIES),
            (Tier.DefaultFor, ruleset.DEFAULT_FOR),
        ):
            assert set(choices.values) == set(known)

    def test_defaults_are_valid(self) -> None:
        Rule(slug="all", name="Everything").full_clean()

    @pytest.mark.parametrize(
        ("values", "field"),
        [
            ({"path": "api/", "path_kind": "exact"}, "path"),
            ({"path": "api/", "path_kind": "prefix"}, "path"),
            ({"path": "", "path_kind": "exact"}, "path"),
            ({"path": "", "path_kind": "route"}, "path"),
            ({"path": "/api/", "path_kind": "any"}, "path"),
            ({"methods": ["get"]}, "methods"),
            ({"methods": ["GET", "GET"]}, "methods"),
            ({"methods": "GET"}, "methods"),
            ({"methods": [["GET"]]}, "methods"),
            ({"partition_by": ["session"]}, "partition_by"),
            ({"partition_by": ["ip", "user", "ip"]}, "partition_by"),
            ({"partition_by": {"ip": 1}}, "partition_by"),
            ({"mode": "on"}, "mode"),
            ({"path_kind": "glob"}, "path_kind"),
            ({"slug": "with space"}, "slug"),
        ],
    )
    def test_refuses(self, values: dict[str, Any], field: str) -> None:
        assert set(refused(Rule(**{"slug": "api", "name": "API"} | values))) == {field}

    def test_a_request_costs_at_least_one(self) -> None:
        row = Rule(slug="api", name="API", cost=0)
        assert "cost" in refused(row)
        assert_database_refuses("ratelimiter_rule_cost", row)

    @pytest.mark.parametrize(
        "route",
        [
            "items/",
            "items/<int:item>/",
            "<slug>/<path:rest>",
            "^items/(?P<item>[0-9]+)/$",
            "api/v(?P<version>[12])/items/<uuid:item>/",
            r"(?<!old-)items/\Z",
            r"api/^items\.(?P<format>[a-z]+)/?$",
            "a+b/(c)/[d",
        ],
    )
    def test_takes_what_a_resolver_match_may_hold(self, route: str) -> None:
        Rule(slug="api", name="API", path_kind="route", path=route).full_clean()

    @pytest.mark.parametrize(
        "route",
        [
            "items/<int:item",
            "items/int:item>/",
            "items/<nope:item>/",
            "items/<int:1st>/",
            "items/< item>/",
            "<a>/<a>/",
            "^items/(",
            "^items/(?P<item>[0-9]+/$",
        ],
    )
    def test_refuses_a_broken_route(self, route: str) -> None:
        assert set(refused(Rule(slug="api", name="API", path_kind="route", path=route))) == {"path"}

    def test_knows_the_converters_that_the_urlconf_registers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from django.urls import converters

        monkeypatch.setattr(converters, "REGISTERED_CONVERTERS", {})
        converters.get_converters.cache_clear()
        row = Rule(slug="api", name="API", path_kind="route", path="items/<roman:item>/")
        assert "path" in refused(row)

        class Patterns:
            @property
            def url_patterns(self) -> list[Any]:
                converters.REGISTERED_CONVERTERS["roman"] = converters.StringConverter()
                converters.get_converters.cache_clear()
                return []

        monkeypatch.setattr("django_ratelimiter.models.validation.get_resolver", Patterns)
        try:
            row.full_clean()
        finally:
            converters.get_converters.cache_clear()

    def test_a_route_loses_the_slash_that_no_match_has(self) -> None:
        row = Rule(slug="api", name="API", path_kind="route", path="/items/<int:item>/")
        row.full_clean()
        assert row.path == "items/<int:item>/"


class TestLimit:
    def test_builds_the_engines_limit(self, rule: Rule) -> None:
        row = RuleLimit(rule=rule, algorithm="token_bucket", quota=10, window_seconds=Decimal("0.5"), burst=20)
        assert row.to_limit() == Limit(10, Decimal("0.5"), "token_bucket", burst=20)
        assert RuleLimit(rule=rule, unlimited=True).to_limit() is None

    @pytest.mark.parametrize(
        ("values", "field", "says"),
        [
            ({"quota": 0}, "quota", "Must be a whole number"),
            ({"quota": 2**53}, "quota", "2^53"),
            ({"quota": None}, "quota", "Needed"),
            ({"window_seconds": None}, "window_seconds", "Needed"),
            ({"window_seconds": Decimal(0)}, "window_seconds", "above 0"),
            ({"window_seconds": Decimal(-1)}, "window_seconds", "above 0"),
            ({"window_seconds": Decimal(367 * 86_400)}, "window_seconds", "at most"),
            ({"algorithm": "magic"}, "algorithm", "unknown"),
            ({"burst": 5}, "burst", "has no burst"),
            ({"soft_quota": 10}, "soft_quota", "below 10"),
            ({"unlimited": True}, "quota", "Leave this empty"),
        ],
    )
    def test_maps_the_engines_refusal_to_the_field(
        self, rule: Rule, values: dict[str, Any], field: str, says: str
    ) -> None:
        row = RuleLimit(**{"rule": rule, "quota": 10, "window_seconds": Decimal(60)} | values)
        messages = refused(row)
        assert says in messages[field][0]
        assert len(messages[field]) == 1
        assert set(messages) - {"window_seconds"} <= {field}

    @pytest.mark.parametrize(
        ("values", "field"),
        [({"quota": 4}, "quota"), ({"quota": 9, "algorithm": "token_bucket", "burst": 4}, "burst")],
    )
    def test_refuses_what_never_passes(self, rule: Rule, values: dict[str, Any], field: str) -> None:
        rule.cost = 5
        row = RuleLimit(rule=rule, window_seconds=Decimal(60), **values)
        assert refused(row) == {field: ["Never lets a request pass: one costs 5."]}
        rule.cost = 4
        row.full_clean()

    @pytest.mark.parametrize("of_tier", [True, False])
    def test_one_per_tier_algorithm_and_window(self, rule: Rule, tier: Tier, of_tier: bool) -> None:
        values: dict[str, Any] = {"rule": rule, "tier": tier if of_tier else None, "window_seconds": Decimal(60)}
        RuleLimit.objects.create(quota=10, **values)
        RuleLimit.objects.create(quota=10, **values | {"window_seconds": Decimal(1)})
        RuleLimit.objects.create(quota=10, **values | {"algorithm": "fixed_window"})
        row = RuleLimit(quota=20, **values)
        assert "already" in str(refused(row))
        assert_database_refuses("ratelimiter_limit_of_(tier|others)", row)

    @pytest.mark.parametrize("of_tier", [True, False])
    def test_unlimited_once(self, rule: Rule, tier: Tier, of_tier: bool) -> None:
        values: dict[str, Any] = {"rule": rule, "tier": tier if of_tier else None, "unlimited": True}
        RuleLimit.objects.create(**values)
        row = RuleLimit(**values)
        assert "unlimited already" in str(refused(row))
        assert_database_refuses("ratelimiter_limit_unlimited_(tier|others)", row)

    @pytest.mark.parametrize(
        "values",
        [
            {"unlimited": True, "quota": 1},
            {"unlimited": True, "window_seconds": 1},
            {"unlimited": True, "burst": 1},
            {"unlimited": True, "soft_quota": 1},
            {"quota": None, "window_seconds": 1},
            {"quota": 0, "window_seconds": 1},
            {"quota": 1, "window_seconds": None},
        ],
    )
    def test_numbers_go_with_limits_only(self, rule: Rule, values: dict[str, Any]) -> None:
        assert_database_refuses("ratelimiter_limit_numbers", RuleLimit(rule=rule, **values))

    def test_order_of_tiers_with_the_others_last(self, rule: Rule, tier: Tier) -> None:
        low = Tier.objects.create(slug="low", name="Low", rank=0)
        for of in (None, tier, low):
            RuleLimit.objects.create(rule=rule, tier=of, quota=1, window_seconds=60)
        assert [limit.tier for limit in rule.limits.all()] == [low, tier, None]


def test_usage_is_counted_once_per_rule_tier_and_minute() -> None:
    from datetime import UTC, datetime

    values: dict[str, Any] = {"rule_slug": "api", "start": datetime(2026, 1, 1, tzinfo=UTC)}
    UsageBucket.objects.create(**values)
    UsageBucket.objects.create(tier_slug="free", **values)
    assert_database_refuses("ratelimiter_usage_bucket", UsageBucket(**values))


class TestFixtures:
    def test_natural_keys_carry_everything(self, rule: Rule, tier: Tier, tmp_path: Path) -> None:
        RuleLimit.objects.create(rule=rule, tier=tier, quota=5, window_seconds=Decimal("0.25"))
        RuleLimit.objects.create(rule=rule, unlimited=True)
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        for subject in ({"user": user}, {"group": group}, {"api_key_hash": HASH}):
            TierAssignment.objects.create(tier=tier, **subject)
        rows = [*Tier.objects.all(), *Rule.objects.all(), *RuleLimit.objects.all(), *TierAssignment.objects.all()]
        text = serializers.serialize("json", rows, use_natural_foreign_keys=True, use_natural_primary_keys=True)
        assert '"pk"' not in text
        (tmp_path / "rules.json").write_text(text, encoding="utf-8")

        call_command("loaddata", tmp_path / "rules.json", verbosity=0)  # onto itself: updates, adds nothing
        counts = [model.objects.count() for model in (Tier, Rule, RuleLimit, TierAssignment)]
        assert counts == [1, 1, 2, 3]

        Tier.objects.all().delete()
        Rule.objects.all().delete()
        call_command("loaddata", tmp_path / "rules.json", verbosity=0)
        assert [str(limit) for limit in Rule.objects.get(slug="api").limits.all()] == [
            "free: 5 / 0.250000 s",
            "every other tier: unlimited",
        ]
        assert TierAssignment.objects.filter(tier__slug="free").count() == 3


class TestMigrations:
    def test_nothing_is_left_to_migrate(self) -> None:
        call_command("makemigrations", "django_ratelimiter", check=True, dry_run=True, verbosity=0)

    def test_names_are_chosen(self) -> None:
        import django_ratelimiter.migrations as package

        names = [path.stem for path in Path(package.__path__[0]).glob("[0-9]*.py")]
        assert names
        assert not [name for name in names if re.search(r"_auto_|alter_.*_and", name)]

    def test_users_may_have_other_keys(self, tmp_path: Path) -> None:
        """A project whose user model has UUID keys migrates, assigns and reads back."""
        (tmp_path / "people").mkdir()
        (tmp_path / "people" / "__init__.py").touch()
        (tmp_path / "people" / "models.py").write_text(
            "import uuid\nfrom django.contrib.auth.models import AbstractUser\nfrom django.db import models\n"
            "class Person(AbstractUser):\n    id = models.UUIDField(primary_key=True, default=uuid.uuid4)\n"
        )
        done = subprocess.run([sys.executable, "-c", UUID_PROJECT], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, "user ada: Free"), done.stderr


UUID_PROJECT = """
import sys
sys.path.insert(0, ".")
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="x", USE_TZ=True, AUTH_USER_MODEL="people.Person", ROOT_URLCONF="people",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "people", "django_ratelimiter"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.core.management import call_command
call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)
from people.models import Person
from django_ratelimiter.models import Tier, TierAssignment
tier = Tier.objects.create(slug="free", name="Free")
TierAssignment.objects.create(tier=tier, user=Person.objects.create(username="ada"))
print(TierAssignment.objects.get(user__username="ada"))
"""
