"""Every failure policy states what it does, so that a new one cannot silently count as open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import django_ratelimiter
from django_ratelimiter import prometheus
from django_ratelimiter.decision import Result, decide
from django_ratelimiter.models import Rule
from django_ratelimiter.rules.records import FAILURE_POLICIES, FailurePolicy
from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet, rule_from

from .build import rule_data, snapshot

PACKAGE = Path(django_ratelimiter.__file__).parent
PAGE = PACKAGE.parent / "docs/howto/failure-policies.md"


def uncounted(policy: str) -> Result:
    """The result of a rule whose request nobody has counted."""
    rule = rule_from(rule_data(failure_policy=policy))
    return Result(rule, None, rule.limits[None][0].limit, None, "enforce")


def test_a_policy_states_all_that_it_does() -> None:
    with pytest.raises(TypeError, match="rejects"):
        FailurePolicy(counts=False)  # type: ignore[call-arg]


@pytest.mark.parametrize("rejects", [True, False])
def test_a_new_policy_does_what_it_states(monkeypatch: pytest.MonkeyPatch, rejects: bool) -> None:
    monkeypatch.setitem(FAILURE_POLICIES, "wait", FailurePolicy(counts=False, rejects=rejects))  # type: ignore[arg-type]
    result = uncounted("wait")
    decision = decide([result], NO_VERSION, degraded=True)
    assert result.rejects is decision.unavailable is rejects
    assert decision.allowed is result.passes is not rejects
    assert prometheus._labels(result, is_rejected=rejects)[2] == ("rejected" if rejects else "allowed")


def test_a_policy_that_nobody_has_described_is_in_no_rule() -> None:
    data = rule_data(failure_policy="wait")
    [left_out] = RuleSet.from_snapshot(snapshot(data)).left_out
    assert left_out.reason.startswith("failure_policy: 'wait'")
    with pytest.raises(ValueError, match=r"^failure_policy: 'wait' is unknown"):
        replace(rule_from(rule_data()), failure_policy="wait")


def test_models_and_pages_know_the_same_policies() -> None:
    assert set(Rule.FailurePolicy.values) == set(FAILURE_POLICIES)
    rows = [line.split("`")[1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert rows[: len(FAILURE_POLICIES)] == list(FAILURE_POLICIES)
    assert Rule().failure_policy == next(iter(FAILURE_POLICIES))
