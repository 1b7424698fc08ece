"""What two rule sets do differently, in requests and in callers, and what a log cannot tell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.forecast.logs import comparison
from django_ratelimiter.forecast.logs.changes import CallerChange, Change
from django_ratelimiter.forecast.logs.comparison import Options, ReplayReport, TooMuchMemory, compare
from django_ratelimiter.forecast.logs.formats import Wanted
from django_ratelimiter.forecast.logs.reading import LogFiles
from django_ratelimiter.forecast.logs.report.text import notes_of
from django_ratelimiter.rules.records import TierRecord
from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet
from django_ratelimiter.signals import limit_exceeded
from django_ratelimiter.testing.builders import build_record

from . import trace

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]

START = trace.START_US // 1_000_000 // 3_600 * 3_600

Compare = Callable[..., ReplayReport]


@pytest.fixture(autouse=True)
def _middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [trace.MIDDLEWARE]


@pytest.fixture
def compared(tmp_path: Path) -> Compare:
    """Replay requests, each a second, an address and a path, by two rule sets written briefly."""

    def go(requests: Sequence[tuple[Any, ...]], *rule_sets: Sequence[dict[str, Any]], **options: Any) -> ReplayReport:
        asked = [
            trace.Asked((START + at) * 1_000_000, "GET", path, address, user, "", "", 200, 0)
            for at, address, path, user in (each if len(each) == 4 else (*each, "") for each in requests)
        ]
        tiers = [TierRecord("free", "Free", 1, "anonymous"), TierRecord("member", "Member", 2, "authenticated")]
        before, after = [RuleSet(NO_VERSION, tiers, map(build_record, rules)) for rules in (*rule_sets, ())[:2]]
        with LogFiles([str(trace.write_log(asked, tmp_path / "log"))], Wanted(), UTC) as files:
            return compare(files, before, after if len(rule_sets) == 2 else None, Options(**options))

    return go


def by_ip(limit: str, **fields: Any) -> dict[str, Any]:
    return {"slug": "ip", "limits": [{"rate": limit, "algorithm": "fixed_window"}], "partition_by": ["ip"], **fields}


def test_the_difference_is_told_by_rule_tier_view_hour_and_caller(compared: Compare) -> None:
    User.objects.create(username="ann")
    requests = [(second, "203.0.113.1", "/plain/") for second in range(5)]
    requests += [(3_600 + second, "203.0.113.2", "/items/1/") for second in range(3)]
    requests += [(7_200, "203.0.113.3", "/plain/", "ann"), (7_201, "203.0.113.4", "/static/file")]  # type: ignore[list-item]
    found = compared(requests, [by_ip("4/hour")], [by_ip("2/hour")])
    changes, by = found.changes, found.changes.by
    assert changes.total == Change(9, before=1, after=4, newly=3, callers_newly=2)
    assert (found.exempt, changes.callers) == (1, 3)
    assert (changes.share_of_requests, changes.share_of_callers) == (3 / 9, 2 / 3)
    assert {name: (row.newly, row.callers_newly) for name, row in by["view"].items()} == {
        "plain": (2, 1),
        "item": (1, 1),
    }
    assert {name: (row.requests, row.newly) for name, row in by["tier"].items()} == {"free": (8, 3), "member": (1, 0)}
    assert [(name[-5:], row.newly, row.callers_newly) for name, row in by["hour"].items()] == [
        ("22:00", 2, 1),
        ("23:00", 1, 1),
        ("00:00", 0, 0),
    ]
    assert by["rule"]["ip"].same == 6
    assert changes.top == [
        CallerChange("ip:203.0.113.1", "free", 2, 0, (START + 2) * 1_000_000, "ip"),
        CallerChange("ip:203.0.113.2", "free", 1, 0, (START + 3_602) * 1_000_000, "ip"),
    ]


def test_what_is_no_longer_rejected_and_what_shadow_would_reject(compared: Compare) -> None:
    requests = [(second, "203.0.113.1", "/plain/") for second in range(5)]
    found = compared(requests, [by_ip("2/hour")], [by_ip("2/hour", mode="shadow")])
    assert found.changes.total == Change(5, before=3, after=0, no_longer=3, shadow=3, callers_no_longer=1)
    assert found.changes.by["rule"]["ip"].callers_no_longer == 1
    assert found.changes.top == []


def test_one_rule_set_alone_is_told_as_it_is(compared: Compare) -> None:
    found = compared([(second, "203.0.113.1", "/plain/") for second in range(5)], [by_ip("2/hour")])
    assert found.after is None
    assert found.changes.total == Change(5, before=3, after=3)


def test_a_site_on_which_nothing_is_enforced_replays_as_any_other(compared: Compare, settings: Any) -> None:
    """Else a forecast from a developer's settings would say that a change rejects nobody."""
    settings.RATELIMITER = {**settings.RATELIMITER, "ENABLED": False}
    found = compared([(second, "203.0.113.1", "/plain/") for second in range(5)], [by_ip("2/hour")])
    assert found.changes.total.before == 3


def test_nothing_is_logged_or_sent_of_a_replay(compared: Compare, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []
    limit_exceeded.connect(lambda **named: sent.append(named), weak=False, dispatch_uid="replay")
    try:
        compared([(second, "203.0.113.1", "/plain/") for second in range(5)], [by_ip("2/hour")])
    finally:
        limit_exceeded.disconnect(dispatch_uid="replay")
    assert (sent, caplog.records) == ([], [])


def test_what_the_log_cannot_tell_is_said_and_left_out(compared: Compare) -> None:
    rules = [
        by_ip("2/hour"),
        {"slug": "user", "limits": ["1/hour"], "partition_by": ["user"], "missing_partition": "deny"},
        {"slug": "org", "limits": ["1/hour"], "partition_by": ["header:X-Org"]},
    ]
    found = compared([(second, "203.0.113.1", "/plain/") for second in range(5)], rules)
    assert {each.rule: each.lacks for each in found.left_out} == {"user": ("user",), "org": ("header:X-Org",)}
    assert found.changes.total.before == 3
    assert notes_of(found)[1] == "user: left out, because the log cannot tell users apart"
    assert found.unknown_users == 0


def test_users_that_the_database_does_not_have_are_counted(compared: Compare) -> None:
    User.objects.create(username="ann")
    requests = [(0, "203.0.113.1", "/plain/", name) for name in ("ann", "zoe", "zoe", "kim")]
    assert compared(requests, [by_ip("9/hour")]).unknown_users == 2


def test_a_replay_that_would_remember_too_much_stops(compared: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [(second, "203.0.113.1", "/plain/") for second in range(4_000)]
    monkeypatch.setattr(comparison, "memory_used", lambda: 90.0)
    assert compared(requests, [by_ip("2/minute")], max_memory=100).decided == 4_000
    with pytest.raises(TooMuchMemory, match="Stopped at line 2,000: the counters and callers to remember"):
        compared(requests, [by_ip("2/minute")], max_memory=99)


@pytest.mark.once
def test_the_process_never_takes_more_memory_than_it_may(tmp_path: Path) -> None:
    """A process of its own, in which nothing else was before."""
    line = '10.%s.%s.%s - - [22/Nov/2026:18:00:00 +0000] "GET /plain/1/ HTTP/1.1" 200 1\n'
    log = tmp_path / "log"
    log.write_text("".join(line % (each >> 16, each >> 8 & 255, each & 255) for each in range(60_000)))
    code = f"""if True:
        from datetime import UTC
        from benchmarks.replay import configure
        configure()
        from django.core.management import call_command
        call_command("migrate", verbosity=0)
        from django_ratelimiter.forecast.logs.comparison import Options, TooMuchMemory, compare, memory_used
        from django_ratelimiter.forecast.logs.formats import Wanted
        from django_ratelimiter.forecast.logs.reading import LogFiles
        from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet
        from django_ratelimiter.testing.builders import build_record
        records = [
            build_record({{"slug": f"rule{{number}}", "limits": [limit], "partition_by": ["ip"]}})
            for number, limit in enumerate(["9/day", "8/day"])
        ]
        most = int(memory_used()) + 40
        try:
            with LogFiles([{str(log)!r}], Wanted(), UTC) as files:
                compare(files, RuleSet(NO_VERSION, (), records), None, Options(max_memory=most))
        except TooMuchMemory:
            print(most - memory_used() > 0)
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
