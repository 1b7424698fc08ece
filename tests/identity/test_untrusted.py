"""Behind a proxy that is not trusted, all clients share one counter: rejections say so, once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from django.test import AsyncClient, Client, override_settings

from django_ratelimiter.backend import get_engine
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import untrusted

from ..admin.overview.test_overview import OVERVIEW, text_of
from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

CLIENTS = [f"198.51.100.{number}" for number in range(1, 6)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "TRUSTED_PROXIES" in text]


@pytest.mark.parametrize(
    ("peer", "header", "trusted", "setting"),
    [
        ("10.0.0.1", "{}", (), '["10.0.0.1"]'),
        ("10.0.0.1", "6.6.6.6, {}", ["unix"], '["unix", "10.0.0.1"]'),
        ("10.0.0.1", "{}, 10.0.0.2", ["10.0.0.1", "x-forwarded-for"], '["10.0.0.1/32", "10.0.0.2", "x-forwarded-for"]'),
        ("10.0.0.1", "{}, 10.0.0.2", 1, "2"),
        ("8.8.8.8", "{}", (), '["THE NETWORKS OF YOUR PROXY"]'),
        ("8.8.8.8", "{}, 8.8.4.4", 1, '["THE NETWORKS OF YOUR PROXY"]'),
        ("", "{}", (), '["unix"]'),
    ],
)
def test_a_proxy_that_is_not_trusted_is_named_once_with_the_setting(
    client: Client,
    make_rule: MakeRule,
    caplog: pytest.LogCaptureFixture,
    peer: str,
    header: str,
    trusted: Any,
    setting: str,
) -> None:
    make_rule("all", quota=1, partition_by=["ip"], missing_partition="deny")
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TRUSTED_PROXIES": trusted}):
        for each in CLIENTS:
            client.get("/plain/", REMOTE_ADDR=peer, headers={"X-Forwarded-For": header.format(each)})
        [text] = said(caplog)
    assert f"RATELIMITER['TRUSTED_PROXIES'] to {setting}." in text
    assert "8.8.8.8" not in text


def test_a_header_that_the_setting_names_is_read(
    client: Client, make_rule: MakeRule, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("all", quota=1, partition_by=["ip"])
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TRUSTED_PROXIES": ["fd00::/8", "x-real-ip"]}):
        for each in CLIENTS:
            client.get("/plain/", REMOTE_ADDR="10.0.0.1", headers={"X-Real-IP": each})
        assert '["fd00::/8", "10.0.0.1", "x-real-ip"]' in said(caplog)[0]


@pytest.mark.parametrize(
    ("trusted", "headers"),
    [
        ((), [{"X-Forwarded-For": CLIENTS[0]}] * 5),  # always the same client
        (
            ["10.0.0.1", "x-real-ip"],
            [{"X-Real-IP": CLIENTS[0], "X-Forwarded-For": f"{each}, {CLIENTS[0]}"} for each in CLIENTS],
        ),
        ((), [{"X-Forwarded-For": f"unknown{number}"} for number in range(5)]),
        (["10.0.0.1"], [{"X-Forwarded-For": each} for each in CLIENTS * 3]),
        (["10.0.0.1", "forwarded"], [{"Forwarded": f"for={CLIENTS[0]}", "X-Forwarded-For": each} for each in CLIENTS]),
    ],
)
def test_other_rejections_say_nothing(
    client: Client, make_rule: MakeRule, caplog: pytest.LogCaptureFixture, trusted: Any, headers: list[dict[str, str]]
) -> None:
    make_rule("all", quota=1, partition_by=["ip"])
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TRUSTED_PROXIES": trusted}):
        answers = [client.get("/plain/", REMOTE_ADDR="10.0.0.1", headers=each).status_code for each in headers]
    assert answers.count(429) >= 4
    assert said(caplog) == []


def test_rules_that_count_no_addresses_say_nothing(
    client: Client, make_rule: MakeRule, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("all", quota=1)
    for each in CLIENTS:
        client.get("/plain/", REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": each})
    assert said(caplog) == []


def reject(client: Client, peer: str, **fields: str) -> None:
    """Let requests of one address be rejected that name different callers."""
    for each in CLIENTS:
        response = client.get("/plain/", REMOTE_ADDR=peer, **{name: text.format(each) for name, text in fields.items()})
    assert response.status_code in (403, 429)


def test_the_overview_names_those_that_any_process_has_found(admin_client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1, partition_by=["ip"], missing_partition="deny")
    reject(admin_client, "", HTTP_X_FORWARDED_FOR="{}")
    untrusted.noted.clear()  # as another process
    reject(admin_client, "10.0.0.1", HTTP_FORWARDED="for={}")
    text = text_of(admin_client.get(OVERVIEW))
    assert "If a Unix socket is your proxy" in text
    named = 'If 10.0.0.1 is your proxy, set RATELIMITER[\'TRUSTED_PROXIES\'] to ["10.0.0.1", "forwarded"]'
    assert named in text
    limiter = {"CACHE_ALIAS": "ratelimit", "TRUSTED_PROXIES": ["10.0.0.1", "forwarded"]}
    with override_settings(RATELIMITER=limiter):  # what was found by the setting before does not count any more
        assert "is your proxy" not in text_of(admin_client.get(OVERVIEW))


def test_each_process_names_its_own_without_redis(admin_client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1, partition_by=["ip"])
    with override_settings(RATELIMITER={"CACHE_ALIAS": None}):
        reject(admin_client, "10.0.0.1", HTTP_X_FORWARDED_FOR="{}")
        assert "If 10.0.0.1 is your proxy" in text_of(admin_client.get(OVERVIEW))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each proxy that is sent to Redis, which does not answer: whether an event loop waits for it."""
    sent: list[bool] = []

    def note_proxy(text: str) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            sent.append(True)
            return
        sent.append(False)
        raise EngineUnavailable("gone")

    monkeypatch.setattr(get_engine(), "note_proxy", note_proxy, raising=False)
    return sent


def test_a_proxy_is_sent_once_in_an_hour(
    client: Client,
    make_rule: MakeRule,
    sent: list[bool],
    now: list[float],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(untrusted, "monotonic", lambda: now[0])
    make_rule("all", quota=1, partition_by=["ip"], count_refusals=True)
    for seconds, times in ((0, 1), (3_599, 1), (3_661, 2)):
        now[0] = 10_000.0 + seconds
        reject(client, "10.0.0.1", HTTP_X_FORWARDED_FOR="{}")
        assert len(sent) == times
    assert len(said(caplog)) == 1


def test_no_event_loop_waits_for_redis(make_rule: MakeRule, sent: list[bool]) -> None:
    make_rule("all", quota=1, partition_by=["ip"])

    async def reject() -> None:
        for each in CLIENTS:
            await AsyncClient().get("/plain/", headers={"X-Forwarded-For": each})

    asyncio.run(reject())
    assert sent == [False]


def test_rejection_that_says_the_same_is_examined_once_in_a_minute(
    client: Client, make_rule: MakeRule, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr(untrusted, "monotonic", lambda: now[0])
    monkeypatch.setattr(untrusted, "forwarding", found.append)
    make_rule("all", quota=1, partition_by=["ip"], count_refusals=True)
    for seconds, times in ((0, 1), (1, 1), (60, 2)):
        now[0] = 10_000.0 + seconds
        for _ in range(3):
            client.get("/plain/", REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": CLIENTS[0]})
        assert len(found) == times


def test_what_is_remembered_is_bounded(client: Client, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_EXAMINED", 3)
    make_rule("all", quota=1, partition_by=["ip"], count_refusals=True)
    for number in range(20):
        for each in CLIENTS[:2]:
            client.get("/plain/", REMOTE_ADDR=f"10.0.0.{number}", headers={"X-Forwarded-For": each})
    assert len(untrusted.heard) <= 3
    assert len(untrusted.named) <= 3
    assert len(untrusted.noted) <= 3
