"""A caller is granted the same as a request gets, by every kind of assignment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test.utils import override_settings
from django.utils import timezone
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.engine.calendars import Anchor
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.explanation import explain
from django_ratelimiter.inspection.grounds import grounds_of
from django_ratelimiter.inspection.question import Question
from django_ratelimiter.inspection.reset import counters_now
from django_ratelimiter.models import Rule, Tier, TierAssignment
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.tiers import Entitlement

from .test_counters import ask, counter

pytestmark = pytest.mark.django_db

AddRule = Callable[..., Rule]


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("multiplier", ["2", "0.5"])
def test_no_multiplier_changes_a_counter_that_all_callers_share(
    add_rule: AddRule, user: User, free: Tier, in_memory: bool, multiplier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_memory:
        monkeypatch.setattr("django_ratelimiter.backend._engine", MemoryEngine())
    add_rule("own", ["user"], quota=8)
    add_rule("site", [], quota=4)
    TierAssignment.objects.create(tier=free, user=user, multiplier=multiplier)
    explained = {each.rule.slug: each for each in explain(Question(path="/", user=user.username)).matched}
    capacities = {slug: each.counters[0].capacity for slug, each in explained.items()}
    assert capacities == {"own": int(8 * Decimal(multiplier)), "site": 4}
    caller = caller_of("user", str(user.pk))
    assert {slug: counter(caller, slug).capacity for slug in capacities} == capacities
    decided = [ask(user) for _ in range(5)]
    assert [each.allowed for each in decided] == [True] * 4 + [False]
    assert {each.rule.slug: each.limit.capacity for each in decided[0].results} == capacities
    assert str(ask(User.objects.create_user("bob")).binding.rule) == "site"


def plan_of(identity: Any) -> str | None:
    """The tier that the user's e-mail names."""
    if identity.user.email == "broken":
        raise ConnectionError
    return identity.user.email or None


@pytest.mark.parametrize(
    ("email", "slug", "kind"),
    [("pro", "pro", "resolver"), ("gone", "free", "default"), ("broken", "free", "failed")],
)
def test_a_tier_of_the_projects_own_code_is_given_a_reason(
    user: User, free: Tier, pro: Tier, email: str, slug: str, kind: str
) -> None:
    User.objects.filter(pk=user.pk).update(email=email)
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TIER_RESOLVER": f"{__name__}.plan_of"}):
        [found] = grounds_of([caller_of("user", str(user.pk))], cache.current_rules())
    assert (found.tier.slug, found.tier.kind) == (slug, kind)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["user", "group", "ip", "network", "other"]),
        st.sampled_from(["free", "pro", None]),
        st.sampled_from([(None, None), (-1, None), (None, 1), (1, None), (-2, -1)]),
        st.integers(1, 3),
        st.sampled_from([None, None, 15, 31]),
    ),
    max_size=5,
)


def by_the_docs(rows: Any, plan: str, rules: RuleSet) -> Entitlement:
    """What docs/howto/rules-and-tiers.md says of these assignments, in the order of the page."""
    active = [
        ((start is not None or end is not None, tier == "pro", number), tier, multiplier, day)
        for number, (who, tier, (start, end), multiplier, day) in enumerate(rows)
        if who != "other" and (start is None or start < 0) and (end is None or end > 0)
    ]
    active.sort(reverse=True, key=itemgetter(0))
    tiered = [(tier, multiplier) for _, tier, multiplier, _ in active if tier]
    tier, multiplier = tiered[0] if tiered else (plan if plan in rules.tiers else "free", 1)
    more = [each for _, tier, each, _ in active if tier is None and each != 1]
    days = [day for *_, day in active if day]
    anchor = Anchor(days[0]) if days else None
    return Entitlement(rules.tiers[tier], Decimal(multiplier * (more[0] if more else 1)), anchor)


@settings(max_examples=40, deadline=None)
@example(rows=[("user", None, (None, 1), 2, None), ("ip", None, (None, 1), 1, 31)], plan="pro")
@given(rows=ROWS, plan=st.sampled_from(["", "pro", "gone"]))
def test_agrees_with_what_a_request_gets(rows: Any, plan: str, django_db_setup: None) -> None:
    Tier.objects.all().delete()
    TierAssignment.objects.all().delete()
    for rank, slug in enumerate(("free", "pro")):
        Tier.objects.create(slug=slug, name=slug, rank=rank, default_for="authenticated" if slug == "free" else "none")
    user, _ = User.objects.update_or_create(username="ann", defaults={"first_name": plan})
    group, _ = Group.objects.get_or_create(name="staff")
    user.groups.set([group])
    subjects: Any = {
        "user": {"user": user}, "group": {"group": group}, "ip": {"partition": "ip:192.0.2.7"},
        "network": {"partition": "ip:192.0.2.0/24"}, "other": {"partition": "ip:198.51.100.1"},
    }  # fmt: skip
    seen, written = set(), list[Any]()
    for row in rows:
        who, tier, (start, end), multiplier, day = row
        dated = [None if days is None else timezone.now() + timedelta(days=days) for days in (start, end)]
        if dated == [None, None] and tier and (who, tier) in seen:
            continue
        seen.add((who, tier))
        written.append(row)
        TierAssignment.objects.create(
            **subjects[who], tier=Tier.objects.filter(slug=tier).first(), starts_at=dated[0], ends_at=dated[1],
            multiplier=multiplier, anchor_day=day,
        )  # fmt: skip
    tiers.forget()
    caller = caller_of("partition", f"user:{user.pk}|ip:192.0.2.7")
    rules = cache.current_rules()
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TIER_RESOLVER": "user.first_name"}):
        real = cache.entitlement_for(rules, caller.known.get("user"), caller.api_key, caller.partition)
        assert grounds_of([caller], rules)[0].entitlement == real == by_the_docs(written, plan, rules)
    assert counters_now(caller).problem == ""
