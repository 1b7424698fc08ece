"""Fixtures, migrations and other user models."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.core import serializers
from django.core.management import call_command
from django.db import connection
from django.db.models import CharField, Model

import django_ratelimiter
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment

pytestmark = pytest.mark.django_db

APP = "django_ratelimiter"
HASH = "ab" * 32
FRIDAY = datetime(2026, 11, 27, tzinfo=UTC)
COLUMNS = [field.name for field in RuleLimit._meta.concrete_fields if field.name not in ("id", "rule", "tier")]


class TestFixtures:
    def test_natural_keys_carry_everything(self, rule: Rule, tier: Tier, tmp_path: Path) -> None:
        RuleLimit.objects.create(rule=rule, tier=tier, quota=5, window_seconds=Decimal("0.25"))
        monthly = {"algorithm": "fixed_window", "calendar": "month", "timezone": "Europe/Berlin", "generation": 3}
        for day in (None, 31):
            RuleLimit.objects.create(rule=rule, quota=9, anchor_day=day, **monthly)
        RuleLimit.objects.create(rule=rule, tier=tier, algorithm="sliding_window_slots", quota=7, window_seconds=60)
        RuleLimit.objects.create(rule=rule, tier=Tier.objects.create(slug="pro", name="Pro"), unlimited=True)
        before = list(RuleLimit.objects.order_by("quota", "anchor_day").values("tier__slug", *COLUMNS))
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        for subject in ({"user": user}, {"group": group}, {"api_key_hash": HASH}, {"partition": "ip:192.0.2.0/24"}):
            TierAssignment.objects.create(tier=tier, **subject)
            TierAssignment.objects.create(tier=tier, starts_at=FRIDAY, multiplier=2, **subject)
        TierAssignment.objects.create(user=user, ends_at=FRIDAY, multiplier=3)  # of no tier
        AccessEntry.objects.create(kind="ip", value="192.0.2.7", reason="noisy")
        models = (Tier, Rule, RuleLimit, TierAssignment, AccessEntry)
        rows = [row for model in models for row in model.objects.all()]
        text = serializers.serialize("json", rows, use_natural_foreign_keys=True, use_natural_primary_keys=True)
        assert '"pk"' not in text
        (tmp_path / "rules.json").write_text(text, encoding="utf-8")

        call_command("loaddata", tmp_path / "rules.json", verbosity=0)  # onto itself: updates, adds nothing
        assert [model.objects.count() for model in models] == [2, 1, 5, 9, 1]
        assert AccessEntry.objects.get().reason == "noisy"

        Tier.objects.all().delete()
        Rule.objects.all().delete()
        call_command("loaddata", tmp_path / "rules.json", verbosity=0)
        assert list(RuleLimit.objects.order_by("quota", "anchor_day").values("tier__slug", *COLUMNS)) == before
        assert TierAssignment.objects.filter(tier__slug="free").count() == 8
        assert TierAssignment.objects.filter(tier=None, multiplier=3).count() == 1
        assert TierAssignment.objects.filter(starts_at=FRIDAY, multiplier=2).count() == 4


class TestMigrations:
    def test_nothing_is_left_to_migrate(self) -> None:
        call_command("makemigrations", "django_ratelimiter", check=True, dry_run=True, verbosity=0)

    def test_references_to_users_have_no_constraints(self) -> None:
        """Users may be in another database."""
        assert referring("tierassignment") == {"tier_id"}
        assert referring("rulesetversion") == set()

    def test_identifiers_are_compared_byte_by_byte(self) -> None:
        """Each text that tells rows apart, unless only choices can stand there."""
        expected = {
            (model.__name__, name) for model in apps.get_app_config(APP).get_models() for name in keys_of(model)
        }
        given = import_module(f"{APP}.migrations.0001_initial").EXACT_COLUMNS
        assert set(given) == expected
        if connection.vendor == "mysql":
            assert {pair for pair in expected if not collation_of(*pair).endswith("_bin")} == set()

    def test_users_may_have_other_keys(self, tmp_path: Path) -> None:
        """A project whose user model has UUID keys migrates, assigns and reads back."""
        (tmp_path / "people").mkdir()
        (tmp_path / "people" / "__init__.py").touch()
        (tmp_path / "people" / "models.py").write_text(
            "import uuid\nfrom django.contrib.auth.models import AbstractUser\nfrom django.db import models\n"
            "class Person(AbstractUser):\n    id = models.UUIDField(primary_key=True, default=uuid.uuid4)\n"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(django_ratelimiter.__path__[0]).parent)}
        command = [sys.executable, "-c", UUID_PROJECT]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, "version 0\nuser ada: Free\nfree 2 []"), done.stderr


def keys_of(model: type[Model]) -> set[str]:
    """Return the texts of a model that are in an index or unique, and no choices."""
    meta = model._meta
    indexed = {name for each in (*meta.indexes, *meta.constraints) for name in getattr(each, "fields", ())}
    texts = (field for field in meta.concrete_fields if isinstance(field, CharField) and not field.choices)
    return {field.name for field in texts if field.unique or field.name in indexed}


def collation_of(model: str, column: str) -> str:
    """Return the collation that a column of ours has in the database."""
    with connection.cursor() as cursor:
        table = apps.get_model(APP, model)._meta.db_table
        columns = connection.introspection.get_table_description(cursor, table)
    return next(str(each.collation) for each in columns if each.name == column)


def referring(table: str) -> set[str]:
    """The columns of a table of ours that the database checks as foreign keys."""
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, f"django_ratelimiter_{table}").values()
    return {each["columns"][0] for each in constraints if each["foreign_key"]}


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
from django.db import connection
call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)
from people.models import Person
from django_ratelimiter.models import RuleSetState, Tier, TierAssignment
print(RuleSetState.objects.get())
tier = Tier.objects.create(slug="free", name="Free")
TierAssignment.objects.create(tier=tier, user=Person.objects.create(username="ada"))
print(TierAssignment.objects.get(user__username="ada"))
TierAssignment.objects.update(multiplier=2)
from django.db import reset_queries
from django_ratelimiter.rules import tiers
from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
from django_ratelimiter.rules.ruleset import RuleSet
rules, key = RuleSet.from_snapshot(snapshot_of_rows()), str(Person.objects.get().pk)
for _ in range(2):
    connection.force_debug_cursor = True
    reset_queries()
    entitlement = tiers.entitlement_for(rules, key, None, lambda names: None)
print(entitlement.tier, entitlement.multiplier.normalize(), connection.queries)
"""
