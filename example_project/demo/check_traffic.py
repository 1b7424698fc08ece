"""First check: traffic from every tier, and whether each rule allowed what it should."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from ..catalogue import DAY
from .console import Progress, Table, heading, note, say
from .results import Row, traffic_rows
from .scenario import CLIENTS, SECONDS, STREAMS
from .servers import Site
from .traffic import Answer, Traffic
from .words import limits_in_words, rule_in_words

#: Traffic that began this short before midnight UTC would use the quotas of two days.
MIDNIGHT_SECONDS: Final = 50.0

_COLUMNS: Final = {"tier": -10, "limit": -26, "sent": 6, "allowed": 8, "rejected": 8, "others": 6, "expected": 9}


def check_traffic(site: Site, answers: list[Answer]) -> bool:
    """Send all requests of the scenario, and record the answers. True if every rule and tier agrees."""
    _avoid_midnight()
    traffic = Traffic(site.port, STREAMS, SECONDS)
    heading(f"1. Traffic from every tier: {traffic.total:,} requests on {CLIENTS} connections")
    try:
        _drive(site, traffic)
    finally:
        traffic.stop()
    answers += traffic.answers
    rows = traffic_rows(answers)
    say()
    _print(rows)
    wrong = sum(not row.agrees for row in rows)
    if wrong:
        say(f"  {wrong} of {len(rows)} rows do not agree.")
    return _all_answered(answers) and not wrong


def _avoid_midnight() -> None:
    left = DAY - time.time() % DAY
    if left < MIDNIGHT_SECONDS:
        say()
        note(f"Daily quotas reset at midnight UTC, in {left:.0f} s: waiting for it.")
        time.sleep(left + 0.1)


def _drive(site: Site, traffic: Traffic) -> None:
    traffic.start()
    started = time.monotonic()
    with Progress() as progress:
        done = False
        while not done:
            site.check_running()
            done = traffic.wait(0.2)
            sent, seconds = len(traffic.answers), time.monotonic() - started
            progress.show(sent / traffic.total, f"{sent:,} sent in {seconds:.0f} s, {sent / seconds:.0f} a second")


def _print(rows: Sequence[Row]) -> None:
    table = Table(_COLUMNS)
    for rule, of_rule in groupby(rows, key=lambda row: row.rule):
        table.group(rule.slug, rule_in_words(rule))
        for row in of_rule:
            numbers = (row.sent, row.admitted, row.rejected, row.elsewhere, row.expected)
            table.row(row.tier or "all", limits_in_words(row.limits), *numbers, agrees=row.agrees)
    say()
    note("allowed: by this rule and all others. rejected: by this rule. others: by other rules only.")
    note("expected: allowed requests, calculated from the rule and the responses that the client got,")
    note("          never from the app's own counters. A request that others reject uses no quota here.")


def _all_answered(answers: Sequence[Answer]) -> bool:
    wrong = [answer for answer in answers if answer.error]
    if wrong:
        first = wrong[0]
        say(f"  {len(wrong):,} requests got no proper answer. The first, {first.stream.method} {first.stream.path}:")
        say(f"  {first.error}")
    return not wrong
