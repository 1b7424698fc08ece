"""A bound of `plan` never holds because the log could not be read: what is known is right, and the rest fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.models import TierAssignment
from tests.making import manage, managed

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
    settings.MIDDLEWARE = ["django_ratelimiter.middleware.RateLimitMiddleware"]

    def go(
        lines: Sequence[str] | bytes, *options: str, rules: str = rule(), bound: str | None = "0.1%"
    ) -> tuple[int, str]:
        (tmp_path / "limits.yaml").write_text(f"rules:\n{rules}")
        log = tmp_path / "access.log"
        log.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
        words = [str(tmp_path / "limits.yaml"), "--traffic", str(log), *options]
        return managed("plan", *words, *(["--max-newly-rejected", bound] if bound else []))

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
    assert "pages: It is not known whom this would reject: 10 of 13 lines cannot be read." in text
    assert "This would newly reject too many" not in text
    assert plan(lines)[0] == 1


@pytest.mark.parametrize(("bad", "bound", "code"), [(9, "0.1%", 1), (9, "0.8%", 1), (9, "0.95%", 2), (0, "0.1%", 2)])
def test_unreadable_lines_count_as_rejected_callers(plan: Plan, bad: int, bound: str, code: int) -> None:
    lines = [LINE.replace("0.2.7", f"0.{number // 250}.{number % 250}") % 0 for number in range(1_000 - bad)]
    found, text = plan([*lines, *["nonsense"] * bad], bound=bound)
    assert found == code
    if bad:
        assert f"Not seen, and added to these when a bound is checked: {bad} of 1,000 lines cannot be read." in text
    if code == 1:
        assert "pages: 0.9 % of the callers, more than" in text.splitlines()[-1]


@pytest.mark.parametrize("head", ["- -", " - -", "Nov 22 18:00:00 web1 gunicorn[12]:  - -", ""])
def test_a_log_behind_a_unix_socket_is_read_and_names_no_address(plan: Plan, head: str) -> None:
    everybody = rule("all", partition_by="[]")
    code, text = plan([f"{head} {REST}" % second for second in range(10)], rules=rule() + everybody, bound="100%")
    assert (code, "Newly rejected: 5 requests (50 %), 1 caller (100 %)." in text) == (1, True)
    said = "pages: It is not known whom this would reject: 10 of 10 requests have no known ip."
    assert said in text


def test_lines_without_the_value_of_a_rule_are_added(plan: Plan) -> None:
    lines = [LINE.replace("0.2.7", f"0.2.{number}") % 0 for number in range(90)] + [f"- - {REST}" % 1] * 10
    assert plan(lines, bound="9%")[0] == 1
    code, text = plan(lines, bound="11%")
    assert (code, "10 of 100 requests have no known ip" in text) == (2, True)
    assert plan(lines, rules=rule(partition_by="[]"), bound="100%")[0] == 2


def test_a_rule_by_user_is_not_known_from_a_log_that_names_few(plan: Plan) -> None:
    User.objects.create(username="ann")
    lines = [LINE.replace("- -", f"- {name}") % 0 for name in ["ann"] * 10 + ["-"] * 2_810]
    code, text = plan(lines, rules=rule(partition_by="[user]"), bound="99%")
    assert (code, "2,810 of 2,820 requests have no known user" in text) == (1, True)
    assert plan(lines, bound="100%")[0] == 2  # a rule by address needs none
    code, text = plan(lines, "--accept", "pages", rules=rule(partition_by="[user]"), bound="100%")
    assert (code, "pages: Accepted although it is not known: 2,810 of 2,820" in text) == (2, True)
    assert plan(lines, "--accept", "page", rules=rule(partition_by="[user]"))[0] == 1


@pytest.mark.parametrize(("identity", "lacks"), [("api_key", "api_key"), ("tier", "tier"), ("forwarded", "ip")])
def test_values_that_are_not_what_the_option_says_are_counted(plan: Plan, identity: str, lacks: str) -> None:
    fields = {"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    fields |= {"ip": ""} if lacks == "ip" else {}
    lines = [json.dumps({**fields, "value": "nonsense" if number % 2 else ""}) for number in range(10)]
    names = {"api_key": "[api_key]", "tier": "[ip]", "forwarded": "[ip]"}[identity]
    rules = rule(limit=f"{PRO}, {ANY}", partition_by=names) + "tiers:\n  pro: {name: Pro}\n"
    text = plan(lines, "--identity", f"value={identity}", rules=rules, bound=None)[1]
    assert f"of 10 requests have no known {lacks}" in text


@pytest.mark.parametrize("more", [{}, {"key": ""}, {"key": "-"}])
def test_an_identity_that_no_line_has_is_not_known(plan: Plan, more: dict[str, str]) -> None:
    """As if the option named a field that does not exist."""
    line = json.dumps({"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7", **more})
    for missing in ("skip", "ip", "deny"):
        rules = rule(partition_by='["header:X-Org"]', missing_partition=missing)
        code, text = plan([line] * 9, "--identity", "key=header:X-Org", rules=rules, bound="100%")
        assert (code, "9 of 9 requests have no known header:X-Org" in text) == (1, True)


BUSY = rule(limit="{algorithm: concurrency, quota: 5, window_seconds: 60}")


@pytest.mark.parametrize(
    ("field", "value", "is_known"),
    [
        ("request_time", "0.5", True), ("request_time", 0.5, True), ("request_time", "500", False), ("L", "0.5", True),
        ("duration", 500, False), ("duration", "500ms", True), ("duration_ms", 500, True), ("took", 500, False),
        ("response_time", 0.5, False), ("D", 500_000, True), ("took", 0, False), ("duration", 0, True),
    ],
)  # fmt: skip
def test_durations_without_a_named_unit_are_not_known(plan: Plan, field: str, value: Any, is_known: bool) -> None:
    fields = {"start_time": "2026-11-22T18:00:00.5Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    code, text = plan([json.dumps({**fields, field: value})] * 9, rules=BUSY, bound="100%")
    assert (code, "9 of 9 requests have no known duration" in text) == ((2, False) if is_known else (1, True))


def test_missing_durations_are_added_to_a_rule_of_requests_in_progress(plan: Plan) -> None:
    fields = {"time": "2026-11-22T18:00:00.5Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    lines = [json.dumps({**fields, "request_time": "-" if number == 3 else "0.5"}) for number in range(4)]
    assert [plan(lines, rules=BUSY, bound=bound)[0] for bound in ("19%", "51%")] == [1, 2]


@pytest.mark.parametrize("window", [29, 30])
@pytest.mark.parametrize("fraction", ["", ".000", ".250"])
def test_short_windows_need_times_with_fractions(plan: Plan, window: int, fraction: str) -> None:
    lines = [LINE.replace(" +0000", f"{fraction} +0000") % second for second in range(20)]
    rules = rule(limit=f"{{algorithm: sliding_window_log, quota: 50, window_seconds: {window}}}")
    is_known = window == 30 or fraction == ".250"
    code, text = plan(lines, rules=rules, bound="100%")
    assert (code, "the times of the log are whole seconds" in text) == ((2, False) if is_known else (1, True))


@pytest.mark.parametrize("charge_when", ["success", "failure"])
def test_failures_with_status_200_are_not_known(plan: Plan, charge_when: str) -> None:
    """Such as of Django's own form for logging in."""
    rules = rule(charge_when=charge_when)
    code, text = plan([LINE % second for second in range(9)], rules=rules, bound="100%")
    assert (code, "the status of a response does not show all failures" in text) == (1, True)
    assert plan([LINE % second for second in range(9)], "--accept", "pages", rules=rules, bound="100%")[0] == 2
    failed = [(LINE % second).replace(" 200 ", " 401 ") for second in range(9)]
    assert plan(failed, rules=rules, bound="100%")[0] == 2


def test_a_month_of_the_callers_own_is_not_known(plan: Plan) -> None:
    user = User.objects.create(username="ann")
    rules = rule(limit="{algorithm: fixed_window, quota: 5, calendar: month}")
    assert plan(seen(), rules=rules, bound="100%")[0] == 2
    TierAssignment.objects.create(user=user, anchor_day=5)
    code, text = plan(seen(), rules=rules, bound="100%")
    assert (code, "the months of some callers begin on a day of their own" in text) == (1, True)


def test_networks_are_told_apart(plan: Plan) -> None:
    lines = [LINE.replace("0.2.7", f"0.2.{second}") % second for second in range(10)]
    code, text = plan(lines, rules=rule(partition_by='["ip/24"]'))
    assert (code, "5 requests (50 %)" in text) == (1, True)


def test_lines_that_cannot_be_read_stand_in_every_report(plan: Plan) -> None:
    """They could hold what the change would reject; no bound was asked for."""
    lines = [LINE % 0, *["nonsense \x1b[2J\u202e"] * 30]
    code, text = plan(lines, bound=None)
    assert code == 2
    assert "30 lines cannot be read; the first:" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    code, text = plan(lines[1:], bound=None)
    assert (code, "No line can be read. Is this an access log? Name its --format." in text) == (1, True)


def test_a_plan_as_json_holds_the_forecast(plan: Plan, tmp_path: Path) -> None:
    code, text = plan([LINE % second for second in range(10)], "--json", "--out", str(tmp_path / "plan"), bound=None)
    data = json.loads(text)
    newly = data["traffic"]["rules"]["pages"]["newly"]["requests"]
    assert (code, newly, data["traffic"]["unknown"]) == (2, {"low": 5, "about": 5, "high": 5}, [])
    assert "traffic" not in json.loads((tmp_path / "plan").read_text())
    code, text = plan([LINE % second for second in range(10)], "--json")
    said, _, why = text.partition("\nThis would newly reject too many:\n")
    assert json.loads(said)["traffic"]["excess"] == [why]
    assert (code, why) == (1, "pages: 100 % of the callers, more than 0.1 %.")


def seen(path: str = "/plain/", method: str = "GET") -> list[str]:
    return [LINE.replace("GET /plain/", f"{method} {path}") % (second // 2) for second in range(20)]


SEARCH = {"path_kind": "prefix", "path": "/search/"}
ANY = "{algorithm: fixed_window, quota: 50, window_seconds: 60}"
PRO = "{tier: pro, algorithm: fixed_window, quota: 5, window_seconds: 60}"


@pytest.mark.parametrize("path", ["/app/search/", "//search/", "/plain/"])
def test_a_changed_rule_that_no_request_matches_fails(plan: Plan, path: str) -> None:
    code, text = plan(seen(path), rules=rule("unseen", **SEARCH), bound="100%")
    said = "unseen: It is not known whom this would reject: no request of the log matches it."
    assert (code, said in text, text.splitlines()[-1]) == (1, True, "Not known whom these rules would reject: unseen.")
    assert plan(seen("/search/"), rules=rule("unseen", **SEARCH), bound="100%")[0] == 2


def test_each_changed_rule_must_be_matched(plan: Plan) -> None:
    code, text = plan(seen(), rules=rule() + rule("unseen", methods="[POST]"), bound="100%")
    assert (code, text.splitlines()[-1]) == (1, "Not known whom these rules would reject: unseen.")
    assert plan(seen() + seen(method="POST"), rules=rule() + rule("unseen", methods="[POST]"), bound="100%")[0] == 2
    assert plan(seen(), rules=rule() + rule("unseen", mode="shadow", methods="[POST]"), bound="100%")[0] == 2


def test_a_rule_that_stays_may_be_unseen(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(f"rules:\n{rule('unseen', **SEARCH)}")
    manage("apply", str(tmp_path / "first.yaml"))
    code, text = plan(seen(), rules=rule() + rule("unseen", **SEARCH), bound="100%")
    assert (code, "unseen: " in text) == (2, False)


@pytest.mark.parametrize(
    ("limits", "missed"),
    [(PRO, "pro"), (f"{PRO}, {ANY}", "pro"), (f"{PRO.replace('pro', 'free')}, {ANY}", "every other tier")],
)
def test_a_limit_of_a_tier_needs_a_request_of_its_callers(plan: Plan, limits: str, missed: str) -> None:
    tiers = "tiers:\n  pro: {name: Pro}\n  free: {name: Free, default_for: anonymous}\n"
    code, text = plan(seen(), rules=rule(limit=limits) + tiers, bound="100%")
    assert (code, f"no request is of a caller of these tiers: {missed}." in text) == (1, True)
    fields = {"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    lines = [json.dumps({**fields, "plan": tier}) for tier in ("pro", "")]
    assert plan(lines, "--identity", "plan=tier", rules=rule(limit=limits) + tiers, bound="100%")[0] == 2


def test_a_caller_of_two_tiers_has_one_counter(plan: Plan) -> None:
    """Of one address, pro callers may send 9 and others 5 in the same window."""
    tiers = "tiers:\n  pro: {name: Pro}\n"
    fields = {"time": "2026-11-22T18:00:00Z", "request": "GET /plain/ HTTP/1.1", "ip": "192.0.2.7"}
    lines = [json.dumps({**fields, "plan": tier}) for tier in ["pro"] * 4 + [""] * 3 + ["pro"] * 6]
    limits = f"{PRO.replace('quota: 5', 'quota: 9')}, {{algorithm: fixed_window, quota: 5, window_seconds: 60}}"
    data = json.loads(plan(lines, "--identity", "plan=tier", "--json", rules=rule(limit=limits) + tiers, bound=None)[1])
    assert data["traffic"]["rules"]["pages"]["after"]["requests"]["about"] == 4


OTHER = {
    "empty": ("", "{name} is empty"),
    "unreadable": ("2026-11-22 18:00:00 GET /plain/ 192.0.2.9 200\n" * 5, "5 of 5 lines cannot be read ({name})"),
    "anonymous": (f"- - {REST % 0}\n" * 5, "5 of 5 requests have no known ip ({name})"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_a_file_that_is_blind_fails_however_small_it_is(plan: Plan, tmp_path: Path, kind: str) -> None:
    other, (text, said) = tmp_path / "other.log", OTHER[kind]
    other.write_text(text)
    code, found = plan(seen() * 50, "--traffic", str(other), bound="100%")
    assert (code, said.format(name=other) in found) == (1, True)


def test_addresses_of_the_own_proxies_are_no_callers(plan: Plan, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "TRUSTED_PROXIES": ["192.0.2.0/24"]}
    code, text = plan(seen(), bound="100%")
    assert (code, "20 of 20 requests have no known ip" in text) == (1, True)
    many = [line.replace("192.0.2.7", "203.0.113.9, 192.0.2.7") for line in seen()]
    assert plan(many, bound="100%")[0] == 2


def test_lines_in_any_order_are_judged_by_their_times(plan: Plan) -> None:
    lines = [LINE % second for second in range(60)]
    limit = "{algorithm: sliding_window_log, quota: 5, window_seconds: 40}"
    for order in (lines, lines[::-1], lines[30:] + lines[:30]):
        assert "50 requests (83.3 %), 1 caller (100 %)" in plan(order, rules=rule(limit=limit))[1]


def test_a_rule_that_counts_by_another_value_is_compared_request_by_request(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(f"rules:\n{rule(partition_by='[]')}")
    manage("apply", str(tmp_path / "first.yaml"))
    lines = [LINE.replace("0.2.7", f"0.2.{second % 4}") % second for second in range(40)]
    text = plan(lines, rules=rule(partition_by="[ip]"))[1]  # 35 of 40 rejected, then 5 of each 10
    assert "Rejected: 20 requests (50 %), 4 callers (100 %)." in text
    assert "Newly rejected: 0 requests (0 %), 0 callers (0 %)." in text
    assert "No longer rejected: 15 requests (37.5 %), 4 callers (100 %)." in text


def test_what_a_rule_in_shadow_counted_by_does_not_matter(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(f"rules:\n{rule(partition_by='[user]', mode='shadow')}")
    manage("apply", str(tmp_path / "first.yaml"))
    text = plan([LINE % second for second in range(20)])[1]
    assert "Newly rejected: 15 requests (75 %), 1 caller (100 %)." in text


def test_a_tier_that_becomes_the_default_changes_the_rules_with_tiers(plan: Plan, tmp_path: Path) -> None:
    tiers = "tiers:\n  free: {name: Free%s}\n"
    rules = rule(limit=PRO.replace("pro", "free"))
    (tmp_path / "first.yaml").write_text(f"rules:\n{rules}{tiers % ''}")
    manage("apply", str(tmp_path / "first.yaml"))
    code, text = plan([LINE % second for second in range(20)], rules=rules + tiers % ", default_for: anonymous")
    assert (code, "Newly rejected: 15 requests (75 %), 1 caller (100 %)." in text) == (1, True)
