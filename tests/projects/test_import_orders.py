"""Throttle classes named in settings can be imported in every order, as REST framework's own can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
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


#: An interpreter that knows Django, but has read no settings: it has a fork of itself run each code that it is sent.
#: Neither REST framework nor ours is imported; to start an interpreter for each code takes twice as long.
INTERPRETER = """
import json, os, sys, tempfile, traceback
import django.contrib.auth.hashers, django.core.management, django.db.backends.sqlite3.base, django.forms
import django.template.backends.django, django.test, django.urls, redis.asyncio, redis.cluster

assert not any(name.startswith(("rest_framework", "django_ratelimiter")) for name in sys.modules)
for line in sys.stdin:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            try:
                exec(json.loads(line), {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        errors.seek(0)
        print(json.dumps([status, output.read().decode(), errors.read().decode()]), flush=True)
"""

Run = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orders")
    (folder / "eager").mkdir()
    for name, text in PROJECT.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def run(project: Path) -> Iterator[Run]:
    """What a code prints where nothing but Django was imported before: `run(code)`."""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "project_settings", "PYTHONPATH": f"{project}:{ROOT}"}
    command = [sys.executable, "-W", "error", "-c", INTERPRETER]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as interpreter:

        def ask(code: str) -> list[str]:
            assert interpreter.stdin
            assert interpreter.stdout
            print(json.dumps(code), file=interpreter.stdin, flush=True)
            status, output, errors = json.loads(interpreter.stdout.readline())
            assert status == 0, errors
            return output.splitlines()  # type: ignore[no-any-return]

        yield ask


@pytest.mark.parametrize("first", FIRST)
def test_throttles_in_settings_work_whatever_is_imported_first(run: Run, first: str) -> None:
    *_, classes, statuses = run(f"{FIRST[first]}\n{ASK}")
    assert len(classes.split(",")) == 5
    assert statuses == "[200, 200, 429]"


@pytest.mark.parametrize("module", ["models", "apps"])
def test_an_app_may_import_views_while_django_loads(project: Path, run: Run, module: str) -> None:
    eager = project / f"eager/{module}.py"
    eager.write_text("import views\n")
    try:
        assert run(ASK)[-1] == "[200, 200, 429]"
    finally:
        eager.unlink()


def test_every_module_can_be_imported_before_the_registry_is_ready(run: Run) -> None:
    modules = [
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
    run("\n".join(f"import django_ratelimiter.{module}" for module in modules))
