"""An explanation says why each rule applies or not, and charges, stores and logs nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils import timezone

from django_ratelimiter import backend
from django_ratelimiter.engine.registry import Algorithm
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.explain import Question, QuestionError, explain
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.explanation import headline_of, notes_of
from django_ratelimiter.inspection.question import parse_curl
from django_ratelimiter.inspection.reset import counters_now
from django_ratelimiter.inspection.words import tier_in_words
from django_ratelimiter.management.output import encoded
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache, tiers
from tests.making import MakeRule, failing, update

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]


def asked(path: str = "/hello/", **more: Any) -> Question:
    return Question(**{"path": path, "ip": "203.0.113.7", **more})


def reasons(question: Question) -> dict[str, str]:
    """The reason of each rule, by slug; "" = it applies."""
    explained = explain(question)
    assert all(each.why for each in explained.unmatched)
    found = {each.rule.slug: str(each.reason) for each in explained.unmatched}
    return {**found, **{each.rule.slug: "" for each in explained.matched}}


def keys(explained: Any) -> list[str]:
    """The names of all counters in Redis."""
    return [counter.key for each in explained.matched for counter in each.counters]


def test_each_condition_that_does_not_hold_is_named(make_rule: MakeRule, people: None) -> None:
    pro = Tier.objects.create(slug="pro", name="Pro", rank=1)
    make_rule("applies")
    make_rule("off", mode="off")
    make_rule("method", methods=["POST"])
    make_rule("exact", path_kind="exact", path="/other/")
    make_rule("prefix", path_kind="prefix", path="/other/")
    make_rule("route", path_kind="route", path="items/<int:item>/")
    make_rule("view", view_name="item")
    make_rule("scope", scope="export")
    make_rule("tier", tier=pro)
    make_rule("missing", partition_by=["user"])
    make_rule("shadow", mode="shadow")
    found = reasons(asked())
    assert found == {
        **dict.fromkeys(("applies", "shadow"), ""),
        "off": "off",
        "method": "method",
        **dict.fromkeys(("exact", "prefix", "route"), "path"),
        "view": "view",
        "scope": "scope",
        "tier": "tier",
        "missing": "missing",
    }
    assert reasons(asked("/items/7/", user="ann"))["missing"] == ""
    assert reasons(asked(scope="export"))["scope"] == ""


def test_explaining_leaves_no_trace(make_rule: MakeRule, redis_client: redis.Redis, client: Client) -> None:
    make_rule("all", quota=2)
    assert client.get("/hello/").status_code == 200
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    for _ in range(5):
        explained = explain(asked())
        assert explained.response.allowed
        assert [each.left for each in explained.matched[0].counters] == [1]
    assert {key: redis_client.dump(key) for key in redis_client.scan_iter()} == before
    assert client.get("/hello/").status_code == 200
    assert client.get("/hello/").status_code == 429


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if not each.traits.holds_leases])
def test_what_is_left_is_what_redis_then_says(make_rule: MakeRule, client: Client, algorithm: Algorithm) -> None:
    make_rule("all", quota=2, algorithm=algorithm)
    for _ in range(3):
        explained, response = explain(asked()), client.get("/hello/", REMOTE_ADDR="203.0.113.7")
        assert (explained.response.status or 200) == response.status_code
        if "max_delay" in algorithm.traits.options:
            break  # the next would be held for half a day
        left = explained.matched[0].counters[0].left
        assert f"r={max((left or 0) - 1, 0)};" in response["RateLimit"]


def test_access_entries_decide_before_rules(make_rule: MakeRule) -> None:
    make_rule("all")
    end = timezone.now() + timedelta(days=1)
    entry = AccessEntry.objects.create(action="deny", kind="ip", value="203.0.113.7", reason="scraper", expires_at=end)
    explained = explain(asked())
    assert encoded(explained)["access"] == {
        "action": "deny", "kind": "ip", "value": "203.0.113.7", "expires_at": end.isoformat(), "reason": "scraper",
        "id": entry.pk,
    }  # fmt: skip
    assert (explained.bypass, explained.response.status) == ("denied", 403)
    assert notes_of(explained)[0].endswith("every request is rejected. (203.0.113.7: scraper)")
    assert [each.reason for each in explained.unmatched] == ["denied"]
    assert explain(asked(ip="203.0.113.8")).response.allowed


@pytest.mark.parametrize(("path", "has_view"), [("/nothing/", False), ("/hello/", True), ("/hello", True)])
def test_a_path_without_a_view_is_said_and_counted(make_rule: MakeRule, path: str, has_view: bool) -> None:
    make_rule("all")
    explained = explain(asked(path))
    assert explained.response.allowed
    assert ("No view answers this path. Rules count such requests, too." in explained.doubts) != has_view
    assert bool(explained.matched) == (path != "/hello")  # Django redirects it


def test_what_stops_everything_is_said(make_rule: MakeRule) -> None:
    make_rule("all")
    assert explain(asked("/admin/login/")).bypass == "exempt"
    preflight = (("Origin", "https://example.org"), ("Access-Control-Request-Method", "GET"))
    found = [explain(asked(path, method="OPTIONS", headers=preflight)).bypass for path in ("/unthrottled/", "/plain/")]
    assert found == ["preflight", ""]
    with override_settings(MIDDLEWARE=[]):
        assert explain(asked()).bypass == "no middleware"
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "ENABLED": False}):
        assert explain(asked()).bypass == "disabled"
    cache.switch_enforcement(False)
    assert explain(asked()).bypass == "stopped"


def test_the_tier_is_given_a_reason(make_rule: MakeRule, people: None) -> None:
    pro = Tier.objects.create(slug="pro", name="Pro", rank=2)
    Tier.objects.create(slug="free", name="Free", rank=1, default_for="anonymous")
    rule = make_rule("all", quota=5, partition_by=["ip"])
    RuleLimit.objects.create(rule=rule, tier=pro, quota=7, window_seconds=60)
    assert (explain(asked()).tier.kind, explain(asked()).tier.slug) == ("default", "free")
    ann = User.objects.get(username="ann")
    end = timezone.now() + timedelta(days=1)
    row = TierAssignment.objects.create(tier=pro, user=ann, multiplier=2, ends_at=end)
    tiers.forget()
    explained = explain(asked(user="ann"))
    assert (explained.tier.kind, explained.tier.assigned) == ("assignment", row)
    assert "Pro" in tier_in_words(explained.tier)
    assert [(each.counters[0].tier, each.counters[0].capacity) for each in explained.matched] == [("pro", 14)]
    assert explain(asked(user=str(User.objects.get(username="bob").pk))).tier.kind == "none"


def test_the_scope_of_a_decorator_is_asked_for_by_its_methods_alone(make_rule: MakeRule) -> None:
    make_rule("export", quota=1, scope="export")
    assert reasons(asked("/scoped/")) == {"export": ""}
    assert reasons(asked("/posts-scoped/")) == {"export": "scope"}
    assert reasons(asked("/posts-scoped/", method="POST")) == {"export": ""}


def test_a_rule_of_a_scope_is_not_reached_by_a_request_that_is_rejected_before(
    make_rule: MakeRule, client: Client
) -> None:
    make_rule("all", quota=1)
    make_rule("export", scope="export")
    client.get("/scoped/", REMOTE_ADDR="203.0.113.7")
    explained = explain(asked("/scoped/"))
    assert [each.rule.slug for each in explained.matched] == ["all"]
    assert explained.unmatched[0].reason == "rejected earlier"
    assert explained.unmatched[0].why == "The view would ask for it, but the request is rejected before that."


@pytest.mark.urls("tests.inspection.code_views")
@pytest.mark.parametrize(
    ("path", "method", "named"),
    [
        ("/function/", "GET", ["@ratelimit(key=ip, rate=2/m)"]),
        ("/function/", "POST", ["@ratelimit(key=ip, rate=2/m)", "@ratelimit(key=user_or_ip, rate=3/h)"]),
        ("/mixed/", "GET", ["@ratelimit(key=by_org, rate=<lambda>)"]),
        ("/dispatched/", "HEAD", ["@ratelimit(key=ip, rate=2/m)"]),
        ("/dispatched/", "POST", ["@ratelimit(key=ip, rate=2/m)", "@ratelimit(key=header:X-Org, rate=1/m)"]),
        ("/checked/", "GET", ["@ratelimit(key=user, rate=2/m)", "AnonRateThrottle"]),
        ("/checked/", "POST", ["@ratelimit(key=user, rate=2/m)", "@ratelimit(key=ip, rate=1/m)", "AnonRateThrottle"]),
        ("/things/", "GET", ["@ratelimit(key=user_or_ip, rate=1/m)", "UserRateThrottle"]),
        ("/within/", "GET", ["@ratelimit(key=ip, rate=2/m)", "UserRateThrottle"]),
        ("/drf-scoped/", "GET", ["ScopedRateThrottle"]),
        ("/foreign/", "GET", ["AnonRateThrottle", "UserRateThrottle"]),
    ],
)
def test_limits_in_the_code_of_a_view_are_named_and_not_run(
    make_rule: MakeRule, path: str, method: str, named: list[str]
) -> None:
    make_rule("all")
    explained = explain(asked(path, method=method))
    assert sorted(explained.in_code) == sorted(named)
    assert [each.rule.slug for each in explained.rules] == ["all"]
    text = "The rules allow this request. These limits in the view's code are not decided here: "
    assert headline_of(explained) == f"{text}{', '.join(explained.in_code)}."


def test_nobody_is_told_allowed_while_a_rule_is_not_known(make_rule: MakeRule) -> None:
    """A rule by a key counts by address without one: then the address decides, which a pasted command lacks."""
    make_rule("key", partition_by=["api_key"], missing_partition="ip")
    make_rule("shadow", partition_by=["ip"], mode="shadow")
    bare = explain(Question(path="/hello/"))
    assert bare.unknown == ("ip",)
    assert headline_of(bare) == "Not known without ip, which these rules count by: key. The others allow this request."
    assert [each.why for each in bare.unmatched] == ["It would count by ip, which is not known here."] * 2
    assert headline_of(explain(asked())) == "Allowed."
    TierAssignment.objects.create(tier=Tier.objects.create(slug="t", rank=1), api_key_hash=hash_api_key("known"))
    known = explain(Question(path="/hello/", api_key="known"))
    assert ([each.rule.slug for each in known.undecided], headline_of(known)) == ([], "Allowed.")


def test_what_only_a_real_request_has_is_named_and_can_be_typed(make_rule: MakeRule) -> None:
    make_rule("tenant", partition_by=["tenant"], missing_partition="deny")
    make_rule("name", partition_by=["field:name"])
    make_rule("ip", partition_by=["ip"])
    own = {"CACHE_ALIAS": "ratelimit", "IDENTITIES": {"tenant": "tests.inspection.urls.tenant"}}
    with override_settings(RATELIMITER=own):
        bare = explain(Question(method="POST", path="/hello/"))
        assert set(bare.unknown) == {"tenant", "field:name", "ip"}
        assert not bare.response.allowed
        typed = {"tenant": "acme", "field:name": "ann"}
        told = explain(asked(method="POST", identities=typed))
        assert (told.unknown, told.response.allowed) == ((), True)


def test_host_query_and_cookies_of_a_pasted_command(make_rule: MakeRule, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["acme.example.com", "localhost"]
    make_rule("own", partition_by=["host", "query:app", "cookie:cart"], missing_partition="deny")
    bare = explain(asked(path="/hello/?app=a1"))
    assert (bare.unknown, bare.identities["host"]) == (("host",), None)
    url = "https://ACME.example.com:8443/hello/?app=a1"
    pasted = explain(parse_curl(f"curl '{url}' -b 'cart=c7'", asked()))
    assert (pasted.unknown, pasted.response.allowed) == ((), True)
    assert pasted.identities == {"host": "acme.example.com", "query:app": "a1", "cookie:cart": "…"}, "not shown"
    typed = {"host": "acme.EXAMPLE.com", "cookie:cart": "c7"}
    assert keys(explain(asked(path="/hello/?app=a1", identities=typed))) == keys(pasted)
    other = explain(asked(path="https://other.example.com/hello/?app=a1", headers=(("Cookie", "cart=c7"),)))
    assert (other.unknown, other.response.allowed) == ((), False)


def test_a_view_is_asked_about_by_its_name(make_rule: MakeRule) -> None:
    make_rule("item", path_kind="route", path="items/<int:item>/", partition_by=["path:item"])
    explained = explain(Question(view="item", ip="203.0.113.7", identities={"path:item": "7"}))
    assert (explained.request.path, len(explained.matched)) == ("/items/7/", 1)
    for view in ("item", "nothing"):
        with pytest.raises(QuestionError) as caught:
            explain(Question(view=view))
        assert caught.value.field == "view"


def test_an_identity_that_the_project_does_not_have_is_an_error() -> None:
    """Else the answer would be that of a request without it."""
    with pytest.raises(QuestionError, match="Unknown identity 'tennant'"):
        explain(Question(path="/hello/", identities={"tennant": "acme"}))


def test_an_api_key_may_be_its_hash(make_rule: MakeRule) -> None:
    make_rule("key", partition_by=["api_key"])
    pro = Tier.objects.create(slug="pro", name="Pro", rank=2)
    hashed = hash_api_key("secret")
    TierAssignment.objects.create(tier=pro, api_key_hash=hashed)
    tiers.forget()
    by_key, by_hash = explain(asked(api_key="secret")), explain(asked(api_key=hashed))
    assert keys(by_key) == keys(by_hash) != []
    assert reasons(asked(api_key="invented")) == {"key": "missing"}


def key_of(raw: str) -> Any:
    if raw == "broken":
        raise LookupError
    return {"secret": "acme:shop"}.get(raw)


def test_a_caller_is_named_as_for_the_report_on_it(make_rule: MakeRule, people: None, settings: Any) -> None:
    """Each spelling finds the counter and the tier that `ratelimit caller` shows."""
    Tier.objects.create(slug="free", name="Free", default_for="authenticated")
    ann = User.objects.get(username="ann")
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_RESOLVER": f"{__name__}.key_of"}
    for name in ("api_key", "user", "ip"):
        make_rule(name, partition_by=[name])
    hashed = hash_api_key("secret")
    spelled = {
        "api_key": ["value:acme:shop", "secret", f"key:{hashed}:acme:shop"],
        "user": ["ann", str(ann.pk), f"id:{ann.pk}", f"pk:{ann.pk}", "name:ann"],
        "ip": ["2001:db8::7", "2001:db8::/64"],
    }
    for kind, texts in spelled.items():
        for text in texts:
            [counter] = [each for each in counters_now(caller_of(kind, text)).counters if each.rule.slug == kind]
            for question in (Question(path="/hello/", **{kind: text}), asked(ip="", identities={kind: text})):
                assert counter.key in keys(explain(question)), (kind, text)
                assert explain(question).tier.slug == counter.tier == ("" if kind == "ip" else "free")
    for problem, place, given in (
        ("hash of a key", "api_key", hashed),
        ("cannot be found out", "api_key", "broken"),
        ("does not count as an identity", "api_key", "invented"),
        ("not an IP address", "ip", "nonsense"),
        ("No user", "identities", {"user": "name:x"}),
    ):
        with pytest.raises(QuestionError, match=problem) as caught:
            explain(asked(**{place: given}))
        assert caught.value.field == place


@pytest.mark.parametrize("field", [("Cookie", "sessionid=abc"), ("Authorization", "Token x")])
def test_the_user_of_a_pasted_command_is_not_known_unless_it_is_entered(
    make_rule: MakeRule, people: None, field: tuple[str, str]
) -> None:
    make_rule("user", partition_by=["user"])
    bare = explain(asked(headers=(field,)))
    assert (bare.unknown, headline_of(bare)[:23]) == (("user",), "Not known without user,")
    assert any("this answer is for a caller who is not logged in" in doubt for doubt in bare.doubts)
    named = explain(asked(headers=(field,), user="ann"))
    assert (named.unknown, named.doubts, headline_of(named)) == ((), (), "Allowed.")


def test_a_view_that_gateways_ask_is_said_to_be_one(make_rule: MakeRule) -> None:
    make_rule("all")
    explained = explain(asked("/gateway/"))
    assert (explained.bypass, explained.matched) == ("gateway", ())


def test_without_redis_the_failure_policies_answer(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule("closed", failure_policy="closed")
    assert explain(asked()).response.allowed
    monkeypatch.setattr(backend.get_engine(), "check", failing(EngineUnavailable("rejected")))
    explained = explain(asked())
    assert (explained.response.status, explained.response.degraded) == (503, True)
    assert "rejected" in " ".join(explained.doubts)
    update(Rule, failure_policy="open")
    explained = replace(explain(asked()), in_code=("limit",))
    assert headline_of(explained).startswith("Not known, as Redis cannot be reached.")


def test_a_view_without_a_name_is_asked_about_by_its_path(make_rule: MakeRule) -> None:
    make_rule("nameless", path="/nameless/", path_kind="exact")
    explanation = explain(Question(view="tests.inspection.urls.tenant", ip="192.0.2.7"))
    assert [each.rule.slug for each in explanation.matched] == ["nameless"]


def as_read(text: str) -> str:
    """Return the text of a header field or a query as WSGI and ASGI servers hand it over."""
    return text.encode().decode("latin-1")


@pytest.mark.parametrize("org", ["Müller", "\N{EURO SIGN}5", "\N{GRINNING FACE}"])
def test_a_header_field_is_counted_as_it_was_explained(make_rule: MakeRule, client: Client, org: str) -> None:
    make_rule("org", quota=1, partition_by=["header:X-Org"])
    question = asked(headers=(("X-Org", org),))
    assert explain(question).response.allowed
    client.get("/hello/", headers={"X-Org": as_read(org)}, REMOTE_ADDR="203.0.113.7")
    assert not explain(question).response.allowed


def test_a_cookie_is_read(make_rule: MakeRule) -> None:
    make_rule("session", partition_by=["session"])
    assert explain(asked(headers=(("Cookie", "price=5 \N{EURO SIGN}"),))).identities == {"session": None}


def tag_of(request: Any) -> Any:
    return request.GET.get("tag")


def test_a_query_is_read(make_rule: MakeRule, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "IDENTITIES": {"tag": f"{__name__}.tag_of"}}
    make_rule("tag", partition_by=["tag"])
    assert explain(asked("/hello/?tag=\N{EURO SIGN}")).identities == {"tag": "\N{EURO SIGN}"}


def test_bytes_of_a_shell_that_are_no_text_are_sent_as_they_are(make_rule: MakeRule) -> None:
    make_rule("org", partition_by=["header:X-Org"])
    question = Question(method="POST", path="/hello/", headers=(("X-Org", "\udcff"),))
    assert explain(question).identities == {"header:X-Org": "\xff"}
