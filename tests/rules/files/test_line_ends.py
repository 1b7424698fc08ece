"""A rules file as editors on Windows write it: read as any other, and exported into with its own line ends."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_ratelimiter.models import RuleLimit
from django_ratelimiter.rules import cache

from .test_apply import FILE

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("mark", [b"", BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_export_keeps_line_ends_and_the_mark(tmp_path: Path, mark: bytes, end: bytes) -> None:
    path = tmp_path / "limits.yaml"
    path.write_bytes(mark + FILE.encode().replace(b"\n", end))
    call_command("ratelimit", "apply", str(path), "--reason", "x")
    RuleLimit.objects.filter(quota=60).update(quota=90)
    cache.invalidate()
    call_command("ratelimit", "export", "--to", str(path))
    written = path.read_bytes()
    assert written.startswith(mark + b"# The limits of our API.") or not mark
    assert written.count(end) == written.count(b"\n") > 10
    assert (b"\r" in written) is (end == b"\r\n")
    assert b"quota: 90," in written
    call_command("ratelimit", "check", str(path))


def test_adopt_writes_no_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    call_command("ratelimit", "adopt", "--to", str(path))
    kept = path.read_bytes()
    with pytest.raises(CommandError, match="exists already"):
        call_command("ratelimit", "adopt", "--to", str(path))
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (kept, ["limits.yaml"])
