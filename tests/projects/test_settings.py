"""Projects whose settings are not those of the tests: the whole journey, tenants of their own, a cache of queries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from example_project.watched_process import ServerError
from tests import settings as ours
from tests.databases import postgres_url

PROJECTS: dict[str, dict[str, Any]] = {
    "german people": {
        "LANGUAGE_CODE": "de",
        "USE_THOUSAND_SEPARATOR": True,
        "TIME_ZONE": "Asia/Kathmandu",
        "AUTH_USER_MODEL": "people.Person",
        "INSTALLED_APPS": [*ours.INSTALLED_APPS, "tests.projects.people"],
    },
    "naive and untranslated": {
        "USE_TZ": False,
        "TIME_ZONE": "America/New_York",
        "DATABASE": {"ATOMIC_REQUESTS": True, "OPTIONS": {}},
        "USE_I18N": False,
        "LANGUAGE_CODE": "de",
        "DEFAULT_AUTO_FIELD": "django.db.models.AutoField",
        "DATABASE_ROUTERS": ["tests.projects.routing.LimitsRouter"],
    },
}

#: A project without the admin. Its visitors are decided on by address and by session, though there are no sessions.
WITHOUT_ADMIN = """
from tests.projects.journey import databases
with databases():
    from django.core.management import call_command
    from django.test import Client
    call_command("check")
    from django_ratelimiter.models import Rule, RuleLimit
    values = {"mode": "enforce", "partition_by": ["session"], "missing_partition": "ip"}
    rule = Rule.objects.create(slug="hello", name="Hello", **values)
    RuleLimit.objects.create(rule=rule, quota=2, window_seconds=86_400)
    print([Client().get("/hello/").status_code for _ in range(3)])
    lines = "about", "caller ip:127.0.0.1", "explain GET /hello/", "collect", "watch", "forget ip:127.0.0.1", "export"
    for line in lines:
        call_command("ratelimit", *line.split())
"""


@pytest.mark.once
@pytest.mark.parametrize("project", PROJECTS)
def test_the_journey(project: str, tmp_path: Path) -> None:
    """Settings that have nothing to do with each other share a project: a journey takes seconds."""
    assert_it_arrives(tmp_path, PROJECTS[project])


def assert_it_arrives(folder: Path, project: dict[str, Any]) -> None:
    """Where there are routers, there is a second database. Django lets no two databases be related by itself."""
    limits = {"LIMITS": str(folder / "limits.sqlite3")} if "DATABASE_ROUTERS" in project else {}
    done = run(folder, project | limits, "-m", "tests.projects.journey")
    assert (done.returncode, done.stdout) == (0, "arrived\n"), done.stderr[-6_000:]


def test_without_the_admin(tmp_path: Path) -> None:
    apps = ["django.contrib.auth", "django.contrib.contenttypes", "rest_framework", "django_ratelimiter"]
    middleware = ["django_ratelimiter.middleware.RateLimitMiddleware"]
    done = run(tmp_path, {"INSTALLED_APPS": apps, "MIDDLEWARE": middleware, "TEMPLATES": []}, "-c", WITHOUT_ADMIN)
    assert ("[200, 200, 429]\n" in done.stdout, done.returncode) == (True, 0), done.stderr[-6_000:]


def run(folder: Path, project: dict[str, Any], *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a project with these settings, and with a database of its own on the server of the tests."""
    server, _, name = os.environ["TEST_DATABASE_URL"].rpartition("/")
    if server.startswith("sqlite"):
        server = f"sqlite://{folder}"
    environment = {
        "PROJECT": json.dumps(project),
        "DJANGO_SETTINGS_MODULE": "tests.projects.settings",
        "TEST_DATABASE_URL": f"{server}/project_{name}",
    }
    words = [sys.executable, "-W", "error", *command]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.once
def test_users_of_two_tenants_with_one_key(tmp_path: Path) -> None:
    pytest.importorskip("django_tenants", reason="django-tenants is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    try:
        with postgres_url() as url:
            command = [sys.executable, "-m", "tests.projects.tenants.journey", url]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except ServerError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-6_000:]
    assert json.loads(done.stdout) == {
        "keys": [1, 1],
        "counted": [[200, 200, 429]] * 2,
        "caller": {"user": "acme:1"},
        "tiers": [[200], [429]],
        "denied": [[200], [403]],
        "checks": [],
        "rejected": ["django_ratelimiter.E011"],
    }


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
