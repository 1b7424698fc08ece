"""A newcomer with an empty folder and nothing but README.md gets a 429 from each section, command by command."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from example_project.demo.admin_client import RULES_PATH, Admin, Form
from example_project.redis_server import RedisServer, free_port

from .installing import UV, create_environment, environment, missing
from .pages import ROOT, blocks, rows, section

pytestmark = pytest.mark.once

README = (ROOT / "README.md").read_text("utf-8")
START, RULES, DRF = "## Two-minute start", "## Then Redis, and rules in the admin", "## Then Django REST framework"

#: A busy machine may take its time to connect, and to pass from one request to the next.
PATIENT = '\nRATELIMITER |= {"DEADLINE_MS": 10_000, "VERSION_CHECK_INTERVAL": 0}\n'
#: Hashing passwords as sites do takes a second for each request with one.
QUICK = 'PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]\n'
PERSON = {"USERNAME": "admin", "PASSWORD": "secret", "EMAIL": "admin@example.org"}


class Walk:
    """An empty folder, which is the home as well, and the shell of whoever walks there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "project").mkdir()
        self.environment = environment() | {f"DJANGO_SUPERUSER_{name}": text for name, text in PERSON.items()}
        programs = (folder / "project/.venv/bin", *map(Path, os.defpath.split(":")))
        self.environment |= {"HOME": str(folder), "PATH": os.pathsep.join(map(str, programs))}
        self.environment |= {"PYTHONUNBUFFERED": "1"}  # what runserver has said is in its log when it answers

    def run(self, command: str) -> str:
        """Return the output of a line of the README. What only a person can answer comes from the environment."""
        line = command.replace("/path/to/the/clone", str(ROOT)).replace(":8000", f":{self.port}")
        line = line.replace("createsuperuser", "createsuperuser --noinput").replace("NAME:PASSWORD", "admin:secret")
        line = line.replace("pip install", f"{UV} pip install --quiet")  # tests/test_wheel.py asks pip itself
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
    def serving(self) -> Iterator[Admin]:
        """Run `runserver` of the README, which finds nothing to complain of, until it is done with."""
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
                time.sleep(0.02)
            log_text = (self.folder / "log").read_text()
            assert "System check identified no issues (0 silenced)." in log_text, log_text
            yield Admin(f"http://127.0.0.1:{self.port}")
        finally:
            process.kill()
            process.wait()


def edit(admin: Admin, **fields: str | list[str]) -> None:
    """Save the one rule of the project: what its form shows, and these fields."""
    [path] = re.findall(rf'href="({RULES_PATH}\d+/change/)', admin.open(RULES_PATH)) or [f"{RULES_PATH}add/"]
    shown = Form(admin.open(path), "rule_form").fields
    shown |= {"slug": "everybody", "name": "Everybody", "mode": "enforce", "limits-TOTAL_FORMS": "1"}
    if path.endswith("add/"):
        shown |= {"limits-0-quota": "3", "limits-0-window_seconds": "86400"}
    page = admin.open(path, shown | fields)
    assert 'class="success"' in page, page


def statuses(walk: Walk, path: str) -> list[str]:
    """Return what four requests of the README's kind are answered."""
    address = f"http://127.0.0.1:8000{path}?[1-4]"
    return walk.run(f'curl -s -o /dev/null -w "%{{http_code}}\\n" "{address}"').split()


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed here")
    if missing():
        pytest.skip(missing())
    return Walk(tmp_path)


def test_each_section_of_the_readme_leads_to_a_429(walk: Walk, redis_server: type[RedisServer]) -> None:
    [install, start] = blocks(section(README, START), "console")
    first, *others = install.splitlines()
    assert first == "python3 -m venv .venv && . .venv/bin/activate"
    create_environment(walk.folder / "project/.venv")
    walk.run("\n".join(others))
    urls, settings = blocks(section(README, START), "python")
    walk.write("mysite/urls.py", urls.replace("3/m", "3/d"))  # a minute may end on a busy machine
    walk.write("mysite/settings.py", settings)
    runserver, curl = start.splitlines()
    assert runserver == "python manage.py runserver"
    with walk.serving():
        assert walk.run(curl).split() == ["200", "200", "200", "429"]

    server = redis_server()
    [settings] = blocks(section(README, RULES), "python")
    walk.write("mysite/settings.py", re.sub(r"redis://[\w.:/]+", server.url, settings) + PATIENT + QUICK)
    for line in blocks(section(README, RULES), "console")[0].splitlines():
        walk.run(line)
    with walk.serving() as admin:
        admin.log_in(PERSON["USERNAME"], PERSON["PASSWORD"])
        edit(admin, partition_by="ip")
        assert statuses(walk, "/hello/") == ["404", "404", "404", "429"]
        edit(admin, **{"limits-0-quota": "4"})
        assert statuses(walk, "/hello/") == ["404", "429", "429", "429"]

    walk.run(re.findall(r"`(pip install [^`]+)`", section(README, DRF))[0])
    settings, view = blocks(section(README, DRF), "python")
    walk.write("mysite/settings.py", settings)
    walk.write("mysite/urls.py", view)
    with walk.serving() as admin:
        admin.log_in(PERSON["USERNAME"], PERSON["PASSWORD"])
        edit(admin, partition_by="user", **{"limits-0-quota": "3"})
        [curl] = re.findall(r"`(curl [^`]+)`", section(README, DRF))
        assert re.findall(r"\} (\d+)\n", walk.run(curl)) == ["200", "200", "200", "429"]


def test_the_readme_is_a_front_page() -> None:
    assert README.count("\n") < 150
    assert {"make demo", "make test"} <= set(re.findall(r"`(make \w+)`", README))


def test_ratios_are_those_that_were_measured() -> None:
    """Were the figures measured again? Then write the ratios of docs/explanation/measurements.md into README.md."""
    page = (ROOT / "docs/explanation/measurements.md").read_text("utf-8")
    table = re.findall(r"<!-- bench: summary -->(.*?)<!-- end -->", page, re.DOTALL)[0]
    added = {cells[0].strip("*"): float(cells[1].replace(",", "")) for cells in rows(table)}
    ratio = {name: f"{figure / added['ours: one rule']:.1f}" for name, figure in added.items()}
    told = {
        cells[0].strip("*"): re.findall(r"\d\.\d", cells[3]) for cells in rows(section(README, "## Against others"))
    }
    assert told == {
        "django_ratelimiter": ["1.0", ratio["ours: three rules"]],
        "django-ratelimit": [ratio["django-ratelimit"]],
        "DRF's throttles": [ratio["DRF's AnonRateThrottle on django-redis"]],
        "django-smart-ratelimit": [ratio["django-smart-ratelimit"]],
        "django-axes": [],
    }
