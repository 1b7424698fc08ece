"""The time of report pages with many buckets: `python -m benchmarks.reports [sqlite|postgresql] [BUCKETS]`.

Its own database is filled with a million buckets in SQLite, or ten million in PostgreSQL, which must be
installed: minutes, hours and days as RETENTION keeps them by default, and the top partitions. Then all data
of a page is read for each period, for all rules and for one. The aim is at most a second for each.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from time import perf_counter, time
from typing import Any, Final

ROUNDS: Final = 3
AIM_SECONDS: Final = 1.0
MANY: Final = {"sqlite": 1_000_000, "postgresql": 10_000_000}
HOUR: Final = timedelta(hours=1)
DAY: Final = 24 * HOUR
PERIODS: Final = {
    "hour": HOUR,
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "quarter": 90 * DAY,
    "year": 365 * DAY,
}
#: By granularity: the width in seconds, and for how many days they are kept.
KEPT: Final = {"minute": (60, 8), "hour": (3_600, 100), "day": (86_400, 800)}
#: Buckets of one rule and tier, of all granularities.
OF_EACH: Final = sum(days * 86_400 // width for width, days in KEPT.values())
TIERS: Final = ("", "free", "pro", "team")
#: Top partitions of each rule, hour and day; fewer if that would be more rows than buckets.
PARTITIONS: Final = 20
RULES_WITH_PARTITIONS: Final = 20


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            yield f"sqlite://{folder}/bench.sqlite3"
        return
    from tests.postgres import postgres_url

    with postgres_url() as url:
        yield url


def fill(kind: str, buckets: int) -> int:
    """Create about this many buckets, and other rows in proportion. Return the number of buckets."""
    from django.db import connection

    rules = max(1, buckets // (OF_EACH * len(TIERS)))
    until = int(time())
    for granularity, (width, days) in KEPT.items():
        last = until // width
        numbers = last - days * 86_400 // width + 1, last
        with connection.cursor() as cursor:
            cursor.execute(_BUCKETS[kind], [rules, *TIERS, *numbers, granularity, width, granularity])
            if granularity != "minute":
                some = min(rules, RULES_WITH_PARTITIONS)
                cursor.execute(_HEAVIEST[kind], [some, PARTITIONS, *numbers, granularity, width])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE" if kind == "sqlite" else "VACUUM ANALYZE")
        cursor.execute("SELECT count(*) FROM django_ratelimiter_usagebucket")
        return int(cursor.fetchone()[0])


_BUCKET: Final = """INSERT INTO django_ratelimiter_usagebucket
    (rule_slug, tier_slug, granularity, start, allowed, rejected, shadow_rejected, soft_exceeded, degraded, partitions)
"""
_TOP: Final = """INSERT INTO django_ratelimiter_toppartition
    (rule_slug, granularity, start, partition, allowed, rejected)
"""
_COUNTS: Final = "100 + at.value %% 91, at.value %% 7, at.value %% 3, 1, 0"

#: Minutes of all rules in order of time, as collectors write them.
_BUCKETS: Final = {
    "sqlite": _BUCKET
    + f"""WITH RECURSIVE rule(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM rule WHERE value < %s),
        tier(slug) AS (VALUES (%s), (%s), (%s), (%s)),
        at(value) AS (SELECT %s UNION ALL SELECT value + 1 FROM at WHERE value < %s)
    SELECT 'rule-' || rule.value, tier.slug, %s, datetime(at.value * %s, 'unixepoch'), {_COUNTS},
        CASE WHEN %s = 'minute' THEN NULL ELSE 40 + at.value %% 9 END
    FROM at CROSS JOIN rule CROSS JOIN tier""",
    "postgresql": _BUCKET
    + f"""WITH rule(value) AS (SELECT generate_series(1, %s)), tier(slug) AS (VALUES (%s), (%s), (%s), (%s)),
        at(value) AS (SELECT generate_series(%s, %s))
    SELECT 'rule-' || rule.value, tier.slug, %s, to_timestamp(at.value::bigint * %s), {_COUNTS},
        CASE WHEN %s = 'minute' THEN NULL ELSE 40 + at.value %% 9 END
    FROM at CROSS JOIN rule CROSS JOIN tier""",
}
_HEAVIEST: Final = {
    "sqlite": _TOP
    + """WITH RECURSIVE rule(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM rule WHERE value < %s),
        who(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM who WHERE value < %s),
        at(value) AS (SELECT %s UNION ALL SELECT value + 1 FROM at WHERE value < %s)
    SELECT 'rule-' || rule.value, %s, datetime(at.value * %s, 'unixepoch'),
        'partition-' || (who.value * 7 + at.value %% 400), who.value, 1
    FROM at CROSS JOIN rule CROSS JOIN who""",
    "postgresql": _TOP
    + """WITH rule(value) AS (SELECT generate_series(1, %s)), who(value) AS (SELECT generate_series(1, %s)),
        at(value) AS (SELECT generate_series(%s, %s))
    SELECT 'rule-' || rule.value, %s, to_timestamp(at.value::bigint * %s),
        'partition-' || (who.value * 7 + at.value %% 400), who.value, 1
    FROM at CROSS JOIN rule CROSS JOIN who""",
}


def parts() -> dict[str, Callable[[Any], object]]:
    """Return the data of a page, by name; each part once per report."""
    names = ("totals", "points", "before", "most_clients", "clients", "hours", "top_partitions", "fresh")
    return {name: lambda report, name=name: getattr(report, name) for name in names}  # type: ignore[misc]


def measure(period: timedelta, rule: str | None) -> dict[str, float]:
    """Return seconds for each part of a report on this period, and for the whole page."""
    from django_ratelimiter.admin.usage.report import Report
    from django_ratelimiter.usage.reports import totals

    rounds = []
    for _ in range(ROUNDS):
        began = perf_counter()
        report = Report(totals.last(period), rule)
        seconds = {"coverage": perf_counter() - began}
        for name, read in parts().items():
            at = perf_counter()
            read(report)
            seconds[name] = perf_counter() - at
        seconds["page"] = perf_counter() - began
        rounds.append(seconds)
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def main(kind: str, buckets: int) -> int:
    """Fill, measure and print; 1 if a page exceeds its limit."""
    import django
    from django.core.management import call_command
    from django.db import connection

    slowest = 0.0
    with database(kind) as url:
        os.environ |= {"TEST_DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        django.setup()
        call_command("migrate", verbosity=0)
        began = perf_counter()
        made = fill(kind, buckets)
        print(f"{kind}: {made:,} buckets, made in {perf_counter() - began:.0f} s; seconds, median of {ROUNDS}\n")
        for rule in (None, "rule-1"):
            for number, (name, period) in enumerate(PERIODS.items()):
                seconds = measure(period, rule)
                if not number:
                    print(f"{rule or 'all rules':10}" + "".join(f"{part:>13}" for part in seconds))
                print(f"{name:10}" + "".join(f"{each:13.3f}" for each in seconds.values()), flush=True)
                slowest = max(slowest, seconds["page"])
        connection.close()
    print(f"\nThe slowest page takes {slowest:.2f} s; at most {AIM_SECONDS:.0f} s is the aim.")
    return int(slowest > AIM_SECONDS)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "sqlite"
    sys.exit(main(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else MANY[chosen]))
