"""The wheel holds all of the package, and the README's quickstart works with it in an empty project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from example_project.redis_server import RedisServer

ROOT = Path(__file__).parent.parent
NAME = "django-tiered-ratelimiter"
#: For those who work on the package, not for those who install it.
LEFT_OUT = "django_ratelimiter/README.md"


class Block(NamedTuple):
    """A fenced block of the README: its language, and its text."""

    language: str
    text: str


def blocks_of(heading: str) -> list[Block]:
    """The blocks of a section of the README."""
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"README.md has no section '## {heading}'."
    return [Block(*block) for block in re.findall(r"^```(\w+)\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)]


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
    folder = tmp_path_factory.mktemp("project")
    subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
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


def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    [licence] = [name for name in ZipFile(wheel).namelist() if name.endswith("/licenses/LICENSE")]
    assert "MIT" in ZipFile(wheel).read(licence).decode()


def test_the_celery_extra_brings_what_a_broker_on_redis_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [celery] = extras["celery"]
    assert celery.startswith("celery[redis]")


def test_the_quickstart_works_as_the_readme_says(
    wheel: Path, empty_project: Project, redis_server: type[RedisServer]
) -> None:
    project, server = empty_project, redis_server()
    blocks = blocks_of("Quickstart")
    commands = [line for block in blocks if block.language in ("sh", "console") for line in block.text.splitlines()]
    for line in commands[:1]:
        assert line.removeprefix("$ ") == f"pip install {NAME}"
        project.run("pip", "install", "--quiet", "--no-compile", wheel)
    assert project.run("python", "-c", "import django_ratelimiter; print(django_ratelimiter.__file__)").startswith(
        str(project.folder)
    )
    project.run("django-admin", "startproject", "mysite", ".")
    add_to_settings(project.folder / "mysite/settings.py", blocks, server.url)
    (project.folder / "mysite/urls.py").write_text(URLS)
    for line in commands[1:]:
        project.run(*line.removeprefix("$ ").split(), *(["--noinput"] if "createsuperuser" in line else []), **ADMIN)
    if not any("createsuperuser" in line for line in commands):
        project.run("python", "manage.py", "createsuperuser", "--noinput", **ADMIN)
    assert "no issues" in project.run("python", "manage.py", "check", "--fail-level", "WARNING")
    (project.folder / "visit.py").write_text(VISIT)
    assert project.run("python", "visit.py").split() == ["200", "302", "200", "200", "200", "429"]


def test_the_two_minute_start_works_as_the_readme_says(
    wheel: Path, empty_project: Project, tmp_path: Path, redis_server: type[RedisServer]
) -> None:
    install, view, settings = (block.text for block in blocks_of("Two-minute start"))
    assert install == f"pip install {NAME}\n"
    project = empty_project._replace(folder=tmp_path)
    project.run("pip", "install", "--quiet", "--no-compile", wheel)
    project.run("django-admin", "startproject", "mysite", ".")
    by_the_day = f"{view}\n\n{ASYNCHRONOUS}".replace("3/m", "3/d")  # a minute may end between two requests
    (tmp_path / "views.py").write_text(by_the_day)
    (tmp_path / "mysite/urls.py").write_text(URLS_OF_VIEWS)
    (tmp_path / "ask.py").write_text(ASK)
    assert project.run("python", "ask.py") == "[200, 200, 200, 403] None\n" * 3
    server = redis_server()
    with (tmp_path / "mysite/settings.py").open("a") as written:
        written.write(CACHE.format(url=server.url) + settings + PATIENT)
    assert project.run("python", "ask.py") == "[200, 200, 200, 429] text/plain\n" * 3
    assert project.run("python", "ask.py") == "[429, 429, 429, 429] text/plain\n" * 3  # another process
    assert project.run("python", "manage.py", "check") == "System check identified no issues (0 silenced).\n"


ASYNCHRONOUS = """
@ratelimit(key="ip", rate="3/m")
async def asearch(request):
    return HttpResponse("found")
"""

URLS_OF_VIEWS = """
import views
from django.urls import path

urlpatterns = [path("search/", views.search), path("asearch/", views.asearch)]
"""

CACHE = """
CACHES = {{
    "default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    "ratelimit": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "{url}"}},
}}
"""

#: A new process connects to Redis with its first request, and a busy machine may take its time.
PATIENT = """
RATELIMITER["DEADLINE_MS"] = 10_000
"""

#: Ask in threads and on an event loop, and say how the last was refused: by us, or by Django.
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
    refused = responses[-1].headers
    kind = refused["Content-Type"].partition(";")[0] if "RateLimit" in refused else None
    print([response.status_code for response in responses], kind)


async def ask():
    return [await AsyncClient().get("/asearch/", headers=browser) for _ in range(4)]


browser = {"accept": "text/html"}
told([Client().get("/search/", headers=browser) for _ in range(4)])
told([Client().get("/asearch/", headers=browser, REMOTE_ADDR="203.0.113.1") for _ in range(4)])
told(asyncio.run(ask()))
"""


def add_to_settings(settings: Path, blocks: list[Block], redis_url: str) -> None:
    """Write the README's Python blocks into a settings file, with the test's Redis for the reader's."""
    text = "".join(block.text for block in blocks if block.language == "python")
    address = re.compile(r"redis://[\w.:/-]+")
    assert len(address.findall(text)) == 1, "The quickstart names one Redis."
    settings.write_text(settings.read_text() + address.sub(redis_url, text))


ADMIN = {
    "DJANGO_SUPERUSER_USERNAME": "admin",
    "DJANGO_SUPERUSER_PASSWORD": "secret",
    "DJANGO_SUPERUSER_EMAIL": "admin@example.org",
}

URLS = """
from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls), path("hello/", lambda request: HttpResponse("hello"))]
"""

#: Ask once, save the README's rule in the admin as a browser would, and ask four times more.
VISIT = """
import os
from html.parser import HTMLParser

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
import django
django.setup()
from django.test import Client
from django.urls import reverse


class Form(HTMLParser):
    '''What a form would send as it stands.'''

    def __init__(self, page):
        super().__init__()
        self.data, self.select = {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "select":
            self.select = attrs.get("name")
        elif tag == "option" and self.select and "selected" in attrs:
            self.data[self.select] = attrs.get("value", "")
        elif tag == "textarea" and attrs.get("name"):
            self.data[attrs["name"]] = ""
        elif tag == "input" and attrs.get("name") and attrs.get("type") not in ("submit", "button"):
            if attrs.get("type") not in ("checkbox", "radio") or "checked" in attrs:
                self.data[attrs["name"]] = attrs.get("value") or ""


visitor = Client(headers={"host": "localhost"})
print(visitor.get("/hello/").status_code)
editor = Client(headers={"host": "localhost"}, enforce_csrf_checks=True)
login = reverse("admin:login")
page = editor.get(login).content.decode()
editor.post(login, Form(page).data | {"username": "admin", "password": "secret"})
add = reverse("admin:django_ratelimiter_rule_add")
data = Form(editor.get(add).content.decode()).data
data |= {"slug": "hello", "name": "Hello", "mode": "enforce", "partition_by": ["ip"], "limits-TOTAL_FORMS": "1"}
data |= {"limits-0-quota": "3", "limits-0-window_seconds": "60"}
saved = editor.post(add, data)
print(saved.status_code)
if saved.status_code != 302:
    raise SystemExit(saved.content.decode())
print(*(visitor.get("/hello/").status_code for _ in range(4)))
"""
