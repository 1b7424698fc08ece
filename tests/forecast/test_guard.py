"""A bound of `plan` never holds because the log could not be read: what is known is right, and the rest fails."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from . import trace

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]

Plan = Callable[..., tuple[int, str]]

REST = '[22/Nov/2026:18:00:%02d +0000] "GET /plain/ HTTP/1.1" 200 12 "-" "curl"'
LINE = f"192.0.2.7 - - {REST}"


def rule(
    slug: str = "pages", limit: str = "{algorithm: fixed_window, quota: 5, window_seconds: 60}", **fields: str
) -> str:
    lines = {"mode": "enforce", "partition_by": "[ip]", "limits": f"[{limit}]", **fields}
    return f"  {slug}:\n" + "".join(f"    {name}: {value}\n" for name, value in lines.items())


@pytest.fixture
def plan(tmp_path: Path, settings: Any) -> Plan:
    """Plan rules with a log, and a bound. Return the exit code and all output: 2 = the bound holds, 1 = it does not."""
    settings.MIDDLEWARE = [trace.MIDDLEWARE]

    def go(
        lines: Sequence[str] | bytes, *options: str, rules: str = rule(), bound: str | None = "0.1%"
    ) -> tuple[int, str]:
        (tmp_path / "limits.yaml").write_text(f"rules:\n{rules}")
        log = tmp_path / "access.log"
        log.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
        words = [str(tmp_path / "limits.yaml"), "--traffic", str(log), *options]
        out = io.StringIO()
        try:
            call_command("ratelimit", "plan", *words, *(["--max-newly-rejected", bound] if bound else []), stdout=out)
        except SystemExit as end:
            return int(end.code or 0), out.getvalue()
        except CommandError as error:
            return error.returncode, f"{out.getvalue()}\n{error}"
        return 0, out.getvalue()

    return go


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        f"shop.example:443 {LINE}",
        f"shop.example {LINE}",
        f"198.51.100.1:443 {LINE}",
        f"- {LINE}",
        f"203.0.113.8, 192.0.2.7 - - {REST}",
        f"203.0.113.8,192.0.2.7 - - {REST}",
        f"unknown, 192.0.2.7 - - {REST}",
        f"203.0.113.8, 203.0.113.9 192.0.2.7 - - {REST}",
        f"203.0.113.8 192.0.2.7 - - {REST}",
        f"Nov 22 18:00:00 web1 nginx: {LINE}",
        f"Nov 22 18:00:00 web1 gunicorn[123]: {LINE}",
        f"<134>1 2026-11-22T18:00:00Z web1 nginx 12 - - {LINE}",
        f"2026-11-22T18:00:00.123Z stdout F {LINE}",
        f"web-1  | {LINE}",
        f"192.0.2.7:51234 - - {REST}",
        f"::ffff:192.0.2.7 - - {REST}",
        f"192.0.2.7 - [192.0.2.7] - - {REST}",
        f"192.0.2.7 - {REST}",
        f"192.0.2.7 {REST}",
        f"192.0.2.7 identd - {REST}",
        f'"{LINE}"',
        '"' + LINE.replace('"', '\\"') + '"',
        '"' + LINE.replace('"', '""') + '"',
        json.dumps({"log": LINE + "\n", "stream": "stdout", "time": "2026-11-22T19:00:00Z"}),
        json.dumps({"@timestamp": "2026-11-22T19:00:00Z", "message": LINE}),
    ],
)
def test_words_around_a_line_do_not_hide_its_caller(plan: Plan, line: str) -> None:
    lines = [line.replace("%02d", f"{second:02}") for second in range(10)]
    code, text = plan(lines)
    assert "Newly rejected: 5 requests (50 %), 1 caller (100 %)." in text
    assert "ip:192.0.2.7" in text
    assert (code, "This would newly reject too many:" in text) == (1, True)
    assert plan(lines, bound="100%")[0] == 2


@pytest.mark.parametrize("start", ["crawl.example", "shop.example:443", "sixty-four"])
def test_lines_with_something_else_than_an_address_are_counted(plan: Plan, start: str) -> None:
    lines = [f"{start} - - {REST}" % second for second in range(10)]
    code, text = plan([*[LINE % second for second in range(3)], *lines], bound="100%")
    assert code == 1
    assert text.splitlines().count("10 lines cannot be read; the first:") == 1
    assert "has no address in" in text
    assert "It is not known whom this would newly reject:" in text
    assert "10 of 13 lines of " in text
    assert "This would newly reject too many" not in text
    assert plan(lines)[0] == 1


@pytest.mark.parametrize("head", ["- -", " - -", "Nov 22 18:00:00 web1 gunicorn[12]:  - -", ""])
def test_a_log_behind_a_unix_socket_is_read_and_names_no_address(plan: Plan, head: str) -> None:
    everybody = rule("all", partition_by="[]")
    code, text = plan([f"{head} {REST}" % second for second in range(10)], rules=rule() + everybody, bound="100%")
    assert code == 1
    assert "Newly rejected: 5 requests" in text
    assert "A server behind a Unix socket sees none: log X-Forwarded-For." in text
    assert text.splitlines()[-1] == "pages: left out, because the log cannot tell addresses apart"


def test_a_rule_fails_where_some_lines_name_no_address(plan: Plan) -> None:
    lines = [LINE % 0] * 90 + [f"- - {REST}" % 1] * 10
    code, text = plan(lines, bound="100%")
    assert (code, "pages: not known, because 10 of 100 lines do not tell addresses apart" in text) == (1, True)
    first = next(number for number, line in enumerate(text.splitlines()) if line.startswith("pages: not known"))
    assert text.splitlines()[first - 1].startswith("Traffic: 100 requests")
    assert plan(lines[:90] * 10 + lines[90:99], bound="100%")[0] == 2
    assert plan(lines, rules=rule(partition_by="[]"), bound="100%")[0] == 2


def test_a_rule_fails_where_lines_name_users_that_the_database_does_not_have(plan: Plan) -> None:
    User.objects.create(username="ann")
    lines = [LINE.replace("- -", f"- {name}") % 0 for name in ["ann"] * 5 + ["zoe"] * 5]
    code, text = plan(lines, rules=rule(partition_by="[user]"), bound="100%")
    assert (code, "pages: not known, because 5 of 10 lines do not tell users apart" in text) == (1, True)
    code, text = plan(lines, bound="100%")  # a rule by address needs none
    assert (code, "5 of 10 lines do not tell users apart." in text) == (2, True)


@pytest.mark.parametrize(
    ("identity", "lacks"), [("api_key", "API keys"), ("tier", "tiers"), ("forwarded", "addresses")]
)
def test_values_that_are_not_what_the_option_says_are_counted(plan: Plan, identity: str, lacks: str) -> None:
    fields = {
        "time": "2026-11-22T18:00:00Z",
        "request": "GET /plain/ HTTP/1.1",
        "ip": "" if lacks == "addresses" else "192.0.2.7",
    }
    lines = [json.dumps({**fields, "value": "nonsense" if number % 2 else ""}) for number in range(10)]
    text = plan(lines, "--identity", f"value={identity}", bound=None)[1]
    assert f"{10 if lacks == 'addresses' else 5} of 10 lines do not tell {lacks} apart" in text


@pytest.mark.parametrize("more", [{}, {"key": ""}, {"key": "-"}])
def test_an_identity_that_no_line_has_is_not_known(plan: Plan, more: dict[str, str]) -> None:
    """As if the option named a field that does not exist."""
    line = json.dumps({"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7", **more})
    code, text = plan(
        [line] * 9, "--identity", "key=header:X-Org", rules=rule(partition_by='["header:X-Org"]'), bound="99%"
    )
    assert (code, "pages: left out, because the log cannot tell header:X-Org apart" in text) == (1, True)


def test_a_rule_of_requests_in_progress_fails_where_durations_are_missing(plan: Plan) -> None:
    busy = rule(limit="{algorithm: concurrency, quota: 5, window_seconds: 60}")
    fields = {"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    lines = [json.dumps({**fields, "request_time": "0.5" if number % 2 else "-"}) for number in range(10)]
    code, text = plan(lines, rules=busy, bound="100%")
    assert (code, "pages: not known, because" in text, "do not tell durations apart" in text) == (1, True, True)


def test_networks_are_told_apart(plan: Plan) -> None:
    lines = [LINE.replace("0.2.7", f"0.2.{second}") % second for second in range(10)]
    code, text = plan(lines, rules=rule(partition_by='["ip/24"]'))
    assert (code, "Newly rejected: 5 requests" in text) == (1, True)


def test_lines_that_cannot_be_read_stand_in_every_report(plan: Plan) -> None:
    """They could hold what the change would reject; no bound was asked for."""
    lines = [LINE % 0, *["nonsense \x1b[2J\u202e"] * 30]
    code, text = plan(lines, bound=None)
    assert code == 2
    assert "30 lines cannot be read; the first:" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    code, text = plan(lines[1:], bound=None)
    assert (code, "Nothing was replayed. Is this an access log? Name its --format." in text) == (1, True)


def test_a_plan_as_json_holds_the_forecast(plan: Plan, tmp_path: Path) -> None:
    code, text = plan([LINE % second for second in range(10)], "--json", "--out", str(tmp_path / "plan"), bound=None)
    data = json.loads(text)
    assert (code, data["traffic"]["total"]["newly"], data["traffic"]["unknown"]) == (2, 5, [])
    assert "traffic" not in json.loads((tmp_path / "plan").read_text())
    code, text = plan([LINE % second for second in range(10)], "--json")
    said, _, why = text.partition("\nThis would newly reject too many:\n")
    assert json.loads(said)["traffic"]["excess"] == [why]
    assert (code, why) == (1, "100 % of the callers, more than 0.1 %.")


def seen(path: str = "/plain/", method: str = "GET") -> list[str]:
    return [LINE.replace("GET /plain/", f"{method} {path}") % (second // 2) for second in range(20)]


SEARCH = {"path_kind": "prefix", "path": "/search/"}
ANY = "{algorithm: fixed_window, quota: 50, window_seconds: 60}"
PRO = "{tier: pro, algorithm: fixed_window, quota: 5, window_seconds: 60}"


@pytest.mark.parametrize("path", ["/app/search/", "//search/", "/plain/"])
def test_a_changed_rule_that_no_request_matches_fails(plan: Plan, path: str) -> None:
    code, text = plan(seen(path), rules=rule("unseen", **SEARCH), bound="100%")
    said = "unseen: not known, because no request of the log matches it"
    assert (code, text.splitlines()[-1]) == (1, said)
    assert said in text.partition("Traffic: ")[2].splitlines()[1]
    assert plan(seen("/search/"), rules=rule("unseen", **SEARCH), bound="100%")[0] == 2


def test_each_changed_rule_must_be_matched(plan: Plan) -> None:
    code, text = plan(seen(), rules=rule() + rule("unseen", methods="[POST]"), bound="100%")
    assert (code, text.splitlines()[-1].partition(":")[0], "pages: not known" in text) == (1, "unseen", False)
    assert plan(seen() + seen(method="POST"), rules=rule() + rule("unseen", methods="[POST]"), bound="100%")[0] == 2
    assert plan(seen(), rules=rule() + rule("unseen", mode="shadow", methods="[POST]"), bound="100%")[0] == 2


def test_a_rule_that_stays_may_be_unseen(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(f"rules:\n{rule('unseen', **SEARCH)}")
    call_command("ratelimit", "apply", str(tmp_path / "first.yaml"), stdout=io.StringIO())
    code, text = plan(seen(), rules=rule() + rule("unseen", **SEARCH), bound="100%")
    assert (code, "unseen: not known" in text) == (2, False)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (PRO, "pages: not known, because none of the requests that match it is of its tiers: pro"),
        (f"{PRO}, {ANY}", "pages: not known for these tiers, because no request of their callers matches it: pro"),
        (
            f"{PRO.replace('pro', 'free')}, {ANY}",
            "pages: not known for these tiers, because no request of their callers matches it: every other",
        ),
    ],
)
def test_a_limit_of_a_tier_needs_a_request_of_its_callers(plan: Plan, limits: str, said: str) -> None:
    tiers = "tiers:\n  pro: {name: Pro}\n  free: {name: Free, default_for: anonymous}\n"
    code, text = plan(seen(), rules=rule(limit=limits) + tiers, bound="100%")
    assert (code, text.splitlines()[-1]) == (1, said)
    assert ("Not known: no rule that differs could be replayed." in text) is (limits == PRO)
    fields = {"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    lines = [json.dumps({**fields, "plan": tier}) for tier in ("pro", "")]
    assert plan(lines, "--identity", "plan=tier", rules=rule(limit=limits) + tiers, bound="100%")[0] == 2


@pytest.mark.parametrize(
    ("limits", "org", "said"),
    [
        (ANY, "", "not known, because the requests it would decide {lack}"),
        (PRO, "acme", "not known, because the requests it would decide {lack}"),
        (f"{PRO}, {ANY}", "acme", "not known for tiers whose requests {lack}: pro"),
        (PRO.replace("pro", "gold"), "", "not known, because none of the requests that match it is of its tiers: gold"),
    ],
)
def test_a_value_that_is_missing_is_told_from_another_tier(plan: Plan, limits: str, org: str, said: str) -> None:
    tiers = "tiers:\n  pro: {name: Pro}\n  free: {name: Free}\n  gold: {name: Gold}\n"
    lines = [
        json.dumps({"time": "2026-11-22T18:00:00Z", "request": f"GET {path} HTTP/1.1", "plan": tier, "org": value})
        for path, tier, value in (("/plain/", "pro", ""), ("/plain/", "free", org), ("/items/1/", "pro", "acme"))
    ]
    rules = rule(limit=limits, partition_by='["header:X-Org"]', path_kind="exact", path="/plain/") + tiers
    code, text = plan(lines, "--identity", "plan=tier", "--identity", "org=header:X-Org", rules=rules, bound="100%")
    said = said.format(lack="lack what it counts by (header:X-Org)")
    assert (code, text.splitlines()[-1]) == (1, f"pages: {said}")


OTHER = {
    "empty": ("", "{name} is empty."),
    "unreadable": ("2026-11-22 18:00:00 GET /plain/ 192.0.2.9 200\n" * 5, "5 of 5 lines of {name} cannot be read."),
    "anonymous": (
        f"- - {REST % 0}\n" * 5,
        "pages: not known, because 5 of 5 lines of {name} do not tell addresses apart",
    ),
}


@pytest.mark.parametrize("kind", OTHER)
def test_a_file_that_is_blind_fails_however_small_it_is(plan: Plan, tmp_path: Path, kind: str) -> None:
    other, (text, said) = tmp_path / "other.log", OTHER[kind]
    other.write_text(text)
    code, found = plan(seen() * 50, "--traffic", str(other), bound="100%")
    told = found.partition("It is not known whom this would newly reject:\n")[2]
    assert (code, told) == (1, said.format(name=other))
    assert told in found.partition("Self-check")[0]


@pytest.mark.parametrize("others", [0, 1])
def test_addresses_of_the_own_proxies_are_no_callers(plan: Plan, settings: Any, others: int) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "TRUSTED_PROXIES": ["192.0.2.0/24"]}
    lines = seen() + [line.replace("192.0.2.7", "203.0.113.9") for line in seen()[:others]]
    code, text = plan(lines, bound="100%")
    assert (code, text.splitlines()[-1]) == (
        1,
        f"pages: not known, because 20 of {20 + others} lines do not tell addresses apart",
    )
    assert "20 lines name an address of TRUSTED_PROXIES in place of the caller. Log X-Forwarded-For" in text
    assert ("Not known: no rule that differs could be replayed." in text) is (not others)
    many = [line.replace("192.0.2.7", "203.0.113.9, 192.0.2.7") for line in seen()]
    assert plan(many, bound="100%")[0] == 2
    assert plan([*many, *seen()], bound="100%")[0] == 2


def test_requests_without_an_address_are_no_caller(plan: Plan) -> None:
    lines = [*(LINE.replace("0.2.7", f"0.2.{number}") % number for number in range(10)), f"- - {REST}" % 10]
    assert "Traffic: 11 requests of 10 callers" in plan(lines)[1]
    code, text = plan(lines[-1:] * 10, rules=rule(partition_by="[]"))  # unless some of them are rejected
    assert (code, "Newly rejected: 5 requests (50 %), 1 caller (100 %)." in text) == (1, True)
