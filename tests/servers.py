"""Starts the servers of the tests, before Django reads the settings. A pytest plugin, named in pyproject.toml.

TEST_DATABASE: sqlite (the default), postgresql or mariadb.
REDIS_URL, REDIS_SERVER: which Redis-compatible server, see `example_project.redis_server`.

Pythons, servers and databases that this machine lacks can be had from another release of Debian, as root:

    debootstrap --variant=minbase forky ROOT http://deb.debian.org/debian /usr/share/debootstrap/scripts/sid
    chroot ROOT apt-get install --yes gcc python3.15-dev python3.15-venv redis-server postgresql mariadb-server
    mount --bind . ROOT/mnt
    chroot ROOT sh -c 'cd mnt && python3.15 -m venv /venv && /venv/bin/pip install --editable . --group test'
    REDIS_SERVER=/usr/bin/redis-server chroot ROOT sh -c 'cd mnt && /venv/bin/pytest tests/engine'

What runs is told in TEST_REDIS_URL and TEST_DATABASE_URL, to the settings and to further processes of a test. With
pytest-xdist each worker has a Redis and a database of its own; they share one PostgreSQL or MariaDB.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import redis

from example_project.redis_server import RedisServer
from tests.databases import mariadb_url, postgres_url

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
RUNNING = contextlib.ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None]:
    """Start before pytest-django reads the settings, in the same hook."""
    os.environ["TEST_REDIS_URL"] = _redis()
    chosen = os.environ.get("TEST_DATABASE", "sqlite")
    if chosen == "sqlite":
        folder = RUNNING.enter_context(tempfile.TemporaryDirectory(prefix="tests-"))
        os.environ["TEST_DATABASE_URL"] = f"sqlite://{Path(folder, 'test.sqlite3')}"
    else:
        start = {"postgresql": postgres_url, "mariadb": mariadb_url}[chosen]
        server = os.environ["TEST_DATABASE_URL"] if WORKER else RUNNING.enter_context(start())
        os.environ["TEST_DATABASE_URL"] = f"{server.rpartition('/')[0]}/tests{WORKER}"
    return (yield)


def pytest_report_header() -> list[str]:
    """Tell what the tests run on."""
    with redis.Redis.from_url(os.environ["TEST_REDIS_URL"]) as client:
        info = client.info("server")
    name = info.get("server_name", "redis")
    version = info.get("valkey_version") or info["redis_version"]
    return [f"server: {name} {version}, database: {os.environ['TEST_DATABASE_URL'].partition(':')[0]}"]


def pytest_unconfigure() -> None:
    """Stop what was started."""
    RUNNING.close()


def _redis() -> str:
    given = os.environ.get("REDIS_URL")
    if not given:
        return RUNNING.enter_context(RedisServer()).url
    with redis.Redis.from_url(given) as client:
        database = client.connection_pool.connection_kwargs.get("db", 0) + int(WORKER.removeprefix("gw") or 0)
        client.select(database)
        if client.dbsize():
            raise pytest.UsageError(
                f"Database {database} of REDIS_URL is not empty, and the tests would empty it; name another one."
            )
    return f"{given.rpartition('/')[0] if given.count('/') > 2 else given}/{database}"
