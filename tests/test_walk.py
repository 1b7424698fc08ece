"""A newcomer with an empty folder and nothing but README.md gets a 429 from each section, command by command."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from example_project.redis_server import RedisServer, free_port

from .test_docs import ROOT, blocks, rows, section

pytestmark = pytest.mark.once

README = (ROOT / "README.md").read_text("utf-8")
START, RULES, DRF = "## Two-minute start", "## Then Redis, and rules in the admin", "## Then Django REST framework"

#: A busy machine may take its time to connect, and to pass from one request to the next.
PATIENT = '\nRATELIMITER |= {"DEADLINE_MS": 10_000, "VERSION_CHECK_INTERVAL": 0}\n'
PERSON = {"USERNAME": "admin", "PASSWORD": "secret", "EMAIL": "admin@example.org"}


class Walk:
    """An empty folder, which is the home as well, and the shell of whoever walks there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "project").mkdir()
        kept = ("LANG", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "http_proxy", "https_proxy")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {f"DJANGO_SUPERUSER_{name}": text for name, text in PERSON.items()}
        programs = (
            folder / "project/.venv/bin",
            Path(sys.executable).resolve().parent,
            *map(Path, os.defpath.split(":")),
        )
        self.environment |= {"HOME": str(folder), "PATH": os.pathsep.join(map(str, programs))}
        cache = Path.home() / ".cache/pip"
        self.environment |= {"PIP_CACHE_DIR": str(cache)} if cache.is_dir() else {}

    def run(self, command: str) -> str:
        """Return the output of a line of the README. What only a person can answer comes from the environment."""
        line = command.replace("/path/to/the/clone", str(ROOT)).replace(":8000", f":{self.port}")
        line = line.replace("createsuperuser", "createsuperuser --noinput").replace("NAME:PASSWORD", "admin:secret")
        done = subprocess.run(
            ["bash", "-ec", line], cwd=self.folder / "project", env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, file: str, text: str) -> None:
        """Add text to the end of a file of the project; `mysite/urls.py` of startproject is replaced by the first."""
        place = self.folder / "project" / file
        fresh = file.endswith("urls.py") and "search" not in place.read_text()
        with place.open("w" if fresh else "a") as written:
            written.write(f"\n{text}")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run `runserver` of the README, until it is done with."""
        command = [".venv/bin/python", "manage.py", "runserver", "--noreload", str(self.port)]
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=self.folder / "project", env=self.environment, stdout=log, stderr=log
            )
        try:
            while process.poll() is None:
                with socket.socket() as connection:
                    if connection.connect_ex(("127.0.0.1", self.port)) == 0:
                        break
            assert process.poll() is None, (self.folder / "log").read_text()
            yield
        finally:
            process.kill()
            process.wait()

    def edit(self, **fields: str | list[str]) -> None:
        """Save the rule in the admin's form, from a process of its own."""
        (self.folder / "project/edit.py").write_text(EDIT)
        self.run(f"python edit.py {' '.join(f'{name}={value}' for name, value in fields.items())}")


def statuses(walk: Walk, path: str, options: str = "") -> list[str]:
    """Return what four requests of the README's kind are answered."""
    address = f"http://127.0.0.1:8000{path}?[1-4]"
    return walk.run(f'curl -s -o /dev/null -w "%{{http_code}}\\n" {options} "{address}"').split()


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed here")
    return Walk(tmp_path)


def test_each_section_of_the_readme_leads_to_a_429(walk: Walk, redis_server: type[RedisServer]) -> None:
    [install, start] = blocks(section(README, START), "console")
    walk.run(f"{install.splitlines()[0].replace('python3', sys.executable)}")
    walk.run("\n".join(install.splitlines()[1:]))
    urls, settings = blocks(section(README, START), "python")
    walk.write("mysite/urls.py", urls.replace("3/m", "3/d"))  # a minute may end on a busy machine
    walk.write("mysite/settings.py", settings)
    runserver, curl = start.splitlines()
    assert runserver == "python manage.py runserver"
    with walk.serving():
        assert walk.run(curl).split() == ["200", "200", "200", "429"]

    server = redis_server()
    [settings] = blocks(section(README, RULES), "python")
    walk.write("mysite/settings.py", re.sub(r"redis://[\w.:/]+", server.url, settings) + PATIENT)
    for line in blocks(section(README, RULES), "console")[0].splitlines():
        walk.run(line)
    assert "no issues" in walk.run("python manage.py check --fail-level WARNING")
    with walk.serving():
        walk.edit(partition_by="ip")
        assert statuses(walk, "/hello/") == ["404", "404", "404", "429"]
        walk.edit(quota="4")
        assert statuses(walk, "/hello/") == ["404", "429", "429", "429"]

    walk.run(re.findall(r"`(pip install [^`]+)`", section(README, DRF))[0])
    settings, view = blocks(section(README, DRF), "python")
    walk.write("mysite/settings.py", settings)
    walk.write("mysite/urls.py", view)
    assert "no issues" in walk.run("python manage.py check --fail-level WARNING")
    with walk.serving():
        walk.edit(partition_by="user", quota="3")
        assert "-u NAME:PASSWORD" in section(README, DRF)
        assert statuses(walk, "/api/", "-u NAME:PASSWORD") == ["200", "200", "200", "429"]


def test_the_readme_is_a_front_page() -> None:
    assert README.count("\n") < 150
    assert {"make demo", "make test"} <= set(re.findall(r"`(make \w+)`", README))


def test_ratios_are_those_that_were_measured() -> None:
    """Were the figures measured again? Then write the ratios of docs/explanation/performance.md into README.md."""
    page = (ROOT / "docs/explanation/performance.md").read_text("utf-8")
    table = re.findall(r"<!-- bench: web -->(.*?)<!-- end -->", page, re.DOTALL)[0]
    added = {cells[0].strip("*"): float(cells[2].replace(",", "")) for cells in rows(table)}
    unit = added["ours, 1 rule"]
    ratio = {name: f"{figure / unit:.1f}" for name, figure in added.items()}
    told = {
        cells[0].strip("*"): re.findall(r"\d\.\d", cells[3]) for cells in rows(section(README, "## Against others"))
    }
    assert told == {
        "django_ratelimiter": ["1.0", ratio["ours, 3 rules"]],
        "django-ratelimit": [ratio["django-ratelimit"]],
        "DRF's throttles": [ratio["DRF view, AnonRateThrottle"]],
        "django-smart-ratelimit": [ratio["django-smart-ratelimit"]],
        "django-axes": [],
    }
    least = min(figure for name, figure in ratio.items() if name.startswith(("limits", "throttled-py", "pyrate")))
    assert f"about {least}" in README


#: Save the one rule of the project, as a browser would: what its form shows, and the fields that are given.
EDIT = """
import os
import sys
from html.parser import HTMLParser

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
import django
django.setup()
from django.test import Client
from django.urls import reverse
from django_ratelimiter.models import Rule


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


fields = dict(argument.split("=") for argument in sys.argv[1:])
editor = Client(headers={"host": "localhost"}, enforce_csrf_checks=True)
login = reverse("admin:login")
page = editor.get(login).content.decode()
editor.post(login, Form(page).data | {"username": "admin", "password": "secret"})
rule = Rule.objects.first()
act, numbers = ("change", [rule.pk]) if rule else ("add", [])
address = reverse(f"admin:django_ratelimiter_rule_{act}", args=numbers)
data = Form(editor.get(address).content.decode()).data
data |= {"slug": "everybody", "name": "Everybody", "mode": "enforce", "limits-TOTAL_FORMS": "1"}
data |= {"limits-0-quota": fields.get("quota", "3")}
if not rule:
    data["limits-0-window_seconds"] = "86400"
if "partition_by" in fields:
    data["partition_by"] = [fields["partition_by"]]
saved = editor.post(address, data)
if saved.status_code != 302:
    raise SystemExit(saved.content.decode())
"""
