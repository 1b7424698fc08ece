"""A release agrees with itself: version, changelog, addresses, workflows, the README on the package index."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from .pages import ROOT

pytestmark = pytest.mark.once

yaml = YAML(typ="safe")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
VERSION, ADDRESS = PROJECT["project"]["version"], PROJECT["project"]["urls"]["Repository"]


def module(path: Path) -> ModuleType:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def read(name: str) -> Any:
    """Return a YAML file of the repository."""
    return yaml.load((ROOT / name).read_text("utf-8"))


def test_the_version_is_written_in_one_place_and_the_others_follow() -> None:
    [locked] = [
        package["version"]
        for package in tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
        if package["name"] == PROJECT["project"]["name"]
    ]
    assert locked == VERSION
    [heading, *_] = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(VERSION)} \((not released yet|\d{{4}}-\d\d-\d\d)\)", heading)


def test_a_release_needs_tag_changelog_and_repository_to_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    release = module(ROOT / ".github/release.py")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"))
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2027-01-31)\n")
    assert release.disagreements(f"v{VERSION}", ADDRESS) == []
    assert len(release.disagreements("v0.9", "https://github.com/somebody/else")) == 2
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (not released yet)\n")
    [only] = release.disagreements(f"v{VERSION}", ADDRESS)
    assert "CHANGELOG.md must begin with" in only
    assert release.main(f"v{VERSION}", ADDRESS) == only
    assert release.main("--dry-run", ADDRESS) == 0


def test_a_release_is_checked_and_published_without_a_token() -> None:
    release = read(".github/workflows/release.yml")
    assert release["jobs"]["checks"]["uses"] == "./.github/workflows/ci.yml"
    needs = [release["jobs"][name]["needs"] for name in ("build", "attest", "publish")]
    assert needs == ["checks", "build", "attest"]
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in str(release)


def test_a_release_started_by_hand_uploads_nothing_to_the_index() -> None:
    release = read(".github/workflows/release.yml")
    assert set(release["on"]) == {"push", "workflow_dispatch"}
    tagged = {name for name, job in release["jobs"].items() if job.get("if") == "github.event_name == 'push'"}
    assert tagged == {"attest", "publish"}


def test_other_peoples_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code. The version behind it is for readers, and for Dependabot."""
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"^\s+(?:- )?uses: (?!\./)(.*)$", workflow.read_text("utf-8"), re.MULTILINE)
        assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", name)] == []


def test_no_job_that_can_sign_runs_a_command() -> None:
    """A tool that builds, or what it installs, could sign other files."""
    jobs = read(".github/workflows/release.yml")["jobs"]
    signing = {name: job for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert set(signing) == {"attest", "publish"}
    steps = [step for job in signing.values() for step in job["steps"]]
    assert all("uses" in step and "run" not in step and "checkout" not in step["uses"] for step in steps)


def test_links_of_the_readme_are_absolute_on_the_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    interface = SimpleNamespace(MetadataHookInterface=object)  # hatchling is only there while a wheel is built
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    build = module(ROOT / "hatch_build.py")
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = build.with_absolute_links(readme, ADDRESS, VERSION)
    assert build.RELATIVE.search(readme)
    assert not build.RELATIVE.search(shown)
    assert f"]({ADDRESS}/blob/v{VERSION}/CHANGELOG.md)" in shown
    raw = ADDRESS.replace("github.com", "raw.githubusercontent.com")
    assert f"]({raw}/v{VERSION}/docs/howto/overview.png)" in shown
