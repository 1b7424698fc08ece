"""The speed and memory of a replay: `python -m benchmarks.replay [LINES [CALLERS [RULES]]]`.

A log with this many lines (1,000,000) by this many callers (100,000) over a day is written in the format combined, and
replayed by one process, with this many rules (3) that match each line, three times: the fastest counts. The limit is at
least 100,000 lines per second of CPU time, divided by the rules per line.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

START = 1_760_000_000
DAY = 86_400
PATHS = [f"/plain/{number}/" for number in range(300)]


def write(path: Path, lines: int, callers: int) -> None:
    """Write the log: a tenth of the callers sends most requests."""
    random = Random(1)
    with path.open("w") as file:
        moment = ""
        for number in range(lines):
            if number * DAY // lines != (number - 1) * DAY // lines or not number:
                at = datetime.fromtimestamp(START + number * DAY // lines, UTC)
                moment = f"{at:%d/%b/%Y:%H:%M:%S +0000}"
            caller = number if number < callers else int(callers * random.random() ** 2)
            address = f"10.{caller >> 16 & 255}.{caller >> 8 & 255}.{caller & 255}"
            file.write(
                f'{address} - - [{moment}] "GET {random.choice(PATHS)}?page=2 HTTP/1.1" 200 512 "-" "Mozilla/5.0"\n'
            )


def configure() -> None:
    """Set up a project with one view, and no server."""
    import django
    from django.conf import settings  # noqa: TID251

    settings.configure(
        SECRET_KEY="benchmark",
        ROOT_URLCONF="benchmarks.replay",
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimiter"],
        MIDDLEWARE=["django_ratelimiter.middleware.RateLimitMiddleware"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
    )
    django.setup()


def rule_set(number: int, quota: int):  # type: ignore[no-untyped-def]
    """Return this many rules that match each line, as in real projects: by address, over three windows."""
    from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet
    from django_ratelimiter.testing.override import build_record

    rates = (f"{quota}/minute", f"{20 * quota}/hour", f"{100 * quota}/day")
    rules = [
        build_record({"slug": f"rule{each}", "limits": [rates[each % 3]], "partition_by": ["ip"]})
        for each in range(number)
    ]
    return RuleSet(NO_VERSION, (), rules)


def replay(log: Path, rules: int) -> tuple[float, float, Any]:
    """Replay once. Return seconds of CPU time and of the clock, and the result."""
    from django_ratelimiter.forecast.logs.formats import Wanted
    from django_ratelimiter.forecast.logs.reading import LogFiles
    from django_ratelimiter.forecast.logs.source import LogTraffic

    began, spent, asked = perf_counter(), process_time(), rule_set(rules, 10)
    files = LogFiles([str(log)], Wanted(), UTC)
    traffic = LogTraffic(files, (asked, asked), [(None, rule) for rule in asked.rules])
    found = [traffic.forecast(None, rule).effect(1).requests.about for rule in asked.rules]
    return process_time() - spent, perf_counter() - began, found


def main() -> None:
    """Write the log, replay it, and print lines per second, rejected requests, and the maximum of megabytes."""
    given = [int(text) for text in sys.argv[1:]]
    lines, callers, rules = [*given, *(1_000_000, 100_000, 3)[len(given) :]]
    configure()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "access.log"
        write(log, lines, callers)
        spent, seconds, found = min((replay(log, rules) for _ in range(3)), key=lambda each: each[:2])
    from django_ratelimiter.forecast.logs.source import memory_used

    print(
        f"{rules} rules: {lines / seconds:,.0f} lines a second, {lines / spent:,.0f} a second of processor time "
        f"(times rules: {rules * lines / spent:,.0f}); {sum(found):,.0f} rejected; {memory_used():.0f} MB"
    )


def __getattr__(name: str) -> object:
    """Return the URL patterns of this project."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.http import HttpResponse
    from django.urls import path

    return [path("plain/<int:page>/", lambda request, page: HttpResponse(), name="plain")]


if __name__ == "__main__":
    main()
