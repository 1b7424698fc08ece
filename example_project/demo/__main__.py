"""`python -m example_project.demo`: shows the rate limiter at work, then serves until Ctrl-C.

`--once` ends after the checks instead. The exit status is 0 only if everything agreed. DEMO_BREAK=nolimiter, double,
stale or uncounted breaks the example on purpose.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from ..catalogue import ADMIN, API_KEYS, PASSWORD, PEOPLE, RULES, TIERS
from ..redis_server import ServerError
from .admin_client import RULES_PATH, USAGE_PATH
from .check_change import check_change
from .check_traffic import check_traffic
from .check_usage import check_usage
from .console import fact, heading, note, paint, say
from .servers import COLLECT_SECONDS, DemoError, Site, running_site
from .suggestions import SUGGESTIONS
from .traffic import Answer

BREAKS: Final = ("nolimiter", "double", "stale", "uncounted")
CHECKS: Final[Sequence[Callable[[Site, list[Answer]], bool]]] = (check_traffic, check_change, check_usage)


def main() -> int:
    """Run the demo, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo", description="Shows the rate limiter at work."
    )
    parser.add_argument("--once", action="store_true", help="end after the checks instead of serving until Ctrl-C")
    once = parser.parse_args().once
    broken = os.environ.get("DEMO_BREAK", "")
    if broken and broken not in BREAKS:
        parser.error(f"DEMO_BREAK is {broken!r}; it can be {', '.join(BREAKS)}.")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _terminate)
    try:
        with running_site() as site:
            return _show(site, once, broken)
    except KeyboardInterrupt:
        say("\nStopped.")
        return 130
    except (DemoError, ServerError) as error:
        say("\n".join([f"\n{paint('The demo failed.', 'red')} {error}", *getattr(error, "__notes__", ())]))
        return 2


def _show(site: Site, once: bool, broken: str) -> int:
    started = time.monotonic()
    _set_up(site)
    if broken:
        say(paint(f"  DEMO_BREAK={broken}: this example is broken on purpose, and must not agree.", "red"))
    answers: list[Answer] = []
    agreed = True
    for check in CHECKS:
        agreed = check(site, answers) and agreed
        if once and not agreed:
            break
    say()
    if agreed:
        say(f"{paint('Everything agreed.', 'green')} It took {time.monotonic() - started:.0f} s.")
    else:
        site.keep_folder = True
        say(f"{paint('NOT everything agreed:', 'red')} see above. Database and logs are kept in {site.folder}")
    if not once:
        _serve(site)
    return 0 if agreed else 1


def _set_up(site: Site) -> None:
    heading("Rate limits for Django, seen from outside")
    redis = urlsplit(site.redis)  # shown without a password
    fact("Redis", f"{redis.hostname}:{redis.port or 6379}, keys begin with {site.namespace}")
    site.manage("migrate", "--verbosity", "0")
    fact("Database", f"SQLite in {site.folder}")
    site.manage("demo_data")
    fact("Demo data", f"{len(TIERS)} tiers, {len(PEOPLE)} users, {len(API_KEYS)} API keys, {len(RULES)} rules")
    site.start_web()
    fact("Web server", f"gunicorn at {site.url}, workers {', '.join(map(str, site.workers))}")
    site.start_celery()
    fact("Celery", f"a worker, and beat that has the usage collected every {COLLECT_SECONDS} s")


def _serve(site: Site) -> None:
    heading("The site is yours")
    site.manage("demo_traffic")  # after the checks, which count the recorded usage
    fact("Traffic", "a week of invented traffic is recorded: open a rule and press “What would this do?”")
    fact("Admin", f"{site.url}/admin/   log in as {ADMIN}, password {PASSWORD}")
    fact("Rules", f"{site.url}{RULES_PATH}   edit one: it is in force once it is saved")
    fact("Usage", f"{site.url}{USAGE_PATH}")
    fact("Commands", f"{' '.join(site.variables())} {sys.executable} manage.py ratelimit caller --user paula")
    note(f"{'':<12}in another terminal, in this folder; any command of manage.py works so")
    for suggestion in SUGGESTIONS:
        fact("Try", suggestion.command(site.url))
        note(f"{'':<12}{suggestion.remark}")
    note("Serving until Ctrl-C.")
    try:
        while True:
            time.sleep(1)
            site.check_running()
    except KeyboardInterrupt:
        say("\nStopping.")


def _terminate(number: int, _frame: object) -> None:
    """Exit through every `finally`, with the shell's exit status for a process ended by this signal."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
