"""Back to a version: the rows become what it says, whatever they are now, and counters keep their meaning."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_ratelimiter.engine.base import Version
from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion, Tier, TierAssignment
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
from django_ratelimiter.rules.stored.history.back import (
    NotApplied,
    NothingToBringBack,
    RulesHaveChanged,
    bring_back,
    plan_back,
)
from django_ratelimiter.rules.stored.history.changes import Change, FieldChange, diff, summary

from ..making import update
from .build import rule_data, snapshot
from .rows import make_rule

pytestmark = pytest.mark.django_db

SLUGS = ("a", "off", "1")  # the last two are no texts in YAML without quotes


def limits() -> st.SearchStrategy[dict[str, Any]]:
    """A limit's columns, of few meanings, so that different rule sets share some."""
    kinds = st.sampled_from(
        [
            {"algorithm": "fixed_window", "window_seconds": "60"},
            {"algorithm": "fixed_window", "calendar": "month", "anchor_day": 3, "timezone": "Europe/Berlin"},
            {"algorithm": "sliding_window_log", "window_seconds": "1.5"},
            {"algorithm": "token_bucket", "window_seconds": "60", "burst": 900},
        ]
    )
    return st.builds(lambda kind, quota: {**kind, "quota": quota}, kinds, st.integers(5, 7))


def rule_sets(names: st.SearchStrategy[str], texts: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Rules by slug, with their columns."""
    rule = st.fixed_dictionaries(
        {
            "name": names,
            "mode": st.sampled_from(["off", "shadow", "enforce"]),
            "methods": st.lists(st.sampled_from(["GET", "POST"]), unique=True),
            "partition_by": st.sampled_from([[], ["user"], ["ip", "path:pk"]]),
            "message": names,
            "description": texts,
            "priority": st.integers(1, 2),
            "generation": st.integers(0, 2),
            "limits": st.lists(
                st.tuples(st.sampled_from([None, *SLUGS]), limits()),
                max_size=3,
                unique_by=lambda row: (row[0], row[1]["algorithm"], row[1].get("calendar")),
            ),
        }
    )
    return st.dictionaries(st.sampled_from(SLUGS), rule)


rules = rule_sets(st.sampled_from(["One", "Two"]), st.sampled_from(["", "For “all” <b>"]))
tiers = st.dictionaries(
    st.sampled_from(SLUGS),
    st.tuples(st.sampled_from(["One", "Two"]), st.integers(0, 1), st.sampled_from(["none", "anonymous"])),
)


def save(tier_rows: dict[str, Any], rule_rows: dict[str, Any]) -> Version:
    """Make the rows from nothing: this rule set alone is there then. Limits of tiers that are not there are left."""
    with cache.editing():
        Rule.objects.all().delete()
        Tier.objects.all().delete()
        defaults = set()
        for slug, (name, rank, default) in tier_rows.items():
            default = "none" if default in defaults else default
            defaults.add(default)
            Tier.objects.create(slug=slug, name=name, rank=rank, default_for=default)
        for slug, fields in rule_rows.items():
            rule = Rule.objects.create(
                slug=slug, **{key: fields[key] for key in fields.keys() - {"limits", "generation"}}
            )
            for tier, columns in fields["limits"]:
                if tier is None or tier in tier_rows:
                    row = RuleLimit(rule=rule, tier=tier and Tier.objects.get(slug=tier), **columns)
                    row.generation = fields["generation"]
                    row.save()
    return storage.committed_version()


def in_force() -> Any:
    """The rows in a form that can be compared: without generations."""
    found = snapshot_of_rows()
    assert found["left_out"] == []
    for rule in found["rules"]:
        for limit in rule["limits"]:
            del limit["generation"]
    return found


def generations() -> dict[str, int]:
    return dict(RuleLimit.objects.values_list("rule__slug", "generation"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tiers, rules, tiers, rules)
def test_it_is_exactly_that_version_again(
    old_tiers: dict[str, Any], old: dict[str, Any], new_tiers: dict[str, Any], new: dict[str, Any]
) -> None:
    with transaction.atomic():
        version = save(old_tiers, old)
        then, before = in_force(), generations()
        seen = save(new_tiers, new)
        keys = dict(Rule.objects.values_list("slug", "pk")), dict(Tier.objects.values_list("slug", "pk"))
        now = generations()
        try:
            made = bring_back(version, seen, reason="because")
        except NothingToBringBack:
            made = seen
        assert in_force() == then
        for model, former in zip((Rule, Tier), keys, strict=True):  # rows that stay keep their keys
            again = dict(model.objects.values_list("slug", "pk"))
            assert all(again[slug] == former[slug] for slug in again.keys() & former.keys())
        for slug, generation in generations().items():  # what was reset stays so
            assert generation >= max(before.get(slug, 0), now.get(slug, 0))
        with pytest.raises(NothingToBringBack):
            bring_back(version, made)
        assert storage.committed_version() == made
        transaction.set_rollback(True)


def make(slug: str = "a", **limit: Any) -> Rule:
    return make_rule(slug, name=slug.upper(), limit={"window_seconds": Decimal(60), **limit})


def stored() -> Version:
    """The latest version, stored with its snapshot, as a commit would do it."""
    cache.invalidate()
    return storage.committed_version()


@pytest.fixture
def rule() -> Rule:
    return make()


@pytest.fixture
def version(rule: Rule) -> Version:
    """One of this rule alone."""
    return stored()


def back_to(version: Version) -> Version:
    return bring_back(version, storage.committed_version(), reason="because")


class TestVersion:
    def test_a_change_in_the_last_moment_stops_it(self, monkeypatch: pytest.MonkeyPatch, version: Version) -> None:
        """Another editor held the lock while the way back was being planned."""
        make("b")
        seen = stored()
        way = plan_back(version)
        make("c")
        stored()
        monkeypatch.setattr("django_ratelimiter.rules.stored.history.back.plan_back", lambda _: way)
        with pytest.raises(RulesHaveChanged):
            bring_back(version, seen)
        assert Rule.objects.count() == 3

    def test_one_that_is_gone_changes_nothing(self) -> None:
        make()
        with pytest.raises(NotApplied):
            back_to(Version(999, 1))

    @pytest.mark.parametrize(
        ("column", "value", "says"),
        [("path", "relative", "a: Path: Choose how .* path_kind: exact, prefix, route."), ("cost", 0, "rejects it")],
    )
    def test_one_that_cannot_be_enforced_any_more_changes_nothing(
        self, column: str, value: Any, says: str, rule: Rule, version: Version
    ) -> None:
        row = RuleSetVersion.objects.get(number=version.number)
        row.snapshot["rules"][0][column] = value
        row.save()
        rule.delete()
        latest = storage.committed_version()
        with pytest.raises(NotApplied, match=says):
            back_to(version)
        assert (storage.committed_version(), Rule.objects.count()) == (latest, 0)

    def test_one_of_an_earlier_release_lacks_columns(self, rule: Rule, version: Version) -> None:
        row = RuleSetVersion.objects.get(number=version.number)
        for name in ("count_refusals", "charge_when", "sync_interval_ms"):
            del row.snapshot["rules"][0][name]
        for name in ("generation", "slots", "refill", "max_delay_ms"):
            del row.snapshot["rules"][0]["limits"][0][name]
        row.save()
        rule.refresh_from_db()
        rule.count_refusals, rule.mode = True, "off"
        rule.save()
        back_to(version)
        rule.refresh_from_db()
        assert (rule.count_refusals, rule.mode) == (False, "enforce")

    def test_the_switch_stays_as_it_is(self) -> None:
        cache.switch_enforcement(False)
        make()
        version = stored()
        make("b")
        cache.switch_enforcement(True)
        way = plan_back(version)
        assert way is not None
        assert "All enforcement was stopped then. It is not stopped again." in way.notes
        back_to(version)
        assert cache.enforcement_enabled()


class TestCounters:
    def generation(self) -> int:
        return RuleLimit.objects.get().generation

    def reset(self) -> None:
        update(RuleLimit, generation=self.generation() + 1)

    def test_a_reset_alone_is_nothing_to_bring_back(self, version: Version) -> None:
        self.reset()
        with pytest.raises(NothingToBringBack):
            back_to(version)
        assert self.generation() == 1

    def test_a_window_that_comes_back_goes_on_with_what_it_had_counted(self, version: Version) -> None:
        """Those requests were made within the window; to forget them would allow twice the quota."""
        update(RuleLimit, window_seconds=3600)
        back_to(version)
        assert (RuleLimit.objects.get().window_seconds, self.generation()) == (60, 0)

    def test_each_limit_goes_on_with_its_own_counters(self) -> None:
        rule = make()
        RuleLimit.objects.create(rule=rule, algorithm="token_bucket", quota=9, window_seconds=60, generation=3)
        version = stored()
        update(RuleLimit, quota=1)
        back_to(version)
        limits = RuleLimit.objects.order_by("pk").values_list("algorithm", "quota", "generation")
        assert list(limits) == [("fixed_window", 5, 0), ("token_bucket", 9, 3)]


class TestChanges:
    def test_a_rule_that_cannot_be_enforced_any_more_is_not_deleted(self) -> None:
        before, after = snapshot(rule_data()), snapshot()
        after["left_out"] = [{"rule": "rule", "reason": "Why."}]
        states = FieldChange("", "in force", "yes", "no: Why.")
        assert diff(before, after) == [Change("changed", "rule", "rule", "Rule", (states,))]
        back = states._replace(before=states.after, after=states.before)
        assert diff(after, before) == [Change("changed", "rule", "rule", "Rule", (back,))]

    def test_the_switch_is_told_of(self) -> None:
        on, off = snapshot(), {**snapshot(), "enforcement": False}  # versions before it was known lack it
        assert summary(diff(on, off)) == "All enforcement: enforcement: on → stopped"
        assert summary(diff(off, on)) == "All enforcement: enforcement: stopped → on"
        assert diff(on, {**on, "enforcement": True}) == []

    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (0, ""),
            (1, "Rule “0” added"),
            (3, "Rule “0” added; Rule “1” added; Rule “2” added"),
            (4, "Rule “0” added; Rule “1” added; Rule “2” added; 1 more change"),
            (5, "Rule “0” added; Rule “1” added; Rule “2” added; 2 more changes"),
        ],
    )
    def test_a_summary_names_the_first_and_counts_the_others(self, number: int, words: str) -> None:
        assert summary(diff(snapshot(), snapshot(*(rule_data(str(slug)) for slug in range(number))))) == words


class TestTiers:
    def test_a_tier_with_assignments_stays(self, version: Version) -> None:
        tier = Tier.objects.create(slug="pro", name="Pro", default_for="anonymous")
        Tier.objects.create(slug="empty", name="Empty")
        RuleLimit.objects.create(rule=make("b"), tier=tier, quota=5, window_seconds=60)
        TierAssignment.objects.create(tier=tier, api_key_hash="0" * 64)
        way = plan_back(version)
        assert way is not None
        assert way.notes[0] == "The tier pro did not exist then, but 1 assignment refers to it. Both are kept."
        back_to(version)
        assert [(tier.slug, tier.default_for) for tier in Tier.objects.all()] == [("pro", "none")]
        assert (TierAssignment.objects.count(), Rule.objects.count(), RuleLimit.objects.count()) == (1, 1, 1)

    def test_a_renamed_one_keeps_its_assignments(self) -> None:
        tier = Tier.objects.create(slug="pro", name="Pro")
        RuleLimit.objects.create(rule=make(), tier=tier, quota=5, window_seconds=60)
        version = stored()
        TierAssignment.objects.create(tier=tier, api_key_hash="0" * 64)
        tier.slug = "gold"
        tier.save()
        back_to(version)
        assert TierAssignment.objects.get().tier == Tier.objects.get(slug="pro") == tier


class TestRulesThatCannotBeEnforced:
    def test_one_of_now_stays_as_it_is(self, version: Version) -> None:
        make("b")
        make("bad")
        update(Rule.objects.filter(slug="bad"), path_kind="exact", path="relative")
        way = plan_back(version)
        assert way is not None
        assert way.notes[-1] == "Rules that cannot be enforced now stay as they are, not in force: bad."
        back_to(version)
        assert sorted(Rule.objects.values_list("slug", flat=True)) == ["a", "bad"]

    def test_one_that_could_be_then_is_mended(self, rule: Rule, version: Version) -> None:
        update(Rule, path_kind="exact", path="relative")
        back_to(version)
        assert snapshot_of_rows()["left_out"] == []
        assert Rule.objects.get().pk == rule.pk

    def test_one_that_could_not_be_then_is_switched_off(self) -> None:
        make()
        update(Rule, path_kind="exact", path="relative")
        version = stored()
        update(Rule, path="/absolute/")
        back_to(version)
        assert (Rule.objects.get().mode, Rule.objects.get().path) == ("off", "/absolute/")


@pytest.mark.django_db(transaction=True)
class TestRequests:
    """The same with real requests, and counters in Redis."""

    def statuses(self, count: int = 1) -> list[int]:
        return [Client().get("/hello/").status_code for _ in range(count)]

    def test_neither_a_window_in_between_nor_a_deletion_revives_what_was_reset(self) -> None:
        rule = make(quota=2, window_seconds=86_400)
        version = storage.committed_version()
        assert self.statuses(3) == [200, 200, 429]
        update(RuleLimit, generation=1)
        update(RuleLimit, window_seconds=3_600)
        back_to(version)
        assert self.statuses(3) == [200, 200, 429]
        update(RuleLimit, generation=2)
        rule.delete()
        back_to(version)
        assert self.statuses(3) == [200, 200, 429]

    def test_of_two_who_do_it_at_once_one_does(self) -> None:
        make()
        version = storage.committed_version()
        make("b")
        seen = storage.committed_version()
        both = threading.Barrier(2)

        def go(_number: int) -> str:
            try:
                both.wait()
                bring_back(version, seen)
            except NotApplied as error:
                return type(error).__name__
            finally:
                connection.close()
            return "done"

        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(go, range(2)))
        assert sorted(results)[1] == "done"
        assert results.count("done") == 1
        assert storage.committed_version().number == seen.number + 1
        assert sorted(Rule.objects.values_list("slug", flat=True)) == ["a"]
