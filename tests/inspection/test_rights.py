"""Counters, tiers and access entries are each hidden from readers without the permission."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User

from django_ratelimiter.explain import Question, explain
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.inspection.explanation import encoded
from django_ratelimiter.inspection.grounds import CallerHidden
from django_ratelimiter.models import AccessEntry, Rule, Tier, TierAssignment
from django_ratelimiter.rules.stored import access_cache

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.inspection.urls")]

Reader = Callable[..., User]


@pytest.fixture
def reader() -> Reader:
    """A user with these permissions only: `reader("view_rule")`."""

    def make(*codenames: str) -> User:
        made = User.objects.create_user(f"reader{User.objects.count()}")
        made.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return made

    return make


@pytest.fixture(autouse=True)
def _rules(add_rule: Callable[..., Rule], user: User, pro: Tier) -> None:
    add_rule("export", ["user"], quota=2, missing_partition="ip")
    TierAssignment.objects.create(user=user, tier=pro, reason="trial")


@pytest.mark.parametrize(
    ("codenames", "hidden"),
    [
        ((), ("counters", "tiers", "access entries")),
        (("view_usage_report",), ("tiers", "access entries")),
        (("view_tierassignment",), ("counters", "access entries")),
        (("view_usage_report", "view_tierassignment", "view_accessentry"), ()),
    ],
)
def test_of_an_explanation(reader: Reader, codenames: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    found = explain(Question(path="/hello/", ip="192.0.2.7"), reader(*codenames))
    [rule] = found.rules
    assert found.hidden == hidden
    assert (found.response is None, rule.rejects is None, rule.counters is None) == ("counters" in hidden,) * 3
    assert (found.tier.kind == "") == ("tiers" in hidden)


@pytest.mark.parametrize("name", ["user", "api_key", "session"])
def test_who_may_name_a_caller(reader: Reader, user: User, name: str) -> None:
    named = [{"path": "/hello/", "identities": {name: "x"}}, {"path": "/hello/", name: user.username}]
    for given in named[: 1 if name == "session" else 2]:
        with pytest.raises(CallerHidden):
            explain(Question(**given), reader("view_rule"))  # type: ignore[arg-type]
        assert explain(Question(**given), reader("view_usage_report"))  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["allow", "deny"])
@pytest.mark.parametrize("codenames", [(), ("view_usage_report", "view_tierassignment")])
def test_whom_an_access_entry_hits_is_shown_by_nothing(reader: Reader, action: str, codenames: tuple[str, ...]) -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.7", action=action, reason="scraper")
    access_cache.forget()
    hit, other = (encoded(explain(Question(path="/hello/", ip=f"192.0.2.{end}"), reader(*codenames))) for end in (7, 8))
    texts = json.dumps(hit).replace("192.0.2.7", "192.0.2.8"), json.dumps(other)
    assert [each["rejects"] for each in hit["rules"]] == [each["rejects"] for each in other["rules"]]
    assert len(texts[0]) == len(texts[1])
    assert "You may not view access entries: this answer is as if there were none." in hit["doubts"]
    shown = explain(Question(path="/hello/", ip="192.0.2.7"), reader(*codenames, "view_accessentry"))
    assert shown.bypass == {"allow": "allowed", "deny": "denied"}[action]


@pytest.mark.parametrize(
    ("codenames", "hidden"),
    [
        (("unblock_caller",), ("tiers", "access entries")),
        (("view_tierassignment",), ("access entries",)),
        (("change_accessentry",), ("tiers",)),
        (("view_tierassignment", "view_accessentry"), ()),
    ],
)
def test_of_a_caller(reader: Reader, user: User, codenames: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    AccessEntry.objects.create(kind="user", value=str(user.pk), action="deny", reason="fraud")
    found = report_of(caller_of("user", str(user.pk)), reader(*codenames))
    text = json.dumps(encoded(found))
    assert (found.hidden, found.tier.slug) == (hidden, "pro")
    assert ("fraud" in text) == ("access entries" not in hidden)
    assert ("trial" in text) == ("tiers" not in hidden)
