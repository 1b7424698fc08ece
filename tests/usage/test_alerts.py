"""Alerts about a rule that rejects much, and about collecting that is behind; each once, until it is over."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection
from django.utils import timezone

from django_ratelimiter import signals
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.models import UsageBucket, UsageEpisode
from django_ratelimiter.tasks import collect_usage, watch_usage
from django_ratelimiter.usage.collector import alerts
from django_ratelimiter.usage.collector.alerts import Lag, Thresholds, send_alerts
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from tests.making import failing, manage

pytestmark = pytest.mark.django_db

NOTHING = Lag(0.0, 0)
NOW = now()
Sent = list[dict[str, Any]]


@pytest.fixture
def sent() -> Iterator[Sent]:
    """What the two signals are sent with from now on."""
    told: Sent = []

    def receive(**named: Any) -> None:
        told.append({name: value for name, value in named.items() if name not in ("signal", "sender")})

    both = (signals.rejection_rate_exceeded, signals.collector_behind)
    for signal in both:
        signal.connect(receive)
    yield told
    for signal in both:
        signal.disconnect(receive)


@pytest.fixture(autouse=True)
def _no_minute_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of `decided` is that of the code it tests."""
    monkeypatch.setattr(alerts, "now", lambda: NOW)


def decided(rule: str, minutes_ago: int = 1, **counts: int) -> None:
    """What a rule has decided in one minute, instead of what was written there before."""
    start = stored(floor(NOW, Granularity.MINUTE, UTC) - timedelta(minutes=minutes_ago))
    UsageBucket.objects.filter(rule_slug=rule, start=start).delete()
    UsageBucket.objects.create(rule_slug=rule, granularity="minute", start=start, **counts)


def told_of(rule: str, rejected: int, requests: int, minutes: int = 5) -> dict[str, Any]:
    return {"rule": rule, "rejected": rejected, "requests": requests, "minutes": minutes}


def test_a_rule_that_rejects_much_is_told_of_until_it_rejects_clearly_less(
    sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    for rejected, told in ((50, 0), (51, 1), (99, 1), (45, 1), (51, 1), (37, 1), (51, 2)):
        decided("strict", rejected=rejected, allowed=100 - rejected)
        decided("mild", rejected=10, allowed=90)
        send_alerts(NOTHING, Thresholds())
        assert len(sent) == told, rejected
    assert sent[0] == told_of("strict", 51, 100)
    [record, _] = caplog.records
    assert record.getMessage() == "Rule strict rejected 51 of 100 requests in 5 minutes."
    assert record.rule == "strict"  # type: ignore[attr-defined]


def test_no_requests_end_it_and_few_begin_nothing(sent: Sent) -> None:
    decided("rare", rejected=99)
    send_alerts(NOTHING, Thresholds())
    assert sent == []
    send_alerts(NOTHING, Thresholds(least=99))
    assert sent == [told_of("rare", 99, 99)]
    UsageBucket.objects.all().delete()
    send_alerts(NOTHING, Thresholds())
    assert not UsageEpisode.objects.exists()


def test_minutes_are_added_up_for_all_tiers_and_others_are_left_out(sent: Sent) -> None:
    for minute in (0, 1, 3, 4):  # this minute has not ended, and the fourth is too long ago
        decided("spread", minute, rejected=60, tier_slug="free")
    start = UsageBucket.objects.order_by("-start")[1].start
    UsageBucket.objects.create(rule_slug="spread", tier_slug="pro", start=start, allowed=100, shadow_rejected=20)
    UsageBucket.objects.create(rule_slug="spread", granularity="hour", start=start, rejected=1_000)
    send_alerts(NOTHING, Thresholds(minutes=3, percent=50))
    assert sent == []  # 120 of 240
    send_alerts(NOTHING, Thresholds(minutes=3, percent=49.9))
    assert sent == [told_of("spread", 120, 240, 3)]


def test_what_a_rule_in_shadow_would_reject_is_no_rejection(sent: Sent) -> None:
    decided("trial", shadow_rejected=1_000)
    send_alerts(NOTHING, Thresholds())
    assert sent == []


def test_a_collector_that_is_behind_is_told_of_until_it_has_caught_up(sent: Sent) -> None:
    for seconds, told in ((300.0, 0), (301.0, 1), (900.0, 1), (299.0, 1), (301.0, 1), (225.0, 1), (301.0, 2)):
        send_alerts(Lag(seconds, 7), Thresholds())
        assert len(sent) == told, seconds
    assert sent[0] == {"seconds": 301.0, "batches": 7}


@pytest.mark.parametrize("run", [collect_usage, lambda: manage("collect")])
def test_collecting_tells_of_both(run: Any, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "now", now)
    now_us = time.time_ns() // 1_000
    charges = [Charge("key", Limit(1, 3_600, algorithm="fixed_window"), usage="rule|")]
    for seconds in [600] + [60] * 120:
        get_engine().check(charges, now_us=now_us - seconds * 1_000_000)
    run()
    behind, rejecting = sent
    assert 540 <= behind["seconds"] <= 601
    assert behind["batches"] == 2
    assert (rejecting["rule"], rejecting["requests"]) == ("rule", 120)
    run()
    assert len(sent) == 2
    assert not UsageEpisode.objects.filter(name="behind").exists()


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_a_collector_may_be_wrong(sent: Sent, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    now_us = time.time_ns() // 1_000
    charge = Charge("key", Limit(1, 3_600, algorithm="fixed_window"), usage="rule|")
    for _ in range(120):
        get_engine().check([charge], now_us=now_us - 60_000_000)
    monkeypatch.undo()
    monkeypatch.setattr(time, "time", lambda: now_us / 1_000_000 + hours * 3_600)
    monkeypatch.setattr(timezone, "now", lambda: datetime.fromtimestamp(time.time(), UTC))
    collect_usage()
    assert [each.get("rule", "behind") for each in sent] == ["rule"]


def test_another_one_may_watch_while_nobody_collects(sent: Sent) -> None:
    get_engine().check([Charge("key", Limit(9, 60), usage="rule|")], now_us=time.time_ns() // 1_000 - 600_000_000)
    watch_usage(behind=60)
    assert re.fullmatch(r"1 batch waits, for (5[4-9]\d|60\d) seconds\.\n", manage("watch", "--behind", "60"))
    assert len(sent) == 1
    assert not UsageBucket.objects.exists()


def test_watching_where_nothing_waits(sent: Sent) -> None:
    assert manage("watch") == "No usage is waiting to be collected.\n"
    assert sent == []


def test_marks_come_from_whoever_runs_it(sent: Sent) -> None:
    decided("strict", rejected=30, allowed=70)
    collect_usage()
    assert sent == []
    manage("collect", "--percent=20", "--minutes=2", "--least=50")
    assert sent == [told_of("strict", 30, 100, 2)]


@pytest.mark.parametrize("wrong", ["--percent=0", "--percent=101", "--minutes=0", "--least=0", "--behind=0"])
def test_marks_that_measure_nothing_are_rejected(wrong: str) -> None:
    with pytest.raises(CommandError, match="above 0"):
        manage("watch", wrong)


def test_all_requests_are_a_share_that_may_be_a_mark(sent: Sent) -> None:
    decided("strict", rejected=100)
    send_alerts(NOTHING, Thresholds(percent=100))
    assert sent == []  # no rule rejects more


def test_while_redis_is_away_watching_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_engine(), "take_usage", failing(EngineUnavailable("away")))
    with pytest.raises(CommandError, match="away"):
        manage("watch")


def test_a_receiver_that_fails_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    fail = failing(RuntimeError("broken on purpose"))
    signals.collector_behind.connect(fail)
    try:
        send_alerts(Lag(301.0, 7), Thresholds())
    finally:
        signals.collector_behind.disconnect(fail)
    assert "broken on purpose" in caplog.text


def test_what_begins_while_another_one_looks_is_told_of_once(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector whose counts are older ends no episode that it has not seen."""
    read = alerts._rejection_rates

    def read_early(minutes: int) -> list[alerts.RejectionRate]:
        found = list(read(minutes))
        with monkeypatch.context() as patch:
            patch.setattr(alerts, "_rejection_rates", read)
            decided("strict", rejected=60, allowed=40)
            send_alerts(NOTHING, Thresholds())  # the other one
        return found

    with monkeypatch.context() as patch:
        patch.setattr(alerts, "_rejection_rates", read_early)
        send_alerts(NOTHING, Thresholds())
    send_alerts(NOTHING, Thresholds())
    assert sent == [told_of("strict", 60, 100)]


@pytest.mark.django_db(transaction=True)
def test_of_collectors_that_run_at_once_one_tells(sent: Sent) -> None:
    together = threading.Barrier(4)

    def run() -> None:
        together.wait(300)
        send_alerts(Lag(301.0, 7), Thresholds())
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(sent) == 1


def test_the_log_has_no_plural_of_one(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    send_alerts(Lag(301.0, 1), Thresholds())
    [record] = caplog.records
    assert record.getMessage() == "Collecting usage is behind by 301 s; batches waiting: 1."
