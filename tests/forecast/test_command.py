"""`manage.py ratelimit replay`: its options and its reports."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ratelimiter.forecast.logs import source
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, RuleSetState
from django_ratelimiter.rules import cache
from tests.making import calls_of, make_rule, update

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]

HOUR = datetime(2023, 11, 14, 22, tzinfo=UTC)

Replayed = Callable[..., str]


def line(number: int, address: str, path: str = "/plain/") -> str:
    at = HOUR + timedelta(seconds=number)
    return f'{address} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET {path} HTTP/1.1" 200 5 "-" "-"\n'


@pytest.fixture
def log(tmp_path: Path, settings: Any) -> Path:
    """Ten requests of one address within an hour, and three of another, by the format combined; and a bad line."""
    settings.MIDDLEWARE = ["django_ratelimiter.middleware.RateLimitMiddleware"]
    path = tmp_path / "access.log"
    path.write_text("".join(line(number, f"203.0.113.{1 + number // 10}") for number in range(13)) + "\\x16\\x03\n")
    return path


@pytest.fixture(autouse=True)
def _rules() -> None:
    """Today 8 an hour by address; a rule in shadow allows 2."""
    for slug, mode, quota in (("pages", "enforce", 8), ("strict", "shadow", 2)):
        make_rule(slug, quota, None, "fixed_window", {"window_seconds": 3_600}, mode=mode, partition_by=["ip"])


@pytest.fixture
def replayed(log: Path) -> Replayed:
    def replay(*options: str, errors: io.StringIO | None = None) -> str:
        out = io.StringIO()
        call_command("ratelimit", "replay", str(log), *options, stdout=out, stderr=errors or io.StringIO())
        return out.getvalue()

    return replay


def test_todays_rules_alone_and_lines_that_cannot_be_read(replayed: Replayed) -> None:
    text = replayed()
    assert text.startswith(
        "Traffic: 13 requests that the changed rules match, 2023-11-14 22:00:00 to 2023-11-14 22:00:12 (UTC).\n"
    )
    assert "pages: 1 of 2 callers would be rejected at least once. Not seen, and added to these when" in text
    assert "  Rejected: 2 requests (15.4 %), 1 caller (50 %).\n    ip:203.0.113.1: 2 of 10 requests, the first" in text
    assert "  Rejected: 9 requests (69.2 %), 2 callers (100 %)." in text
    assert "Now" not in text
    assert "1 line cannot be read:\n  " in text
    assert "access.log:14: is not in the format common or combined" in text


def test_counters_that_began_anew_are_no_change(replayed: Replayed, tmp_path: Path) -> None:
    RuleLimit.objects.update(generation=7)
    path = tmp_path / "same.json"
    call_command("ratelimit", "export", "--to", str(path))
    assert "No enforced rule changes" in replayed("--rules", str(path))


def test_shadow_as_if_it_were_enforced(replayed: Replayed) -> None:
    text = replayed("--draft", "--no-progress")
    assert "pages" not in text
    assert "strict: 2 of 2 callers would be rejected at least once. Now: 0." in text
    assert (
        "  Newly rejected: 9 requests (69.2 %), 2 callers (100 %).\n  No longer rejected: 0 requests (0 %), 0" in text
    )
    text = replayed("--against", "1")
    assert text.startswith("Traffic: 13 requests, ")
    assert "No enforced rule changes, so nobody is newly rejected." in text


def test_earlier_version_is_compared_with_the_one_in_force(replayed: Replayed) -> None:
    number = RuleSetState.objects.get().number
    with cache.editing():
        update(RuleLimit.objects.filter(rule__slug="pages"), quota=9)
    assert "No longer rejected: 1 request (7.69 %), 1 caller (50 %)." in replayed("--against", str(number))
    assert "Newly rejected: 1 request (7.69 %), 1 caller (50 %)." in replayed("--version", str(number))
    with pytest.raises(CommandError, match="There is no version 99999"):
        replayed("--version", "99999")


def test_report_for_programs(replayed: Replayed) -> None:
    data = json.loads(replayed("--draft", "--json", "--top", "1"))
    assert (data["source"], data["lines"], data["decided"], data["unreadable"]) == ("logs", 13, 13, 1)
    found = data["rules"]["strict"]
    assert (found["is_known"], found["is_exact"], found["callers"], found["requests"]) == (True, True, 2, 13)
    assert found["newly"] == {
        "callers": {"low": 2, "about": 2, "high": 2},
        "requests": {"low": 9, "about": 9, "high": 9},
    }
    [blind] = found["blind"]
    assert (blind["kind"], blind["lines"], blind["is_countable"]) == ("unreadable", 1, True)
    assert found["top_callers"] == [
        {"caller": "ip:203.0.113.1", "tier": "", "requests": 10, "before": 0, "after": 8, "newly": 8,
         "first": "2023-11-14T22:00:02+00:00"}
    ]  # fmt: skip


def test_secrets_are_shown_as_digests(log: Path, replayed: Replayed) -> None:
    update(Rule, partition_by=["session"])
    fields = {"time": HOUR.isoformat(), "request": "GET /plain/ HTTP/1.1", "session": "secret-session"}
    log.write_text("".join(json.dumps(fields) + "\n" for _ in range(9)))
    text = replayed("--identity", "session=session")
    assert "Rejected: 1 request (11.1 %), 1 caller (100 %)." in text
    assert "secret" not in text


def test_rules_that_are_not_known_end_with_an_error(log: Path, replayed: Replayed, settings: Any) -> None:
    settings.MIDDLEWARE = []
    with pytest.raises(CommandError, match=r"^Not known whom these rules would reject: pages, strict\.$"):
        replayed()
    assert "Accepted although it is not known" in replayed("--accept", "pages", "--accept", "strict")
    with pytest.raises(CommandError, match="--accept page: no such rule changes"):
        replayed("--accept", "page")


def test_callers_of_access_entries_pass_no_rule(replayed: Replayed) -> None:
    AccessEntry.objects.create(action="allow", kind="ip", value="203.0.113.1")
    cache.invalidate()
    assert "Traffic: 3 requests that the changed rules match, " in replayed()


def test_log_that_does_not_fit_in_memory_gives_ranges(
    log: Path, replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text(
        "".join(line(number // 100, f"10.0.{number % 300 // 100}.{number % 100}") for number in range(6_000))
    )
    used = iter([90.0, 94.0, 94.0, 94.0, 94.0])
    monkeypatch.setattr(source, "memory_used", lambda: next(used))
    found = json.loads(replayed("--json", "--max-memory", "100"))["rules"]["strict"]
    assert (found["is_exact"], found["requests"]) == (False, 6_000)
    assert 160 < found["callers"] < 500
    low, about, high = found["after"]["requests"].values()
    assert low <= 300 * 18 <= high
    assert low < about < high
    update(Rule.objects.filter(slug="strict"), partition_by=[])  # its one counter is kept
    used = iter([90.0, 94.0, 94.0, 94.0, 94.0])
    found = json.loads(replayed("--json", "--max-memory", "100"))["rules"]["strict"]
    assert (found["is_exact"], found["after"]["requests"]["about"]) == (True, 6_000 - 2)
    monkeypatch.setattr(source, "memory_used", lambda: 96.0)
    with pytest.raises(CommandError, match="Stopped at line 4,000: even one caller in sixteen needs more than 100 MB"):
        replayed("--max-memory", "100")


def test_rules_that_cannot_be_read_are_named(replayed: Replayed, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("rules:\n  a: {mode: on}\n")
    with pytest.raises(CommandError, match=r"wrong\.yaml: rules\.a\.mode: one of off, shadow"):
        replayed("--rules", str(tmp_path / "wrong.yaml"))
    with pytest.raises(CommandError, match=r"gone\.yaml"):
        replayed("--rules", str(tmp_path / "gone.yaml"))


def test_what_is_no_access_log_fails(replayed: Replayed, log: Path) -> None:
    log.write_text("rules:\n  search: {}\n")
    with pytest.raises(CommandError, match="No line can be read") as raised:
        replayed()
    assert "access.log:1: is not in the format common or combined, ADDRESS - USER" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--identity", "user"], "write FIELD=IDENTITY"),
        (["--identity", "x=no such"], "write FIELD=IDENTITY"),
        (["--identity", "x=usr"], "Unknown identity 'usr'"),
        (["--identity", "x=user"], "has no field 'x'"),
        (["--format", "nginx"], "There is no format 'nginx'"),
        (["no-such.log"], "no-such.log"),
    ],
)
def test_wrong_options_are_named(replayed: Replayed, options: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        replayed(*options)


#: The files of ours that decide a request of a log, its first line and that of a new caller of a new path included.
MOST_FILES = 25


@pytest.mark.parametrize("more", [line(13, "203.0.113.1"), line(13, "198.51.100.9", "/items/7/")])
def test_one_line_of_a_log_meets_few_files(log: Path, replayed: Replayed, more: str) -> None:
    calls = [called(replayed)]
    log.write_text(log.read_text() + more)
    calls.append(called(replayed))
    met = {name.partition(":")[0] for name, number in calls[1].items() if number != calls[0][name]}
    assert {"forecast/logs/formats.py", "forecast/logs/source.py"} < met
    assert len(met) <= MOST_FILES, sorted(met)


def called(replayed: Replayed) -> Counter[str]:
    """How often each function of ours is called by a replay, when all that is asked once was asked before."""
    replayed("--no-progress")
    return calls_of(lambda: replayed("--no-progress"))
