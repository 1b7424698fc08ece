"""The task of Django's own framework, with its immediate backend and with a backend that stores tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django 6.0 is the first with tasks")

from django_ratelimiter.backend import get_engine
from django_ratelimiter.django_tasks import collect_usage, watch_usage
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.models import UsageBucket

#: A site whose tasks wait in its database for a worker, which runs here in the same process, as the counts are in it.
SITE = """
import sys
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    SECRET_KEY="only for this test",
    USE_TZ=True,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_tasks_db", "django_ratelimiter"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}},
    TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    RATELIMITER={"RETENTION": {"minute": None, "hour": None, "day": None}},
)
django.setup()
from django_ratelimiter.backend import get_engine
from django_ratelimiter.django_tasks import collect_usage
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.models import UsageBucket

call_command("migrate", verbosity=0)
get_engine().check([Charge("key", Limit(9, 60), usage="rule|free")], now_us=60_000_000)
result = collect_usage.enqueue(behind=600)
assert not UsageBucket.objects.exists()
call_command("db_worker", batch=True, verbosity=0)
result.refresh()
assert UsageBucket.objects.get(granularity="day").allowed == 1
assert "celery" not in sys.modules
print(result.status)
"""


@pytest.mark.django_db
def test_the_immediate_backend(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": dict.fromkeys(("minute", "hour", "day"))}
    get_engine().check([Charge("key", Limit(9, 60), usage="rule|free")], now_us=60_000_000)
    assert watch_usage.enqueue(behind=600).status == "SUCCESSFUL"
    assert not UsageBucket.objects.exists()
    assert collect_usage.enqueue(percent=80).status == "SUCCESSFUL"
    assert UsageBucket.objects.get(granularity="day").allowed == 1
    assert collect_usage.enqueue(percentage=80).errors[0].exception_class is TypeError


def test_a_backend_that_stores_tasks(tmp_path: Path) -> None:
    pytest.importorskip("django_tasks_db")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", SITE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout.split()[-1:]) == (0, ["SUCCESSFUL"]), ended.stderr
