"""Rules made in the database become charges: keys, delays and costs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import RequestFactory, override_settings

from django_ratelimiter import limiter
from django_ratelimiter.engine import Charge
from django_ratelimiter.identity import digest
from django_ratelimiter.limiter import charges as limiter_charges
from django_ratelimiter.limiter.charges import (
    LimitRequest,
    MaxDelay,
    Only,
    Reach,
    build_charges,
    limit_request,
    slot_request,
)
from django_ratelimiter.models import RuleLimit, Tier
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.records import RuleRecord, TierRecord
from django_ratelimiter.values.access import NOBODY

from ..making import MakeRule

pytestmark = pytest.mark.django_db(transaction=True)


def found(request: LimitRequest) -> list[tuple[RuleRecord, TierRecord | None, Charge]]:
    """The charges, each with its rule and tier."""
    call: Any = build_charges(cache.current_rules(), NOBODY, request)
    return [(owner.rule, owner.tier, charge) for owner, charge in zip(call.template.owners, call, strict=True)]


def charges(max_delay: MaxDelay = "rule", cost: int | None = None) -> list[Charge]:
    request = RequestFactory().get("/")
    return [charge for *_owner, charge in found(limit_request(request, None, cost, max_delay))]


@pytest.mark.parametrize(
    "wrong", [{"cost": "3"}, {"cost": 1.5}, {"cost": -1}, {"cost": True}, {"cost": []}, {"scope": 5}]
)
@pytest.mark.parametrize("ask", [limiter.check, async_to_sync(limiter.acheck), limiter.peek, limiter.charge])
def test_wrong_argument_of_the_limiter_is_an_error_although_no_rule_matches(ask: Any, wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: must be .*, not {re.escape(repr(value))}"):
        ask(RequestFactory().get("/"), **wrong).__enter__()


@pytest.mark.parametrize("wrong", [{"cost": "3"}, {"cost": -1}, {"scope": 5}])
def test_wrong_argument_of_a_slot_is_an_error_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{next(iter(wrong))}: "):
        limiter.slot(**{"scope": "mail"} | wrong)


@pytest.mark.parametrize(("generation", "suffix"), [(0, ""), (7, ":7")])
def test_the_generation_is_part_of_the_key(make_rule: MakeRule, generation: int, suffix: str) -> None:
    make_rule("all", limit={"generation": generation})
    assert [charge.key for charge in charges()] == [f"all:{digest('')}{suffix}"]


@pytest.mark.parametrize(
    ("names", "waits"),
    [(["user"], True), (["tenant", "ip"], True), (["ip"], False), (["session", "header:X-A"], False), ([], False)],
)
def test_what_may_depend_on_the_user_waits_for_authentication(
    make_rule: MakeRule, names: list[str], waits: bool
) -> None:
    make_rule("all", partition_by=names, missing_partition="deny")
    request = limit_request(RequestFactory().get("/"), max_delay=None, before_authentication=True)
    assert (found(request) == []) == waits


@pytest.mark.parametrize("count", [True, False])
def test_rejections_count_where_the_rule_says_so(make_rule: MakeRule, count: bool) -> None:
    make_rule("all", count_refusals=count)
    assert [charge.count_refusals for charge in charges()] == [count]


def test_what_was_reserved_is_charged_for_leases_only(make_rule: MakeRule) -> None:
    rule = make_rule("mixed", scope="stripe", algorithm="leaky_bucket")
    RuleLimit.objects.create(rule=rule, algorithm="concurrency", quota=3, window_seconds=60)

    def algorithms(only_leases: bool) -> set[str]:
        request = slot_request("stripe", None, None)._replace(only_leases=only_leases)
        return {charge.limit.algorithm for *_owner, charge in found(request)}

    assert algorithms(False) == {"leaky_bucket", "concurrency"}
    assert algorithms(True) == {"concurrency"}


MISSING = ["skip", "ip", "deny"]


@pytest.fixture
def all_kinds(make_rule: MakeRule) -> None:
    """Rules that are split in every way, and by what callers lack; of two limits each, for a tier."""
    tier = Tier.objects.create(slug="everybody", name="Everybody", rank=1, default_for="anonymous")
    for names in ([], ["ip"], ["session"], ["header:X-A"], ["ip", "header:X-A"], ["session", "header:X-A"]):
        for missing in MISSING:
            slug = "-".join([*names, missing]).replace(":", "-").lower()
            rule = make_rule(slug, tier=tier, partition_by=names, missing_partition=missing)
            RuleLimit.objects.create(rule=rule, tier=tier, algorithm="fixed_window", quota=9, window_seconds=60)


@pytest.mark.usefixtures("all_kinds")
def test_what_templates_give_is_what_would_be_made_anew() -> None:
    made = []
    for anew in (False, False, True):
        for address in ("192.0.2.1", "192.0.2.2", "no address"):
            for headers in ({}, {"X-A": "1"}, {"X-A": "2"}):
                request = RequestFactory().get("/", REMOTE_ADDR=address, headers=headers)
                if anew:
                    cache.current_rules().kept.clear()
                made.append(found(limit_request(request)))
    first, again, latest = made[:9], made[9:18], made[18:]
    assert first == again == latest
    assert len({charge.key for several in latest for *_owner, charge in several}) > 30


def test_a_stated_delay_and_cost_go_before_the_rules_and_are_not_remembered(make_rule: MakeRule) -> None:
    make_rule("queue", algorithm="leaky_bucket", cost=2, limit={"max_delay_ms": 1_500})
    for delay, cost in (("rule", None), (2.5, 7), ("rule", 1), (0.0, 0), ("rule", None), (None, None)):
        [charge] = charges(delay, cost)  # type: ignore[arg-type]
        assert (charge.max_delay, charge.cost) == (1.5 if delay == "rule" else delay, 2 if cost is None else cost)


def test_another_hash_key_makes_other_counters(make_rule: MakeRule) -> None:
    make_rule("all", partition_by=["ip"])
    keys = []
    for key in ("one", "two", "one"):
        with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "HASH_KEY": key}):
            keys += [charge.key for charge in charges()]
    assert keys[0] == keys[2] != keys[1]


def test_what_is_remembered_of_rules_is_bounded(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_charges, "MAX_TEMPLATES", 2)
    for name in ("a", "b", "c", "d"):
        make_rule(name, path=f"/{name}/", path_kind="exact")
    for name in ("a", "b", "c", "d", "a"):
        request = limit_request(RequestFactory().get(f"/{name}/"))
        assert [rule.slug for rule, *_charge in found(request)] == [name]
        assert len(cache.current_rules().kept) <= 2


@pytest.mark.parametrize(
    ("scope", "reach", "met"),
    [
        ("mail", "request", ["everywhere", "mail"]),
        (Only("mail"), "request", ["mail"]),
        (Only("none"), "request", []),
        (None, "request", ["everywhere"]),
        (None, "all", ["elsewhere", "everywhere", "mail"]),
    ],
)
def test_which_rules_a_question_is_about(make_rule: MakeRule, scope: str | None, reach: Reach, met: list[str]) -> None:
    make_rule("everywhere")
    make_rule("elsewhere", path_kind="exact", path="/elsewhere/")
    make_rule("mail", scope="mail")
    make_rule("off", mode="off")
    request = RequestFactory().get("/")
    assert [rule.slug for rule, *_charge in found(limit_request(request, scope, reach=reach))] == met
