"""What becomes a charge: keys, delays and costs, from rules made in the database."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from django_ratelimiter.decision import NOTHING_TO_DECIDE
from django_ratelimiter.engine import Charge
from django_ratelimiter.identity import digest
from django_ratelimiter.models import RuleLimit
from django_ratelimiter.planning import MaxDelay, plan, request_question, slot_question
from django_ratelimiter.rules import cache

from .conftest import MakeRule

pytestmark = pytest.mark.django_db(transaction=True)


def charges(max_delay: MaxDelay = "rule", cost: int | None = None) -> list[Charge]:
    request = RequestFactory().get("/")
    question = request_question(request, None, cost, max_delay, False, NOTHING_TO_DECIDE)
    return [each.charge for each in plan(cache.current_rules(), question)]


@pytest.mark.parametrize(("generation", "suffix"), [(0, ""), (7, ":7")])
def test_the_generation_is_part_of_the_key(make_rule: MakeRule, generation: int, suffix: str) -> None:
    make_rule("all", limit={"generation": generation})
    assert [charge.key for charge in charges()] == [f"all:{digest('')}{suffix}"]


@pytest.mark.parametrize(("asked", "told"), [("rule", 1.5), (None, None), (0.0, 0.0), (9.0, 9.0)])
def test_the_longest_delay_is_the_rules_unless_the_door_knows_better(
    make_rule: MakeRule, asked: MaxDelay, told: float | None
) -> None:
    make_rule("queue", algorithm="leaky_bucket", limit={"max_delay_ms": 1_500})
    assert [charge.max_delay for charge in charges(asked)] == [told]


@pytest.mark.parametrize(
    ("names", "waits"),
    [(["user"], True), (["tenant", "ip"], True), (["ip"], False), (["session", "header:X-A"], False), ([], False)],
)
def test_what_may_depend_on_the_user_waits_for_authentication(
    make_rule: MakeRule, names: list[str], waits: bool
) -> None:
    make_rule("all", partition_by=names, missing_partition="deny")
    question = request_question(RequestFactory().get("/"), None, None, None, True, NOTHING_TO_DECIDE)
    assert (plan(cache.current_rules(), question) == []) == waits


@pytest.mark.parametrize("count", [True, False])
def test_refusals_count_where_the_rule_says_so(make_rule: MakeRule, count: bool) -> None:
    make_rule("all", count_refusals=count)
    assert [charge.count_refusals for charge in charges()] == [count]


@pytest.mark.parametrize(("asked", "spent"), [(None, 2), (1, 1), (0, 0)])
def test_a_stated_cost_goes_before_the_rules(make_rule: MakeRule, asked: int | None, spent: int) -> None:
    make_rule("all", cost=2)
    assert [charge.cost for charge in charges(cost=asked)] == [spent]


def test_what_was_reserved_is_charged_for_leases_only(make_rule: MakeRule) -> None:
    rule = make_rule("mixed", scope="stripe", algorithm="leaky_bucket")
    RuleLimit.objects.create(rule=rule, algorithm="concurrency", quota=3, window_seconds=60)

    def algorithms(only_leases: bool) -> set[str]:
        question = slot_question("stripe", None, None, None, only_leases)
        return {each.charge.limit.algorithm for each in plan(cache.current_rules(), question)}

    assert algorithms(False) == {"leaky_bucket", "concurrency"}
    assert algorithms(True) == {"concurrency"}
