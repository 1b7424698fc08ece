"""Under uvicorn nothing that the limiter does holds up the event loop, whether it knows the rules already or not."""

from __future__ import annotations

import http.client
import itertools
import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache
from example_project.redis_server import HOST, free_port

from .debug_asgi import COMPLAINT
from .load import get
from .site import START_SECONDS, running

#: 250; 500 in `make test`, 5,000 with ARGS=--long.
REQUESTS = int(os.environ.get("TWIN_STEPS", "1_000")) // 4
CLIENTS = 6
#: Seconds. The process forgets tiers and keys so often, and its rules are edited so often.
FORGET = EDIT = 0.5
UVICORN = "-m uvicorn tests.system.debug_asgi:application --loop asyncio --lifespan off --log-level warning"


def make_rules() -> None:
    tiers = [
        Tier.objects.create(slug=slug, name=slug, default_for=default)
        for slug, default in (("free", "authenticated"), ("pro", "none"))
    ]
    TierAssignment.objects.create(tier=tiers[1], api_key_hash=hash_api_key("secret"))
    with cache.editing():
        for slug, partition_by, algorithm in (
            ("by-address", ["ip"], "sliding_window_counter"),
            ("by-user", ["user"], "token_bucket"),
            ("by-key", ["api_key"], "gcra"),
            ("in-flight", ["api_key"], "concurrency"),
        ):
            matched = {"path": "/slow/", "path_kind": "prefix", "partition_by": partition_by}
            rule = Rule.objects.create(slug=slug, name=slug, mode="enforce", **matched)
            for tier in (None, *tiers):
                RuleLimit.objects.create(rule=rule, tier=tier, algorithm=algorithm, quota=9_000, window_seconds=86_400)


def send(port: int, session: dict[str, str], numbers: itertools.count[int]) -> Counter[int]:
    """Send requests on one connection for as long as any are left; how often each status was answered.

    One in ten shows a session, which costs Django most of what they cost, and one in ten an API key.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=START_SECONDS)
    statuses: Counter[int] = Counter()
    kinds: dict[int, dict[str, str]] = {0: session, 5: {"X-API-Key": "secret"}}
    while (number := next(numbers)) < REQUESTS:
        connection.request("GET", "/slow/natively/0/", headers=kinds.get(number % 10, {}))
        response = connection.getresponse()
        response.read()
        statuses[response.status] += 1
    connection.close()
    return statuses


def edit_rules(ended: threading.Event) -> int:
    """Edit the rules until it has ended; how often."""
    for number in itertools.count():  # noqa: B007
        if ended.wait(EDIT):
            break
        cache.invalidate()
    return number


@pytest.mark.once(first=True)
def test_the_event_loop_is_never_held_up(tmp_path: Path) -> None:
    make_rules()
    visitor = Client()
    visitor.force_login(User.objects.create(username="ann"))
    session = {"Cookie": f"sessionid={visitor.cookies['sessionid'].value}"}
    port = free_port()
    variables = {"SYSTEM_URLCONF": "tests.system.slow_urls", "SYSTEM_ALL_ASYNC": "1"}
    command = (*UVICORN.split(), "--host", HOST, "--port", str(port))

    def is_ready() -> bool:
        """A path that no rule may touch makes Django get ready, and nothing of the limiter."""
        return get(port, "/static/").status == 404

    with running(tmp_path, *command, is_ready=is_ready, SYSTEM_TIER_CACHE_SECONDS=str(FORGET), **variables):
        numbers, ended = itertools.count(), threading.Event()
        with ThreadPoolExecutor(CLIENTS + 1) as threads:
            editor = threads.submit(edit_rules, ended)
            clients = [threads.submit(send, port, session, numbers) for _ in range(CLIENTS)]
            statuses = sum((client.result() for client in clients), Counter())
            ended.set()
            assert editor.result() >= min(5, REQUESTS // 250)
    output = (tmp_path / "output.log").read_text()
    assert statuses == {200: REQUESTS}
    assert [line for line in output.splitlines() if line.startswith(COMPLAINT)] == []
    assert not re.search(r"Traceback|ERROR|never awaited", output)
