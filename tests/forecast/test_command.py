"""`manage.py ratelimit replay`: its options, its reports and its self-check."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ratelimiter.models import Rule, RuleLimit, RuleSetState, UsageBucket
from django_ratelimiter.rules import cache

from . import trace

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]

HOUR = datetime(2023, 11, 14, 22, tzinfo=UTC)

Replayed = Callable[..., str]


@pytest.fixture
def log(tmp_path: Path, settings: Any) -> Path:
    """Ten requests of one address within an hour, and three of another, by the format combined; and a bad line."""
    settings.MIDDLEWARE = [trace.MIDDLEWARE]
    lines = [
        f"203.0.113.{1 if number < 10 else 2} - - [{HOUR + timedelta(seconds=number):%d/%b/%Y:%H:%M:%S} +0000] "
        f'"GET /plain/ HTTP/1.1" 200 5 "-" "-"'
        for number in range(13)
    ]
    path = tmp_path / "access.log"
    path.write_text("\n".join([*lines, "\\x16\\x03"]) + "\n")
    return path


@pytest.fixture(autouse=True)
def _rules() -> None:
    """Today 8 an hour by address; a rule in shadow allows 2."""
    with cache.editing():
        for slug, mode, quota in (("pages", "enforce", 8), ("strict", "shadow", 2)):
            rule = Rule.objects.create(slug=slug, name=slug, mode=mode, partition_by=["ip"])
            RuleLimit.objects.create(rule=rule, quota=quota, window_seconds=3_600, algorithm="fixed_window")


@pytest.fixture
def replayed(log: Path) -> Replayed:
    def replay(*options: str, errors: io.StringIO | None = None) -> str:
        out = io.StringIO()
        call_command("ratelimit", "replay", str(log), *options, stdout=out, stderr=errors or io.StringIO())
        return out.getvalue()

    return replay


def record(allowed: int, rejected: int, granularity: str = "hour") -> None:
    UsageBucket.objects.create(
        rule_slug="pages", granularity=granularity, start=HOUR, allowed=allowed, rejected=rejected
    )


def test_rules_that_cannot_be_read_are_named(
    replayed: Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.yaml").write_text("rules:\n  a: {mode: on}\n")
    with pytest.raises(CommandError, match=r"wrong\.yaml: rules\.a\.mode: one of off, shadow"):
        replayed("--rules", str(tmp_path / "wrong.yaml"))
    with pytest.raises(CommandError, match=r"gone\.yaml"):
        replayed("--rules", str(tmp_path / "gone.yaml"))
    for module in [name for name in sys.modules if name.startswith("ruamel.yaml.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    with pytest.raises(CommandError, match="Rules files need the extra"):
        replayed("--rules", str(tmp_path / "wrong.yaml"))


def test_what_is_no_access_log_fails(replayed: Replayed, log: Path) -> None:
    log.write_text("rules:\n  search: {}\n")
    with pytest.raises(CommandError, match="Nothing was replayed") as raised:
        replayed()
    assert "access.log:1: is not in the format common or combined, ADDRESS - USER" in str(raised.value)


def test_a_line_that_is_no_json_is_named_by_its_own_number(replayed: Replayed, log: Path) -> None:
    line = '{"time": 1700000000, "remote_addr": "192.0.2.1", "request": "GET / HTTP/1.1"}'
    log.write_text(f'{line}\n{{"time":\n{line}\n')
    text = replayed()
    assert "Traffic: 2 requests" in text
    assert 'access.log:2: is not JSON at character 10: {"time":' in text


def test_todays_rules_alone_and_lines_that_cannot_be_read(replayed: Replayed) -> None:
    errors = io.StringIO()
    text = replayed(errors=errors)
    assert "Traffic: 13 requests of 2 callers, 2023-11-14 22:00:00 to 2023-11-14 22:00:12 (UTC)." in text
    assert "Rejected by these rules: 2 requests (15.4 %)." in text
    assert "No usage is recorded for the time of this log" in text
    assert "1 line cannot be read:\n" in text
    assert "access.log:14: is not in the format common or combined" in text
    assert "13 lines in" in errors.getvalue()


def test_says_why_there_is_no_self_check(replayed: Replayed) -> None:
    sentence = "--against names other rules."
    assert sentence in replayed("--against", "1")
    assert sentence not in replayed("--draft")


@pytest.fixture
def blind(log: Path) -> Replayed:
    """Replay a log that no rule can be judged by; return its report."""

    def replay(*options: str) -> str:
        out = io.StringIO()
        with pytest.raises(CommandError, match=r"^Not known: no rule (that differs )?could be replayed\.$"):
            call_command("ratelimit", "replay", str(log), *options, "--no-progress", stdout=out, stderr=out)
        return out.getvalue()

    return replay


@pytest.mark.parametrize("target", ["/plain/?app={}", "https://{}.example.com:443/plain/"])
def test_queries_and_hosts_are_read_where_the_log_has_them(log: Path, replayed: Replayed, target: str) -> None:
    name = "query:app" if "app" in target else "host"
    Rule.objects.filter(slug="pages").update(partition_by=[name])
    cache.invalidate()
    wanted = "hosts" if name == "host" else name
    assert f"pages: left out, because the log cannot tell {wanted} apart" in replayed()
    log.write_text("".join(line.replace("/plain/", target.format("ab"[number > 8])) + "\n"
                           for number, line in enumerate(log.read_text().splitlines())))  # fmt: skip
    assert "13         1  7.69 %" in replayed("--no-progress")


def test_what_no_rule_could_judge_is_not_zero(log: Path, blind: Replayed, tmp_path: Path) -> None:
    log.write_text(log.read_text().replace("203.0.113.", "- - - ").replace(" - - [", " ["))
    page = tmp_path / "page.html"
    for options in ([], ["--draft"]):
        text = blind(*options, "--html", str(page))
        answer = f"Not known: no rule {'that differs ' if options else ''}could be replayed."
        assert text.splitlines().count(answer) == 1
        assert "ejected: 0 requests" not in text + page.read_text()
        assert "The log names no addresses. A server behind a Unix socket sees none: log X-Forwarded-For." in text
        assert answer in page.read_text()
    data = json.loads(blind("--draft", "--json"))
    assert (data["share_of_requests"], data["share_of_callers"]) == (None, None)


def test_a_log_that_no_rule_is_asked_about_says_why(blind: Replayed, settings: Any) -> None:
    settings.MIDDLEWARE = []
    text = blind()
    assert "Traffic: 0 requests of 0 callers, 2023-11-14 22:00:00 to 2023-11-14 22:00:12 (UTC)." in text
    assert "RateLimitMiddleware is not in MIDDLEWARE, so rules apply only to views that ask for them." in text
    assert "13 requests are for paths or views that no rule applies to." in text
    assert "()" not in text


def test_lines_that_no_rule_is_asked_about_count_for_the_time(log: Path, replayed: Replayed, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "EXEMPT_PATHS": ["/health"]}
    log.write_text(
        '192.0.2.7 - - [14/Nov/2023:22:00:10 +0000] "GET /health HTTP/1.1" 200 5\n'
        '192.0.2.7 - - [14/Nov/2023:22:00:05 +0000] "GET /plain/ HTTP/1.1" 200 5\n'
    )
    text = replayed()
    assert "Traffic: 1 request of 1 caller, 2023-11-14 22:00:05 to 2023-11-14 22:00:10 (UTC)." in text


def test_shadow_as_if_it_were_enforced(replayed: Replayed) -> None:
    text = replayed("--draft", "--no-progress")
    assert text.startswith("2 of 2 callers would be newly rejected.\nTraffic: ")
    assert json.loads(replayed("--draft", "--json"))["answer"] == "2 of 2 callers would be newly rejected."
    assert replayed("--against", "1").startswith("Nobody of 2 callers would be newly rejected.\n")
    assert "Newly rejected: 7 requests (53.8 %), 2 callers (100 %)." in text
    assert re.search(r"strict +13 +9 +69.2 % +2 +0 +0 +4", text)
    assert re.search(r"ip:203.0.113.1 +\(none\) +6 +2023-11-14 22:00:02 +strict", text)


def test_an_earlier_version_is_compared_with_the_one_in_force(replayed: Replayed) -> None:
    number = RuleSetState.objects.get().number
    with cache.editing():
        Rule.objects.filter(slug="pages").update(mode="off")
        cache.invalidate()
    assert "No longer rejected: 2 requests" in replayed("--against", str(number))
    assert "Newly rejected: 2 requests" in replayed("--version", str(number))
    with pytest.raises(CommandError, match="There is no version 99999"):
        replayed("--version", "99999")


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ((8 + 3, 2), "This log holds the traffic that the rules matched (100 %)."),
        ((18, 3), "This log holds 62 % of the traffic that the rules matched."),
        ((5, 1), "This log holds 217 % of the traffic that was recorded"),
    ],
)
def test_it_says_how_much_of_the_recorded_traffic_the_log_holds(
    replayed: Replayed, recorded: tuple[int, int], said: str
) -> None:
    record(*recorded)
    text = replayed()
    assert said in text
    assert re.search(rf"pages +\(none\) +{sum(recorded)} +13 +\S+ % +{recorded[1]} +2", text)


def test_minutes_are_compared_where_they_are_kept(replayed: Replayed) -> None:
    record(11, 2)
    record(24, 2, "minute")
    assert "This log holds 50 % of the traffic" in replayed()


def test_reports_for_programs_and_as_a_page(replayed: Replayed, tmp_path: Path) -> None:
    record(11, 2)
    page, decisions = tmp_path / "page.html", tmp_path / "decisions"
    data = json.loads(replayed("--draft", "--json", "--html", str(page), "--decisions", str(decisions)))
    assert (data["traffic"]["requests"], data["traffic"]["unreadable"]) == (13, 1)
    assert data["total"]["newly"] == 7
    assert (data["share_of_callers"], data["check"]["share_of_traffic"]) == (1.0, 1.0)
    assert [row["name"] for row in data["by_rule"]] == ["pages", "strict"]
    assert data["top_callers"][0] == {
        "caller": "ip:203.0.113.1",
        "newly": 6,
        "no_longer": 0,
        "rule": "strict",
        "tier": "",
        "first": "2023-11-14T22:00:02.000+00:00",
    }
    text = page.read_text()
    assert "<svg" in text
    assert "203.0.113.1" in text
    assert not re.search(r"(src|href)=|<script|url\(|@import", text)  # it loads nothing
    told = [json.loads(line) for line in decisions.read_text().splitlines()]
    assert [each["allowed"] for each in told] == [True] * 2 + [False] * 8 + [True] * 2 + [False]
    assert told[2] | {"limits": []} == {
        "file": 0,
        "line": 3,
        "time_us": int(HOUR.timestamp() + 2) * 1_000_000,
        "allowed": False,
        "retry_after": 3_598.0,
        "remaining": 0,
        "binding": "strict",
        "access": None,
        "limits": [],
    }


def test_tables_as_csv(replayed: Replayed) -> None:
    rows = list(csv.DictReader(io.StringIO(replayed("--draft", "--csv"))))
    assert [(row["by"], row["name"]) for row in rows[:3]] == [("all", ""), ("rule", "pages"), ("rule", "strict")]
    assert rows[0]["newly"] == "7"
    assert sum(line.split()[:1] == ["Rule"] for line in replayed("--draft").splitlines()) == 1
    assert (rows[-1]["by"], rows[-1]["name"], rows[-1]["newly"]) == ("caller", "ip:203.0.113.2", "1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--identity", "user"], "write FIELD=IDENTITY"),
        (["--identity", "x=no such"], "write FIELD=IDENTITY"),
        (["--identity", "x=usr"], "Unknown identity 'usr'"),
        (["--identity", "x=user"], "has no field 'x'"),
        (["--format", "nginx"], "There is no format 'nginx'"),
        (["no-such.log"], "no-such.log"),
        (["--html", "no-such/page.html"], "no-such/page.html"),
        (["--decisions", "no-such/decisions"], "no-such/decisions"),
    ],
)
def test_wrong_options_are_named_before_it_begins(replayed: Replayed, options: list[str], said: str) -> None:
    errors = io.StringIO()
    with pytest.raises(CommandError, match=said):
        replayed(*options, errors=errors)
    assert "lines in" not in errors.getvalue()


def test_a_replay_that_fails_leaves_no_page(replayed: Replayed, tmp_path: Path) -> None:
    old = tmp_path / "old.html"
    old.write_text("yesterday's")
    for page in (tmp_path / "new.html", old):
        with pytest.raises(CommandError, match="has no field"):
            replayed("--html", str(page), "--identity", "x=user")
    assert [(path.name, path.read_text()) for path in tmp_path.glob("*.html")] == [("old.html", "yesterday's")]


def test_a_replay_that_ends_early_leaves_the_decisions_of_the_one_before(
    replayed: Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "decisions"
    kept.write_text("yesterday's")

    def writer(write: Callable[[str], object]) -> Callable[..., None]:
        def note(*_line: object) -> None:
            write("x" * 100_000)
            assert kept.read_text() == "yesterday's"  # and so it is if the process is killed now
            raise KeyboardInterrupt

        return note

    monkeypatch.setattr("django_ratelimiter.management.forecast.decision_writer", writer)
    with pytest.raises(KeyboardInterrupt):
        replayed("--decisions", str(kept))
    assert [path.read_text() for path in tmp_path.glob("*decisions*")] == ["yesterday's"]


def test_a_rule_by_what_the_log_does_not_hold_is_named_first(replayed: Replayed, tmp_path: Path) -> None:
    with cache.editing():
        rule = Rule.objects.create(slug="people", name="people", mode="enforce", partition_by=["user"])
        RuleLimit.objects.create(rule=rule, quota=8, window_seconds=3_600)
    text = replayed("--html", str(tmp_path / "page.html"), "--no-progress")
    reason = "people: left out, because the log cannot tell users apart"
    lines = text.splitlines()
    assert lines[0].endswith("But the log does not show all: read what is left out.")
    assert lines[2] == reason
    assert reason in (tmp_path / "page.html").read_text()
    rows = list(csv.DictReader(io.StringIO(replayed("--csv"))))
    assert [row["name"] for row in rows if row["by"] == "left_out"] == ["people"]


def test_one_is_not_several(replayed: Replayed, log: Path) -> None:
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:1]))
    assert "Traffic: 1 request of 1 caller, " in replayed("--no-progress")
