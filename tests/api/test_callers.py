"""The acts of the caller's page, by JSON: the same permissions, the same log, and nothing done twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, RequestFactory
from django.utils import timezone

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.callers import acts
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment

from .conftest import MakeRule

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.urls")]

CALLER, RESET, GRANT = "/limits/callers/", "/limits/callers/reset/", "/limits/callers/grant/"


@pytest.fixture(autouse=True)
def _no_rules_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.rules.inline.registered", tuple)


@pytest.fixture
def agent() -> Callable[..., Client]:
    """A client with these permissions only: `agent("unblock_caller")`."""

    def log_in(*codenames: str) -> Client:
        user, _ = User.objects.get_or_create(username="agent")
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def blocked(make_rule: MakeRule, ann: User, free: Tier) -> dict[str, Any]:
    """A user who has used up a rule, as one asks for her."""
    limits: Any = {None: [{"quota": 3, "algorithm": "fixed_window"}]}
    make_rule("export", limits, partition_by=["user"], path_kind="exact", path="/hello/")
    request = RequestFactory().get("/hello/")
    request.user = ann
    for _ in range(3):
        request.__dict__.pop("ratelimit", None)
        assert limiter.check(request).allowed
    return {"kind": "user", "value": str(ann.pk)}


def post(client: Client, url: str, sent: dict[str, Any], **more: Any) -> Any:
    return client.post(url, {**sent, **more}, content_type="application/json")


def test_tells_of_a_caller(agent: Callable[..., Client], blocked: dict[str, Any]) -> None:
    found = post(agent("view_tierassignment"), CALLER, blocked).json()
    assert (found["blocked"], found["tier"]["slug"], found["counters"][0]["used"]) == (True, "free", 3)


def test_entries_and_assignments_are_for_who_may_see_them(
    agent: Callable[..., Client], blocked: dict[str, Any], ann: User, pro: Tier
) -> None:
    AccessEntry.objects.create(kind="user", value=str(ann.pk), action="deny", reason="fraud")
    TierAssignment.objects.create(user=ann, tier=pro, reason="trial")
    found = post(agent("unblock_caller", "grant_caller"), CALLER, blocked)
    assert found.json()["hidden"] == ["access entries", "tier assignments"]
    assert (found.json()["tier"]["slug"], found.json()["tier"]["assignment"]) == ("pro", None)
    assert "fraud" not in found.content.decode()
    assert "trial" not in found.content.decode()
    for codenames, hidden in (
        (["view_tierassignment"], ["access entries"]),
        (["grant_caller", "change_accessentry"], ["tier assignments"]),
        (["view_tierassignment", "view_accessentry"], []),
    ):
        found = post(agent(*codenames), CALLER, blocked)
        assert found.json()["hidden"] == hidden
        assert ("fraud" in found.content.decode()) == ("access entries" not in hidden)
        assert ("trial" in found.content.decode()) == ("tier assignments" not in hidden)


def test_resets_and_gives_back_once(agent: Callable[..., Client], blocked: dict[str, Any]) -> None:
    client = agent("unblock_caller")
    give = {"counters": ["export:f86400"], "units": 1, "reason": "he called", "act": "ticket-4711"}
    assert post(client, RESET, blocked, **give).json()["text"].startswith("Gave back 1 of 1 units: export.")
    assert not post(client, RESET, blocked, **give).json()["changed"]
    assert post(client, CALLER, blocked).json()["counters"][0]["used"] == 2
    assert post(client, RESET, blocked, reason="he called").json()["took"]
    assert post(client, CALLER, blocked).json()["counters"][0]["used"] == 0
    assert LogEntry.objects.filter(user__username="agent").count() == 2


def test_grants(agent: Callable[..., Client], blocked: dict[str, Any], pro: Tier) -> None:
    client, until = agent("grant_caller"), (timezone.now() + timedelta(days=2)).isoformat()
    assert post(client, GRANT, blocked, multiplier="2", until=until, reason="he called").json()["took"]
    assert post(client, CALLER, blocked).json()["counters"][0]["capacity"] == 6
    assert post(client, GRANT, blocked, tier="pro", until=until, reason="trial").json()["took"]
    assert post(client, GRANT, blocked, access="deny", until=until, reason="abuse").json()["took"]
    assert post(client, CALLER, blocked).json()["access"] is None
    client = agent("view_accessentry", "view_tierassignment")
    assert post(client, CALLER, blocked).json()["access"]["action"] == "deny"
    assert LogEntry.objects.count() == 6


@pytest.mark.parametrize(
    ("url", "permission"), [(CALLER, "view_tierassignment"), (RESET, "unblock_caller"), (GRANT, "grant_caller")]
)
def test_takes_the_permission_of_each_act(
    agent: Callable[..., Client], as_ann: Client, blocked: dict[str, Any], url: str, permission: str
) -> None:
    sent = {**blocked, "reason": "x", "access": "deny", "until": (timezone.now() + timedelta(days=2)).isoformat()}
    codenames = {"view_tierassignment", "unblock_caller", "grant_caller", "view_usage_report", "view_rule"}
    others = codenames - ({permission} if url != CALLER else {"view_tierassignment", "unblock_caller", "grant_caller"})
    for client in (Client(), as_ann, agent(*others)):
        assert post(client, url, sent).status_code == 403
        assert client.get(url).status_code in (403, 405)
        assert post(client, url, {"kind": "user", "value": "nobody"}).status_code == 403
    assert post(agent(permission), url, sent).status_code == 200


@pytest.mark.parametrize(
    ("url", "wrong"),
    [(CALLER, {"kind": "colour"}), (CALLER, {"kind": "ip"}), (RESET, {"reason": ""}), (RESET, {"units": 1}),
     (RESET, {"counters": ["nothing:f60"]}), (RESET, {"act": "[1]"}), (GRANT, {}), (GRANT, {"access": "maybe"}),
     (GRANT, {"multiplier": "-1"}), (GRANT, {"tier": "gold"}), (GRANT, {"tier": "free", "access": "deny"}),
     (GRANT, {"until": "2020-01-01T00:00Z", "tier": "free"})],
)  # fmt: skip
def test_what_is_wrong_is_said(
    agent: Callable[..., Client], blocked: dict[str, Any], url: str, wrong: dict[str, Any]
) -> None:
    client = agent("unblock_caller", "grant_caller")
    until = (timezone.now() + timedelta(days=2)).isoformat()
    response = post(client, url, {**blocked, "value": "nobody"} if "kind" in wrong else blocked,
                    **{"reason": "x", "until": until, **wrong})  # fmt: skip
    assert response.status_code == 400
    assert LogEntry.objects.count() == TierAssignment.objects.count() == AccessEntry.objects.count() == 0


def test_without_the_engine(
    agent: Callable[..., Client], blocked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any) -> Any:
        raise EngineUnavailable("refused")

    client = agent("unblock_caller")
    monkeypatch.setattr(get_engine(), "peek", refuse)
    assert post(client, CALLER, blocked).json()["problem"] == "refused"
    monkeypatch.setattr(acts, "get_engine", refuse)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert post(client, RESET, blocked, reason="x").status_code == 503
    assert LogEntry.objects.get().change_message.startswith("Tried")


@pytest.mark.django_db(transaction=True)
def test_the_engine_is_called_outside_transactions(
    agent: Callable[..., Client], blocked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ATOMIC_REQUESTS would open one for the whole request."""
    client, reset = agent("unblock_caller"), get_engine().reset
    open_now: list[bool] = []
    monkeypatch.setattr(
        get_engine(), "reset", lambda charges: open_now.append(connection.in_atomic_block) or reset(charges)
    )
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert post(client, RESET, blocked, reason="x").status_code == 200
    assert open_now == [False]
