"""Synced charges from templates are decided as the same charges one by one, whatever comes in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit, Verdict
from django_ratelimiter.engine.call import Answer, Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.local.call import LocalVerdicts
from django_ratelimiter.engine.redis import RedisEngine

from .world import Clock, Counted, counts, over

PARTS = {"user": "user:", "ip": "ip:", "all": "all:"}


def template(*charges: Charge) -> CallTemplate:
    """A template of these charges, each of which is split but for "all"."""
    return CallTemplate([ChargeTemplate(PARTS[each.key], ":x", each, each.key != "all") for each in charges])


def limit(quota: int, **options: Any) -> Limit:
    return Limit(quota, 3_600, options.pop("algorithm", "fixed_window"), **options)


SIMPLE = template(
    Charge("user", limit(5), usage="user|", sync_interval=1.0),
    Charge("ip", limit(7, algorithm="sliding_window_counter"), usage="ip|", sync_interval=1.0),
    Charge("all", limit(40), usage="all|", sync_interval=2.0),
)
SOFT = template(
    Charge("user", limit(5, soft_quota=2), usage="user|", sync_interval=1.0, count_refusals=True),
    Charge("all", limit(40), 2, False, usage="all|", sync_interval=1.0),
)
MIXED = template(
    Charge("user", limit(5), usage="user|"),
    Charge("ip", limit(7), usage="ip|", sync_interval=1.0),
    Charge("all", limit(40), usage="all|", sync_interval=-1.0),
)
TEMPLATES = [SIMPLE, SOFT, MIXED]


class Replying(Counted):
    """An engine that answers filled charges as the one on Redis does."""

    def check(self, charges: Any, **options: Any) -> Any:
        verdicts = super().check(list(charges), **options)
        if type(charges) is not Call or options.get("counts") or options.get("refund_if_denied"):
            return verdicts
        reply = [verdicts[0].at_us]
        for each in verdicts:
            wait = -1 if each.retry_after is None else round(each.retry_after * 1_000_000)
            reply += each.remaining, wait, round(each.reset_after * 1_000_000), each.spent_at_us - each.at_us
        return Answer(charges, reply)


def told(verdicts: Sequence[Verdict]) -> list[tuple[Any, ...]]:
    """What verdicts say, times to the millisecond."""
    return [
        (
            *(each.allowed, each.remaining, each.soft_exceeded, each.spent, round(each.at_us / 1_000)),
            each.retry_after and round(each.retry_after, 3),
            round(each.reset_after, 3),
        )
        for each in verdicts
    ]


def filled_at_random(random: Random, templates: list[CallTemplate]) -> Call:
    """Charges of one of three users at one of three addresses; no user has the partition of an address."""
    template, caller = random.choice(templates), {"all": ""}
    caller |= {name: f"{name} {random.choice('abc')}" for name in ("user", "ip")}
    return Call(template, tuple(caller[each.before.rstrip(":")] for each in template.templates))


@pytest.mark.parametrize("seed", range(30))
def test_they_are_decided_as_if_they_stood_one_by_one(seed: int) -> None:
    clock, random = Clock(), Random(seed)
    engines = Replying(clock), Replying(clock)
    filled, plain = (over(engine, clock, ask_interval=0.7) for engine in engines)
    for engine in engines:
        engine.publish(1)
    spent: list[tuple[Sequence[Verdict], Sequence[Verdict]]] = []
    for _ in range(300):
        clock.now += random.choice([0.0, 0.01, 0.2, 0.9])
        charges = filled_at_random(random, TEMPLATES if seed % 2 else [SIMPLE])
        found = filled.check(charges, version=1), plain.check(list(charges), version=1)
        assert told(found[0]) == told(found[1])
        spent.append(found)
        if random.random() < 0.2:
            for process, verdicts in zip((filled, plain), random.choice(spent), strict=True):
                process.refund(verdicts)
    assert [len(call) for call in engines[0].calls] == [len(call) for call in engines[1].calls]
    for process in (filled, plain):
        process.flush()
    assert counts(engines[0]) == counts(engines[1])


def no_charge(_charges: Call) -> list[Charge]:
    raise AssertionError("No charge need be made.")


def test_who_passes_is_counted_without_making_a_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = Replying(clock)
    one = over(engine, clock)
    for _ in range(3):
        one.check(Call(SIMPLE, ("a", "a", "")))
    monkeypatch.setattr(Call, "_fill", no_charge)
    verdicts = one.check(Call(SIMPLE, ("a", "a", "")))
    assert isinstance(verdicts, LocalVerdicts)
    assert (verdicts.is_rejected, list(verdicts.states.remaining)) == (False, [1, 3, 36])
    assert len(engine.calls) == 2


def test_a_first_request_makes_none_either(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RedisEngine(redis_client, "filled")
    partitions = ("a" * 22, "b" * 22, "c" * 22)  # as long as digests are
    engine.check(Call(SIMPLE, partitions))  # the partitions are new in this hour
    engine.check(Call(SIMPLE, partitions))
    monkeypatch.setattr(Call, "_fill", no_charge)
    verdicts = over(engine, Clock()).check(Call(SIMPLE, partitions))
    assert type(verdicts) is Answer
    assert list(verdicts.states.remaining) == [2, 4, 37]
