"""One version for each transaction, whoever saves and however much, and its snapshot after the commit."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Version
from django_ratelimiter.models import Rule, RuleLimit, RuleSetState, RuleSetVersion
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage, versions

from ..making import failing, save, update
from .rows import held, make_rule
from .test_versions import quota_in_force

pytestmark = pytest.mark.django_db(transaction=True)

Fixture = Callable[[int], str]


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    """The path of a fixture of so many rules with a limit each."""

    def write(number: int) -> str:
        rows: list[dict[str, Any]] = []
        for key in range(1, number + 1):
            rule = {"slug": f"rule-{key}", "name": f"Rule {key}", "path": f"/{key}/", "path_kind": "prefix"}
            limit = {"rule": key, "quota": 5, "window_seconds": "60"}
            rows.append({"model": "django_ratelimiter.rule", "pk": key, "fields": rule})
            rows.append({"model": "django_ratelimiter.rulelimit", "pk": key, "fields": limit})
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(rows))
        return str(path)

    return write


def cost_of(edit: Callable[[], Any]) -> int:
    """The queries of an edit that is one version, and in force everywhere when it returns."""
    before = storage.committed_version()
    with CaptureQueriesContext(connection) as queries:
        edit()
    assert storage.committed_version().number == before.number + 1
    assert RuleSetVersion.objects.filter(number__gt=before.number).count() == 1
    assert held() == storage.committed_version()
    return len(queries)


def test_a_fixture_is_one_version_and_costs_the_same_for_each_row(fixture: Fixture) -> None:
    make_rule()
    costs = []
    for number in (5, 10, 20):
        Rule.objects.all().delete()
        costs.append(cost_of(partial(call_command, "loaddata", fixture(number), verbosity=0)))
        assert len(storage.load().rules) == number
    assert costs[2] - costs[1] == 2 * (costs[1] - costs[0])
    assert costs[2] - costs[1] <= 20 * 2  # rows; one may be looked for before it is inserted


def test_the_deletion_of_many_is_one_version_and_no_query_for_each(fixture: Fixture) -> None:
    costs = []
    for number in (10, 20):
        call_command("loaddata", fixture(number), verbosity=0)
        costs.append(cost_of(Rule.objects.all().delete))
        assert storage.load().rules == ()
    assert costs[1] <= costs[0] + 2


def test_savepoints_within_a_transaction_join_its_version() -> None:
    before = storage.committed_version().number
    with transaction.atomic():
        for number in range(5):
            Rule.objects.update_or_create(slug=f"rule-{number}", defaults={"name": "Rule"})
            assert len(cache.current_rules().rules) == number + 1
        with transaction.atomic():
            Rule.objects.all().delete()
            transaction.set_rollback(True)
    assert storage.committed_version().number == before + 1
    stored = RuleSetVersion.objects.get(number=before + 1)
    assert stored.summary.startswith("rule Rule saved; rule Rule saved; rule Rule saved; and ")
    assert len(stored.snapshot["rules"]) == 5
    assert held() == storage.committed_version()


def test_each_editing_within_a_transaction_is_a_version_and_so_is_what_follows_it() -> None:
    before = storage.committed_version().number
    with transaction.atomic():
        make_rule("first")
        with cache.editing(summary="by hand"):
            make_rule("second")
        cache.switch_enforcement(False)
        for slug in ("third", "fourth"):
            make_rule(slug)
    stored = {row.number: row for row in RuleSetVersion.objects.filter(number__gt=before)}
    assert [(number - before, len(row.snapshot["rules"])) for number, row in sorted(stored.items())] == [
        (2, 2),  # the first rule is in it: its own number was followed before there was a snapshot
        (3, 2),
        (4, 4),
    ]
    assert [stored[before + number].summary for number in (2, 3)] == ["by hand", "enforcement stopped"]
    assert stored[before + 4].snapshot["enforcement"] is False
    assert held() == storage.committed_version() == Version(before + 4, stored[before + 4].epoch)


def test_what_a_savepoint_undoes_after_editing_takes_its_number_back() -> None:
    with transaction.atomic():
        with cache.editing(summary="by hand"):
            make_rule("first", quota=3)
        version = storage.committed_version()
        with transaction.atomic():
            make_rule("second")
            assert storage.committed_version().number == version.number + 1
            transaction.set_rollback(True)
    assert storage.committed_version() == held() == version
    assert quota_in_force("first") == 3
    assert RuleSetVersion.objects.get(number=version.number).summary == "by hand"


def test_the_number_is_taken_before_a_row_is_written() -> None:
    """Else two who save could each wait for what the other one holds."""
    rule = make_rule()
    for edit in (rule.save, rule.limits.get().delete):
        with CaptureQueriesContext(connection) as queries, transaction.atomic():
            edit()
        written = [query["sql"] for query in queries if query["sql"].startswith(("UPDATE", "DELETE"))]
        assert RuleSetState._meta.db_table in written[0]
        assert all(RuleSetState._meta.db_table not in sql for sql in written[1:])


def test_rules_that_are_read_between_two_edits_are_not_kept_for_the_second() -> None:
    with transaction.atomic():
        rule = make_rule(quota=3)
        with transaction.atomic():
            update(rule.limits, quota=4)
            assert cache.current_rules().rules[0].limits[None][0].limit.quota == 4
            transaction.set_rollback(True)
        assert cache.current_rules().rules[0].limits[None][0].limit.quota == 3
        update(rule.limits, quota=6)
        assert cache.current_rules().rules[0].limits[None][0].limit.quota == 6
    assert quota_in_force() == 6


def test_in_a_test_case_no_snapshot_is_taken_until_somebody_decides(django_assert_num_queries: Any) -> None:
    with TestCase.captureOnCommitCallbacks(), transaction.atomic():
        make_rule()
        assert storage.committed_version().number not in RuleSetVersion.objects.values_list("number", flat=True)
        assert len(cache.current_rules().rules) == 1
        with django_assert_num_queries(0):
            cache.current_rules()
        transaction.set_rollback(True)


class TestKilledAfterTheCommit:
    """Nothing that waits for the commit is done, as if the process had been killed right after it."""

    @pytest.fixture(autouse=True)
    def before(self) -> Version:
        make_rule(quota=5)
        assert quota_in_force() == 5
        before = storage.committed_version()

        @transaction.atomic
        def edit() -> None:
            transaction.on_commit(failing(SystemExit()))  # Django drops the callbacks behind it
            RuleLimit.objects.get().delete()
            make_rule("second", quota=7)

        with pytest.raises(SystemExit):
            edit()
        assert storage.committed_version().number == before.number + 1
        assert RuleSetVersion.objects.first().number == before.number  # type: ignore[union-attr]
        assert held() == before
        return before

    def test_a_process_that_begins_reads_the_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "_state", cache._State())
        assert quota_in_force("second") == 7
        assert quota_in_force() is None
        assert held() == storage.committed_version()

    def test_collecting_stores_the_snapshot_and_puts_it_in_force(self) -> None:
        assert cache.republish()
        assert quota_in_force("second") == 7
        stored = RuleSetVersion.objects.first()
        assert stored is not None
        assert (stored.number, len(stored.snapshot["rules"])) == (storage.committed_version().number, 2)
        assert cache.republish()
        assert RuleSetVersion.objects.filter(number=stored.number).count() == 1

    def test_the_next_edit_has_all_of_it(self, before: Version) -> None:
        make_rule("third", quota=9)
        assert [quota_in_force(slug) for slug in ("rule", "second", "third")] == [None, 7, 9]
        assert held() == storage.committed_version()

    def test_a_new_epoch_moves_it(self, before: Version) -> None:
        get_engine().publish(Version(before.number + 40, before.epoch))
        assert quota_in_force("second") == 7
        assert held() == storage.committed_version()
        assert RuleSetVersion.objects.first().epoch == storage.committed_version().epoch  # type: ignore[union-attr]


class TestReadingWhileOthersCommit:
    @pytest.fixture
    def meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """For each of these quotas, one after the other, a rule is committed while rows are being read."""
        quotas: list[int] = []
        compile_rows = storage.snapshot_of_rows

        def compile_slowly(rows_as: Any) -> Any:
            snapshot = compile_rows(rows_as)
            if quotas:
                quota = quotas.pop()
                make_rule(f"rule-{quota}", quota=quota)
            return snapshot

        monkeypatch.setattr(storage, "snapshot_of_rows", compile_slowly)
        return quotas

    def test_a_version_that_is_not_the_latest_any_more_is_not_stored(self, meanwhile: list[int]) -> None:
        before = storage.committed_version().number
        with transaction.atomic():
            Rule.objects.create(slug="rule", name="Rule")
            meanwhile.append(7)
        stored = {row.number: len(row.snapshot["rules"]) for row in RuleSetVersion.objects.filter(number__gt=before)}
        assert stored == {before + 2: 2, before + 3: 2}  # a rule and its limit are two, here
        assert quota_in_force("rule-7") == 7
        assert held() == storage.committed_version()

    def test_rows_are_read_again_until_they_are_of_one_number(self, meanwhile: list[int]) -> None:
        make_rule()
        RuleSetVersion.objects.all().delete()
        meanwhile.extend([7, 8])
        assert {rule.slug for rule in storage.load().rules} >= {"rule", "rule-8"}
        assert storage.load().version == storage.committed_version()

    def test_if_they_never_are_the_last_snapshot_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_rule()
        stored = storage.load().version
        RuleSetState.objects.update(number=stored.number + 1)
        monkeypatch.setattr(storage, "snapshot_of", lambda version: None)
        assert storage.load().version == stored


class TestRowsThatCannotBeCompiled:
    @pytest.fixture(autouse=True)
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_rule(quota=5)
        assert quota_in_force() == 5
        monkeypatch.setattr(storage, "snapshot_of_rows", failing(ValueError("unreadable")))

    def test_editing_is_rejected(self) -> None:
        before = storage.committed_version()
        with pytest.raises(ValueError, match="unreadable"), cache.editing():
            RuleLimit.objects.get().delete()
        assert storage.committed_version() == before
        assert RuleLimit.objects.exists()

    def test_any_other_transaction_stands_and_the_rules_before_it_too(self, caplog: pytest.LogCaptureFixture) -> None:
        before = held()
        with transaction.atomic():
            RuleLimit.objects.get().delete()
        assert cache.last_publish_failed()
        assert held() == before
        assert quota_in_force() == 5
        assert {record.levelno for record in caplog.records} == {logging.ERROR}
        assert storage.load().version == before, "in a process that begins"


def test_a_snapshot_that_cannot_be_stored_is_read_from_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, transaction.atomic():
        patch.setattr(versions, "_store", failing(OperationalError("away")))
        make_rule(quota=3)
        transaction.on_commit(patch.undo)
    assert held() == storage.committed_version()
    assert quota_in_force() == 3


def test_a_savepoint_that_django_does_not_know_of_takes_no_number_with_it() -> None:
    make_rule(quota=5)
    before = storage.committed_version()
    with transaction.atomic():
        point = getattr(transaction, "savepoint_create", transaction.savepoint)()  # Django 6.1 has another name for it
        RuleLimit.objects.get().delete()
        transaction.savepoint_rollback(point)
        Rule.objects.update(name="Renamed")
        Rule.objects.get().save()
    assert storage.committed_version().number == before.number + 1
    assert held() == storage.committed_version()
    assert cache.current_rules().rules[0].name == "Renamed"


def test_a_dump_of_the_whole_app_is_in_force_once_it_is_loaded(tmp_path: Path, caplog: Any) -> None:
    """It brings an earlier number and an earlier epoch, and snapshots of its own."""
    make_rule("dumped", quota=3)
    dump = str(tmp_path / "dump.json")
    call_command("dumpdata", "django_ratelimiter", output=dump, verbosity=0)
    rule = Rule.objects.get()
    for name in ("later", "latest"):
        save(rule, name=name)
    with transaction.atomic():
        RuleSetState.objects.update(epoch=RuleSetState.objects.get().epoch + 1_000)
        RuleLimit.objects.all().delete()
    assert quota_in_force("dumped") is None
    caplog.clear()
    call_command("loaddata", dump, verbosity=0)
    assert quota_in_force("dumped") == 3
    assert held() == storage.committed_version()
    assert storage.load().rules[0].name == "dumped"
    assert caplog.records == []
    numbers = [storage.committed_version()]
    rule.save()
    numbers.append(storage.committed_version())
    assert all(earlier.order < later.order for earlier, later in pairwise(numbers))


class TestCallbacksBefore:
    """Callbacks of the same transaction that run before ours. Django has emptied its list of them by then."""

    def test_one_of_ours(self) -> None:
        rule = make_rule()
        with transaction.atomic():
            cache.switch_enforcement(True)  # it is on already: published once more
            rule.save()
        assert held() == storage.committed_version()
        assert storage.snapshots(storage.committed_version()).exists()

    def test_one_of_the_project_that_saves_a_rule(self) -> None:
        rule = make_rule(quota=5)
        before = storage.committed_version()
        with transaction.atomic():
            transaction.on_commit(partial(make_rule, "second", quota=7))
            rule.save()
        assert storage.committed_version().number == before.number + 3  # a rule and its limit are two, here
        assert held() == storage.committed_version()
        assert quota_in_force("second") == 7


class TestReason:
    def test_it_is_stored_after_the_commit_too(self) -> None:
        with transaction.atomic():
            with cache.editing(reason="first"):
                make_rule()
            with cache.editing(reason="second"):
                make_rule("second")
        assert RuleSetVersion.objects.all()[0].reason == "second"

    def test_a_long_one_is_cut(self) -> None:
        cache.switch_enforcement(False, reason="x" * 300)
        assert RuleSetVersion.objects.all()[0].reason == "x" * 255
