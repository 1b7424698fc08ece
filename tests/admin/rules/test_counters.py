"""Changes of a rule in the admin keep or reset its counters, on the real server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion

from ..pages import RULES, number, page_of, rule_form, shown
from .visitor import PATH, START_US, Visitor

pytestmark = pytest.mark.urls("tests.entry_points.urls")


def limit_of(algorithm: str, **columns: Any) -> dict[str, Any]:
    return {"algorithm": algorithm, "quota": 5, "window_seconds": "60", "max_delay_ms": 60_000, **columns}


@pytest.fixture
def change(admin_client: Client, save: Callable[..., RuleLimit]) -> Callable[..., None]:
    """Save the first limit of the rule again by its form: `change({"quota": …})`."""

    def post(columns: dict[str, Any]) -> None:
        limit = RuleLimit.objects.get()
        row = {"id": limit.pk, "rule": limit.rule_id, **columns}
        fields = {"path_kind": "exact", "path": PATH, "methods": ["GET"], "partition_by": ["ip"]}
        response = admin_client.post(page_of(limit.rule), rule_form(row, stored=1, **fields))
        assert response.status_code == 302, response.context["errors"]

    return post


def admitted(visitor: Visitor) -> int:
    """How many more requests pass."""
    for count in range(100):
        if not visitor.ask(START_US).allowed:
            return count
    raise AssertionError("None is rejected.")


@pytest.mark.parametrize(
    ("algorithm", "quota", "left"),
    [(algorithm, *case) for algorithm, case in zip(Algorithm, cycle([(4, 1), (10, 7), (3, 0), (2, 0)]))],
)
def test_what_is_spent_stays_spent(
    visitor: Visitor,
    save: Callable[..., RuleLimit],
    change: Callable[..., None],
    algorithm: str,
    quota: int,
    left: int,
) -> None:
    save(limit_of(algorithm))
    assert [visitor.ask(START_US).allowed for _ in range(3)] == [True] * 3
    change(limit_of(algorithm, quota=quota, soft_quota=1))
    assert admitted(visitor) == left
    assert visitor.latest["X-RateLimit-Remaining"] == "0"
    assert int(visitor.latest["Retry-After"]) >= 1
    rest = 'qu="concurrent-requests"' if algorithm == Algorithm.CONCURRENCY else "w=60"
    assert visitor.latest["RateLimit-Policy"] == f'"export";q={quota};{rest}'


def test_a_new_rule_finds_no_counters_of_a_former_one(
    visitor: Visitor, save: Callable[..., RuleLimit], admin_client: Client
) -> None:
    rule = save(limit_of("gcra")).rule
    assert RuleLimit.objects.get().generation == number()
    assert admitted(visitor) == 5
    admin_client.post(reverse("admin:django_ratelimiter_rule_delete", args=[rule.pk]), {"post": "yes"})
    assert not Rule.objects.exists()
    again = save(limit_of("gcra"))
    assert again.rule.slug == rule.slug
    assert again.generation == number()
    assert admitted(visitor) == 5


class TestForget:
    def forget(self, client: Client, *rules: Rule) -> Any:
        sent = {"action": "forget", "_selected_action": [rule.pk for rule in rules]}
        return client.post(RULES, sent, follow=True)

    @pytest.mark.parametrize("algorithm", [Algorithm.GCRA, Algorithm.CONCURRENCY])
    def test_the_counters_are_fresh(
        self, visitor: Visitor, save: Callable[..., RuleLimit], admin_client: Client, algorithm: str
    ) -> None:
        rule = save(limit_of(algorithm)).rule
        assert admitted(visitor) == 5
        before = number()
        assert "The counters of 1 rule were reset." in shown(self.forget(admin_client, rule))
        assert number() == before + 1
        assert RuleSetVersion.objects.get(number=number()).summary == "counters reset: export"
        assert [entry.get_change_message() for entry in LogEntry.objects.filter(object_id=str(rule.pk))[:1]] == [
            "Counters reset."
        ]
        assert admitted(visitor) == 5
        self.forget(admin_client, rule)
        assert admitted(visitor) == 5

    def test_all_limits_of_a_rule_go_on_together(
        self, visitor: Visitor, save: Callable[..., RuleLimit], admin_client: Client, change: Callable[..., None]
    ) -> None:
        """Tiers whose limits count the same share their counters, later ones too."""
        limit = save(limit_of("gcra"))
        self.forget(admin_client, limit.rule)
        change(limit_of("gcra", quota=6))
        generation = limit.generation + 1
        assert RuleLimit.objects.get().generation == generation
        row = {"id": limit.pk, "rule": limit.rule_id, **limit_of("gcra")}
        fields = {"path_kind": "exact", "path": PATH, "methods": ["GET"], "partition_by": ["ip"]}
        sent = rule_form(row, limit_of("concurrency"), stored=1, **fields)
        assert admin_client.post(page_of(limit.rule), sent).status_code == 302
        assert set(limit.rule.limits.values_list("generation", flat=True)) == {generation}

    @pytest.mark.django_db
    def test_a_rule_without_limits_has_nothing_to_forget(self, admin_client: Client) -> None:
        rule = Rule.objects.create(slug="empty", name="Empty", mode="enforce")
        before = number()
        assert "Nothing changed" in shown(self.forget(admin_client, rule))
        assert (number(), LogEntry.objects.count()) == (before, 0)
