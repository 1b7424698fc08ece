"""Signals for operators, sent robustly, and log records that name no caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from celery import Task
from django.contrib.auth.models import User
from django.dispatch import Signal
from django.test import AsyncClient, Client, RequestFactory
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from django_ratelimiter import backend, limiter, signals
from django_ratelimiter.engine.base import Charge, Verdict
from django_ratelimiter.engine.fallback import FallbackEngine
from django_ratelimiter.engine.limits import Limit
from django_ratelimiter.engine.redis.connections.transport import Transport
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.limiter import events, fallback
from django_ratelimiter.models import AccessEntry, Rule, RuleSetState
from django_ratelimiter.rules import cache
from django_ratelimiter.testing import RulesInForce, assert_limited, override_rules
from django_ratelimiter.values.digests import whole

from ..making import MakeRule, failing, in_another_process
from ..pages import PAGES, blocks
from .test_limiter import Broken

pytestmark = pytest.mark.urls("tests.entry_points.urls")

ONCE = {"slug": "once", "limits": ["1/minute"]}
SOFT = {"rate": "4/minute", "algorithm": "fixed_window", "soft_quota": 2}

Receive = Callable[[Signal], list[dict[str, Any]]]


@contextmanager
def receiving(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.fixture
def received() -> Iterator[Receive]:
    """`received(signal)`: a list of what is sent from now on."""
    with ExitStack() as stack:

        def listen(signal: Signal) -> list[dict[str, Any]]:
            sent: list[dict[str, Any]] = []
            stack.enter_context(receiving(signal, lambda **named: sent.append(named)))
            return sent

        yield listen


class TestRejections:
    def test_are_signalled(self, client: Client, ratelimit_rules: RulesInForce, received: Receive) -> None:
        ratelimit_rules(ONCE)
        sent = received(signals.limit_exceeded)
        assert client.get("/plain/").status_code == 200
        assert sent == []
        rejection = client.get("/plain/")
        assert [named["decision"] for named in sent] == [rejection.wsgi_request.ratelimit]
        assert sent[0]["request"] is rejection.wsgi_request
        assert not sent[0]["decision"].allowed

    @pytest.mark.parametrize("view", ["/throttled/", "/throttled/scoped/", "/scoped/", "/no/such/"])
    def test_are_signalled_once_whichever_entry_points_they_pass(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive, view: str
    ) -> None:
        ratelimit_rules(ONCE, {"slug": "uploads", "limits": ["1/minute"], "scope": "uploads"})
        sent = received(signals.limit_exceeded)
        for _ in range(3):
            client.get(view)
        assert len(sent) == 2

    def test_a_failing_receiver_breaks_nothing(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive, caplog: pytest.LogCaptureFixture
    ) -> None:
        ratelimit_rules(ONCE)
        with receiving(signals.limit_exceeded, failing(RuntimeError("broken on purpose"))):
            sent = received(signals.limit_exceeded)
            assert_limited(client, "/plain/", after=1)
        assert len(sent) == 1
        assert "broken on purpose" in caplog.text

    def test_receivers_do_not_hold_up_an_event_loop(
        self, async_client: AsyncClient, ratelimit_rules: RulesInForce
    ) -> None:
        called: list[str] = []

        def synchronous(**named: Any) -> None:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            called.append("synchronous")

        async def asynchronous(**named: Any) -> None:
            asyncio.get_running_loop()
            called.append("asynchronous")

        ratelimit_rules(ONCE)
        with (
            receiving(signals.limit_exceeded, synchronous),
            receiving(signals.limit_exceeded, asynchronous),
        ):
            assert [async_to_sync(async_client.get)("/native/").status_code for _ in range(2)] == [200, 429]
        assert sorted(called) == ["asynchronous", "synchronous"]

    @pytest.mark.django_db(transaction=True)
    def test_are_logged_alike_whether_somebody_has_looked_at_the_decision_or_not(
        self,
        client: Client,
        make_rule: MakeRule,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(events, "observer", None)  # metrics look at each decision once they are imported
        for slug, quota, mode in (("everybody", 9, "enforce"), ("few", 2, "enforce"), ("trial", 1, "shadow")):
            make_rule(slug, quota=quota, mode=mode, partition_by=["ip"])
        make_rule("less", quota=2, limit={"window_seconds": 7_200})  # it is over sooner
        answers = [client.get("/plain/").wsgi_request.ratelimit for _ in range(5)]
        assert [answer.answer is None for answer in answers[2:]] == [False] * 3  # nor has the log
        told = [
            (record.getMessage(), record.rule, record.tier, record.partition)  # type: ignore[attr-defined]
            for record in caplog.records
            if record.name == "django_ratelimiter" and record.levelno == logging.WARNING
        ]
        assert told == [("A request was rejected by few, less.", "few", None, whole(digest("ip:127.0.0.1")))] * 3
        for answer in answers[2:]:
            assert [result.rule.slug for result in answer.rejected_by] == ["few", "less"]
            assert answer.binding.rule.slug == "few"

    def test_are_logged_without_naming_the_caller(
        self, ratelimit_rules: RulesInForce, caplog: pytest.LogCaptureFixture
    ) -> None:
        ratelimit_rules({**ONCE, "limits": {"pro": ["1/minute"]}, "partition_by": ["ip"]})
        ratelimit_rules.tier = "pro"
        client = Client(REMOTE_ADDR="203.0.113.77")
        assert_limited(client, "/items/4711/", after=1)
        [record] = [record for record in caplog.records if record.name == "django_ratelimiter"]
        assert record.levelno == logging.WARNING
        assert record.getMessage() == "A request was rejected by once."
        told = {name: getattr(record, name) for name in ("rule", "tier", "partition", "version")}
        assert told == {"rule": "once", "tier": "pro", "partition": whole(digest("ip:203.0.113.77")), "version": 0}
        assert "203.0.113.77" not in str(record.__dict__)
        assert "items" not in str(record.__dict__)  # digits may be those of a time

    @pytest.mark.parametrize("view", ["/plain/", "/throttled/", "/native/"])
    def test_are_logged_once(self, ratelimit_rules: RulesInForce, caplog: pytest.LogCaptureFixture, view: str) -> None:
        ratelimit_rules(ONCE)
        assert_limited(APIClient(), view, after=1)
        assert_limited(async_to_sync(AsyncClient().get), view, after=0)
        assert [record.name for record in caplog.records] == ["django_ratelimiter"] * 2

    def test_other_responses_are_logged_as_ever(
        self, client: Client, ratelimit_rules: RulesInForce, caplog: pytest.LogCaptureFixture
    ) -> None:
        ratelimit_rules({**ONCE, "limits": ["9/minute"]})
        client.get("/no/such/")
        assert [record.name for record in caplog.records] == ["django.request"]


@pytest.mark.django_db(transaction=True)
class TestDenials:
    def test_denied_caller_is_logged_once_an_hour(
        self,
        client: Client,
        async_client: AsyncClient,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        django_assert_num_queries: DjangoAssertNumQueries,
    ) -> None:
        entry = AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.0/24", reason="abuse")
        clock = [1_800_000_000]
        monkeypatch.setattr(events, "time_ns", lambda: clock[0] * 1_000_000_000)

        def told() -> list[tuple[Any, ...]]:
            found = [vars(each) for each in caplog.records if each.name == "django_ratelimiter"]
            caplog.clear()
            return [(each["levelname"], each["entry"], each["identity"], each["partition"]) for each in found]

        line = ("WARNING", entry.pk, "ip", whole(digest("ip:127.0.0.1")))
        assert client.get("/plain/").status_code == 403
        assert told() == [line]
        with django_assert_num_queries(0):
            assert client.get("/plain/").status_code == 403
            assert async_to_sync(async_client.get)("/plain/").status_code == 403
        assert told() == []
        assert client.get("/plain/", REMOTE_ADDR="127.0.0.2").status_code == 403
        assert client.get("/plain/", REMOTE_ADDR="192.0.2.1").status_code == 200
        assert told() == [(*line[:3], whole(digest("ip:127.0.0.2")))]
        clock[0] += 3_600
        assert async_to_sync(async_client.get)("/plain/").status_code == 403
        assert told() == [line]

    def test_denial_calls_no_redis(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.1")
        sent: list[object] = []
        with monkeypatch.context() as patched:
            for method in ("pipeline", "call"):
                patched.setattr(Transport, method, lambda *given, **_named: sent.append(given))
            assert client.get("/plain/").status_code == 403
        assert sent == []


class TestSoftQuotas:
    def test_are_told_of_once_per_window(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "django_ratelimiter")
        ratelimit_rules({"slug": "soft", "limits": [SOFT]})
        sent = received(signals.soft_limit_exceeded)
        ratelimit_rules.clock.advance(30)
        fields = [client.get("/plain/").get("X-RateLimit-Soft-Exceeded") for _ in range(4)]
        assert fields == [None, None, '"soft"', '"soft"']
        assert [named["result"].rule.slug for named in sent] == ["soft"]
        assert sent[0]["request"].path == "/plain/"
        ratelimit_rules.clock.advance(29.999999)
        client.get("/plain/")
        assert len(sent) == 1
        ratelimit_rules.clock.advance(0.000001)
        for _ in range(3):
            client.get("/plain/")
        assert len(sent) == 2
        told = [record for record in caplog.records if "soft quota" in record.getMessage()]
        assert [(record.rule, record.partition) for record in told] == [("soft", digest(""))] * 2  # type: ignore[attr-defined]

    def test_are_told_of_for_each_partition_and_limit(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive
    ) -> None:
        limits = [SOFT, {"rate": "9/day", "algorithm": "token_bucket", "soft_quota": 2}]
        ratelimit_rules({"slug": "soft", "limits": limits, "partition_by": ["ip"]})
        sent = received(signals.soft_limit_exceeded)
        for address in ("203.0.113.1", "203.0.113.2"):
            for _ in range(4):
                client.get("/plain/", REMOTE_ADDR=address)
        assert len(sent) == 4

    def test_what_has_been_told_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(events, "MAX_NOTIFIED", 3)
        told = events.NotificationDedup()
        limit = Limit(9, 60)

        def news(key: str, seconds: int = 0) -> bool:
            return told.is_first_in_window(
                Verdict(True, 1, 0.0, 1.0, 0.0, True, seconds * 1_000_000, Charge(key, limit))
            )

        assert [news(key) for key in "abab"] == [True, True, False, False]
        assert news("a", 60)
        assert [news(key, 60) for key in "cda"] == [True, True, False]  # d took the place of b, the oldest
        assert news("b", 60)
        assert news("a", 60)


class TestQuotas:
    def test_are_told_of_at_80_and_100_percent_once_a_window(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive
    ) -> None:
        ratelimit_rules({"slug": "ten", "limits": [{"rate": "10/minute", "algorithm": "fixed_window"}]})
        sent = received(signals.quota_reached)
        told_after = []
        for _ in range(12):  # the last two are rejected
            client.get("/plain/")
            told_after.append([named["percent"] for named in sent])
        assert told_after[6:] == [[], [80], [80], [80, 100], [80, 100], [80, 100]]
        assert sent[0]["result"].rule.slug == "ten"
        assert sent[0]["request"].path == "/plain/"
        ratelimit_rules.clock.advance(60)
        for _ in range(9):
            client.get("/plain/")
        assert [named["percent"] for named in sent] == [80, 100, 80]

    @pytest.fixture
    def ask(self, get: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        """Send this many requests, each to another process."""

        def send(number: int) -> None:
            for _ in range(number):
                monkeypatch.setattr(events, "_reached", events.NotificationDedup())
                monkeypatch.setattr(events, "_soft_exceeded", events.NotificationDedup())
                assert get("/plain/").status_code == 200

        return send

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("fixture", ["clock", "redis_client"])
    @pytest.mark.parametrize(("is_away", "told"), [(False, [80, 100]), (True, [80, 80, 100])])
    def test_are_told_of_once_by_all_processes_unless_the_engine_is_away(
        self,
        ask: Callable[[int], None],
        make_rule: MakeRule,
        request: pytest.FixtureRequest,
        received: Receive,
        monkeypatch: pytest.MonkeyPatch,
        fixture: str,
        is_away: bool,
        told: list[int],
    ) -> None:
        request.getfixturevalue(fixture)
        if is_away:
            monkeypatch.setattr(events, "Call", Mock(**{"of.side_effect": EngineUnavailable}))
        make_rule("ten", quota=10, limit={"soft_quota": 5})
        sent, soft = received(signals.quota_reached), received(signals.soft_limit_exceeded)
        ask(10)
        assert [named["percent"] for named in sent] == told
        assert len(soft) == (5 if is_away else 1)

    @pytest.mark.parametrize("anchor", ["clock", "first_request"])
    def test_are_told_of_by_all_processes_in_each_window(
        self, ask: Callable[[int], None], ratelimit_rules: RulesInForce, received: Receive, anchor: str
    ) -> None:
        ratelimit_rules(
            {"slug": "ten", "limits": [{"rate": "10/minute", "algorithm": "fixed_window", "anchor": anchor}]}
        )
        sent = received(signals.quota_reached)
        for requests, pause in ((1, 50), (8, 11), (8, 0)):
            ask(requests)
            ratelimit_rules.clock.advance(pause)
        assert [named["percent"] for named in sent] == [80, 80]

    @pytest.mark.filterwarnings("ignore:.*default mailer")  # of a project's own settings, from Django 6.1 on
    @pytest.mark.django_db(transaction=True)
    def test_are_mailed_and_posted_by_the_example(
        self, client: Client, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch, mailoutbox: list[Any]
    ) -> None:
        posted: list[Any] = []
        [example] = [block for block in blocks(PAGES["docs/reference/limiter.md"], "python") if "urlopen" in block]
        monkeypatch.setattr(Task, "delay", lambda task, *given: task(*given))
        monkeypatch.setattr("urllib.request.urlopen", lambda _url, body, timeout: posted.append(body))
        user = User.objects.create(username="ann", email="ann@example.com")
        client.force_login(user)
        make_rule("monthly", quota=5, partition_by=["user"])
        exec(example, code := {"__name__": __name__})
        try:
            for _ in range(6):
                client.get("/plain/")
        finally:
            signals.quota_reached.disconnect(code["tell_customer"])
        assert [(mail.to, mail.body[:3]) for mail in mailoutbox] == [([user.email], "80 "), ([user.email], "100")]
        assert posted == [b"user=%d&percent=%d" % (user.pk, percent) for percent in (80, 100)]

    def test_a_leap_past_both_marks_is_told_of_once(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive
    ) -> None:
        ratelimit_rules({"slug": "ten", "limits": ["10/minute"], "cost": 10})
        sent = received(signals.quota_reached)
        decision = client.get("/plain/").wsgi_request.ratelimit
        limiter.refund(decision)
        ratelimit_rules({"slug": "ten", "limits": ["10/minute"], "cost": 8})
        client.get("/plain/")
        assert [named["percent"] for named in sent] == [100]

    def test_of_shadow_rules_are_not_told_of(
        self, client: Client, ratelimit_rules: RulesInForce, received: Receive
    ) -> None:
        ratelimit_rules({**ONCE, "mode": "shadow"}, {"slug": "soft", "limits": [SOFT], "mode": "shadow"})
        sent = [received(each) for each in (signals.quota_reached, signals.soft_limit_exceeded, signals.limit_exceeded)]
        for _ in range(5):
            client.get("/plain/")
        assert sent == [[], [], []]

    def test_guesses_of_an_outage_are_not_told_of(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, received: Receive
    ) -> None:
        sent = received(signals.quota_reached)
        with override_rules(ONCE):
            monkeypatch.setattr(backend, "_engine", Broken())
            assert client.get("/plain/").status_code == 200
        assert sent == []


class TestOutages:
    def test_are_signalled_once_in_a_while(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, received: Receive
    ) -> None:
        sent = received(signals.engine_degraded)
        with override_rules(ONCE):
            monkeypatch.setattr(backend, "_engine", Broken())
            for _ in range(3):
                client.get("/plain/")
            async_to_sync(limiter.acheck)(RequestFactory().get("/plain/"))
            assert [str(named["error"]) for named in sent] == ["out of reach"]
            monkeypatch.setattr(fallback, "local", FallbackEngine())  # as if its interval were over
            async_to_sync(limiter.acheck)(RequestFactory().get("/plain/"))
        assert len(sent) == 2

    def test_a_rejection_of_which_nothing_is_known_is_logged(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with override_rules({**ONCE, "failure_policy": "closed"}):
            monkeypatch.setattr(backend, "_engine", Broken())
            assert_limited(client, "/plain/", after=0)
        outage, rejection = caplog.records
        assert outage.levelno == logging.ERROR
        assert (rejection.rule, rejection.partition) == ("once", None)  # type: ignore[attr-defined]


@pytest.mark.django_db(transaction=True)
class TestVersions:
    def test_are_signalled_when_they_are_taken_over(self, received: Receive) -> None:
        RuleSetState.objects.all().delete()  # the row that a migration leaves, and the first test that commits removes
        sent = received(signals.rules_changed)
        cache.current_rules()
        assert sent == []  # there are no rules yet
        Rule.objects.create(slug="new", name="New", mode="enforce")
        assert sent == []  # committed, and not yet decided by
        versions = [cache.current_rules().version for _ in range(2)]
        assert [named["version"] for named in sent] == versions[:1]
        cache.rules_committed.send(sender=None)  # read again, and found to be the same
        cache.current_rules()
        assert len(sent) == 1

    def test_of_other_processes_as_well(self, client: Client, make_rule: MakeRule, received: Receive) -> None:
        make_rule("all", 9)
        client.get("/plain/")
        sent = received(signals.rules_changed)
        Rule.objects.update(message="changed elsewhere")
        with in_another_process():
            cache.invalidate()
        version = client.get("/plain/").wsgi_request.ratelimit.version
        assert [named["version"] for named in sent] == [version]

    def test_a_receiver_may_decide_requests(self, make_rule: MakeRule) -> None:
        decisions = []

        def decide(**named: Any) -> None:
            decisions.append(limiter.check(RequestFactory().get("/")))

        make_rule("all", 9)
        with receiving(signals.rules_changed, decide):
            assert cache.current_rules().rules
        assert [decision.allowed for decision in decisions] == [True]
