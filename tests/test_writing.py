"""Files that subcommands write: all of a text or nothing, and no trace of the way there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from django_ratelimiter.management.output import require_writable, write_file


def test_a_text_that_fails_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_file(str(file), "new" * 100_000 + "\ud800")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rules.yaml", "old")]


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "rules.yaml", tmp_path / "current.yaml"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_file(str(link), "new")
    assert link.is_symlink()
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current.yaml", "rules.yaml"]


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    write_file(str(tmp_path / "rules.yaml"), "new")
    (tmp_path / "other").touch()
    assert (tmp_path / "rules.yaml").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_full_disk_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_beside: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    file = tmp_path / "rules.yaml"
    file.write_text("old")
    with pytest.raises(CommandError, match="No space left"):
        write_file(str(file), "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rules.yaml", "old")]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    try:
        require_writable(f"/dev/fd/{writes}")
        write_file(f"/dev/fd/{writes}", "new")
        assert os.read(reads, 10) == b"new"
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("name", ["no-such/rules.yaml", "."])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    for write in (require_writable, lambda place: write_file(place, "new")):
        with pytest.raises(CommandError, match=name):
            write(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_asking_whether_it_can_be_written_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    require_writable(str(file))
    assert not file.exists()
    file.write_text("old")
    require_writable(str(file))
    assert file.read_text() == "old"
