"""Export, plan, apply: what the file says is what there is, as one version, and nothing in between."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml as other_reader
from django.contrib.auth.models import User
from django.db import OperationalError, transaction
from django.db.models.signals import post_save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_ratelimiter.backend import get_engine
from django_ratelimiter.databases import lock_at_once, read_beside, waiting_at_most
from django_ratelimiter.engine.base import Version
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, RuleSetState, RuleSetVersion, Tier, TierAssignment
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.files.planning import FilePlan, apply_file, lines_of, plan_file
from django_ratelimiter.rules.files.rows import RulesFile, WrongFile
from django_ratelimiter.rules.files.texts import read, text_of_database
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
from django_ratelimiter.rules.stored.history.back import NotApplied, RulesHaveChanged
from django_ratelimiter.values.terminal import visible

from ...making import managed, update
from ..test_bring_back import rule_sets, save, tiers

pytestmark = pytest.mark.django_db

FILE = """\
# The limits of our API.
tiers:
  free: {rank: 1, default_for: authenticated}
  pro: {name: Pro, rank: 2}

rules:
  # Slow: two seconds for each search.
  search:
    name: Search
    mode: enforce
    path: /api/search/
    path_kind: prefix
    partition_by: [user]
    limits:
      - {tier: free, quota: 60, window_seconds: 60}  # one a second
      - {tier: pro, unlimited: true}
      - {quota: 5, window_seconds: 0.25, algorithm: token_bucket, burst: 10}
  login:
    mode: "off"
    limits:
      - {quota: 5, calendar: day, timezone: Europe/Berlin, algorithm: fixed_window}
"""


def file_of(text: str = FILE, name: str = "limits.yaml") -> RulesFile:
    return read(text, name)


def in_words(plan: FilePlan) -> str:
    return "\n".join(lines_of(plan))


def test_an_empty_database_becomes_what_the_file_says() -> None:
    author = User.objects.create_user("ada")
    _plan, version = apply_file(file_of(), author=author, reason="The first rules")
    assert version == storage.committed_version()
    row = RuleSetVersion.objects.latest("number")
    assert (row.author, row.reason, row.source) == (author, "The first rules", "limits.yaml")
    assert RuleSetVersion.objects.count() == 1
    assert set(Rule.objects.values_list("slug", "name", "owner")) == {
        ("search", "Search", "file"),
        ("login", "login", "file"),
    }
    assert Tier.objects.get(slug="free").default_for == "authenticated"
    assert plan_file(file_of()).is_empty
    assert apply_file(file_of())[1] is None
    assert RuleSetVersion.objects.count() == 1


def test_a_database_whose_rows_were_flushed_takes_a_file_too() -> None:
    RuleSetState.objects.all().delete()
    assert apply_file(file_of())[1] == storage.committed_version()


def test_plan_shows_each_rule_that_would_change() -> None:
    apply_file(file_of())
    changed = (
        FILE.replace("quota: 60,", "quota: 90,")
        .replace("  login:", "  sign-in:")
        .replace("unlimited: true", "quota: 9, window_seconds: 1")
    )
    text = in_words(plan_file(file_of(changed), delete=True))
    assert "~ Rule “Search” (search): changed\n    Limit of free: 60 per minute, sliding window → 90 per minute" in text
    assert "    Limit of pro: unlimited → 9 per second, sliding window\n" in text
    assert "+ Rule “sign-in”: added\n" in text
    assert "- Rule “login”: deleted\n" in text
    assert "Priority: 100" not in text
    assert text.endswith("Plan: 1 to add, 1 to change, 1 to delete.")


def test_what_the_file_does_not_name_stays_unless_it_is_deleted() -> None:
    old, used = (Tier.objects.create(slug=slug, name=slug) for slug in ("old", "used"))
    TierAssignment.objects.create(tier=used, partition="ip:192.0.2.7")
    RuleLimit.objects.create(rule=Rule.objects.create(slug="mine"), tier=old, quota=5, window_seconds=60)
    Rule.objects.create(slug="former", owner="file")
    plan = apply_file(file_of())[0]
    assert "Rules that are not in the file stay: former, mine. With --delete, they are deleted." in plan.notes
    assert "Tiers that are not in the file stay: old, used." in plan.notes
    assert plan_file(file_of()).is_empty
    apply_file(file_of(), delete=True)
    assert set(Rule.objects.values_list("slug", flat=True)) == {"search", "login"}
    assert set(Tier.objects.values_list("slug", flat=True)) == {"free", "pro", "used"}


@pytest.mark.parametrize("style", ["yaml", "json"])
def test_export_that_is_cut_off_is_refused(style: str) -> None:
    apply_file(file_of())
    whole = text_of_database(style)
    assert plan_file(file_of(whole, f"limits.{style}")).is_empty
    end = len(whole.rstrip())
    for length in {*range(0, end, 29), *range(end - 40, end)}:
        with pytest.raises(WrongFile):
            file_of(whole[:length], f"limits.{style}")


def test_file_that_is_cut_between_two_rules_deletes_none() -> None:
    """A file that a person has written has no last line by which this could be seen."""
    apply_file(file_of())
    assert plan_file(file_of(FILE[: FILE.index("  login:")])).is_empty


def test_plan_of_many_rules_needs_few_queries(django_assert_max_num_queries: Any) -> None:
    rows = "".join(f"  r{number}:\n    limits: [{{quota: {number}, window_seconds: 60}}]\n" for number in range(1, 400))
    file = file_of(f"tiers:\n  pro:\nrules:\n{rows}access: [{{kind: ip, value: 192.0.2.7}}]\n")
    with django_assert_max_num_queries(12):
        assert len(plan_file(file).changes) == 401
    apply_file(file)
    with django_assert_max_num_queries(12):
        assert plan_file(file).is_empty


def test_counters_keep_their_meaning_where_the_limit_is_the_same() -> None:
    apply_file(file_of())
    update(RuleLimit.objects.filter(rule__slug="search"), generation=3)
    assert plan_file(file_of()).is_empty
    apply_file(file_of(FILE.replace("quota: 60,", "quota: 90,").replace("0.25", "0.5")))
    limits = RuleLimit.objects.filter(rule__slug="search").order_by("pk")
    assert [(limit.quota, limit.generation) for limit in limits] == [(90, 3), (None, 3), (5, 3)]


def test_a_rule_that_comes_back_does_not_find_its_former_counters() -> None:
    apply_file(file_of())
    assert {limit.generation for limit in RuleLimit.objects.all()} == {0}
    with cache.editing():
        RuleLimit.objects.update(generation=1)
    apply_file(file_of(FILE[: FILE.index("rules:")] + "rules: {}\n"), delete=True)
    assert not Rule.objects.exists()
    plan = apply_file(file_of())[0]
    assert not any("eneration" in line for line in lines_of(plan))
    assert min(limit.generation for limit in RuleLimit.objects.all()) > 1
    assert plan_file(file_of()).is_empty


def test_a_renamed_rule_stays_the_same_row() -> None:
    apply_file(file_of())
    key = Rule.objects.get(slug="search").pk
    apply_file(file_of(FILE.replace("  search:", "  find:")), delete=True)
    assert Rule.objects.get(slug="find").pk == key


def test_it_is_rejected_if_the_database_has_changed_since_the_plan() -> None:
    apply_file(file_of())
    wanted = file_of(FILE.replace("quota: 60,", "quota: 90,"))
    expected = plan_file(wanted).state
    Rule.objects.filter(slug="login").update(cost=2)  # without a version
    with pytest.raises(RulesHaveChanged):
        apply_file(wanted, expected=expected)
    Rule.objects.filter(slug="login").update(cost=1)
    assert apply_file(wanted, expected=expected)[1]


@pytest.mark.django_db(transaction=True)
def test_nobody_saves_rules_between_the_plan_and_its_write() -> None:
    apply_file(file_of())
    using, saved = storage.primary(), []

    def save() -> None:
        with suppress(OperationalError), waiting_at_most(0.01, using), transaction.atomic(using=using):
            lock_at_once(storage.state())  # else another connection would wait
            Rule.objects.create(slug=f"theirs-{len(saved)}")
            saved.append(True)

    def plan_beside_them(file: RulesFile, *, delete: bool) -> FilePlan:
        plan = plan_file(file, delete=delete)
        read_beside(using, save)
        return plan

    with patch("django_ratelimiter.rules.files.planning.plan_file", plan_beside_them):
        _plan, version = apply_file(file_of(FILE.replace("quota: 60,", "quota: 90,")))
    assert version == storage.committed_version()
    assert RuleLimit.objects.filter(quota=90).exists()
    assert saved == []
    read_beside(using, save)
    assert Rule.objects.filter(slug="theirs-0").exists()


def test_signals_are_sent_for_each_row_that_is_made() -> None:
    seen: list[tuple[Any, bool]] = []

    def note(instance: Any, created: bool, **_signal: Any) -> None:
        seen.append((instance.pk, created))

    post_save.connect(note, sender=RuleLimit)
    try:
        apply_file(file_of())
    finally:
        post_save.disconnect(note, sender=RuleLimit)
    assert seen == [(pk, True) for pk in RuleLimit.objects.order_by("pk").values_list("pk", flat=True)]


def test_what_the_database_does_not_hold_afterwards_is_not_applied() -> None:
    with (
        patch("django_ratelimiter.rules.stored.history.back.write"),
        pytest.raises(NotApplied, match="would not be in force as planned"),
        transaction.atomic(),
    ):
        apply_file(file_of())
    assert not RuleSetVersion.objects.exists()


def test_drift_is_what_was_changed_of_the_files_rules_in_the_database() -> None:
    apply_file(file_of())
    RuleLimit.objects.filter(quota=60).update(quota=600)
    Rule.objects.create(slug="mine")
    cache.invalidate()
    plan = plan_file(file_of(FILE.replace("rank: 2", "rank: 3")))
    assert [change.in_words for change in plan.drift] == [
        "Rule “Search”: Limit of free: 60 per minute, sliding window → 600 per minute, sliding window"
    ]
    told = "since the file was last applied or exported; the file would undo this:\n  ! Rule “Search”"
    assert told in in_words(plan)
    assert not plan_file(file_of(FILE.replace("quota: 60,", "quota: 600,"))).drift  # the file says the same by now


def test_a_reset_of_counters_is_no_drift() -> None:
    apply_file(file_of())
    update(RuleLimit.objects.filter(quota=60), quota=600, generation=3)
    [change] = plan_file(file_of()).drift
    assert "600 per minute" in change.in_words
    apply_file(file_of())
    update(RuleLimit, generation=9)
    assert not plan_file(file_of(FILE.replace("quota: 60,", "quota: 90,"))).drift


def test_a_rule_for_a_view_that_is_gone_may_stay_but_not_be_changed() -> None:
    Rule.objects.create(slug="old", name="Old", view_name="gone", owner="file")
    text = "rules:\n  old:\n    name: Old\n    mode: shadow\n    view_name: gone\n"
    assert plan_file(file_of(text)).is_empty
    with pytest.raises(WrongFile, match=r'limits\.yaml: rules\.old\.view_name: No view has the name "gone"\.'):
        plan_file(file_of(text.replace("shadow", "enforce")))
    with pytest.raises(WrongFile):
        file_of(text).check_names()


def test_a_default_that_another_tier_has_is_named_beforehand() -> None:
    Tier.objects.create(slug="basic", name="Basic", default_for="authenticated")
    with pytest.raises(
        WrongFile,
        match=r"limits\.yaml: tiers\.free\.default_for: The tier basic of the data",
    ):
        apply_file(file_of())


def test_a_file_that_is_there_is_never_written(tmp_path: Path) -> None:
    """People have written it, with their comments: `plan` shows what differs."""
    path = tmp_path / "limits.yaml"
    path.write_text(FILE)
    code, said = managed("export", "--to", str(path))
    assert (code, said) == (1, f"{path}: File exists.")
    assert (path.read_text(), [each.name for each in tmp_path.iterdir()]) == (FILE, ["limits.yaml"])


def test_access_entries_are_exported_only_if_they_are_asked_for() -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.0/24", action="deny", reason="Bob's scraper")
    AccessEntry.objects.create(kind="user", value="7", action="allow")
    assert "access" not in text_of_database("yaml")
    text = text_of_database("yaml", access=True)
    assert plan_file(file_of(text)).is_empty
    plan = plan_file(file_of(text.replace("action: deny", "action: allow")))
    assert [change.fields[0].after for change in plan.changes] == ["allow: skip all rules"]
    AccessEntry.objects.filter(kind="ip").update(action="allow")
    AccessEntry.objects.filter(kind="user").delete()
    plan = apply_file(file_of(text), reason="Back again")[0]
    assert [change.kind for change in plan.changes] == ["changed", "added"]
    rows = {("192.0.2.0/24", "deny", "Bob's scraper"), ("7", "allow", "")}
    assert set(AccessEntry.objects.values_list("value", "action", "reason")) == rows
    assert plan_file(file_of("rules: {}\n"), delete=True).is_empty  # entries that are not in a file stay


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
lines = texts.filter(lambda text: not any(visible(each) != each for each in text))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tiers, rule_sets(lines, texts | st.just("Two\nlines # and a sign")), st.sampled_from(["yaml", "json"]))
def test_an_export_that_is_applied_changes_nothing(tier_rows: Any, rule_rows: Any, style: str) -> None:
    with transaction.atomic():
        save(tier_rows, rule_rows)
        RuleLimit.objects.update(generation=0)  # from which a rule that comes back starts
        before = snapshot_of_rows()
        assert before["left_out"] == []
        text = text_of_database(style)
        file = file_of(text, f"limits.{style}")
        plan = plan_file(file)
        assert plan.is_empty, in_words(plan)
        assert apply_file(file)[1] is None
        if style == "yaml":
            assert other_reader.safe_load(text) == json.loads(text_of_database("json"))
        Rule.objects.all().delete()
        Tier.objects.all().delete()
        apply_file(file)
        RuleLimit.objects.update(generation=0)
        assert snapshot_of_rows() == before
        transaction.set_rollback(True)


def test_the_commands(tmp_path: Path) -> None:
    path, kept, made = (str(tmp_path / name) for name in ("limits.yaml", "plan.json", "made.json"))
    Path(path).write_text(FILE)
    User.objects.create_user("ada")
    assert managed("check", path) == (0, f"{path} is valid: 2 rules, 2 tiers.\n")
    code, said = managed("plan", path, "--out", kept)
    assert (code, said.splitlines()[-1]) == (2, "Plan: 4 to add, 0 to change, 0 to delete.")
    assert json.loads(managed("plan", path, "--json")[1])["changes"][0]["slug"] == "free"
    code, said = managed("apply", path, "--plan", kept, "--author", "ada", "--reason", "Because")
    assert (code, said.splitlines()[-1]) == (0, f"Applied, as version {storage.committed_version().number}.")
    assert RuleSetVersion.objects.latest("number").author == User.objects.get()
    assert managed("plan", path)[0] == 0
    code, said = managed("apply", path, "--plan", kept)
    assert (code, said) == (1, "The database has changed since the plan was made. Make the plan again.")
    Path(path).write_text(FILE + "# more\n")
    assert managed("apply", path, "--plan", kept)[1] == (
        "The plan was made for another file, or with other options. Make the plan again."
    )
    assert managed("export", "--to", made) == (0, "")
    assert managed("plan", made)[0] == 0
    assert managed("apply", path, "--plan", path)[1] == f"{path} is not a plan."
    Path(path).write_text("rules:\n  a: {cost: 0}\n")
    for command in ("check", "plan", "apply"):
        code, said = managed(command, path)
        assert code == 1
        assert said.startswith(f"1 fault:\n{path}: rules.a.cost: ")
    assert managed("apply", made, "--author", "bob")[1] == "There is no user bob."
    assert managed("plan", "no-such-file.yaml")[0] == 1


def test_rules_are_only_the_files_once_they_are_exported_so() -> None:
    Rule.objects.create(slug="a", name="A")
    assert "owner: admin" in managed("export")[1]
    text = managed("export", "--own")[1]
    assert "owner" not in text
    assert "Owner: the admin → a file" in in_words(plan_file(file_of(text)))


@pytest.mark.django_db(transaction=True)
def test_after_a_backup_was_restored_it_names_the_version_that_is_in_force(tmp_path: Path) -> None:
    """Redis holds a later version, so that the one that is made moves to a new epoch."""
    cache.invalidate()
    committed = storage.committed_version()
    get_engine().publish(Version(committed.number + 40, committed.epoch))
    path = tmp_path / "rules.yaml"
    path.write_text(FILE)
    said = managed("apply", str(path))[1]
    latest = RuleSetVersion.objects.latest("epoch", "number")
    assert latest.source == path.name
    assert said.splitlines()[-1] == f"Applied, as version {latest.number}."


WITHOUT_DATABASE = """
import django, socket, sys
from django.db.backends.base.base import BaseDatabaseWrapper
def reject(*given, **named):
    raise AssertionError("asked")
BaseDatabaseWrapper.ensure_connection = reject
socket.socket.connect = reject
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "ratelimit", *sys.argv[1:]])
"""


@pytest.mark.once
def test_check_works_without_a_database_and_without_redis(tmp_path: Path) -> None:
    """In a process of its own, in which asking either would fail. A wrong argument of `plan` is no change."""
    path = tmp_path / "limits.yaml"
    path.write_text(FILE)

    def exit_code(*words: str) -> int:
        command = [sys.executable, "-c", WITHOUT_DATABASE, *words]
        return subprocess.run(command, capture_output=True, text=True).returncode

    assert exit_code("check", str(path)) == 0
    assert exit_code("plan") == 1
