"""The wheel holds all of the package, and rates in code work with it in an empty project."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from example_project.redis_server import RedisServer

from .installing import UV, create_environment, missing

ROOT = Path(__file__).parent.parent
#: For those who work on the package, not for those who install it.
LEFT_OUT = "django_ratelimiter/README.md"


class Project(NamedTuple):
    """A Django project with a Python of its own. `run` runs a command in it, and fails the test if that fails."""

    folder: Path
    programs: Path

    def run(self, *command: object, **environment: str) -> str:
        words = [str(word) for word in command]
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON"))}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            words, cwd=self.folder, env={**outside, "PATH": path, **environment}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def empty_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An empty folder, and a virtual environment with nothing but pip."""
    if missing():
        pytest.skip(missing())
    folder = tmp_path_factory.mktemp("project")
    create_environment(folder / ".venv", "--seed")
    return Project(folder, folder / ".venv/bin")


@pytest.fixture(scope="module")
def wheel(empty_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as pip builds it."""
    place = tmp_path_factory.mktemp("wheel")
    empty_project.run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT)
    [built] = place.iterdir()
    return built


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "django_ratelimiter"
    files = {str(file.relative_to(ROOT)) for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert LEFT_OUT in files
    assert held == files - {LEFT_OUT}
    assert {Path(name).suffix for name in held} >= {".py", ".typed", ".lua", ".html", ".css", ".js", ".po", ".mo"}
    assert any("/migrations/0001" in name for name in held)


def test_the_sdist_holds_what_make_test_needs(empty_project: Project, tmp_path: Path) -> None:
    empty_project.run(UV, "build", "--quiet", "--sdist", "--out-dir", tmp_path, ROOT)
    [built] = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = (
        "Makefile",
        "uv.lock",
        "pyproject.toml",
        "hatch_build.py",
        ".ci/run",
        "docs/conf.py",
        "example_project/urls.py",
    )
    assert sorted(set(needed) - held) == []
    tests = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("*.py")}
    assert sorted(tests - held) == []


def test_a_rate_in_code_needs_no_app_and_two_settings_make_it_complete(
    wheel: Path, empty_project: Project, tmp_path: Path, redis_server: type[RedisServer]
) -> None:
    project = empty_project._replace(folder=tmp_path)
    project.run(UV, "pip", "install", "--quiet", "--python", project.programs / "python", wheel)
    project.run("django-admin", "startproject", "mysite", ".")
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "mysite/urls.py").write_text(URLS_OF_VIEWS)
    (tmp_path / "ask.py").write_text(ASK)
    assert project.run("python", "ask.py") == "[200, 200, 200, 403] None\n" * 3
    server = redis_server()
    with (tmp_path / "mysite/settings.py").open("a") as written:
        written.write(SETTINGS.format(url=server.url))
    assert project.run("python", "ask.py") == "[200, 200, 200, 429] text/plain\n" * 3
    assert project.run("python", "ask.py") == "[429, 429, 429, 429] text/plain\n" * 3  # another process
    assert project.run("python", "manage.py", "check") == "System check identified no issues (0 silenced).\n"


#: By the day: a minute may end between two requests.
VIEWS = """
from django.http import HttpResponse

from django_ratelimiter.decorators import ratelimit


@ratelimit(key="ip", rate="3/d")
def search(request):
    return HttpResponse("found")


@ratelimit(key="ip", rate="3/d")
async def asearch(request):
    return HttpResponse("found")
"""

URLS_OF_VIEWS = """
import views
from django.urls import path

urlpatterns = [path("search/", views.search), path("asearch/", views.asearch)]
"""

#: A new process connects to Redis with its first request, and a busy machine may take its time.
SETTINGS = """
CACHES = {{
    "default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    "ratelimit": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "{url}"}},
}}
MIDDLEWARE += ["django_ratelimiter.middleware.RateLimitMiddleware"]
RATELIMITER = {{"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 10_000}}
"""

#: Ask in threads and on an event loop, and say how the last was rejected: by us, or by Django.
ASK = """
import asyncio
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
import django
django.setup()
from django.conf import settings
from django.test import AsyncClient, Client

settings.ALLOWED_HOSTS = ["testserver"]


def told(responses):
    rejected = responses[-1].headers
    kind = rejected["Content-Type"].partition(";")[0] if "RateLimit" in rejected else None
    print([response.status_code for response in responses], kind)


async def ask():
    return [await AsyncClient().get("/asearch/", headers=browser) for _ in range(4)]


browser = {"accept": "text/html"}
told([Client().get("/search/", headers=browser) for _ in range(4)])
told([Client().get("/asearch/", headers=browser, REMOTE_ADDR="203.0.113.1") for _ in range(4)])
told(asyncio.run(ask()))
"""
