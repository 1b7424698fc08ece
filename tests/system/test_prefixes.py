"""Sites below a prefix under real servers: the paths of rules, and exempt paths, are paths within the site."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from example_project.redis_server import HOST, WatchedProcess, free_port

from .conftest import MakeRule, StartSite
from .site import PROJECT, Site
from .test_responses import UVICORN, wait_until

#: What is exempt by hand; `None` = the default, which has STATIC_URL.
EXEMPT = ["/static", None]


def ask(port: int, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(params=EXEMPT)
def exempting(request: pytest.FixtureRequest) -> Site:
    """A site with these exempt paths; that of the other tests has the default ones."""
    if request.param is None:
        return cast(Site, request.getfixturevalue("site"))
    start: StartSite = request.getfixturevalue("start_site")
    return start("--preload", SYSTEM_EXEMPT_PATHS=request.param)


def test_no_client_of_gunicorn_chooses_by_script_name_what_is_exempt(exempting: Site, make_rule: MakeRule) -> None:
    """gunicorn takes a header SCRIPT_NAME from `forwarded_allow_ips`, which is 127.0.0.1 by default."""
    rule = make_rule(1, 2, partition_by=["ip"])
    connection = exempting.connect(2, rule.path)[0].connection
    statuses = []
    for prefix in ("/static", "/shop", "", "/static", "/admin"):
        connection.request("GET", f"{prefix}/items/1/", headers={"SCRIPT_NAME": prefix} if prefix else {})
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    assert statuses == [200, 200, 429, 429, 429]


@pytest.fixture
def port(django_db_setup: None, tmp_path: Path) -> Iterator[int]:
    """uvicorn with a root path, behind a proxy that strips it."""
    port = free_port()
    environment = ["DJANGO_SETTINGS_MODULE=tests.system.settings", "SYSTEM_ALL_ASYNC=1", f"PYTHONPATH={PROJECT}"]
    options = ["--host", HOST, "--port", str(port), "--root-path", "/static"]
    process = WatchedProcess(["env", *environment, sys.executable, *UVICORN.split(), *options], tmp_path)

    def answers() -> bool:
        try:
            return ask(port, "/hello/") == 200
        except OSError:
            return False

    try:
        wait_until(answers)
        yield port
    finally:
        process.stop()
        print(process.output)


def test_a_rule_below_the_root_path_of_uvicorn_matches_the_path_within_the_site(make_rule: MakeRule, port: int) -> None:
    make_rule(1, 2)
    wait_until(lambda: ask(port, "/items/1/") == 429)
