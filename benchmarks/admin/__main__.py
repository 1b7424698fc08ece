"""How long the admin's pages take on a large site: `python -m benchmarks.admin [sqlite|postgresql] [PAGE ...]`.

It fills its own database and Redis like those of a large site: 500 rules, 100,000 assignments, a million rows of usage.
Then a superuser opens each page several times. The table has for each page: its queries; milliseconds of this process's
CPU time, which on SQLite include the database's; and those of PostgreSQL's process for this connection, from Linux. The
limit is for both together, because that depends least on other load: less than half a second, with at most 40 queries.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

from example_project.redis_server import RedisServer

ROUNDS: Final = 5
MAX_QUERIES: Final = 40
MAX_MILLISECONDS: Final = 500.0


class Measured(NamedTuple):
    """The time of opening a page, in milliseconds. database: PostgreSQL's; 0 if this process is the database."""

    name: str
    status: int
    queries: int
    processor: float
    database: float

    @property
    def is_good(self) -> bool:
        total = self.processor + self.database
        return self.status == 200 and self.queries <= MAX_QUERIES and total < MAX_MILLISECONDS


class Asked:
    """Records the queries."""

    def __init__(self) -> None:
        self.queries: list[tuple[str, Any]] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.queries.append((sql, params))
        return execute(sql, params, many, context)


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            yield f"sqlite://{folder}/bench.sqlite3"
        return
    from tests.databases import postgres_url

    with postgres_url() as url:
        yield url


def measure(client: Any, name: str, url: str) -> Measured:
    """Open a page once to warm up and count queries, and then ROUNDS times."""
    from django.db import connection

    asked = Asked()
    with connection.execute_wrapper(asked):
        response = client.get(url)
    processor, databases = [], []
    for _ in range(ROUNDS):
        spent, database = process_time(), _of_postgresql()
        client.get(url)
        processor.append(process_time() - spent)
        databases.append(_of_postgresql() - database)
    return Measured(name, response.status_code, len(asked.queries), median(processor) * 1e3, median(databases))


def _of_postgresql() -> float:
    """Return the CPU time of this connection's PostgreSQL process, in milliseconds; else 0."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return 0.0
    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")  # their time would not be included
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def main() -> int:
    """Fill, measure and print; 1 if a page exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin", description=__doc__)
    parser.add_argument("database", nargs="?", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("pages", nargs="*", help="names of pages; none = all")
    parser.add_argument("--share", type=float, default=1.0, help="of the rows, such as 0.1 for a try")
    chosen = parser.parse_args()
    with ExitStack() as running:
        os.environ["TEST_DATABASE_URL"] = running.enter_context(database(chosen.database))
        os.environ["TEST_REDIS_URL"] = running.enter_context(RedisServer()).url
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        client = _set_up(chosen.database, chosen.share)
        from .pages import addresses

        slow = 0
        print("| page | queries | processor, ms | PostgreSQL, ms |\n| --- | ---: | ---: | ---: |")
        for name, url in addresses():
            if chosen.pages and name not in chosen.pages:
                continue
            found = measure(client, name, url)
            mark = "" if found.is_good else f" too much ({found.status})"
            print(f"| {name} | {found.queries} | {found.processor:.0f} | {found.database:.0f} |{mark}", flush=True)
            slow += not found.is_good
        from django.db import connection

        connection.close()
    print(f"\n{slow} pages take more than {MAX_QUERIES} queries or {MAX_MILLISECONDS:.0f} ms.")
    return min(slow, 1)


def _set_up(kind: str, share: float) -> Any:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from .fill import counts, fill

    call_command("migrate", verbosity=0)
    author = User.objects.create_superuser("admin")
    began = perf_counter()
    fill(author, share=share)
    rows = ", ".join(f"{count:,} {name}" for name, count in counts().items())
    print(f"{kind}, filled in {perf_counter() - began:.0f} s: {rows}\n")
    client = Client()
    client.force_login(author)
    return client


if __name__ == "__main__":
    sys.exit(main())
