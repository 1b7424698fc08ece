"""Exact usage: every caller of a rule is counted, corrected and collected exactly once, as the rule's totals are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import Sum
from django.test import RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext

from django_ratelimiter import backend, limiter
from django_ratelimiter.engine import Charge, Engine, Limit, MemoryEngine, usage
from django_ratelimiter.engine.calendars import window_at
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.protocol import ScriptMode
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.models import AccessEntry, CallerUsage, Rule, Tier, TierAssignment, UsageBucket
from django_ratelimiter.plans import CallerIdentity
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.collector.prune import prune
from django_ratelimiter.usage.times import now
from tests.counting import usage_of
from tests.making import MakeRule, request_of
from tests.pages import PAGES, blocks, section
from tests.usage.test_one_outcome import Check, outage

LIMIT, LATER = Limit(10_000, 86_400, "fixed_window"), 5 * 10**15
ADDRESSES = [f"192.0.2.{number}" for number in range(7)]


def get(address: str = ADDRESSES[0], **extra: Any) -> Any:
    return RequestFactory().get("/", REMOTE_ADDR=address, **extra)


@pytest.fixture
def exactly(rule: Callable[..., None]) -> Callable[..., None]:
    """Make a rule with exact usage."""
    return partial(rule, exact_usage=True)


def collect_now() -> None:
    engine: Any = backend.get_engine()
    getattr(engine, "flush", lambda: None)()
    take = engine.take_usage
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "take_usage", lambda: take(now_us=LATER), raising=False)
        collect()


def counted(rule: str) -> dict[str, tuple[int, ...]]:
    """Allowed, rejected, rejected by another, and units of each caller; in all, they are those of the rule."""
    sums = CallerUsage.objects.filter(rule_slug=rule).order_by("value").values_list("value")
    found = {value: tuple(counts) for value, *counts in sums.annotate(*map(Sum, CallerUsage.COUNTS))}
    [total] = UsageBucket.objects.filter(rule_slug=rule, granularity="day").values_list(*CallerUsage.COUNTS)
    assert tuple(map(sum, zip(*found.values(), strict=True))) == total
    return found


@pytest.mark.django_db(transaction=True)
def test_each_caller_is_counted_as_a_recount_does(exactly: Callable[..., None], check: Check) -> None:
    exactly("site", cost=2)
    exactly("tokens", scope="tokens")
    exactly("view", quota=9, scope="view")
    chance, done = random.Random(3), {slug: Counter[tuple[str, int]]() for slug in ("site", "tokens", "view")}
    for _ in range(60):
        request, cost = get(address := chance.choice(ADDRESSES)), chance.randint(1, 9)
        check(request)
        with limiter.charge(request, scope="tokens", cost=5) as charge:
            charge.cost = cost
        passes = check(request, scope="view", cost=3).allowed
        became = {"site": (2, 0), "tokens": (cost, max(cost - 5, 0)), "view": (3, 0)}
        for slug, (units, kept) in became.items():
            place = 0 if passes else 1 if slug == "view" else 2
            done[slug].update({(address, place): 1, (address, 3): units if passes else kept})
    collect_now()
    collect_now()
    for slug, counts in done.items():
        expected = {each: tuple(counts[each, place] for place in range(4)) for each, _ in counts}
        assert counted(slug) == expected
    assert any(counts[2] for counts in counted("site").values())


def is_exempt(identity: CallerIdentity) -> bool:
    return identity.address == ADDRESSES[0]


@pytest.mark.django_db(transaction=True)
def test_exempt_request_of_a_caller_is_counted_without_units(exactly: Callable[..., None], check: Check) -> None:
    exactly("site", quota=2, cost=2)
    AccessEntry.objects.create(action="allow", kind="ip", value=ADDRESSES[1])
    with override_settings(RATELIMITER={**settings.RATELIMITER, "EXEMPT": f"{__name__}.is_exempt"}):
        assert [check(get(address)).allowed for address in (*ADDRESSES[:2], *ADDRESSES[:3], ADDRESSES[2])] == [
            True
        ] * 5 + [False]
    collect_now()
    assert counted("site") == {
        ADDRESSES[0]: (2, 0, 0, 2), ADDRESSES[1]: (2, 0, 0, 0), ADDRESSES[2]: (1, 1, 0, 2)
    }  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["local", "open", "closed"])
def test_decisions_without_redis_count_too(make_rule: MakeRule, check: Check, policy: str) -> None:
    exact = {"partition_by": ["ip"], "exact_usage": True}
    make_rule("site", quota=100, failure_policy=policy, **exact)
    make_rule("view", quota=2, failure_policy="local", scope="view", **exact)
    with outage():
        for address in (*ADDRESSES[:2], ADDRESSES[0]):
            check(request := get(address))
            check(request, scope="view")
    collect_now()
    rejected = (0, 2, 0, 0) if policy == "closed" else (1, 0, 1, 1)
    assert counted("site")[ADDRESSES[0]] == rejected
    if policy != "closed":
        assert counted("view")[ADDRESSES[0]] == (1, 1, 0, 1)


def account_of(raw: str) -> str | None:
    return {"k1": "shop-7"}.get(raw)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("resolver", [None, "tests.usage.test_exact_usage.account_of"])
def test_key_stands_as_its_resolver_says_or_as_its_hash(
    make_rule: MakeRule, check: Check, redis_client: redis.Redis, resolver: str | None
) -> None:
    config = {**settings.RATELIMITER, "API_KEY_RESOLVER": resolver, "REVEAL": []}
    TierAssignment.objects.create(tier=Tier.objects.create(slug="pro", name="Pro"), api_key_hash=hash_api_key("k1"))
    with override_settings(RATELIMITER=config):
        make_rule("orders", quota=9, partition_by=["api_key"], exact_usage=True)
        check(get(HTTP_X_API_KEY="k1"))
        stored = b"".join(b"".join(redis_client.hkeys(key)) for key in redis_client.scan_iter("{*}:usage:*"))
        collect_now()
    assert b"shop-7" not in stored
    row = CallerUsage.objects.get()
    assert (row.identity, row.value) == ("api_key", "shop-7" if resolver else hash_api_key("k1"))


@pytest.mark.django_db(transaction=True)
def test_callers_without_the_value_are_counted_by_address_or_not_at_all(make_rule: MakeRule, check: Check) -> None:
    for slug, missing in (("by-ip", "ip"), ("rejects", "deny")):
        make_rule(slug, quota=9, partition_by=["user"], missing_partition=missing, exact_usage=True, mode="shadow")
    user = get_user_model().objects.create_user("ann")
    for who in (None, user):
        check(request_of(who, REMOTE_ADDR=ADDRESSES[0]))
    collect_now()
    assert {*CallerUsage.objects.values_list("rule_slug", "identity", "value")} == {
        ("by-ip", "ip", ADDRESSES[0]), ("by-ip", "user", str(user.pk)), ("rejects", "user", str(user.pk))
    }  # fmt: skip


def exact(slug: str, caller: str, **options: Any) -> Charge:
    partition = digest(caller)
    return Charge(f"{slug}:{partition}", LIMIT, usage=f"{slug}|", partition=partition, exact=True, **options)


def walk(engine: Engine) -> list[usage.UsageCount]:
    chance, so_far = random.Random(5), ()
    for number in range(200):
        charges = [exact(slug, f"user:{chance.randrange(5)}", usual_cost=1) for slug in "ab" if chance.random() < 0.8]
        charges = [each._replace(cost=chance.choice([0, 1, 1, 7, 20_000])) for each in charges]
        call = Call.of([*charges, Charge("plain", LIMIT, usage="plain|")]).continuing(so_far if number % 3 else ())
        answer = engine.check(call, now_us=(29_000_000 * 60 + 7 * number) * 1_000_000)
        so_far = () if answer.is_rejected else usage.continued((), answer, is_rejected=False)  # type: ignore[attr-defined]
    return usage_of(engine)


def test_engines_count_callers_alike(redis_client: redis.Redis) -> None:
    found = walk(MemoryEngine())
    assert walk(RedisEngine(redis_client, namespace="test")) == found
    assert {count.label.partition(usage.CALLER)[0] for count in found} == {"a|", "b|", "plain|"}
    assert any(count.rejected_by_other for count in found if usage.CALLER in count.label)
    assert any(count.extra_units for count in found if usage.CALLER in count.label)


def test_filled_call_counts_as_its_charges(redis_client: redis.Redis) -> None:
    """With units beside, units in advance, notes of callers, and a rule that is not exact."""
    engine = RedisEngine(redis_client, namespace="test")
    options: Any = {"usual_cost": 1, "sync_interval": 60.0}
    template = CallTemplate([
        ChargeTemplate("a:", "", Charge("", LIMIT, usage="a|", exact=True, **options)),
        ChargeTemplate("b:", "", Charge("", LIMIT, 3, usage="b|", exact=True, **options)),
        ChargeTemplate("c:", "", Charge("", LIMIT, 4, usage="c|", **options)),
    ])  # fmt: skip
    for number in range(40):
        partition = digest(f"user:{number}")
        call = Call(template, (partition,) * 3, (2, 0, 5) if number % 2 else ())
        packed = engine.encode_filled(call, None)
        assert (packed is None) is bool(number % 2)
        packed = packed or engine.encode(ScriptMode.CHECK, call, (), None, None, (10**15,))
        assert packed.count(f"a|{usage.CALLER}{partition}{partition.tail}".encode()) == 1
        assert packed.count(f"b|{usage.CALLER}{partition}{partition.tail}".encode()) == 2
        engine.check(call)
    counts = [each for each in usage_of(engine) if usage.CALLER in each.label]
    assert sum(count.allowed for count in counts) == 80
    assert sum(count.units for count in counts) == 40 + 3 * 40


def test_callers_beyond_the_maximum_are_counted_together(redis_client: redis.Redis, monkeypatch: Any) -> None:
    monkeypatch.setattr(usage, "MAX_CALLERS", 62)
    redis_client.hset("{test:0}:recent", "callers\n", 499_990)  # as if so many waited
    for engine in (RedisEngine(redis_client, namespace="test"), MemoryEngine()):
        for caller in range(100):
            engine.check([exact("a", f"user:{caller}"), exact("b", "user:0")], now_us=10**15)
        callers = Counter({each.label[:25]: each.allowed for each in usage_of(engine)})
        assert callers["a|\v"] == 38
        assert sum(callers.values()) == 200
        engine.check([exact("a", "user:9")], now_us=10**15)  # told apart again
        assert [each.label[3:25] for each in usage_of(engine)] == [digest("user:9")]
    assert not redis_client.hexists("{test:0}:recent", "callers\n")


def test_process_keeps_further_callers_together() -> None:
    buffer = usage.UsageBuffer(max_fields=4)
    for name in "abcde":
        buffer.add(7, f"{usage.with_caller('x|', name)}\na")
    counts: Any = buffer.lease()
    found = [count for minute, field, calls in counts.entries for count in usage.counts_of(minute, {field: calls})]
    assert [(count.label, count.allowed) for count in found] == [("x|\va", 1), ("x|\vb", 1), ("x|\v", 3)]


def test_partition_with_a_line_break_is_an_error(engine: Engine) -> None:
    with pytest.raises(ValueError, match="one line"):
        engine.check([Charge("a", LIMIT, usage="a|", partition="x\ny", exact=True)])


@pytest.mark.django_db
@pytest.mark.parametrize("names", [[], ["user", "ip"], ["host"], ["ip/24"], ["header:X-Org"]])
def test_rule_that_counts_by_anything_else_cannot_count_every_caller(names: list[str]) -> None:
    with pytest.raises(ValidationError) as error:
        Rule(slug="a", name="a", partition_by=names, exact_usage=True).full_clean()
    assert [*error.value.message_dict] == ["exact_usage"]
    for name in ("customer", "user", "api_key", "ip"):
        Rule(slug="a", name="a", partition_by=[name], exact_usage=True).full_clean()


@pytest.mark.django_db
def test_old_usage_of_callers_and_of_addresses_is_deleted() -> None:
    for identity, days in (("user", 799), ("user", 801), ("ip", 61), ("ip", 63), ("", 799), ("", 801)):
        for rule in ("a", "b", "c"):
            CallerUsage.objects.create(rule_slug=rule, identity=identity, hour=now() - timedelta(days=days))
    assert prune() == 9
    assert sorted(CallerUsage.objects.values_list("identity", flat=True)) == [*[""] * 3, *["ip"] * 3, *["user"] * 3]
    with override_settings(RATELIMITER={"RETENTION": {"callers": 30, "addresses": None}}):
        assert prune() == 9


@pytest.mark.django_db
def test_recipe_makes_an_invoice_and_a_view_for_programs(admin_user: User) -> None:
    names: dict[str, Any] = {}
    for recipe in blocks(section(PAGES["docs/howto/recipes.md"], "## An invoice"), "python"):
        exec(recipe, names)
    start = datetime(2026, 10, 14, 22, tzinfo=UTC)  # the 15th in Berlin
    for hour, customer in ((-1, "7"), (0, "7"), (743, "7"), (744, "7"), (5, "8")):
        row = {"rule_slug": "orders", "identity": "customer", "value": customer, "hour": start + timedelta(hours=hour)}
        CallerUsage.objects.create(**row, allowed=2, units=5)
    found = [*names["invoice"](SimpleNamespace(pk=7), start, start + timedelta(days=31))]
    assert found == [{"rule_slug": "orders", "requests": 4, "used": 10}]
    rows = names["CallerUsageViewSet"].as_view({"get": "list"})(request_of(admin_user)).data
    assert [(row["value"], row["units"]) for row in rows if row["value"] == "8"] == [("8", 5)]
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("day", "zone", "hour"), [(1, "", 0), (15, "Europe/Berlin", 0), (31, "Asia/Tokyo", 9), (29, "UTC", 0)]
)
def test_recipe_bills_the_periods_of_the_limit(day: int, zone: str, hour: int) -> None:
    names: dict[str, Any] = {}
    exec(blocks(section(PAGES["docs/howto/recipes.md"], "## An invoice"), "python")[0], names)
    current = datetime(2027, 12, 1, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return current.astimezone(tz)

    names["datetime"] = Clock
    for _ in range(130):
        current += timedelta(hours=23)
        end, _after = window_at(round(current.timestamp()) * 10**6, "month", zone or None, day, time(hour))
        start, _end = window_at(end - 1, "month", zone or None, day, time(hour))
        assert [each.timestamp() * 10**6 for each in names["last_period"](day, zone, hour)] == [start, end]


@pytest.mark.django_db(transaction=True)
def test_collection_reads_and_writes_callers_in_bulk(make_rule: MakeRule, redis_client: redis.Redis) -> None:
    engine: Any = backend.get_engine()
    for caller in range(500):
        engine.check([exact("a", f"user:{caller}")], now_us=10**15)
    redis_client.config_resetstat()
    with CaptureQueriesContext(connection) as queries:
        collect_now()
    assert sum("callerusage" in query["sql"] for query in queries) <= 500 / 80 + 5
    assert redis_client.info("commandstats")["cmdstat_hscan"]["calls"] <= 2
    assert CallerUsage.objects.filter(identity="user", allowed=1).count() == 500
