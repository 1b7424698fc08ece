"""A cache of queries that returns older rules than those in force: it is named, and what turns it off for us helps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cachalot", reason="django-cachalot is not installed")

PROJECT = """
import subprocess, sys
import django
from django.conf import settings

role, database, redis_url, *excluded = sys.argv[1:]
settings.configure(
    SECRET_KEY="secret",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimiter"]
    + (["cachalot"] if role == "decides" else []),
    CACHALOT_UNCACHABLE_APPS=excluded,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "own": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_url},
    },
    RATELIMITER={"CACHE_ALIAS": "own", "NAMESPACE": "cachalot", "DEADLINE_MS": 20_000},
)
django.setup()
from django.core.management import call_command
from django.test import RequestFactory
from django_ratelimiter import limiter
from django_ratelimiter.models import Rule, RuleLimit

def decide():
    decision = limiter.check(RequestFactory().get("/"))
    return [decision.results[0].limit.quota, decision.degraded]

if role == "edits":
    limit = RuleLimit.objects.get()
    limit.quota = 30
    limit.save()
else:
    call_command("migrate", verbosity=0)
    rule = Rule.objects.create(slug="rule", name="rule", mode="enforce")
    RuleLimit.objects.create(rule=rule, algorithm="fixed_window", quota=50, window_seconds=86_400)
    before = decide()
    subprocess.run([sys.executable, __file__, "edits", database, redis_url], check=True)
    print(before, decide())
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("excluded", "decisions"),
    [([], "[50, False] [50, True]\n"), (["django_ratelimiter"], "[50, False] [30, False]\n")],
    ids=["cached", "excluded"],
)
def test_cachalot_on_a_local_store(redis_url: str, tmp_path: Path, excluded: list[str], decisions: str) -> None:
    script = tmp_path / "project.py"
    script.write_text(PROJECT)
    command = [sys.executable, str(script), "decides", str(tmp_path / "db.sqlite3"), redis_url, *excluded]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == decisions, done.stderr[-6_000:]
    assert ("The database returns rules of version" in done.stderr) is (not excluded)
    assert "replaced" not in done.stderr
