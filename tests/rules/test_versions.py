"""The version protocol between the database, the engine and the processes' caches."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import redis
from django.db import DatabaseError, IntegrityError, transaction
from django.http import HttpResponse
from django.test import RequestFactory

from django_ratelimiter.backend import get_engine
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import EngineUnavailable, StaleRules, Version
from django_ratelimiter.exceptions import RulesUnavailable
from django_ratelimiter.models import RuleLimit, RuleSetState, RuleSetVersion, Tier
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage, versions
from tests.making import calls_of, failing, save, update

from .rows import held, make_rule

pytestmark = pytest.mark.django_db(transaction=True)


def quota_in_force(slug: str = "rule") -> int | None:
    """The quota by which this process decides, after asking the engine."""
    rules = cache.current_rules()
    try:
        get_engine().check([], version=rules.version)
    except StaleRules as stale:
        rules = cache.reload(stale, rules)
    found = [rule for rule in rules.rules if rule.slug == slug]
    return found[0].limits[None][0].limit.quota if found and found[0].limits else None


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> list[Version]:
    """Publishing fails as often as this list is long."""
    failures: list[Version] = []
    engine = get_engine()
    publish = engine.publish

    def failing(version: Any) -> None:
        if failures:
            failures.pop()
            raise EngineUnavailable("made to fail")
        publish(version)

    monkeypatch.setattr(engine, "publish", failing)
    return failures


#: The files of ours in which the save of a rule runs, from the first signal to the copy in Redis.
MOST_FILES = 30


@pytest.mark.parametrize("with_limits", [False, True])
def test_the_save_of_a_rule_meets_few_files(with_limits: bool) -> None:
    rule = make_rule(partition_by=["ip"], path_kind="prefix", path="/api/")

    def edit() -> None:
        rule.priority += 1
        with transaction.atomic() if with_limits else nullcontext():
            rule.save()
            for limit in rule.limits.all() if with_limits else ():
                save(limit, quota=rule.priority)

    edit()
    before = held()
    met = {name.partition(":")[0] for name in calls_of(edit)}
    assert held() == storage.committed_version() != before
    assert {"models/rules.py", "rules/stored/versions.py", "engine/redis/engine.py"} < met
    assert len(met) <= MOST_FILES, " ".join(sorted(met))


class TestNothingChanged:
    """No version is made then."""

    def test_a_save_is_no_version(self, unreachable: list[Version]) -> None:
        rule, before = make_rule(), stored()
        rule.save()
        rule.limits.get().save()
        with cache.editing(summary="nothing"):
            rule.save()
            with cache.editing(summary="nothing within"):
                rule.limits.get().save()
        assert stored() == before
        assert storage.committed_version() == held()
        unreachable += [storage.committed_version()] * versions.PUBLISH_ATTEMPTS
        RuleLimit.objects.update(quota=7)
        rule.save()
        assert stored() == [*before, before[-1] + 1]
        assert held() != storage.committed_version()
        rule.save()  # whoever saves once more since it was not in force wants it published
        assert stored() == [*before, before[-1] + 1]
        assert held() == storage.committed_version()

    def test_several_blocks_in_one_transaction(self) -> None:
        rule, before = make_rule(), stored()
        limit = rule.limits.get()
        with transaction.atomic():
            with cache.editing():
                rule.save()
            save(limit, quota=6)
            with cache.editing(summary="holds what came before it in the transaction"):
                rule.save()
            with cache.editing():
                save(limit, quota=7)
            with cache.editing():
                rule.save()
        assert stored() == [*before, before[-1] + 2, before[-1] + 3]
        assert quota_in_force() == 7
        with transaction.atomic(), cache.editing():
            rule.save()
        with suppress(DatabaseError), transaction.atomic(), cache.editing():
            rule.save()
            raise DatabaseError
        assert storage.committed_version().number == stored()[-1]
        save(limit, quota=8)
        assert (stored()[-1], quota_in_force()) == (before[-1] + 4, 8)

    def test_invalidate_always_makes_one(self) -> None:
        make_rule()
        before = stored()
        assert cache.invalidate() == before[-1] + 1
        assert stored() == [*before, before[-1] + 1]
        RuleLimit.objects.update(quota=9)
        assert cache.invalidate() == before[-1] + 2
        assert quota_in_force() == 9

    def test_a_rule_that_cannot_be_enforced_may_have_changed(self) -> None:
        rule = make_rule()
        update(RuleLimit, algorithm="magic")
        before = stored()
        save(rule, message="No snapshot holds this.")
        assert stored() == [*before, before[-1] + 1]


def stored() -> list[int]:
    """The numbers of all versions that are stored."""
    return [*RuleSetVersion.objects.order_by("epoch", "number").values_list("number", flat=True)]


def test_an_edit_that_fails_leaves_no_version() -> None:
    before = storage.committed_version()

    @cache.editing()
    def edit() -> None:
        make_rule()
        make_rule()  # the same slug

    with pytest.raises(IntegrityError):
        edit()
    assert storage.committed_version() == before
    assert RuleSetState.objects.filter(number__gt=before.number).count() == 0
    assert quota_in_force() is None


@pytest.mark.parametrize("garbage", ["x", "", "1:2:3", f"{'9' * 30}:1", f"1:{'9' * 30}", "-1:-1", ["a"]])
def test_a_version_that_another_program_wrote_is_replaced(garbage: Any, redis_client: redis.Redis) -> None:
    make_rule()
    (key,) = redis_client.keys("*:version")
    redis_client.delete(key)
    redis_client.set(key, garbage) if isinstance(garbage, str) else redis_client.lpush(key, *garbage)
    assert held() is None
    assert quota_in_force() == 5
    assert held() == storage.committed_version()


def test_an_attempt_that_a_later_one_makes_good_is_no_warning(
    unreachable: list[Version], caplog: pytest.LogCaptureFixture
) -> None:
    """The first publishing of a process may wait for its connection longer than a decision would."""
    unreachable += [Version(0)] * (versions.PUBLISH_ATTEMPTS - 1)
    with caplog.at_level(logging.INFO, "django_ratelimiter"):
        make_rule()
    assert not unreachable
    assert not cache.last_publish_failed()
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_when_publishing_fails_the_save_stands_and_is_repaired_later(
    unreachable: list[Version], caplog: pytest.LogCaptureFixture
) -> None:
    rule = make_rule()
    assert quota_in_force() == 5
    before = held()
    unreachable.extend([Version(0)] * versions.PUBLISH_ATTEMPTS)
    rule.limits.get().delete()
    assert cache.last_publish_failed()
    assert held() == before
    assert storage.committed_version() != before
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    number = storage.committed_version().number
    assert warning == f"Version {number} of the rules could not be published, in 3 attempts: made to fail"
    assert cache.republish()
    assert held() == storage.committed_version()
    assert not cache.last_publish_failed()


def test_a_restored_older_database_begins_a_new_epoch_and_decides_by_its_own_rules() -> None:
    make_rule(quota=5)
    assert quota_in_force() == 5
    committed = storage.committed_version()
    get_engine().publish(Version(committed.number + 40, committed.epoch))  # as if 40 edits were lost
    cache.rules_committed.send(sender=None)
    assert quota_in_force() == 5
    renewed = storage.committed_version()
    assert renewed.epoch > committed.epoch
    assert RuleSetVersion.objects.count() == committed.number  # no row is added: two databases may do this for ever
    assert held() == renewed
    assert quota_in_force() == 5
    assert storage.committed_version() == renewed  # once, not at each request


def test_an_edit_of_a_restored_database_is_in_force_in_processes_that_know_the_lost_versions() -> None:
    """They find Redis as they expect it, so nobody but the editor notices that the database is behind."""
    make_rule(quota=5)
    committed = storage.committed_version()
    lost = Version(committed.number + 40, committed.epoch)
    get_engine().publish(lost)
    with cache.editing():
        RuleLimit.objects.update(quota=7)
    assert held() == storage.committed_version()
    assert storage.committed_version().order > lost.order
    assert RuleSetVersion.objects.count() == committed.number + 1  # the edit's row has moved to the new epoch
    assert quota_in_force() == 7


def test_an_edit_that_finds_a_later_edit_published_begins_no_epoch() -> None:
    make_rule()
    first = storage.committed_version()
    with cache.editing():
        RuleLimit.objects.update(quota=7)
    versions.publish(first)
    assert storage.committed_version().epoch == first.epoch
    assert held() == storage.committed_version()


@pytest.mark.parametrize(("epoch", "other"), [(2_000, 1_000), (2_000, 3_000), (None, 1_000)])
def test_a_database_without_edits_decides_beside_a_redis_that_holds_a_version(epoch: int | None, other: int) -> None:
    """As after `rm db.sqlite3` and `migrate`, or `flush`, with rates in code alone. epoch: `None` = flushed."""
    RuleSetState.objects.all().delete()
    if epoch is not None:
        RuleSetState.objects.create(pk=1, number=0, epoch=epoch)
    cache.rules_committed.send(sender=None)
    get_engine().publish(Version(25, other))
    request = RequestFactory().get("/")
    ratelimit(key="ip", rate="5/d")(lambda _request: HttpResponse())(request)
    decision = request.ratelimit  # type: ignore[attr-defined]
    assert not decision.degraded
    assert held() == storage.committed_version() == decision.version


def test_a_number_seen_while_its_edit_commits_begins_no_epoch() -> None:
    make_rule()
    committed = storage.committed_version()
    versions.begin_epoch(committed)
    assert storage.committed_version() == committed
    assert RuleSetState.objects.get().number == committed.number


def test_stale_rules_do_not_decide_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule()
    rules = cache.current_rules()
    monkeypatch.setattr(storage, "load", failing(DatabaseError("away")))
    stale = StaleRules(rules.version.number + 1, rules.version.epoch)
    with pytest.raises(RulesUnavailable) as first:
        cache.reload(stale, rules)
    with pytest.raises(RulesUnavailable) as second:
        cache.reload(stale, rules)
    assert first.value.__cause__
    assert second.value.__cause__ is None  # the database was not asked again so soon
    assert cache.current_rules() is rules


def test_a_database_that_is_away_is_not_asked_by_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [1_000.0], []

    def away() -> None:
        asked.append(now[0])
        raise DatabaseError("away")

    monkeypatch.setattr(storage, "load", away)
    monkeypatch.setattr(cache.time, "monotonic", lambda: now[0])
    for later in (0.0, 0.0, cache.RETRY_SECONDS, 0.1, 0.0):
        now[0] += later
        cache.current_rules()
    assert asked == [1_000.0, 1_001.1]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("round_", [1, 2])
def test_rules_made_in_a_test_case_transaction_are_obeyed_and_gone_after_it(round_: int) -> None:
    assert cache.current_rules().rules == ()
    make_rule(quota=round_)
    assert quota_in_force() == round_
    Tier.objects.create(slug="pro", name="Pro")
    assert "pro" in cache.current_rules().tiers
