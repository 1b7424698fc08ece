"""A file applied to a database that was restored from a backup."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine.base import Version
from django_ratelimiter.models import RuleSetVersion
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage


@pytest.mark.django_db(transaction=True)
def test_apply_names_the_version_that_is_in_force(tmp_path: Path) -> None:
    """Redis holds a later version, so that the one that is made moves to a new epoch."""
    cache.invalidate()
    committed = storage.committed_version()
    get_engine().publish(Version(committed.number + 40, committed.epoch))
    file = tmp_path / "rules.yaml"
    file.write_text("rules:\n  login:\n    limits: [{quota: 5, window_seconds: 60}]\n")
    out = StringIO()
    call_command("ratelimit", "apply", str(file), stdout=out)
    latest = RuleSetVersion.objects.first()
    assert latest is not None
    assert latest.source == file.name
    assert out.getvalue().splitlines()[-1] == f"Applied, as version {latest.number}."
