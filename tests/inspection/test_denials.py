"""Whom access entries have denied lately, of one caller: from the record of recent rejections, in one call."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import override_settings

from django_ratelimiter.backend import get_engine
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.inspection.caller import Caller, caller_of
from django_ratelimiter.inspection.counters import MAX_SHOWN, Counters, denials_of
from django_ratelimiter.models import AccessEntry
from django_ratelimiter.usage.live import denials
from django_ratelimiter.values.access import AccessRecord

pytestmark = pytest.mark.django_db

ADDRESS = "192.0.2.7"
KEY = "a key that is long enough to be one"


def deny(kind: str, value: str, entry: int = 1, view: str = "plain", times: int = 1) -> None:
    """Note that an entry denied a caller so often."""
    for _ in range(times):
        partition = f"{kind}:{value}"
        denials.note(AccessRecord("deny", kind, value, pk=entry), partition, digest(partition), view)


def seen(caller: Caller) -> list[tuple[str, str, int]]:
    return [(each.kind, each.view, each.times) for each in denials_of(caller, Counters(()))]


@pytest.fixture(params=["ratelimit", None])
def _each_engine(request: pytest.FixtureRequest) -> Any:
    with override_settings(RATELIMITER={"CACHE_ALIAS": request.param}):
        yield


@pytest.mark.usefixtures("_each_engine")
def test_are_found_by_each_value_that_is_known(user: User) -> None:
    deny("ip", ADDRESS, times=3)
    deny("user", str(user.pk), view="export", times=2)
    deny("api_key", hash_api_key(KEY))
    deny("ip", "192.0.2.8", times=9)
    deny("user", "424242", times=9)
    assert seen(caller_of("ip", ADDRESS)) == [("ip", "plain", 3)]
    assert seen(caller_of("user", "ann")) == [("user", "export", 2)]
    assert seen(caller_of("api_key", KEY)) == [("api_key", "plain", 1)]
    assert seen(caller_of("digest", digest(f"ip:{ADDRESS}"))) == [("ip", "plain", 3)]
    both = caller_of("partition", f"user:{user.pk}|ip:{ADDRESS}")
    assert sorted(seen(both)) == [("ip", "plain", 3), ("user", "export", 2)]


def test_nobody_in_particular_has_none(user: User) -> None:
    deny("ip", ADDRESS)
    assert seen(caller_of("digest", digest(""))) == []
    assert seen(caller_of("partition", "header:X-Org=acme")) == []
    assert seen(caller_of("user", "ann")) == []


def test_a_network_of_addresses_counts_as_rules_count_it() -> None:
    deny("ip", "2001:db8::/64")
    assert seen(caller_of("ip", "2001:db8::7")) == [("ip", "plain", 1)]


def test_of_many_the_latest_are_shown() -> None:
    for number in range(MAX_SHOWN + 3):
        deny("ip", ADDRESS, view=f"view-{number}")
    assert len(seen(caller_of("ip", ADDRESS))) == MAX_SHOWN


def test_takes_one_call_to_redis(redis_client: redis.Redis) -> None:
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit"}):
        deny("ip", ADDRESS)
        denials.send()
        before = redis_client.info("stats")["total_commands_processed"]
        assert seen(caller_of("ip", ADDRESS)) == [("ip", "plain", 1)]
        assert redis_client.info("stats")["total_commands_processed"] == before + 2  # and the question itself


def test_without_redis_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit"}):

        def fails(*_: Any) -> None:
            raise EngineUnavailable("gone")

        monkeypatch.setattr(get_engine().denials, "read", fails)  # type: ignore[attr-defined]
        assert seen(caller_of("ip", ADDRESS)) == []


def test_the_command_tells_of_them() -> None:
    entry = AccessEntry.objects.create(kind="ip", value="192.0.2.0/24", action="deny", reason="abuse")
    deny("ip", ADDRESS, entry=entry.pk, view="export", times=2)
    out = StringIO()
    call_command("ratelimit", "caller", "--ip", ADDRESS, "--json", stdout=out)
    [found] = json.loads(out.getvalue())["denials"]
    assert (found["entry"], found["kind"], found["view"], found["times"]) == (entry.pk, "ip", "export", 2)
    assert found["since"] <= found["at"]
    out = StringIO()
    call_command("ratelimit", "caller", "--ip", ADDRESS, stdout=out)
    [line] = [each for each in out.getvalue().splitlines() if each.startswith("Denied by an access entry")]
    assert "export" in line
    assert ": 2 since " in line
