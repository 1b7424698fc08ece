"""An old file does not silently undo what was changed in the database since."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.core.management import CommandError

from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion
from django_ratelimiter.rules.files.planning import plan_file
from django_ratelimiter.rules.files.texts import load

from ...making import make_rule, manage, update

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["yaml", "json"])
def exported(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An export of one rule of the admin, 8 an hour."""
    make_rule("pages", 8, algorithm="sliding_window_counter", limit={"window_seconds": 3_600}, mode="off")
    path = tmp_path / f"limits.{request.param}"
    manage("export", "--to", str(path))
    return path


def edit(quota: int) -> None:
    update(RuleLimit, quota=quota)


def quota() -> int:
    return RuleLimit.objects.get().quota


def apply(path: Path, *options: str) -> None:
    manage("apply", str(path), *options)


def test_an_old_export_is_rejected_and_names_what_it_would_undo(exported: Path) -> None:
    edit(80)
    with pytest.raises(CommandError) as rejection:
        apply(exported)
    assert "  ! Rule “pages”: Limit for everyone: 8 per hour" in str(rejection.value)
    assert quota() == 80
    apply(exported, "--overwrite")
    assert quota() == 8


def test_a_plan_that_has_shown_it_is_agreement_enough(exported: Path, tmp_path: Path) -> None:
    edit(80)
    with pytest.raises(SystemExit):
        manage("plan", str(exported), "--out", str(tmp_path / "plan"))
    apply(exported, "--plan", str(tmp_path / "plan"))
    assert quota() == 8


def test_what_the_file_says_already_is_not_undone(exported: Path) -> None:
    edit(80)
    exported.write_text(_with_quota(exported, 80))
    apply(exported)
    assert quota() == 80


def _with_quota(path: Path, number: int) -> str:
    return re.sub(r"(quota\W+)\d+", rf"\g<1>{number}", path.read_text())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file that somebody has written and applied, without a version."""
    path = tmp_path / "limits.yaml"
    path.write_text(
        "version: 1\nrules:\n  pages:\n    name: pages\n    limits:\n      - quota: 8\n        window_seconds: 3600\n"
    )
    apply(path)
    return path


def test_file_that_was_given_the_same_values_by_hand_is_applied(written: Path) -> None:
    edit(80)
    with pytest.raises(CommandError, match="To keep such a change, write it into the file"):
        apply(written)
    written.write_text(written.read_text().replace("quota: 8", "quota: 80"))
    apply(written)
    assert (quota(), Rule.objects.get().owner) == (80, Rule.Owner.FILE)


def test_what_was_renamed_is_not_silently_undone(written: Path) -> None:
    Rule.objects.update(slug="pages-v2", priority=7)
    edit(80)
    with pytest.raises(CommandError) as rejection:
        apply(written, "--delete")
    assert "8 per hour" in str(rejection.value)
    assert (quota(), Rule.objects.get().slug) == (80, "pages-v2")


def test_an_export_whose_version_is_not_stored_any_more_is_rejected_with_all_that_it_would_undo(exported: Path) -> None:
    edit(80)
    edit(81)
    RuleSetVersion.objects.filter(pk=RuleSetVersion.objects.earliest("epoch", "number").pk).delete()
    with pytest.raises(CommandError) as rejection:
        apply(exported)
    assert "8 per hour" in str(rejection.value)
    assert quota() == 81
    assert any("is not stored any more" in note for note in plan_file(load(exported)).notes)
    apply(exported, "--overwrite")
    assert quota() == 8


def test_an_export_is_applied_once_it_is_edited_and_then_needs_no_stored_version(exported: Path) -> None:
    exported.write_text(_with_quota(exported, 9))
    assert not plan_file(load(exported)).drift
    apply(exported)
    assert quota() == 9
    RuleSetVersion.objects.filter(source="").delete()
    exported.write_text(_with_quota(exported, 10))
    apply(exported)
    assert quota() == 10
