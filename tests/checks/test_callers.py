"""The checks of how callers are told apart."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.test import override_settings

from django_ratelimiter.checks import callers, views
from django_ratelimiter.conf import has_identity
from django_ratelimiter.models import Rule

from ..making import make_rule
from .test_checks import ids


def ratelimiter(**entries: Any) -> Any:
    return override_settings(RATELIMITER=entries)


@pytest.mark.parametrize(
    "path", ["no.such.function", "tests.checks.test_checks.nothing", "tests.checks.test_checks.SESSIONS"]
)
@pytest.mark.parametrize(
    "entry",
    [
        *("API_KEY_RESOLVER", "API_KEY_FORM", "TIER_RESOLVER", "CUSTOMER", "CUSTOMER_CALLERS", "EXEMPT", "RESPONSE"),
        "IDENTITIES",
    ],
)
def test_callables_that_do_not_exist(entry: str, path: str) -> None:
    with ratelimiter(**{entry: {"tenant": path} if entry == "IDENTITIES" else path}):
        messages = callers.check_callables()
        assert ids(messages) == ["E006"]
        assert entry in messages[0].msg
        assert path in messages[0].msg


def test_callables_that_exist_and_values_that_are_wrong_anyway() -> None:
    own = "tests.identity.test_values.tenant_of"
    with ratelimiter(API_KEY_RESOLVER=own, TIER_RESOLVER=own, RESPONSE="pages/429.html", IDENTITIES={"tenant": own}):
        assert callers.check_callables() == []
    with ratelimiter(API_KEY_RESOLVER=1, TIER_RESOLVER="x", RESPONSE=1, IDENTITIES=1):
        assert callers.check_callables() == []


FUNCTIONS = [f"tests.identity.test_customers.{name}" for name in ("customer_of", "key_of")]


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("user.first_name", ""),
        ("user.profile.plan", "auth.User has no attribute profile."),
        ("user.get_full_name", "auth.User.get_full_name is a method."),
        ("user.groups.name", "auth.User.groups is a manager of many rows."),
        ("user.pk", ""),  # a property: only its value says more
        ("api_key.plan", "without API_KEY_RESOLVER, an API key has no attributes."),
        ("customer.plan", "without CUSTOMER, no caller has a customer."),
        ({"CUSTOMER": "user.account"}, "auth.User has no attribute account."),
        ({"CUSTOMER": "user.groups.plan"}, "auth.User.groups is a manager of many rows."),
        ({"CUSTOMER": "api_key.account"}, "without API_KEY_RESOLVER, an API key has no attributes."),
        ({"CUSTOMER": FUNCTIONS}, "auth.User is not auth.Group."),
        ({"CUSTOMER": FUNCTIONS[0]}, ""),
        ({"CUSTOMER": "no.such.function"}, ""),  # another check names it
    ],
)
def test_paths_that_lead_nowhere(path: Any, wrong: str) -> None:
    for entries in (path,) if isinstance(path, dict) else ({"TIER_RESOLVER": path}, {"EXEMPT": path}):
        with ratelimiter(**entries):
            assert (callers.check_callables() == []) is ("no.such.function" not in entries.values())
            found = callers.check_paths()
            assert ids(found) == ["E012"] * bool(wrong)
            assert all(wrong in each.msg for each in found)


@override_settings(AUTH_USER_MODEL="django_ratelimiter.RuleLimit")  # any model with relations
def test_paths_through_relations() -> None:
    for path, wrong in (("tier", ""), ("tier.name", ""), ("rule.limits.x", "manager"), ("tier.assignments", "manager")):
        with ratelimiter(TIER_RESOLVER=f"user.{path}"):
            assert [wrong in each.msg for each in callers.check_paths()] == [True] * bool(wrong)
    with override_settings(AUTH_USER_MODEL="admin.LogEntry"), ratelimiter(TIER_RESOLVER="user.user"):
        [found] = callers.check_paths()
        assert "auth.User has no slug." in found.msg
    with override_settings(AUTH_USER_MODEL="admin.LogEntry"), ratelimiter(EXEMPT="user.user"):
        assert "auth.User is a row." in callers.check_paths()[0].msg
    with ratelimiter(TIER_RESOLVER="api_key.plan", API_KEY_RESOLVER="tests.rules.test_plans.key_of"):
        assert callers.check_paths() == []


def test_a_path_of_attributes_that_is_a_function_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "customer", SimpleNamespace(plan_of=ids))
    with ratelimiter(TIER_RESOLVER="customer.plan_of", CUSTOMER=FUNCTIONS[0]):
        [found] = callers.check_paths()
        assert "customer.plan_of is also a function of your project" in found.msg
    with ratelimiter(TIER_RESOLVER="customer.name", CUSTOMER="customer.plan_of"):  # it may come from a function there
        assert callers.check_paths() == callers.check_callables() == []


def test_customers_that_the_admin_cannot_find(monkeypatch: pytest.MonkeyPatch) -> None:
    with ratelimiter():
        assert callers.check_customer_search() == []
    with ratelimiter(CUSTOMER="tests.identity.test_customers.told"):
        [found] = callers.check_customer_search()
        assert "their model is not known" in found.msg
    with ratelimiter(CUSTOMER="user.acount"):  # another check says so
        assert callers.check_customer_search() == []
    with ratelimiter(CUSTOMER=FUNCTIONS[0]):
        assert callers.check_customer_search() == []
        monkeypatch.setattr(admin.site.get_model_admin(Group), "search_fields", ())
        [found] = callers.check_customer_search()
        assert "auth.Group has no ModelAdmin with search_fields on the site admin" in found.msg
        monkeypatch.setattr(admin.site, "is_registered", lambda model: model is not Group)
        assert ids(callers.check_customer_search()) == ["W029"]
        monkeypatch.setattr(callers, "apps", SimpleNamespace(is_installed=lambda _name: False))
        assert callers.check_customer_search() == []


@pytest.mark.parametrize(
    ("template", "says"), [("pages/429.html", "TemplateDoesNotExist"), ("broken.html", "TemplateSyntaxError")]
)
def test_a_template_that_cannot_be_loaded(template: str, says: str) -> None:
    loaders = [("django.template.loaders.locmem.Loader", {"broken.html": "{% nonsense %}", "fine.html": "fine"})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    with ratelimiter(RESPONSE=template), override_settings(TEMPLATES=[engine]):
        [message] = callers.check_template()
        assert (message.id, says in message.msg) == ("django_ratelimiter.E007", True)
    for fine in ("fine.html", "tests.headers.test_responses.teapot", None, 1):
        with ratelimiter(RESPONSE=fine), override_settings(TEMPLATES=[engine]):
            assert callers.check_template() == []


@pytest.mark.parametrize("rules", [[], [{"path_kind": "prefix", "path": "/api/"}]])
@pytest.mark.django_db
def test_a_setting_that_exempts_every_path_is_named(rules: list[dict[str, Any]]) -> None:
    for fields in rules:
        make_rule("api", **fields)
    with ratelimiter(EXEMPT_PATHS=["/static/", "/"]):
        [message] = views.check_exempt()
    assert (message.id, message.msg.endswith("exempt: all.")) == ("django_ratelimiter.W012", True)


CHOSEN = [
    ["query:app"],
    ["cookie:cart"],
    ["session"],
    ["header:X-Device"],
    ["field:email"],
    ["user", "header:X-Device"],
    ["ip", "field:email"],
]


@pytest.mark.django_db
@pytest.mark.parametrize("names", CHOSEN)
def test_what_clients_choose_without_a_rule_by_address(names: list[str]) -> None:
    make_rule("chosen", partition_by=names, path_kind="prefix", path="/api/")
    make_rule("users", partition_by=["user"])
    messages = callers.check_caller_choices()
    assert ids(messages) == ["W007"]
    assert "chosen" in messages[0].msg
    assert "users" not in messages[0].msg


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("hosts", "fires"), [(["a.example.com"], False), (["a.example.com", ".example.com"], True), (["*"], True)]
)
def test_a_host_is_chosen_where_a_wildcard_allows_it(hosts: list[str], fires: bool, settings: Any) -> None:
    make_rule("tenants", partition_by=["host"])
    settings.ALLOWED_HOSTS = hosts
    assert ids(callers.check_caller_choices()) == ["W007"] * fires
    with ratelimiter(TRUSTED_IDENTITIES=["host"]):
        assert callers.check_caller_choices() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "fires"),
    [
        ({}, False),
        ({"path_kind": "prefix", "path": "/"}, False),
        ({"methods": ["POST", "GET"]}, False),
        ({"path_kind": "prefix", "path": "/api/other/"}, True),
        ({"path_kind": "exact", "path": "/api/"}, True),
        ({"methods": ["GET"]}, True),
        ({"view_name": "api:list"}, True),
        ({"mode": "off"}, True),
        ({"mode": "shadow"}, True),
        ({"partition_by": ["ip", "header:X-Device"]}, True),
    ],
)
def test_the_rule_by_address_must_be_met_by_the_same_requests(fields: dict[str, Any], fires: bool) -> None:
    make_rule("chosen", partition_by=["header:X-Device"], path_kind="prefix", path="/api/", methods=["POST"])
    make_rule("addresses", **{"partition_by": ["ip"]} | fields)
    told = "".join(message.msg for message in callers.check_caller_choices())
    assert ("chosen" in told) == fires


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "fires"),
    [
        ({}, True),
        ({"path_kind": "prefix", "path": "/"}, True),
        ({"partition_by": ["ip", "field:email"], "mode": "shadow"}, True),
        ({"path_kind": "exact", "path": "/login/"}, False),
        ({"path_kind": "prefix", "path": "/api/", "view_name": "api:list"}, False),
        ({"scope": "login"}, False),
        ({"missing_partition": "deny"}, False),
        ({"missing_partition": "skip"}, False),
        ({"mode": "off"}, False),
    ],
)
def test_a_wide_rule_by_field_must_say_what_happens_to_unreadable_bodies(fields: dict[str, Any], fires: bool) -> None:
    make_rule("names", **{"partition_by": ["field:email"], "missing_partition": "ip"} | fields)
    messages = callers.check_unreadable()
    assert ids(messages) == ["W024"] * fires
    assert not fires or "names" in messages[0].msg


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("names", "limit", "days"),
    [
        (["header:X-Device"], {"window_seconds": 30 * 86_400}, 30),
        (["header:X-Device"], {"window_seconds": None, "calendar": "year"}, 366),
        (["header:X-Device"], {"window_seconds": 7 * 86_400}, None),
        (["header:X-Device"], {"window_seconds": 30 * 86_400, "algorithm": "gcra"}, None),  # kept for a 90th of it
        (["header:X-Tenant"], {"window_seconds": 30 * 86_400}, None),
        (["user"], {"window_seconds": 30 * 86_400}, None),
    ],
)
def test_chosen_values_that_are_kept_for_weeks_are_told(
    names: list[str], limit: dict[str, Any], days: int | None
) -> None:
    make_rule("chosen", 90, algorithm=limit.pop("algorithm", "fixed_window"), limit=limit, partition_by=names)
    with ratelimiter(TRUSTED_IDENTITIES=["header:X-Tenant"]):
        messages = callers.check_kept_choices()
    assert ids(messages) == (["W027"] if days else [])
    assert all(f"fills Redis for {days} days" in message.msg for message in messages)


@pytest.mark.django_db
def test_an_identity_that_nobody_made() -> None:
    make_rule("tenants", partition_by=["tenant", "user", "path:pk"])
    make_rule("customers", partition_by=["customer"])
    assert ["customer by CUSTOMER" in str(each.hint) for each in callers.check_identities()] == [True, True]
    with ratelimiter(CUSTOMER="user.account"):
        assert ids(callers.check_identities()) == ["W008"]
        assert has_identity("customer")
    assert not has_identity("customer")
    Rule.objects.filter(slug="customers").delete()
    with ratelimiter(IDENTITIES={"tenant": "tests.identity.test_values.tenant_of"}):
        assert callers.check_identities() == []


@pytest.mark.parametrize(
    ("trusted", "fires"),
    [
        (["0.0.0.0/1", "128.0.0.0/1"], True),
        (["64.0.0.0/6"], True),
        (["::/1", "8000::/1"], True),
        (["2000::/3"], True),
        (["10.0.0.0/8", "8.0.0.0/7"], True),
        *((trusted, False) for trusted in ((), 3, ["unix"], ["10.0.0.0/8", "fd00::/8", "2001:db8::/32"], "wrong")),
    ],
)
def test_proxies_that_may_be_anybody(trusted: Any, fires: bool) -> None:
    with ratelimiter(TRUSTED_PROXIES=trusted):
        assert ids(callers.check_trust()) == ["W009"] * fires


@pytest.mark.parametrize(
    ("entries", "is_named"),
    [
        ({"HASH_KEY_FALLBACKS": ["older"]}, True),
        ({"HASH_KEY_FALLBACKS": []}, True),
        ({"HASH_KEY_FALLBACKS": ["older", "django_ratelimiter.partitions:old"]}, False),
        ({"HASH_KEY_FALLBACKS": None}, False),
        ({"HASH_KEY": "own", "HASH_KEY_FALLBACKS": ["older"]}, False),
        ({"HASH_KEY_FALLBACKS": 1}, False),
    ],
)
def test_fallbacks_that_lack_the_key_before_a_rotation_are_named(entries: dict[str, Any], *, is_named: bool) -> None:
    with override_settings(SECRET_KEY_FALLBACKS=["old"], RATELIMITER=entries):
        assert ids(callers.check_fallbacks()) == (["W028"] if is_named else [])
    with override_settings(SECRET_KEY_FALLBACKS=[], RATELIMITER=entries):
        assert callers.check_fallbacks() == []
