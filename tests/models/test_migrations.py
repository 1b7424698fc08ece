"""Fixtures, migrations and other user models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from copy import copy
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.core import serializers
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

import django_ratelimiter
from django_ratelimiter.engine import Limit
from django_ratelimiter.models import (
    Rule,
    RuleLimit,
    Tier,
    TierAssignment,
)

pytestmark = pytest.mark.django_db

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
        rows = [*Tier.objects.all(), *Rule.objects.all(), *RuleLimit.objects.all(), *TierAssignment.objects.all()]
        text = serializers.serialize("json", rows, use_natural_foreign_keys=True, use_natural_primary_keys=True)
        assert '"pk"' not in text
        (tmp_path / "rules.json").write_text(text, encoding="utf-8")

        call_command("loaddata", tmp_path / "rules.json", verbosity=0)  # onto itself: updates, adds nothing
        counts = [model.objects.count() for model in (Tier, Rule, RuleLimit, TierAssignment)]
        assert counts == [2, 1, 5, 8]

        Tier.objects.all().delete()
        Rule.objects.all().delete()
        call_command("loaddata", tmp_path / "rules.json", verbosity=0)
        assert list(RuleLimit.objects.order_by("quota", "anchor_day").values("tier__slug", *COLUMNS)) == before
        assert TierAssignment.objects.filter(tier__slug="free").count() == 8
        assert TierAssignment.objects.filter(starts_at=FRIDAY, multiplier=2).count() == 4


class TestMigrations:
    def test_nothing_is_left_to_migrate(self) -> None:
        call_command("makemigrations", "django_ratelimiter", check=True, dry_run=True, verbosity=0)

    def test_names_are_chosen(self) -> None:
        import django_ratelimiter.migrations as package

        names = [path.stem for path in Path(package.__path__[0]).glob("[0-9]*.py")]
        assert names
        assert not [name for name in names if re.search(r"_auto_|alter_.*_and", name)]

    @pytest.mark.django_db(transaction=True)
    def test_limits_of_the_first_migrations_go_on_as_they_were(self) -> None:
        app = "django_ratelimiter"
        executor = MigrationExecutor(connection)
        try:
            old = executor.migrate([(app, "0002_rule_set_state")]).apps
            rule = old.get_model(app, "Rule").objects.create(slug="api", name="API")
            values = {"algorithm": "token_bucket", "quota": 9, "window_seconds": Decimal(60), "burst": 20}
            old.get_model(app, "RuleLimit").objects.create(rule=rule, **values)
            old.get_model(app, "RuleLimit").objects.create(rule=rule, unlimited=True)
        finally:
            call_command("migrate", app, verbosity=0)
        limited, unlimited = RuleLimit.objects.order_by("unlimited")
        limited.full_clean()
        unlimited.full_clean()
        assert limited.to_limit() == Limit(9, 60, "token_bucket", burst=20)
        assert (limited.generation, limited.max_delay_ms, limited.rule.count_refusals) == (0, 0, False)

    @pytest.mark.django_db(transaction=True)
    def test_references_to_users_lose_their_constraints(self) -> None:
        """As a database of an earlier version has them, where users could not be elsewhere."""
        app, earlier = "django_ratelimiter", "0014_exact_texts"
        executor = MigrationExecutor(connection)
        try:
            old = executor.migrate([(app, earlier)]).apps
            for name, column in (("RuleSetVersion", "author"), ("TierAssignment", "user")):
                model = old.get_model(app, name)
                without = model._meta.get_field(column)
                checked = copy(without)
                checked.db_constraint = True
                with connection.schema_editor() as editor:
                    editor.alter_field(model, without, checked)
            assert referring("tierassignment") == {"tier_id", "user_id"}
        finally:
            call_command("migrate", app, verbosity=0)
        assert referring("tierassignment") == {"tier_id"}
        assert referring("rulesetversion") == set()

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
        assert (done.returncode, done.stdout.strip()) == (0, "user ada: Free\nfree 2 []"), done.stderr


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
from django.db.migrations.executor import MigrationExecutor
call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)
from people.models import Person
from django_ratelimiter.models import Tier, TierAssignment
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
    standing = tiers.standing_for(rules, key, None, lambda names: None)
print(standing.tier, standing.multiplier.normalize(), connection.queries)
"""
