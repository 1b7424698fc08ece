"""What other limiters do now, as a rules file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache import cache as framework_cache
from django.db import DatabaseError
from django.test import Client, override_settings

from django_ratelimiter.rules.files.adopt import smart
from django_ratelimiter.rules.files.adopt.found import Found, seconds_of
from django_ratelimiter.rules.files.adopt.smart import adopt_rows, adopt_smart_rules
from django_ratelimiter.rules.files.adopt.text import adopt, text_of
from django_ratelimiter.rules.files.reading import read
from django_ratelimiter.testing import override_rules

RATES = {"anon": "3/day", "burst": "20000/h", "uploads": "2/min", "unused": None}
pytestmark = [
    pytest.mark.urls("tests.rules.files.adopted"),
    pytest.mark.usefixtures("_rates"),
]


@pytest.fixture
def _rates(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("rest_framework.throttling.SimpleRateThrottle.THROTTLE_RATES", RATES)
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": RATES}):
        yield


def limits(rule: dict[str, Any]) -> tuple[Any, ...]:
    [limit] = rule["limits"]
    return limit["quota"], limit["window_seconds"], limit["algorithm"], limit.get("tier")


def test_throttle_classes_become_rules_with_one_counter_where_a_prefix_is_theirs_alone() -> None:
    rules = adopt().rules
    assert (rules["anon"]["path"], rules["anon"]["partition_by"]) == ("/api/things/", ["ip"])
    assert limits(rules["anon"]) == (3, 86_400, "sliding_window_log", "anonymous")
    assert (rules["burst"]["partition_by"], rules["burst"]["missing_partition"]) == (["user"], "ip")
    assert limits(rules["burst"])[2] == "sliding_window_counter"  # too many to be kept one by one
    assert (rules["uploads"]["scope"], limits(rules["uploads"])[:2]) == ("uploads", (2, 60))
    assert adopt().tiers == {"anonymous": {"name": "Anonymous", "default_for": "anonymous"}}


def test_throttles_with_code_of_their_own_are_not_translated() -> None:
    """A class may let requests pass, find addresses or decide by code: a rule would do something else."""
    found = adopt()
    missed = "\n".join(found.missed)
    decides, finds = "it decides with its own code", "it finds its key with its own code"
    for name, why in (("PostThrottle", decides), ("ProxyThrottle", finds), ("LoadThrottle", decides)):
        assert f"{name}: {why}. Views: code-throttles." in missed
    assert "posts" not in found.rules
    assert "View choosing: it chooses its throttles with its own code, get_throttles." in missed
    assert all("choosing" not in str(rule) for rule in found.rules.values())


def test_notes_on_throttles_say_what_differs() -> None:
    found = adopt()
    shared = "There, it counts together with {}, which has the same scope, burst."
    [strict] = [notes for slug, notes in found.notes.items() if "StrictThrottle" in notes[0] and found.rules[slug]]
    assert shared.format("tests.rules.files.adopted.BurstThrottle") in strict
    assert "DRF reads only the first letter of “month”: this is a rate per minute." in strict
    assert shared.format("tests.rules.files.adopted.StrictThrottle") in found.notes["burst"]
    known = "The rule knows users only if the view has RuleThrottle of django_ratelimiter.throttling."
    assert known in found.notes["anon"]
    assert any("X-Forwarded-For" in text for text in found.differences)
    assert any("each throttle of a view counts" in text for text in found.differences)


def test_decorators_become_rules_of_their_views() -> None:
    rules = adopt().rules
    by_address, by_field = rules["login"], rules["login-2"]
    assert (by_address["view_name"], by_address["methods"], by_address["partition_by"]) == ("login", ["POST"], ["ip"])
    assert limits(by_address) == (10, 30, "fixed_window", None)
    assert (by_field["partition_by"], limits(by_field)[:2]) == (["field:email"], (5, 3_600))
    assert (rules["form"]["methods"], rules["form"]["partition_by"]) == (["POST"], ["user"])


def test_a_decorator_for_all_methods_becomes_a_rule_for_all_methods() -> None:
    assert "methods" not in adopt().rules["twice"]


def test_decorators_of_the_other_package() -> None:
    found = adopt()
    assert limits(found.rules["smart"])[2] == "sliding_window_log"  # what it does unless told otherwise
    assert found.rules["smart"]["count_refusals"] is True  # its sliding windows do
    assert "Not translated: allow_list." in found.notes["smart"]
    assert "Not translated: cost." in found.notes["smart"]
    assert limits(found.rules["smart-leaky"])[2] == "gcra"
    assert "count_refusals" not in found.rules["smart-leaky"]
    assert found.rules["smart-leaky"]["partition_by"] == ["user"]
    assert limits(found.rules["smart-fixed"])[2] == "fixed_window"
    assert [limits(found.rules[slug])[:2] for slug in ("batch", "batch-2")] == [(5, 60), (100, 3_600)]


def test_notes_say_where_counters_differ() -> None:
    notes = adopt().notes
    assert "There, it counts together with that of twice-one; here each has its own counter." in notes["twice"]
    assert "There, it counts together with that of twice; here each has its own counter." in notes["twice-one"]
    assert any("together with that of" in note and "smart-other" in note for note in notes["smart-fixed"])
    assert not any("together" in note for note in notes["smart"])
    inherited = [notes[slug] for slug in ("first-form", "second-form")]  # whose class is part of the counter's name
    assert not any("together" in note for each in inherited for note in each)
    same = "There, it counts together with that of second-hello; here each has its own counter."
    assert same in notes["first-hello"]  # decorated apart, but by the same name
    assert "Here, GET includes HEAD." in notes["first-hello"]
    assert "Here, GET includes HEAD." not in notes["login"]
    together = "There, requests without such a value share one counter; here they are counted by address."
    assert together in notes["login-2"]
    assert together in notes["smart"]
    assert together not in notes["form"]
    both = "There, a request that another decorator of the view rejects may count; here it uses no quota."
    assert both in notes["login"]
    assert both in notes["login-2"]
    assert both not in notes["twice"]


def test_no_address_in_memory_stands_in_the_file() -> None:
    text = text_of(adopt(), "yaml")
    assert "its rate, tests.rules.files.adopted.ten_an_hour, has no rule" in text
    assert " at 0x" not in text


def test_a_decorator_without_a_rate_limits_nothing() -> None:
    assert not any("without-rate" in text for text in adopt().missed)


def test_windows_that_begin_elsewhere_are_said_once() -> None:
    text = text_of(adopt(), "yaml")
    assert text.count("django-ratelimit begins the windows of each caller at a different moment") == 1


def test_what_has_no_rule_is_said() -> None:
    missed = adopt().missed
    assert missed[1].startswith(
        "Throttle tests.rules.files.adopted.TenantThrottle: it finds its key with its own code."
    )
    assert missed[5].startswith("Decorator of django-ratelimit on code: its key, tests.rules.files.adopted.<lambda>,")
    text = text_of(adopt(), "yaml")
    assert "# - Throttle tests.rules.files.adopted.TenantThrottle" in text
    known = "The rule knows users only if the view has RuleThrottle of django_ratelimiter.throttling."
    assert f"  # From rest_framework.throttling.AnonRateThrottle, 3/day.\n  # {known}\n  anon:\n" in text
    assert "  # There, it counts together with all of the group forms.\n" in text


@override_settings(
    RATELIMIT_MIDDLEWARE={"DEFAULT_RATE": "100/m", "RATE_LIMITS": {"/api/": "10/5m"}, "SKIP_PATHS": ["/health/"]}
)
def test_settings_of_django_smart_ratelimit() -> None:
    found = adopt()
    assert (found.rules["path-api"]["path"], limits(found.rules["path-api"])[:2]) == ("/api/", (10, 300))
    assert limits(found.rules["all-paths"])[:3] == (100, 60, "sliding_window_log")
    assert found.rules["all-paths"]["count_refusals"] is True
    apart = "There, each path has its own counter; here all paths of the rule share one."
    assert apart in found.notes["path-api"]
    assert apart not in found.notes["all-paths"]
    assert any("SKIP_PATHS" in text for text in found.missed)


@override_settings(RATELIMIT_MIDDLEWARE={"DEFAULT_RATE": "100/m", "BLOCK": False}, RATELIMIT_ALGORITHM="fixed_window")
def test_settings_that_reject_nothing() -> None:
    found = adopt()
    assert limits(found.rules["all-paths"])[2] == "fixed_window"
    assert "It rejects nothing there; a rule in shadow does the same." in found.notes["all-paths"]


@override_settings(MIDDLEWARE=["django_smart_ratelimit.middleware.RateLimitMiddleware"])
def test_the_middleware_of_django_smart_ratelimit_has_a_rate_unless_told_another() -> None:
    assert limits(adopt().rules["all-paths"])[:2] == (100, 60)


def row(**values: Any) -> Any:
    usual = {"name": "r", "path_pattern": "^/api/", "method": "ALL", "rate": "3/h", "key": "ip", "block": True}
    return SimpleNamespace(**usual | {"algorithm": "fixed_window"} | values)


def adopted_rows(*rows: Any) -> Found:
    found = Found()
    adopt_rows(rows, found)
    return found


def test_rules_of_django_smart_ratelimit() -> None:
    found = adopted_rows(row(), row(name="one", path_pattern="^/one/$", method="GET, POST", block=False))
    assert "methods" not in found.rules["r"]
    assert (found.rules["r"]["path"], found.rules["r"]["path_kind"]) == ("/api/", "prefix")
    assert (found.rules["one"]["path"], found.rules["one"]["path_kind"]) == ("/one/", "exact")
    assert found.rules["one"]["methods"] == ["GET", "POST"]
    assert "It rejects nothing there; a rule in shadow does the same." in found.notes["one"]
    first = "There, only the first rule that matches applies; here every rule that matches applies."
    assert first in found.notes["r"]
    assert first not in adopted_rows(row()).notes["r"]


def test_rules_of_django_smart_ratelimit_that_have_no_rule() -> None:
    found = adopted_rows(row(path_pattern=r"^/v\d/"), row(path_pattern="^/v.1/"), row(key="get:q"), row(rate="0/h"))
    assert found.missed == [
        r"Rule “r” of django-smart-ratelimit: its path_pattern, '^/v\\d/', has no rule that does the same.",
        "Rule “r” of django-smart-ratelimit: its path_pattern, '^/v.1/', has no rule that does the same.",
        "Rule “r” of django-smart-ratelimit: its key, 'get:q', has no rule that does the same.",
        "Rule “r” of django-smart-ratelimit: its rate, '0/h', has no rule that does the same.",
    ]


class Table:
    """A model whose table holds this row."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._default_manager = self

    def filter(self, **_active: bool) -> list[Any]:
        if self._error:
            raise self._error
        return [row()]


@pytest.mark.parametrize(
    ("error", "is_in_force", "rules", "missed"),
    [
        (None, True, ["r"], []),
        (None, False, [], ["they are not in force, because RATELIMIT_USE_DYNAMIC_RULES is not set."]),
        (DatabaseError("no such table"), True, [], ["its table cannot be read."]),
        (LookupError("no such model"), True, [], ["its table cannot be read."]),
    ],
)
def test_the_table_of_django_smart_ratelimit(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, is_in_force: bool, rules: list[str], missed: list[str]
) -> None:
    found = Found()
    monkeypatch.setattr(smart, "apps", SimpleNamespace(is_installed=bool, get_model=lambda *_name: Table(error)))
    with override_settings(RATELIMIT_USE_DYNAMIC_RULES=is_in_force):
        adopt_smart_rules(found)
    assert list(found.rules) == rules
    assert found.missed == [f"Rules of django-smart-ratelimit: {text}" for text in missed]


@pytest.mark.parametrize("style", ["yaml", "json"])
def test_the_file_is_right(style: str) -> None:
    file = read(text_of(adopt(), style), f"r.{style}")
    file.check_names()
    assert {rule["mode"] for rule in file.rules} == {"shadow"}


def test_the_rules_do_what_the_throttles_did() -> None:
    """The same trace with the framework's class, and then with the rule in its place."""
    framework_cache.clear()
    with override_rules():
        theirs = [Client().get("/api/things/").status_code for _ in range(5)]
    assert theirs == [200, 200, 200, 429, 429]
    framework_cache.clear()
    file = read(text_of(adopt(), "yaml").replace("mode: shadow", "mode: enforce"), "r.yaml")
    anon = next(rule for rule in file.rule_set().rules if rule.slug == "anon")
    ours = []
    with override_rules(anon, tier="anonymous"):
        for _ in range(5):
            framework_cache.clear()  # so that the throttle, which the view still has, says nothing
            ours.append(Client().get("/api/things/").status_code)
    assert ours == theirs


def test_rates() -> None:
    assert [seconds_of(rate) for rate in ("5/m", "10/30s", "7/hour", "3/", (4, 60))] == [
        (5, 60),
        (10, 30),
        (7, 3_600),
        (3, 1),
        (4, 60),
    ]
    assert [seconds_of(rate) for rate in ("x", None, len, "5/fortnight")] == [None] * 4
