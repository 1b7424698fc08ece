"""The acts of the caller's page, by JSON: the same permissions, the same log, and nothing done twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, RequestFactory
from django.utils import timezone

from django_ratelimiter import limiter
from django_ratelimiter.api.support.answers import serializer_of
from django_ratelimiter.backend import get_engine
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection import acts
from django_ratelimiter.inspection.caller_report import CallerReport
from django_ratelimiter.inspection.explanation import Explanation
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from django_ratelimiter.usage.live import denials
from django_ratelimiter.usage.live.denials import DeniedCaller
from django_ratelimiter.usage.times import aware
from django_ratelimiter.values.access import AccessRecord

from .conftest import MakeRule

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.urls")]

CALLER, LEASES, EXPLAIN = "/limits/callers/", "/limits/callers/leases/", "/limits/explain/"
RESET, REFUND, END = "/limits/callers/reset/", "/limits/callers/refund/", "/limits/callers/end-lease/"
MORE, TIER, DENY = "/limits/callers/more/", "/limits/callers/tier/", "/limits/callers/deny/"
END_ACCESS = "/limits/callers/end-access/"


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


def nobody(_raw: str) -> None:
    """An API_KEY_RESOLVER that knows no key."""


def test_an_unknown_api_key_is_no_caller(agent: Callable[..., Client], free: Tier, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_RESOLVER": f"{__name__}.nobody"}
    answer = post(agent("view_tierassignment"), CALLER, {"kind": "api_key", "value": "unknown"})
    assert answer.status_code == 400
    assert "This key is not known: API_KEY_RESOLVER returned None" in str(answer.json())


def test_resets_and_gives_back_once(agent: Callable[..., Client], blocked: dict[str, Any]) -> None:
    client = agent("unblock_caller")
    give = {"counter": "export:f86400", "units": 1, "reason": "he called", "act": "ticket-4711"}
    assert post(client, REFUND, blocked, **give).json()["text"].startswith("Gave back 1 of 1 unit: export.")
    assert not post(client, REFUND, blocked, **give).json()["changed"]
    assert post(client, CALLER, blocked).json()["counters"][0]["used"] == 2
    assert post(client, RESET, blocked, reason="he called").json()["took"]
    assert post(client, CALLER, blocked).json()["counters"][0]["used"] == 0
    assert LogEntry.objects.filter(user__username="agent").count() == 2


def test_grants(agent: Callable[..., Client], blocked: dict[str, Any], pro: Tier) -> None:
    client, until = agent("grant_caller"), (timezone.now() + timedelta(days=2)).isoformat()
    assert post(client, MORE, blocked, multiplier="2", until=until, reason="he called").json()["took"]
    assert post(client, CALLER, blocked).json()["counters"][0]["capacity"] == 6
    assert post(client, TIER, blocked, tier="pro", until=until, reason="trial").json()["took"]
    assert post(client, DENY, blocked, until=until, reason="abuse").json()["took"]
    ended = post(client, END_ACCESS, blocked, reason="a mistake").json()
    assert ended["took"], ended
    assert ended["text"].startswith(f"Ended the access entry “deny user {blocked['value']}”.")
    assert post(client, END_ACCESS, blocked, reason="a mistake").status_code == 400
    assert post(client, DENY, blocked, until=until, reason="abuse").json()["took"]
    assert post(client, CALLER, blocked).json()["access"] is None
    client = agent("view_accessentry", "view_tierassignment")
    assert post(client, CALLER, blocked).json()["access"]["action"] == "deny"
    assert LogEntry.objects.count() == 10


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_date_alone_includes_that_day(
    agent: Callable[..., Client], blocked: dict[str, Any], settings: Any, use_tz: bool
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "America/New_York"
    client, today = agent("grant_caller"), timezone.localdate(datetime.now(UTC))
    ends = {f"{today}": f"{today + timedelta(days=1)} 00"}
    ends |= {"2999-12-05": "2999-12-06 00", "2999-12-07T18Z": "2999-12-07 13"}
    for until, end in ends.items():
        assert post(client, DENY, blocked, until=until, reason="abuse").status_code == 200
        assert str(timezone.make_naive(aware(AccessEntry.objects.get().expires_at))) == f"{end}:00:00"
    for wrong in ("9999-12-31", "9999-12-31T23:00", "2026-13-01", 20991231):
        problem = post(client, DENY, blocked, until=wrong, reason="abuse").json()
        assert (problem["status"], problem["errors"][0]["pointer"]) == (400, "#/until")


SOON = (timezone.now() + timedelta(days=2)).isoformat()
#: What each act takes besides a caller and a reason, and its permission.
TAKES: dict[str, tuple[dict[str, Any], str]] = {
    RESET: ({}, "unblock_caller"),
    REFUND: ({"counter": "export:f86400", "units": 1}, "unblock_caller"),
    END: ({"counter": "export:f86400", "began_us": 1}, "unblock_caller"),
    MORE: ({"multiplier": "2", "until": SOON}, "grant_caller"),
    TIER: ({"tier": "free", "until": SOON}, "grant_caller"),
    "/limits/callers/allow/": ({"until": SOON}, "grant_caller"),
    DENY: ({"until": SOON}, "grant_caller"),
    END_ACCESS: ({}, "grant_caller"),
}


def test_takes_the_permission_of_each_act(
    agent: Callable[..., Client], as_ann: Client, blocked: dict[str, Any]
) -> None:
    assert set(TAKES) == {f"/limits/callers/{kind}/" for kind in acts.ACTS}
    reads = {"view_tierassignment", "unblock_caller", "grant_caller"}
    takes: Any = {CALLER: ({}, "view_tierassignment"), LEASES: ({"counter": "export:f86400"}, "view_tierassignment")}
    for url, (more, permission) in {**takes, **TAKES}.items():
        sent = {**blocked, **more, **({"reason": "x"} if url in TAKES else {})}
        others = {*reads, "view_usage_report", "view_rule"} - ({permission} if url in TAKES else reads)
        for client in (Client(), as_ann, agent(*others)):
            assert post(client, url, sent).status_code == 403
            assert client.get(url).status_code in (403, 405)
            assert post(client, url, {"kind": "user", "value": "nobody"}).status_code == 403
        is_possible = url not in (END, END_ACCESS)  # there is nothing to end
        assert post(agent(permission), url, sent).status_code == (200 if is_possible else 400), url
        AccessEntry.objects.all().delete()


@pytest.mark.parametrize(
    ("url", "wrong"),
    [(CALLER, {"kind": "colour"}), (CALLER, {"kind": "ip"}), (RESET, {"reason": ""}), (REFUND, {"units": 0}),
     (REFUND, {"counter": ""}), (RESET, {"counters": ["nothing:f60"]}), (RESET, {"act": "[1]"}),
     (END, {"began_us": 2**64}), (END, {"began_us": -1}), (DENY, {"until": ""}), (MORE, {"multiplier": "-1"}),
     (TIER, {"tier": "gold"}), (TIER, {"access": "deny"}), (TIER, {"until": "2020-01-01T00:00Z"})],
)  # fmt: skip
def test_what_is_wrong_is_said(
    agent: Callable[..., Client], blocked: dict[str, Any], url: str, wrong: dict[str, Any]
) -> None:
    client = agent("unblock_caller", "grant_caller")
    usual = {**TAKES[url][0], "reason": "x"} if url in TAKES else {}
    response = post(client, url, {**blocked, "value": "nobody"} if "kind" in wrong else blocked, **{**usual, **wrong})
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")
    assert response.json()["errors"][0]["detail"]
    assert LogEntry.objects.count() == TierAssignment.objects.count() == AccessEntry.objects.count() == 0


def test_without_the_engine(
    agent: Callable[..., Client], blocked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_given: Any) -> Any:
        raise EngineUnavailable("rejected")

    client = agent("unblock_caller")
    engine: Any = get_engine()
    monkeypatch.setattr(engine.engine, "peek_at_caller", reject)
    assert post(client, CALLER, blocked).json()["problem"] == "rejected"
    monkeypatch.setattr(acts, "get_engine", reject)
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


@pytest.fixture
def busy(make_rule: MakeRule, ann: User) -> dict[str, Any]:
    """A user with two requests in progress under a rule of concurrency, and a counter that holds none."""
    limits: Any = {None: [{"quota": 2, "algorithm": "concurrency", "window_seconds": 3_600}]}
    make_rule("busy", limits, partition_by=["user"], path_kind="exact", path="/hello/")
    make_rule("plain", partition_by=["user"], path_kind="exact", path="/hello/")
    for _ in range(2):
        request = RequestFactory().get("/hello/")
        request.user = ann
        assert limiter.check(request).allowed
    return {"kind": "user", "value": str(ann.pk), "counter": "busy:n3600"}


def test_leases_are_listed_and_one_is_ended_once(agent: Callable[..., Client], busy: dict[str, Any]) -> None:
    client = agent("unblock_caller")
    names = {each["name"]: each["leases"] for each in post(client, CALLER, _caller(busy)).json()["counters"]}
    assert names[busy["counter"]]
    assert not all(names.values())
    held = post(client, LEASES, busy).json()["leases"]
    assert [set(each) for each in held] == [{"began_us", "began_at", "ends_at"}] * 2
    end = {**busy, "began_us": held[0]["began_us"], "reason": "its worker died", "act": "ticket-4712"}
    assert post(client, END, end).json()["took"]
    assert [each["began_us"] for each in post(client, LEASES, busy).json()["leases"]] == [held[1]["began_us"]]
    assert not post(client, END, end).json()["changed"]
    gone = post(client, END, {**end, "act": "ticket-4713"})
    assert (gone.status_code, gone.json()["detail"]) == (400, "There is no such lease any more.")
    assert post(client, LEASES, {**busy, "counter": "nothing"}).json()["errors"][0]["pointer"] == "#/counter"
    assert LogEntry.objects.count() == 1


def _caller(sent: dict[str, Any]) -> dict[str, Any]:
    return {name: sent[name] for name in ("kind", "value")}


def test_answers_are_as_the_schema_has_them(agent: Callable[..., Client], busy: dict[str, Any]) -> None:
    client = agent("unblock_caller", "view_rule", "view_usage_report")
    post(client, RESET, _caller(busy), reason="he called", counters=["plain:b86400"])
    found = post(client, CALLER, _caller(busy)).json()
    assert found["log"][0]["by"] == "agent"
    _compare(found, serializer_of(CallerReport)())
    explained = post(client, EXPLAIN, {"path": "/hello/", "user": busy["value"]})
    assert explained.status_code == 200, explained.content
    _compare(explained.json(), serializer_of(Explanation)())


def test_a_digest_and_rejections_are_as_the_schema_has_them(
    agent: Callable[..., Client], blocked: dict[str, Any], ann: User
) -> None:
    request = RequestFactory().get("/hello/")
    request.user = ann
    assert not limiter.check(request).allowed
    client = agent("unblock_caller")
    digest = post(client, CALLER, blocked).json()["caller"]["digest"]
    for who in (blocked, {"kind": "digest", "value": digest}):
        found = post(client, CALLER, who).json()
        _compare(found, serializer_of(CallerReport)())
        assert found["counters"]
        assert found["rejections"]
    assert found["blocked"] is found["counters"][0]["blocked"] is True


def test_denials_are_for_who_may_see_access_entries(agent: Callable[..., Client], blocked: dict[str, Any]) -> None:
    entry = AccessEntry.objects.create(kind="user", value=blocked["value"], action="deny", reason="fraud")
    partition = f"user:{blocked['value']}"
    denials.note(AccessRecord("deny", "user", entry.value, pk=entry.pk), ("user",), digest(partition), {}, "hello")
    assert post(agent("unblock_caller"), CALLER, blocked).json()["denials"] == []
    found = post(agent("unblock_caller", "view_accessentry"), CALLER, blocked).json()
    [row] = found["denials"]
    assert (row["entry"], row["kind"], row["view"], row["times"]) == (entry.pk, "user", "hello", 1)
    _compare(row, serializer_of(DeniedCaller)())


def _compare(found: Any, serializer: Any) -> None:
    """Compare the names of what was answered, and what is null, with the serializer that describes it."""
    if getattr(serializer, "many", False):
        assert found
        for each in found:
            _compare(each, serializer.child)
    elif hasattr(serializer, "fields") and found is not None:
        assert set(found) == set(serializer.fields)
        for name, field in serializer.fields.items():
            assert field.allow_null or found[name] is not None, name
            if hasattr(field, "fields") or (getattr(field, "many", False) and found[name]):
                _compare(found[name], field)


@pytest.mark.parametrize(
    ("sent", "pointer", "told"),
    [({"valeu": "1", "kind": "ip"}, "#/valeu", "Did you mean “value”?"), ({}, "#/kind", "required"),
     ({"kind": "ip", "value": "nothing"}, "#/value", "not an IP address"),
     ({"kind": "ip", "value": "192.0.2.7", "known": [[]]}, "#/known/0", "string"),
     ({"kind": "ip", "value": "192.0.2.7", "known": ["x"]}, "#/value", "header:X-Org=acme")],
)  # fmt: skip
def test_an_error_says_what_where_and_what_would_be_right(
    agent: Callable[..., Client], sent: dict[str, Any], pointer: str, told: str
) -> None:
    response = post(agent("unblock_caller"), CALLER, sent)
    problem = response.json()
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")
    assert (problem["status"], problem["title"], problem["errors"][0]["pointer"]) == (400, "Bad Request", pointer)
    assert told in problem["errors"][0]["detail"]
    assert told in problem["detail"]


def test_what_is_no_json_is_a_problem_document_too(agent: Callable[..., Client]) -> None:
    response = agent("unblock_caller").post(CALLER, "{", content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")
    assert "JSON parse error" in response.json()["detail"]
    rejected = Client().post(CALLER, "{", content_type="application/json")
    assert (rejected.status_code, rejected.json()["title"]) == (403, "Forbidden")


def test_explains_a_request_without_charging(agent: Callable[..., Client], blocked: dict[str, Any]) -> None:
    client = agent("view_rule", "view_usage_report", "view_tierassignment")
    for asked in ({"path": "/hello/"}, {"curl": "curl https://example.org/hello/"}):
        found = post(client, EXPLAIN, {**asked, "user": blocked["value"], "ip": "192.0.2.7"}).json()
        assert (found["response"]["status"], found["response"]["binding"]) == (429, "export")
        assert found["rules"][0]["counters"][0]["used"] == 3
        assert found["hidden"] == ["access entries"]
    assert LogEntry.objects.count() == 0
    for status, *codenames in (
        (403, "view_usage_report"),
        (403, "view_rule"),
        (200, "change_rule", "view_usage_report"),
    ):
        named = {"path": "/hello/", "identities": {"user": "1"}}
        assert post(agent(*codenames), EXPLAIN, named).status_code == status


def test_explains_a_rejection_by_its_reference(agent: Callable[..., Client], blocked: dict[str, Any]) -> None:
    client = agent("view_rule", "view_usage_report", "view_tierassignment")
    asked = {"path": "/hello/", "user": blocked["value"], "ip": "192.0.2.7"}
    digest = post(client, EXPLAIN, asked).json()["rules"][0]["counters"][0]["digest"]
    asked["reference"] = f"EXPORT#{digest[:8]}"
    assert post(client, EXPLAIN, asked).json()["logged"] == {
        "rules": ["export"], "rule": "export", "digest": digest[:8], "found": True, "rejections": []}  # fmt: skip
    assert post(client, EXPLAIN, asked | {"user": ""}).json()["logged"]["found"] is False
    assert post(agent("view_rule"), EXPLAIN, {"path": "/hello/", "reference": asked["reference"]}).json()["logged"][
        "found"] is None  # fmt: skip
    rejected = post(client, EXPLAIN, asked | {"reference": "export"})
    assert (rejected.status_code, rejected.json()["errors"][0]["pointer"]) == (400, "#/reference")


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [({"path": ""}, "#/path"), ({"user": "nobody"}, "#/user"), ({"headers": {"a b": "c"}}, "#/headers"),
     ({"curl": "wget x"}, "#/curl"), ({"view": "nothing", "path": ""}, "#/view"), ({"status": 9}, "#/status"),
     ({"headers": "x"}, "#/headers"), ({"ip": "nothing"}, "#/ip"), ({"usr": "ann"}, "#/usr")],
)  # fmt: skip
def test_a_question_that_is_wrong(
    agent: Callable[..., Client], blocked: dict[str, Any], wrong: dict[str, Any], pointer: str
) -> None:
    response = post(agent("view_rule", "view_usage_report"), EXPLAIN, {"path": "/hello/", **wrong})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, pointer)
