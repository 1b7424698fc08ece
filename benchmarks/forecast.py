"""The time of a forecast from many samples: `python -m benchmarks.forecast [sqlite|postgresql] [SAMPLES]`.

Its own database is filled with a million samples of one rule: seven days, at most 100 callers a minute, of 3,000.
Then the data of "What would this do?" is read, for limits of a minute, an hour and a day, and for two of them. The aim
is at most a second of CPU time for each: that of this process and, with PostgreSQL, of the server's process for
this connection and its parallel workers. The elapsed time is shown beside it; it depends more on other
load.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

from .reports import AIM_SECONDS, database

ROUNDS: Final = 3
MANY: Final = 1_000_000
CALLERS: Final = 3_000
OF_MINUTE: Final = 100

_COLUMNS: Final = "INSERT INTO django_ratelimiter_usagesample (rule_slug, tier_slug, minute, partition_hash, count)"
#: Callers of a minute are spread evenly among all; one in a hundred makes many requests.
_WHO: Final = "(who.value * 30 + at.value * 7) %% 3000"
_ROW: Final = (
    f"CASE WHEN {_WHO} %% 5 = 4 THEN 'pro' ELSE 'free' END, {{minute}}, 'caller-of-some-length-' || ({_WHO}), "
    f"1 + (at.value * 31 + who.value * 17) %% 9 + CASE WHEN {_WHO} < 30 THEN 60 ELSE 0 END"
)
_SAMPLES: Final = {
    "sqlite": f"""{_COLUMNS}
    WITH RECURSIVE who(value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM who WHERE value < %s - 1),
        at(value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM at WHERE value < %s - 1)
    SELECT 'search', {_ROW.format(minute="datetime(%s + at.value * 60, 'unixepoch')")} FROM at CROSS JOIN who""",
    "postgresql": f"""{_COLUMNS}
    WITH who(value) AS (SELECT generate_series(0, %s - 1)), at(value) AS (SELECT generate_series(0, %s - 1))
    SELECT 'search', {_ROW.format(minute="to_timestamp(%s + at.value * 60)")} FROM at CROSS JOIN who""",
}


def fill(kind: str, samples: int, start: datetime) -> int:
    """Create about this many samples, and the counts of their hours. Return the number of samples."""
    from django.db import connection

    from django_ratelimiter.models import UsageBucket

    hours = range(samples // OF_MINUTE // 60 + 1)
    UsageBucket.objects.bulk_create(
        UsageBucket(
            rule_slug="search",
            tier_slug=tier,
            granularity="hour",
            start=start + timedelta(hours=hour),
            allowed=requests,
        )
        for hour in hours
        for tier, requests in (("free", 400_000), ("pro", 100_000))
    )

    with connection.cursor() as cursor:
        cursor.execute(_SAMPLES[kind], [OF_MINUTE, samples // OF_MINUTE, int(start.timestamp())])
        cursor.execute("ANALYZE" if kind == "sqlite" else "VACUUM ANALYZE")
        cursor.execute("SELECT count(*) FROM django_ratelimiter_usagesample")
        return int(cursor.fetchone()[0])


class Seconds(NamedTuple):
    """A point in time, or the time since one: seconds of CPU time, and of the clock."""

    processor: float
    clock: float

    def since(self, began: Seconds) -> Seconds:
        """Return the time since then."""
        return Seconds(self.processor - began.processor, self.clock - began.clock)


def moment(server: int | None) -> Seconds:
    """Return the current time. server: the server's process for this connection; `None` = there is none."""
    clock, processor = perf_counter(), process_time()
    if server is not None:
        own = _processor_times(server)
        # ended parallel workers are included in the process that started them
        processor += sum(own.used) + sum(_processor_times(own.parent).of_ended)
    return Seconds(processor, clock)


class _ProcessorTimes(NamedTuple):
    """Seconds that a process used, in its own code and in the kernel, and those of its children."""

    parent: int
    used: tuple[float, float]
    of_ended: tuple[float, float]


def _processor_times(process: int) -> _ProcessorTimes:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    used, system, used_ended, system_ended = (int(each) / os.sysconf("SC_CLK_TCK") for each in fields[11:15])
    return _ProcessorTimes(int(fields[1]), (used, system), (used_ended, system_ended))


def server_process(kind: str) -> int | None:
    """Return the id of the server's process for this connection; `None` = the database is in this process."""
    if kind == "sqlite":
        return None
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def measure(kind: str, start: datetime, minutes: int, *windows: int) -> dict[str, Seconds]:
    """Return the time for the page's data for limits with these windows, and for the proposals."""
    from django_ratelimiter.engine.limits import Limit
    from django_ratelimiter.forecast.samples.advice import advise
    from django_ratelimiter.forecast.samples.forecast import forecast
    from django_ratelimiter.usage.reports.coverage import Period

    period = Period(start, start + timedelta(minutes=minutes))
    before, after = (
        _rule(*(Limit(quota * window // 60, window, "fixed_window") for window in windows)) for quota in (60, 30)
    )
    server = server_process(kind)
    rounds = []
    for _ in range(ROUNDS):
        began = moment(server)
        found = forecast(before, after, period)
        parts = found.by_tier, found.by_hour, found.top
        assert all(parts), parts
        shown = moment(server)
        advise(after, period, 0.001)
        rounds.append({"forecast": shown.since(began), "advice": moment(server).since(shown)})
    return {name: Seconds(*map(median, zip(*(each[name] for each in rounds), strict=True))) for name in rounds[0]}


def _rule(*limits: Any) -> Any:
    from django_ratelimiter.rules.records import LimitRecord, RuleRecord

    return RuleRecord(
        "search", "", "enforce", frozenset(), "", "any", "", "", ("user",), "skip", "local", 1, 100, "", False,
        {None: tuple(LimitRecord(limit) for limit in limits)},
    )  # fmt: skip


def main(kind: str, samples: int) -> int:
    """Fill, measure and print; 1 if a forecast takes longer than it may."""
    import django
    from django.core.management import call_command

    slowest = 0.0
    with database(kind) as url:
        os.environ |= {"TEST_DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        django.setup()
        call_command("migrate", verbosity=0)
        from django_ratelimiter.usage.times import now

        minutes = samples // OF_MINUTE
        start = now().replace(minute=0, second=0, microsecond=0) - timedelta(minutes=minutes)
        print(f"{fill(kind, samples, start):,} samples in {kind}")
        for windows in ((60,), (3_600,), (86_400,), (60, 3_600)):
            seconds = measure(kind, start, minutes, *windows)
            slowest = max(slowest, *(each.processor for each in seconds.values()))
            parts = "  ".join(f"{name} {each.processor:.2f} s ({each.clock:.2f} s)" for name, each in seconds.items())
            print(f"windows of {' and '.join(map(str, windows))} s: {parts}")
    return int(slowest > AIM_SECONDS)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "sqlite"
    sys.exit(main(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else MANY))
