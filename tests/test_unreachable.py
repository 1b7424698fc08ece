"""Operators are told that no Redis answers: by the log, at the first request, and by `check --deploy`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core import checks as django_checks
from django.test import Client, override_settings

from django_ratelimiter import checks
from django_ratelimiter.backend import server_in_words
from django_ratelimiter.engine.fallback import FallbackEngine
from django_ratelimiter.limiter import fallback
from example_project.redis_server import free_port

from .checks.test_servers import TIMEOUTS, entry
from .making import make_rule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "local", FallbackEngine())


@contextmanager
def unreachable() -> Iterator[str]:
    """Where no Redis listens."""
    address = f"redis://:secret@127.0.0.1:{free_port()}/0"
    limiter = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 10_000}
    with override_settings(CACHES={"default": entry(), "ratelimit": entry(address, **TIMEOUTS)}, RATELIMITER=limiter):
        yield address


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level and record.name != "django"]


def test_the_first_request_tells_which_server_and_which_setting(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("paid", failure_policy="closed")
    with unreachable() as address:
        assert client.get("/plain/").status_code == 503
    [line] = told(caplog, logging.ERROR)
    assert line.startswith("Each rule's failure policy decides now: Redis did not decide: ")
    assert f"redis://{address.rpartition('@')[2]}" in line
    assert "CACHES['ratelimit']" in line
    assert "manage.py check --deploy" in line
    assert "secret" not in line


def test_each_rejection_without_redis_tells_why(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    make_rule("once", partition_by=["ip"], path_kind="prefix", path="/plain/")
    make_rule("paid", failure_policy="closed", path_kind="prefix", path="/native/")
    with unreachable():
        assert [client.get("/plain/").status_code for _ in range(2)] == [200, 429]
        assert client.get("/native/").status_code == 503
    rejections = [line for line in told(caplog, logging.WARNING) if line.startswith("A request was rejected")]
    assert rejections == [
        "A request was rejected by once. Decided without Redis: this process counts by itself, with smaller quotas.",
        "A request was rejected by paid. Decided without Redis: its failure policy is “closed”.",
    ]


def test_check_deploy_names_the_server_that_does_not_answer() -> None:
    with unreachable() as address:
        found = django_checks.run_checks(tags=[checks.TAG], include_deployment_checks=True)
        assert "W018" not in str(django_checks.run_checks(tags=[checks.TAG]))
    [message] = found
    assert message.id == "django_ratelimiter.W018"
    assert f"redis://{address.rpartition('@')[2]}" in message.msg
    assert "CACHES['ratelimit']): Error " in message.msg  # the client's words, which follow at once
    assert "secret" not in message.msg
    assert message.hint


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (entry("redis://u:p@host:1/2?password=x&db=3"), "redis://host:1/2 (CACHES['ratelimit'])"),
        (entry(["rediss://a/0", "redis://b/0"]), "rediss://a/0, redis://b/0 (CACHES['ratelimit'])"),
        (entry("redis://a,unix://:p@/run/redis.sock?db=1"), "redis://a, unix:///run/redis.sock (CACHES['ratelimit'])"),
        (entry(None), "CACHES['ratelimit']"),
        (entry("redis://[broken"), "CACHES['ratelimit']"),
    ],
)
def test_a_server_in_words_tells_no_password(own: dict[str, Any], words: str) -> None:
    with override_settings(CACHES={"default": own, "ratelimit": own}, RATELIMITER={"CACHE_ALIAS": "ratelimit"}):
        assert server_in_words() == words


def test_an_engine_of_ones_own_is_named_by_its_setting() -> None:
    with override_settings(RATELIMITER={"ENGINE": "shop.engines.make"}):
        assert server_in_words() == "RATELIMITER['ENGINE'], shop.engines.make"
