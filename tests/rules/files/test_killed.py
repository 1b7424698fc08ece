"""An `apply` that is killed leaves the old version or the new one, on each database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .test_apply import FILE


@pytest.mark.django_db(transaction=True)
def test_killed_at_any_point_it_leaves_the_old_rules_or_the_new_ones(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(FILE)
    changed = FILE.replace("quota: 60,", "quota: 90,").replace("login", "sign-in").replace("rank: 2", "rank: 3")
    new.write_text(changed)
    command = [sys.executable, "-m", "tests.rules.files.killed", str(old), str(new)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    points = [line.rpartition(": ") for line in done.stdout.splitlines()]
    assert len(points) > 20
    kinds = [kind for _, _, kind in points]
    assert kinds == sorted(kinds, reverse=True)  # first all old, then all new
    assert next(what for what, _, kind in points if kind == "new") == "after COMMIT"
    assert points[-1] == ("not killed", ": ", "new")
