"""The overview says which processes decide requests, and by which version of the rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.admin.overview import health
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine.base import Version
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.models import Rule, UsageBatch
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.heartbeats import Fleet, pulse
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.times import now

from ..pages import shown
from .test_overview import OVERVIEW, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def saved(rule: Rule, admin_user: User) -> Version:
    """The version in force. Usage has been collected."""
    UsageBatch.objects.create(batch_id="0:x", collected_at=now())
    cache.invalidate(admin_user, "Rule Export saved")
    version = storage.committed_version()
    get_engine().publish(version)
    return version


def say(process: str, version: Version, open_breakers: int = 0, outage_ago: float | None = None) -> None:
    """What another process has said."""
    outage_at = None if outage_ago is None else time() - outage_ago
    text = json.dumps([f"<b>{process}", 7, version, open_breakers, outage_at, time() - 20])
    get_engine().heartbeats.write(process, text)  # type: ignore[attr-defined]


def older(version: Version, by: int = 1) -> Version:
    return version._replace(number=version.number - by)


def test_says_who_still_has_an_older_version(admin_client: Client, saved: Version) -> None:
    assert "Processes 1, this one: no other has decided a request in the last 2 minutes" in text_of(
        admin_client.get(OVERVIEW)
    )
    for process, version in (("a", saved), ("b", older(saved)), ("c", older(saved)), ("d", older(saved, 2))):
        say(process, version)
    response = admin_client.get(OVERVIEW)
    text = text_of(response)
    assert "not yet in force everywhere" not in text  # none of them decides by it any more
    counted = f"1 of 5 still have version {saved.number - 2}. 2 of 5 still have version {saved.number - 1}."
    assert f"Processes 5: this one, and those that have decided a request in the last 2 minutes {counted}" in text
    assert "Redis has the latest version. These processes load it" in text
    assert "Needs attention Nothing." in text  # they mend it by themselves
    assert "<code><b>a:7</code>, 2" in shown(response)
    assert b"<b>a" not in response.content


def test_says_who_does_not_reach_redis(admin_client: Client, saved: Version) -> None:
    say("a", saved, open_breakers=1, outage_ago=60)
    say("b", saved, outage_ago=60)
    say("c", saved, outage_ago=400)
    text = text_of(admin_client.get(OVERVIEW))
    assert "error 1 other process reports that it does not reach a Redis server." in text
    assert "warning 1 other process did not reach Redis for a while in the last 5 minutes." in text
    assert text.count(": version") == 4
    assert text.count("does not reach Redis") == 1


def test_one_shard_with_an_older_version_is_enough(
    admin_client: Client, saved: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_fleet(own: Version) -> Fleet:
        return Fleet([pulse.heartbeat(own)], [saved, saved, older(saved), None], 2)

    monkeypatch.setattr(health, "read_fleet", read_fleet)
    text = text_of(admin_client.get(OVERVIEW))
    number = saved.number
    still = f"Redis still has version {number - 1} in 1 of 4 shards."
    assert f"error Version {number} is not yet in force everywhere: {still}" in text
    assert "error 2 shards of Redis do not answer." in text
    assert "Redis has the latest version" not in text


def test_hosts_are_for_who_may_see_rules(operator: Callable[..., Client], saved: Version) -> None:
    say("a", older(saved))
    response = operator("view_usage_report").get(OVERVIEW)
    assert "Processes 2: this one" in text_of(response)
    assert "<b>a" not in shown(response)
    assert "still have version" not in shown(response)


def test_what_cannot_be_read_is_no_error_page(
    admin_client: Client, saved: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(own: Version) -> Any:
        raise EngineUnavailable("NOPERM")

    monkeypatch.setattr(health, "read_fleet", fail)
    text = text_of(admin_client.get(OVERVIEW))
    assert "Enforcement on" in text
    assert "Problem NOPERM" in text
    assert "Processes 1, this one" in text
