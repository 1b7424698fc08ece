"""What other limiters do now, as a rules file."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache import cache as framework_cache
from django.core.management import call_command
from django.db import DatabaseError
from django.test import Client, override_settings
from django.urls import get_resolver

from django_ratelimiter.models import Rule, Tier
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.files import adopt as adopting
from django_ratelimiter.rules.files.adopt import Adopted, adopt, adopt_rows
from django_ratelimiter.rules.files.planning import plan_file
from django_ratelimiter.rules.files.reading import read
from django_ratelimiter.rules.routes import all_views
from django_ratelimiter.testing import override_rules

RATES = {"anon": "3/day", "burst": "20000/h", "uploads": "2/min", "off": None, "spare": "9/min"}
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.rules.files.adopted"), pytest.mark.usefixtures("_rates")]


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


def test_throttles_with_code_of_their_own_are_left_as_they_are() -> None:
    """A class may let requests pass, find addresses, or set its rate by code: a rule would do something else."""
    found = adopt()
    left = "\n".join(found.left)
    for name in ("PostThrottle", "ProxyThrottle", "LoadThrottle"):
        assert f"{name}: it has code of its own. Views: code-throttles." in left
    assert "TenantThrottle: it has code of its own. Views: thing." in left
    assert "StartedThrottle: it has code of its own. Views: started." in left
    assert "StrictThrottle: its rate 2/month, which DRF reads as 2 in 60 seconds. Views: strict." in left
    assert "View choosing: its own code may choose its throttles, in get_throttles." in left
    assert {"posts", "strict", "tenant", "shared"}.isdisjoint(found.rules)
    assert "OtherThrottle: it shares its counters with tests.rules.files.adopted.OneThrottle, of the same scope" in left
    for name, reason in (
        ("OwnAnonThrottle", "it has code of its own"),  # it has the scope of AnonRateThrottle, which is not left out
        ("PropertyThrottle", "it has code of its own"),
        ("RatelessThrottle", "it has no rate"),
    ):
        assert f"{name}: {reason}. Views: odd-throttles." in left
    assert "Rate 9/min of the scope spare: no throttle that can be seen uses it." in left
    assert "scope off" not in left
    assert all("choosing" not in str(rule) for rule in found.rules.values())


def test_each_url_is_named_with_what_can_be_seen_of_its_limits() -> None:
    inventory = adopt().inventory
    throttles = "rest_framework.throttling.AnonRateThrottle, tests.rules.files.adopted.BurstThrottle"
    code = "cannot be seen: tests.rules.files.adopted"
    expected = {
        "": ["api/plain/ (plain)", "scopeless/ (scopeless)", "Django's admin"],
        throttles: ["api/things/ (things)"],
        f"{throttles}, tests.rules.files.adopted.TenantThrottle": ["api/things/<int:pk>/ (thing)"],
        "cannot be seen: throttles chosen by its own code": ["choosing/ (choosing)"],
        "django_ratelimit.decorators": ["login/ (login)", "partial/ (partial)", "guarded/ (guarded)"],
        "cannot be seen: method_decorator": ["form/ (form)", "called/ (called)", "shop/books/hidden/$ (book-hidden)"],
        code: ["own/ (own)", "twice/ (twice)"],
        "@ratelimit(key='ip', rate='5/m')": ["shop/books/$ (book-list)"],
        '@ratelimit("mail")': ["mail/ (mail)"],
        "@ratelimit(\"odd\", key=a function, rate='5/m', method=['POST'], block=False)": ["odd/ (odd)"],
        "@ratelimit(key=by_name, rate='5/m')": ["named/ (named)"],
        "django_ratelimiter.throttling.RuleThrottle": ["shop/books/ruled/$ (book-ruled)"],
    }
    assert {what: urls for what, urls in inventory.urls.items() if what in expected} == expected
    assert sum(map(len, inventory.urls.values())) == inventory.count
    assert (
        inventory.count == len({match.route for match in all_views(get_resolver()) if "admin" not in match.route}) + 1
    )
    assert sum("Django's admin" in urls for urls in inventory.urls.values()) == 1
    assert (inventory.unseen, inventory.bare) == (6, 3)


def test_a_scope_of_one_action_is_not_one_of_the_others() -> None:
    assert adopt().rules["uploads"]["scope"] == "uploads"
    assert "shop/books/upload/$ (book-upload)" in adopt().inventory.urls["rest_framework.throttling.ScopedRateThrottle"]
    assert not any("book" in rule.get("view_name", "") for rule in adopt().rules.values())


def test_the_tier_and_the_rules_of_the_database_stay_as_they_are() -> None:
    """Only one tier can be the default for anonymous callers, and `plan` rejects a file with another."""
    Tier.objects.create(slug="guests", name="Guests", rank=3, default_for="anonymous")
    Tier.objects.create(slug="anonymous", name="Not the default")
    Rule.objects.create(slug="anon", name="by hand")
    cache.invalidate()
    found = adopt()
    assert found.tiers == {"guests": {"name": "Guests", "rank": 3, "default_for": "anonymous"}}
    assert limits(found.rules["anon-2"])[3] == "guests"
    file = read(found.text("yaml"), "r.yaml")
    assert {change.kind for change in plan_file(file).changes} == {"added"}
    Tier.objects.filter(slug="guests").delete()
    cache.invalidate()
    assert adopt().tiers == {"anonymous-2": {"name": "Anonymous", "default_for": "anonymous"}}


def test_the_last_line_counts_what_cannot_be_seen() -> None:
    said = StringIO()
    call_command("ratelimit", "adopt", stdout=StringIO(), stderr=said)
    what = "6 have something that may limit and cannot be seen; on 3 nothing can be seen."
    assert said.getvalue() == f"3 rules. Left as it is: 13. Of 26 URLs, {what}\n"


def test_notes_on_rules_say_what_they_need() -> None:
    text = adopt().text("yaml")
    known = "The rule knows users only if the view has RuleThrottle of django_ratelimiter.throttling."
    assert f"  # From rest_framework.throttling.AnonRateThrottle, 3/day.\n  # {known}\n  anon:\n" in text
    assert "# - Throttle tests.rules.files.adopted.TenantThrottle" in text
    assert "# - nothing can be seen: api/plain/ (plain), scopeless/ (scopeless), Django's admin\n" in text


@override_settings(MIDDLEWARE=["django_smart_ratelimit.middleware.RateLimitMiddleware"])
def test_middleware_that_seems_to_limit_is_named() -> None:
    assert any("django_smart_ratelimit.middleware.RateLimitMiddleware" in text for text in adopt().left)


def row(**values: Any) -> Any:
    usual = {"name": "r", "path_pattern": "^/api/", "method": "ALL", "rate": "3/h", "key": "ip", "block": True}
    return SimpleNamespace(**usual | {"algorithm": "fixed_window"} | values)


def adopted_rows(*rows: Any) -> Adopted:
    found = Adopted()
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
    assert found.left == [
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
    found = Adopted()
    monkeypatch.setattr(adopting, "apps", SimpleNamespace(is_installed=bool, get_model=lambda *_name: Table(error)))
    with override_settings(RATELIMIT_USE_DYNAMIC_RULES=is_in_force):
        adopting.adopt_smart_rules(found)
    assert list(found.rules) == rules
    assert found.left == [f"Rules of django-smart-ratelimit: {text}" for text in missed]


@pytest.mark.parametrize("style", ["yaml", "json"])
def test_the_file_is_right(style: str) -> None:
    file = read(adopt().text(style), f"r.{style}")
    file.check_names()
    assert {rule["mode"] for rule in file.rules} == {"shadow"}


def test_the_rules_do_what_the_throttles_did() -> None:
    """The same trace with the framework's class, and then with the rule in its place."""
    framework_cache.clear()
    with override_rules():
        theirs = [Client().get("/api/things/").status_code for _ in range(5)]
    assert theirs == [200, 200, 200, 429, 429]
    framework_cache.clear()
    file = read(adopt().text("yaml").replace("mode: shadow", "mode: enforce"), "r.yaml")
    anon = next(rule for rule in file.rule_set().rules if rule.slug == "anon")
    ours = []
    with override_rules(anon, tier="anonymous"):
        for _ in range(5):
            framework_cache.clear()  # so that the throttle, which the view still has, says nothing
            ours.append(Client().get("/api/things/").status_code)
    assert ours == theirs
