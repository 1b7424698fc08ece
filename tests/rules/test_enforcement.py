"""The switch that stops all enforcement: in the rule set, in requests, in commands, and while Redis is away."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import OperationalError, transaction
from django.test import Client, RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import NOTHING_TO_DECIDE, Decision
from django_ratelimiter.models import AccessEntry, Rule, RuleSetState, RuleSetVersion
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage, versions

from ..limiter.test_limiter import Broken
from ..making import failing, in_another_process
from .rows import make_rule

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def rule() -> Rule:
    """One request a day for everybody."""
    return make_rule("tight", quota=1)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Redis is out of reach for this process's decisions and for publishing."""

    for method in ("check", "publish"):
        monkeypatch.setattr(get_engine(), method, Broken().check)


def counted(client: redis.Redis) -> dict[bytes, dict[bytes, bytes]]:
    """The usage that Redis holds."""
    return {key: client.hgetall(key) for key in client.scan_iter("*usage:*")}


def ask() -> Decision:
    return limiter.check(RequestFactory().get("/"))


def manage(subcommand: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("ratelimit", subcommand, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_off_and_on_are_versions_of_their_own() -> None:
    before = storage.committed_version().number
    assert cache.switch_enforcement(False)
    assert not cache.switch_enforcement(False)
    assert RuleSetState.objects.get().enforcement_enabled is False
    assert not cache.current_rules().enforced
    assert cache.switch_enforcement(True)
    stored = RuleSetVersion.objects.filter(number__gt=before).order_by("number")
    assert [(each.summary, each.snapshot["enforcement"]) for each in stored] == [
        ("enforcement stopped", False),
        ("enforcement resumed", True),
    ]
    assert cache.current_rules().enforced


def test_while_stopped_nothing_is_decided_counted_or_told(client: Client, redis_client: redis.Redis) -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.1")
    storage.forget_entries()
    assert [client.get("/hello/").status_code for _ in range(2)] == [200, 429]
    assert client.get("/hello/", REMOTE_ADDR="192.0.2.1").status_code == 403
    before = counted(redis_client)
    manage("off")
    for address in ("127.0.0.1", "192.0.2.1"):
        response = client.get("/hello/", REMOTE_ADDR=address)
        assert response.status_code == 200
        assert not {"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit"} & set(response.headers)
        assert response.wsgi_request.ratelimit == NOTHING_TO_DECIDE  # type: ignore[attr-defined]
    assert counted(redis_client) == before
    manage("on")
    assert [client.get("/hello/").status_code, counted(redis_client) == before] == [429, False]
    assert client.get("/hello/", REMOTE_ADDR="192.0.2.1").status_code == 403


def test_while_stopped_the_engine_is_asked_for_the_version_alone(redis_client: redis.Redis, now: list[float]) -> None:
    manage("off")
    ask()
    redis_client.config_resetstat()
    for _ in range(5):
        now[0] += 0.5
        ask()
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2


def act_as_another_process() -> None:
    """Know nothing of what was committed here."""
    cache._state.outdated = False


def told_elsewhere(now: list[float]) -> list[bool]:
    """Whether a process that committed nothing itself decides, each tenth of a second, until it decides no longer."""
    act_as_another_process()
    found = []
    for _ in range(11):
        decision = ask()
        found.append(bool(decision.results or decision.access))
        now[0] += 0.1
    return found


def test_a_process_is_told_by_its_next_decision(now: list[float]) -> None:
    ask()
    cache.switch_enforcement(False)
    assert not any(told_elsewhere(now))
    cache.switch_enforcement(True)
    assert told_elsewhere(now)[-1]


def test_a_process_whose_every_caller_is_denied_is_told_within_a_second(now: list[float]) -> None:
    AccessEntry.objects.create(kind="ip", value="127.0.0.0/8")
    storage.forget_entries()
    assert ask().access
    cache.switch_enforcement(False)
    found = told_elsewhere(now)
    assert [found[0], found[-1]] == [True, False]


def test_looking_at_the_limits_of_a_denied_caller_asks_for_no_version(now: list[float]) -> None:
    AccessEntry.objects.create(kind="ip", value="127.0.0.0/8")
    storage.forget_entries()
    assert ask().access
    cache.switch_enforcement(False)
    act_as_another_process()
    now[0] += 1.0
    assert limiter.peek(RequestFactory().get("/")).access


def test_process_in_memory_reads_the_rules_again_when_they_are_old(now: list[float], settings: Any) -> None:
    """Without Redis in the settings, nobody tells it what another process has saved."""
    settings.RATELIMITER = {**settings.RATELIMITER, "CACHE_ALIAS": None}
    assert [ask().allowed for _ in range(2)] == [True, False]
    with in_another_process():
        cache.switch_enforcement(False)
    for seconds, allowed in ((0, False), (9.9, False), (0.2, False), (0, True)):  # that request finds that they are old
        now[0] += seconds
        assert ask().allowed is allowed


@pytest.mark.parametrize("interval", [0, 1])
def test_without_redis_a_denied_caller_stays_denied(away: None, monkeypatch: pytest.MonkeyPatch, interval: int) -> None:
    monkeypatch.setitem(cache.settings.__dict__, "VERSION_CHECK_INTERVAL", interval)
    AccessEntry.objects.create(kind="ip", value="127.0.0.0/8")
    storage.forget_entries()
    assert [ask().access is not None for _ in range(2)] == [True, True]


def test_without_redis_a_process_reads_it_from_the_database_within_a_second(away: None, now: list[float]) -> None:
    assert ask().degraded
    cache.switch_enforcement(False)
    found = told_elsewhere(now)
    assert [found[0], found[-1]] == [True, False]
    cache.switch_enforcement(True)
    found = told_elsewhere(now)
    assert [found[0], found[-1]] == [False, True]


def test_without_redis_what_a_transaction_edits_is_for_itself_alone(away: None, now: list[float], rule: Rule) -> None:
    assert ask().degraded
    for later in (1.0, 60.0):
        now[0] += later
        with transaction.atomic():
            cache.switch_enforcement(False)
            assert ask() == NOTHING_TO_DECIDE
            assert cache._state.rules.enforced
            transaction.set_rollback(True)
        assert ask().degraded


def test_without_redis_the_row_is_asked_once_a_second(
    away: None, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    asked: list[bool] = []
    monkeypatch.setattr(cache, "enforcement_enabled", lambda: not asked.append(storage.enforcement_enabled()))
    for _ in range(16):
        now[0] += 0.1
        ask()
    assert asked == [True] * 2


def test_a_database_that_fails_is_left_alone_for_a_while(
    away: None, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail() -> bool:
        asked.append(now[0])
        raise OperationalError("away")

    ask()
    monkeypatch.setattr(cache, "enforcement_enabled", fail)
    for _ in range(8):
        now[0] += 1.0
        assert ask().degraded
    assert len(asked) == 1


def test_the_setting_needs_neither_redis_nor_database(
    away: None, monkeypatch: pytest.MonkeyPatch, settings: Any, django_assert_num_queries: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "ENABLED": False}
    with django_assert_num_queries(0):
        assert ask() == NOTHING_TO_DECIDE


class TestCommand:
    def test_says_what_was_done(self) -> None:
        assert [manage(word) for word in ("off", "off", "on", "on")] == [
            ("All enforcement is stopped.\n", ""),
            ("All enforcement is stopped already.\n", ""),
            ("Rules are enforced again.\n", ""),
            ("Rules are enforced already.\n", ""),
        ]

    def test_repeated_it_tells_redis_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(versions, "publish", lambda version: False)
            manage("off")
        held = storage.committed_version()
        manage("off")
        get_engine().check([], version=held)  # not stale, and none behind it
        assert storage.committed_version() == held

    def test_says_that_the_settings_enforce_nothing(self, settings: Any) -> None:
        settings.RATELIMITER = {**settings.RATELIMITER, "ENABLED": False}
        assert "RATELIMITER['ENABLED'] is False" in manage("on")[1]

    def test_without_the_database_it_names_the_setting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "enforcement_enabled", failing(OperationalError("away")))
        with pytest.raises(CommandError, match=r"ENABLED.*away"):
            manage("off")
