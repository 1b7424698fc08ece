"""All enforcement is stopped and resumed, on four processes; without Redis, too.

Each process obeys by itself, and then for good. That it asks within a second is tested by a clock that the test turns,
in `tests/rules/test_enforcement.py`: how long a busy machine takes for it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from django.urls import reverse

from example_project.demo.admin_client import Form
from example_project.redis_server import RedisServer

from .conftest import Edit, MakeRule, StartSite
from .editor import Editor
from .load import FREE_PATH, Answer, Traffic
from .test_saves import NOT_IN_FORCE

DEFAULTS = {"SYSTEM_VERSION_CHECK_INTERVAL": "1.0", "SYSTEM_RULES_MAX_AGE": "10.0"}
RULED = "/items/1/"


def switch(editor: Editor, enforcement: str) -> str:
    """Press the button and confirm: the page that follows."""
    path = reverse("admin:django_ratelimiter_enforcement")
    fields = Form(editor.open(path), "ratelimiter-confirmation").fields
    assert fields["enforcement"] == enforcement
    return editor.open(path, {**fields, "reason": "a drill"})


def ruled_by(process: int, status: int, answers: Sequence[Answer]) -> list[float]:
    """When a process gave these answers."""
    return [answer.answered for answer in answers if answer.process == process and answer.status == status]


@pytest.mark.once
def test_four_processes_stop_and_resume(
    start_site: StartSite, make_rule: MakeRule, edit: Edit, redis_server: Callable[..., RedisServer]
) -> None:
    make_rule(1, 1, failure_policy="closed")
    server = redis_server()
    sites = [start_site("--preload", TEST_REDIS_URL=server.url, **DEFAULTS) for _ in range(2)]
    processes = frozenset().union(*(site.workers for site in sites))
    clients = [client for site in sites for client in site.connect(4, RULED)]
    editor = edit(clients.pop())

    def all_are(status: int, answers: Sequence[Answer]) -> bool:
        return {answer.process for answer in answers if answer.path == RULED and answer.status == status} == processes

    def assert_switched(enforcement: str, status: int, *, told: bool) -> None:
        page = switch(editor, enforcement)
        assert (NOT_IN_FORCE not in page) is told
        assert ("ratelimiter-stopped" in page) is (enforcement == "off")
        switched = editor.posted
        traffic.wait_for(lambda answers: all_are(status, answers))
        ruled = [answer for answer in traffic.since(switched) if answer.path == RULED]
        obeys = {each: min(ruled_by(each, status, ruled)) for each in processes}
        traffic.wait_for(lambda answers: all_are(status, answers))
        ruled = [answer for answer in traffic.since(switched) if answer.path == RULED]
        after = [answer for answer in ruled if answer.sent > obeys[answer.process]]
        assert {answer.process for answer in after} == processes
        assert {answer.status for answer in after} == {status}
        assert {answer.status for answer in traffic.answers if answer.path == FREE_PATH} == {200}

    with Traffic(clients, [RULED, FREE_PATH]) as traffic:
        traffic.wait_for(lambda answers: all_are(429, answers))
        assert_switched("off", 200, told=True)
        assert_switched("on", 429, told=True)
        server.kill()
        traffic.wait_for(lambda answers: all_are(503, answers))
        assert_switched("off", 200, told=False)
        assert_switched("on", 503, told=False)


def test_the_setting_serves_with_redis_and_database_down(
    start_site: StartSite, redis_server: Callable[..., RedisServer]
) -> None:
    server = redis_server()
    server.kill()
    away = {"TEST_REDIS_URL": server.url, "TEST_DATABASE_URL": "sqlite:////nowhere/at/all.sqlite3"}
    site = start_site("--preload", SYSTEM_DISABLED="1", **away)
    clients = [site.new_client() for _ in range(8)]
    assert {client.process for client in clients} <= site.workers
    assert [client.get(RULED).status for client in clients] == [200] * 8
