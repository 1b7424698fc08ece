"""Throttle classes named in settings can be imported in every order, as REST framework's own can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]

#: A project as small as can be. `throttles` is a module of its own, as in the REST framework's docs.
PROJECT = {
    "project_settings": """
SECRET_KEY = "only for this test"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "eager",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "django_ratelimiter",
]
MIDDLEWARE = ["django_ratelimiter.middleware.RateLimitMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_CLASSES": [
        "django_ratelimiter.throttling.RuleThrottle",
        "django_ratelimiter.throttling.AnonRateThrottle",
        "django_ratelimiter.throttling.UserRateThrottle",
        "django_ratelimiter.throttling.ScopedRateThrottle",
        "throttles.ByHost",
    ],
    "DEFAULT_THROTTLE_RATES": {"anon": "2/day", "user": "9/day", "host": "9/day"},
}
""",
    "throttles": """
from django_ratelimiter.throttling import SimpleRateThrottle

class ByHost(SimpleRateThrottle):
    scope = "host"

    def get_cache_key(self, request, view):
        return request.get_host()
""",
    "views": """
from rest_framework.response import Response
from rest_framework.views import APIView

class Hello(APIView):
    def get(self, request):
        return Response("hello")
""",
    "urls": """
from django.urls import path
from views import Hello

urlpatterns = [path("hello/", Hello.as_view())]
""",
    "eager/__init__": "",
}

ASK = """
import django
django.setup()
from django.test import Client
import views
print([each.__name__ for each in views.Hello.throttle_classes])
print([Client().get("/hello/").status_code for _ in range(3)])
"""

FIRST = {
    "settings": "from rest_framework.settings import api_settings\napi_settings.DEFAULT_THROTTLE_CLASSES",
    "views": "import views",
    "urls": "import urls",
    "check": "import django\ndjango.setup()\nfrom django.core.management import call_command\ncall_command('check')",
    "the framework's views": "import rest_framework.views",
    "our throttles": "import django_ratelimiter.throttling",
    "a subclass": "import throttles",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orders")
    (folder / "eager").mkdir()
    for name, text in PROJECT.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def run(project: Path, code: str) -> list[str]:
    """What a fresh interpreter prints."""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "project_settings", "PYTHONPATH": f"{project}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("first", FIRST)
def test_throttles_in_settings_work_whatever_is_imported_first(project: Path, first: str) -> None:
    *_, classes, statuses = run(project, f"{FIRST[first]}\n{ASK}")
    assert len(classes.split(",")) == 5
    assert statuses == "[200, 200, 429]"


@pytest.mark.parametrize("module", ["models", "apps"])
def test_an_app_may_import_views_while_django_loads(project: Path, module: str) -> None:
    eager = project / f"eager/{module}.py"
    eager.write_text("import views\n")
    try:
        assert run(project, ASK)[-1] == "[200, 200, 429]"
    finally:
        eager.unlink()


def test_every_door_can_be_imported_before_the_registry_is_ready(project: Path) -> None:
    doors = [
        "api.throttling",
        "core",
        "decorators",
        "exceptions",
        "limiter",
        "middleware",
        "prometheus",
        "schema",
        "testing",
        "throttling",
    ]
    run(project, "\n".join(f"import django_ratelimiter.{door}" for door in doors))
