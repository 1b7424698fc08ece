"""The recipes that need a server, a worker or a process of their own, run as they stand in the docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.backend import get_engine
from example_project.redis_server import HOST, free_port

from ..counting import sums_of
from ..making import client_of, make_rule
from ..pages import PAGES, blocks, section, with_files
from .site import PROJECT, running, wait_until

pytestmark = pytest.mark.once

#: Added to the settings of the tests' sites.
SETTINGS = """
import os
from tests.system.settings import *
from tests.system.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, *filter(None, os.environ.get("RECIPE_APP", "").split())]
CELERY_BROKER_URL = os.environ["TEST_REDIS_URL"]
"""

#: A process of the site, which sends tasks.
SITE = """
import time, django
django.setup()
from shop import tasks
print(time.monotonic())
[tasks.look_up.delay(address) for address in "abc"]
tasks.check.delay()
"""
WORKER = "--pool solo --without-gossip --without-mingle --loglevel WARNING"
#: Seconds between two tasks, and by how much a message may come before its time.
INTERVAL, EARLY = 1.0, 0.05


def recipes(heading: str) -> list[str]:
    """The Python examples under a heading."""
    return blocks(section(with_files(PAGES["docs/howto/recipes.md"]), heading), "python")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of a reader's, with settings and nothing else."""
    (tmp_path / "recipe_settings.py").write_text(SETTINGS)
    return tmp_path


def environment(folder: Path, **variables: str) -> dict[str, str]:
    # A process that has begun before there was a rule learns of it with its next request.
    known = {"DJANGO_SETTINGS_MODULE": "recipe_settings", "SYSTEM_VERSION_CHECK_INTERVAL": "0"}
    return {**known, "PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}", **variables}


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a Python process of this project has printed."""
    added = os.environ | environment(folder, **variables)
    return subprocess.run((sys.executable, *command), cwd=folder, env=added, capture_output=True, text=True)


@pytest.fixture
def chat(folder: Path) -> Iterator[Callable[..., Any]]:
    """Connect to the consumer of the recipe, under uvicorn: `chat(session=None)`."""
    pytest.importorskip("channels")
    client: Any = pytest.importorskip("websockets.sync.client")
    [recipe] = recipes("### Channels")
    (folder / "recipe_asgi.py").write_text(recipe)
    port = free_port()
    options = f"-m uvicorn recipe_asgi:application --lifespan off --log-level warning --host {HOST} --port {port}"

    def connect(session: str | None = None) -> Any:
        headers = {"Cookie": f"sessionid={session}"} if session else {}
        return client.connect(f"ws://{HOST}:{port}/chat/", additional_headers=headers, proxy=None, open_timeout=30)

    def is_ready() -> bool:
        with connect():
            return True

    with running(folder, *options.split(), is_ready=is_ready, **environment(folder)):
        yield connect


def session_of(name: str) -> str:
    client = client_of(User.objects.create(username=name))
    return client.cookies["sessionid"].value


def said(connection: Any, text: str) -> str:
    connection.send(text)
    return str(connection.recv(timeout=30))


def test_messages_and_connections_of_a_consumer_are_limited(chat: Callable[..., Any]) -> None:
    from websockets.exceptions import InvalidStatus

    make_rule("chat-message", 2, scope="chat-message", partition_by=["user"])
    ann, bob = session_of("ann"), session_of("bob")
    with chat(ann) as first, chat(ann) as second, chat(bob) as other:
        assert [said(first, "a"), said(second, "b")] == ["You said: a", "You said: b"]
        rejected = json.loads(said(first, "c"))
        assert rejected["error"] == "Too many messages."
        assert 40_000 < rejected["retry_after"] <= 43_200
        assert said(other, "d") == "You said: d"
    chats = make_rule("chat", 2, scope="chat")
    for _ in range(2):
        with chat():
            pass
    with pytest.raises(InvalidStatus) as caught, chat():
        pass
    response = caught.value.response
    assert (response.status_code, response.headers["Content-Type"]) == (429, "application/problem+json")
    assert 40_000 < int(response.headers["Retry-After"]) <= 43_200
    chats.delete()
    make_rule("open-chats", 1, algorithm="concurrency", scope="chat")
    with chat() as connection:
        assert said(connection, "a") == "You said: a"
        with pytest.raises(InvalidStatus, match="429"), chat():
            pass

    def may_connect() -> bool:
        with suppress(InvalidStatus), chat():
            return True
        return False

    wait_until(may_connect)  # the server notices in its own time that the client has left


def test_tasks_of_a_worker_take_turns_and_it_is_free_meanwhile(folder: Path, redis_url: str) -> None:
    limit = {"window_seconds": INTERVAL, "burst": 10}
    make_rule("geocoder", 1, None, "leaky_bucket", limit, scope="geocoder")
    (folder / "shop").mkdir()
    _, *application = recipes("## uvicorn, nginx, gunicorn with Celery beat")
    for name, recipe in zip(("celery", "__init__", "tasks"), (*application, *recipes("### Celery")), strict=True):
        (folder / "shop" / f"{name}.py").write_text(recipe)
    with (folder / "shop/tasks.py").open("a") as tasks:
        tasks.write("@shared_task\ndef check():\n    print('was free')\n")
    worker_of = f"-m celery --app shop --quiet worker {WORKER}".split()
    with running(folder, *worker_of, **environment(folder, RECIPE_APP="shop")) as worker:
        sent = run(folder, "-c", SITE, RECIPE_APP="shop")
        assert sent.returncode == 0, sent.stderr
        wait_until(lambda: "looked up c" in worker.output or not worker.running)
        assert re.findall(r"looked up (\w)", worker.output) == ["a", "b", "c"]
        assert worker.output.index("was free") < worker.output.index("looked up c")
        assert time.monotonic() - float(sent.stdout) > 2 * INTERVAL - EARLY
    assert sums_of(get_engine(), "allowed") == {"geocoder": (3,)}, "each is charged once"


@pytest.mark.parametrize("number", [0, 1], ids=["with Django", "without Django"])
def test_a_script_stops_at_its_limit(folder: Path, redis_url: str, number: int) -> None:
    make_rule("geocoder", 2, scope="geocoder", partition_by=["ip"])
    (folder / "script.py").write_text(recipes("### Scripts")[number])
    done = run(folder, "script.py", "a", "b", "c", REDIS_URL=redis_url)
    assert done.stdout.splitlines() == ["looked up a", "looked up b"], done.stderr
    assert re.fullmatch(r"c: try again in 4[0-9]+ s\n", done.stderr)
    assert done.returncode == 1
