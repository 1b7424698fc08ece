"""What is explained is what a request then gets: random rules, tiers and callers, by the test client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter import backend
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.engine.registry import Algorithm
from django_ratelimiter.explain import Explanation, Question, explain
from django_ratelimiter.headers.fields import _NAMES_OF_FIELDS
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.limiter import io
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.rules.stored import access_cache
from django_ratelimiter.testing import FrozenClock

from . import code_views

pytestmark = [pytest.mark.urls(__name__)]

FIELDS = (*_NAMES_OF_FIELDS, "Retry-After", "Cache-Control")
KEY = "a key that is known"


def answer(request: HttpRequest, **captured: object) -> HttpResponse:
    """Answer with the status that the request asks for."""
    return HttpResponse(status=int(request.GET.get("status", 200)))


urlpatterns = [
    path("hello/", answer, name="hello"),
    path("items/<int:item>/", answer, name="item"),
    path("static/x/", answer),
    *(each for each in code_views.urlpatterns if str(each.pattern) != "foreign/"),
]
PLACES = ("/hello/", "/items/7/", "/items/8/", "/nowhere/", "/static/x/")
CODE = tuple(f"/{each.pattern}" for each in urlpatterns[3:])

rows = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(list(Algorithm)),
        "quota": st.integers(1, 3),
        "window_seconds": st.sampled_from((1, 60, 3_600)),
        "tier": st.sampled_from((None, None, "free", "pro")),
        "unlimited": st.sampled_from((False,) * 7 + (True,)),
    }
)
rules = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(("enforce", "enforce", "enforce", "shadow", "off")),
        "methods": st.sampled_from(([], [], ["GET"], ["POST"], ["GET", "POST"])),
        "place": st.sampled_from(
            (
                {},
                {"path_kind": "exact", "path": "/hello/"},
                {"path_kind": "prefix", "path": "/items/"},
                {"path_kind": "route", "path": "items/<int:item>/"},
                {"view_name": "hello"},
                {"view_name": "item", "path_kind": "prefix", "path": "/it"},
                {"scope": "export"},
            )
        ),
        "partition_by": st.sampled_from(
            (
                [],
                ["user"],
                ["ip"],
                ["user", "ip"],
                ["api_key"],
                ["session"],
                ["header:X-Org"],
                ["path:item"],
                ["field:name"],
            )
        ),
        "missing_partition": st.sampled_from(("skip", "skip", "ip", "deny")),
        "cost": st.sampled_from((1, 1, 1, 2)),
        "count_refusals": st.booleans(),
        "charge_when": st.sampled_from(("any", "any", "success", "failure")),
        "priority": st.integers(1, 3),
        "message": st.sampled_from(("", "Slow down.")),
        "limits": st.lists(rows, min_size=1, max_size=3),
    }
)


class Call(NamedTuple):
    method: str
    path: str
    user: str
    ip: str
    key: str
    org: str
    name: str
    status: int
    accept: str
    later: float


calls = st.builds(
    Call,
    st.sampled_from(("GET", "GET", "POST", "HEAD")),
    st.one_of(st.sampled_from(PLACES), st.sampled_from(CODE)),
    st.sampled_from(("", "ann", "bob")),
    st.sampled_from(("203.0.113.1", "203.0.113.2", "2001:db8::1")),
    st.sampled_from(("", "", KEY, "invented")),
    st.sampled_from(("", "acme")),
    st.sampled_from(("", "ann@example.org")),
    st.sampled_from((200, 200, 400)),
    st.sampled_from(("", "text/html", "text/plain", "application/json")),
    st.sampled_from((0.0, 0.0, 0.3, 5.0)),
)
assignments = st.lists(
    st.fixed_dictionaries(
        {
            "tier": st.sampled_from(("free", "pro")),
            "subject": st.sampled_from(("ann", "staff", "key", "ip")),
            "multiplier": st.sampled_from((1, 2)),
            "days": st.sampled_from((None, 1, -1)),
        }
    ),
    max_size=3,
)
entries = st.lists(
    st.tuples(st.sampled_from(("allow", "deny")), st.sampled_from(("203.0.113.2", "2001:db8::/32"))), max_size=1
)


def make(number: int, given: dict[str, Any]) -> None:
    given = dict(given)
    limits, place = given.pop("limits"), given.pop("place")
    rule = Rule.objects.create(slug=f"rule{number}", name=f"Rule {number}", **given, **place)
    seen = set()
    for row in limits:
        tier = row["tier"] and Tier.objects.get(slug=row["tier"])
        what = tier, row["unlimited"] or (row["algorithm"], row["window_seconds"])
        if what not in seen:
            seen.add(what)
            numbers = {"quota": None, "window_seconds": None} if row["unlimited"] else {}
            RuleLimit.objects.create(rule=rule, **{**row, **numbers, "tier": tier})


def assign(given: dict[str, Any], ann: User, staff: Group) -> None:
    subject = {
        "ann": {"user": ann},
        "staff": {"group": staff},
        "key": {"api_key_hash": hash_api_key(KEY)},
        "ip": {"partition": "ip:203.0.113.1"},
    }[given["subject"]]
    now = timezone.now()
    ends = None if given["days"] is None else now + timedelta(days=given["days"])
    tier = Tier.objects.get(slug=given["tier"])
    if not TierAssignment.objects.filter(tier=tier, ends_at=ends, **subject).exists():
        starts = None if ends is None else now - timedelta(days=2)
        TierAssignment.objects.create(
            tier=tier, multiplier=given["multiplier"], starts_at=starts, ends_at=ends, **subject
        )


def send(call: Call, clients: dict[str, Client]) -> HttpResponse:
    fields = {"X-API-Key": call.key, "X-Org": call.org, "Accept": call.accept, **_credentials(call)}
    fields = {name: value for name, value in fields.items() if value}
    options: dict[str, Any] = {"headers": fields, "REMOTE_ADDR": call.ip}
    if call.method == "POST":
        options |= {"data": f"name={call.name}", "content_type": "application/x-www-form-urlencoded"}
    url = f"{call.path}?status={call.status}"
    return clients[call.user].generic(call.method, url, **options)


def _credentials(call: Call) -> dict[str, str]:
    """Return the header fields that a user of the REST framework's views is known by."""
    is_known = call.user and call.path in CODE
    return {"Authorization": f"Name {call.user}", "X-Name": call.user} if is_known else {}


def question(call: Call, clients: dict[str, Client]) -> Question:
    headers = [("X-Org", call.org), ("Accept", call.accept), ("Content-Type", "application/x-www-form-urlencoded")]
    headers += _credentials(call).items()
    key = clients[call.user].session.session_key if call.user else ""
    return Question(
        method=call.method,
        path=f"{call.path}?status={call.status}",
        user=call.user,
        ip=call.ip,
        api_key=call.key,
        session=key or "",
        headers=tuple((name, value) for name, value in headers if value),
        body=f"name={call.name}" if call.method == "POST" else "",
        status=404 if call.path == "/nowhere/" else call.status,
    )


def agrees(explained: Explanation, response: HttpResponse) -> None:
    """Compare all that a client can see, and what was decided."""
    decision = getattr(response.wsgi_request, "ratelimit", None)
    answer = explained.response
    assert answer.allowed == (decision is None or decision.allowed)
    assert {name: value for name, value in answer.fields.items() if name in FIELDS} == {
        name: value for name, value in response.items() if name in FIELDS
    }
    if not answer.allowed:
        assert answer.status == response.status_code
        if response.request["REQUEST_METHOD"] != "HEAD":
            assert answer.body == response.content.decode()
        assert answer.fields["Content-Type"] == response["Content-Type"]
    binding = decision.binding.rule.slug if decision and decision.binding and not decision.access else ""
    assert answer.binding == binding
    met = {result.rule.slug for result in decision.results} if decision else set()
    assert {each.rule.slug for each in explained.applying} == met
    assert all(each.applies != bool(each.reason) for each in explained.rules)


@override_settings(
    RATELIMITER={"CACHE_ALIAS": "ratelimit", "TIER_CACHE_SECONDS": 0},
    REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": code_views.RATES},
)
@pytest.mark.django_db(transaction=True)
@given(st.data())
def test_explanation_agrees_with_the_request(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = FrozenClock()
        patch.setattr(backend, "_engine", MemoryEngine(clock))
        patch.setattr(io, "sleep", clock.sleep)
        with transaction.atomic():
            run(data, clock)
            transaction.set_rollback(True)
    tiers.forget()
    access_cache.forget()


def run(data: st.DataObject, clock: FrozenClock) -> None:
    ann, staff = User.objects.create(username="ann"), Group.objects.create(name="staff")
    bob = User.objects.create(username="bob")
    bob.groups.add(staff)
    default = data.draw(st.sampled_from(("none", "anonymous", "authenticated")), label="default")
    with cache.editing():
        if data.draw(st.booleans(), label="tiers"):
            Tier.objects.create(slug="free", name="Free", rank=1, default_for=default)
            Tier.objects.create(slug="pro", name="Pro", rank=2)
        else:
            Tier.objects.create(slug="free", name="Free", rank=1)
            Tier.objects.create(slug="pro", name="Pro", rank=2, default_for=default)
        for number, given_rule in enumerate(data.draw(st.lists(rules, min_size=1, max_size=4), label="rules")):
            make(number, given_rule)
    for given_assignment in data.draw(assignments, label="assignments"):
        assign(given_assignment, ann, staff)
    for action, value in data.draw(entries, label="entries"):
        AccessEntry.objects.create(action=action, kind="ip", value=value)
    tiers.forget()
    access_cache.forget()
    clients = {"": Client(), "ann": Client(), "bob": Client()}
    clients["ann"].force_login(ann)
    clients["bob"].force_login(bob)
    for call in data.draw(st.lists(calls, min_size=1, max_size=6), label="calls"):
        explained = explain(question(call, clients))
        assert explain(question(call, clients)) == explained  # nothing was charged
        agrees(explained, send(call, clients))
        clock.advance(call.later)
