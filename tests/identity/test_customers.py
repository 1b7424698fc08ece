"""Customers: a project's own rows behind its callers. Here users and API keys lead to groups, which are customers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group, User
from django.core.exceptions import SynchronousOnlyOperation
from django.test import Client, override_settings
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter import customers, limiter, me
from django_ratelimiter.admin.callers.forms import NewAccessEntryForm
from django_ratelimiter.admin.formatting import in_words
from django_ratelimiter.api.views import own_report
from django_ratelimiter.customers import Customer
from django_ratelimiter.forecast.logs.formats import AccessLogLine
from django_ratelimiter.forecast.logs.requests import LoggedCallers
from django_ratelimiter.identity import Identity, digest, identify
from django_ratelimiter.inspection.caller import caller_of, named
from django_ratelimiter.inspection.explanation import explain
from django_ratelimiter.inspection.grounds import grounds_of
from django_ratelimiter.inspection.question import Question
from django_ratelimiter.inspection.references import Name
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment, people
from django_ratelimiter.plans import Anchor, CallerIdentity, Plan
from django_ratelimiter.rules import cache, ttl_cache
from django_ratelimiter.rules.tiers import known_entitlement
from django_ratelimiter.values.digests import whole

from ..making import MakeRule, manage, request_of, save
from ..rules.test_plans import RULES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

SETTINGS = {
    "CACHE_ALIAS": "ratelimit",
    "TIER_CACHE_SECONDS": 0,
    "API_KEY_RESOLVER": "tests.identity.test_customers.key_of",
    "CUSTOMER": ["user.account", "api_key.account"],
    "TIER_RESOLVER": "customer.plan",
}

#: What the functions were called with; what `told` returns or raises.
called: list[Any] = []
answer: Any = None


def account(user: User) -> Group | None:
    return user.groups.first()


def key_of(raw: str) -> User | None:
    return User.objects.filter(username=raw).first()


def customer_of(identity: CallerIdentity) -> Group | None:
    called.append(identity.user_id)
    owner = identity.user or identity.api_key
    return owner and account(owner)


async def customer_awaited(identity: CallerIdentity) -> Group | None:
    called.append(identity.user_id)
    await asyncio.sleep(0)
    owner = identity.user or identity.api_key
    return await owner.groups.afirst() if owner else None


def of_users(identity: CallerIdentity) -> Group | None:
    return identity.user and account(identity.user)


async def of_nobody(identity: CallerIdentity) -> Group | None:
    called.append("nobody")


def told(identity: CallerIdentity):  # type: ignore[no-untyped-def]  # its model cannot be told
    called.append(identity.user_id)
    if isinstance(answer, Exception):
        raise answer
    return answer


def plan_by_customer(identity: CallerIdentity) -> str | None:
    return "pro" if identity.customer and identity.value("customer") == str(identity.customer.pk) else None


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    """A customer with two users and the key "key"; carol has none."""
    called.clear()
    monkeypatch.setattr(User, "account", property(account), raising=False)
    plan = property(lambda group: Plan(Group.objects.get(pk=group.pk).name, 15))  # it asks the database
    monkeypatch.setattr(Group, "plan", plan, raising=False)
    group = Group.objects.create(name="pro")
    for name in ("ann", "bob", "key"):
        User.objects.create(username=name).groups.add(group)
    User.objects.create(username="carol")
    with override_settings(RATELIMITER=SETTINGS):
        people.connect()
        yield group


def customer(*paths: str, **others: Any) -> Any:
    own = [path if path.startswith(("user.", "api_key.")) else f"{__name__}.{path}" for path in paths]
    given = {"API_KEY_RESOLVER": f"{__name__}.key_of", "CUSTOMER": own[0] if len(own) == 1 else own, **others}
    return override_settings(RATELIMITER=given)


def request(name: str | None = None, **fields: str) -> Identity:
    user = None if name is None else User.objects.get(username=name)
    return identify(SimpleNamespace(META={"REMOTE_ADDR": "192.0.2.7", **fields}, user=user))  # type: ignore[arg-type]


def value(name: str | None = None, **fields: str) -> str | None:
    return request(name, **fields).value("customer")


class TestOneCustomer:
    @pytest.mark.parametrize(
        "paths",
        [
            ("user.account", "api_key.account"),
            ("customer_of",),
            ("customer_awaited",),
            ("of_users", "api_key.account"),
            ("of_nobody", "of_users", "of_nobody", "api_key.account"),
        ],
    )
    def test_comes_by_key_by_session_and_by_another_of_its_users(self, acme: Group, paths: tuple[str, ...]) -> None:
        with customer(*paths):
            found = [value("ann"), value("bob"), value(HTTP_X_API_KEY="key"), value("carol"), value()]
            assert found == [*[str(acme.pk)] * 3, None, None]
            assert request("ann").customer == Customer(str(acme.pk), "pro", "auth.Group")

    def test_is_missing_without_the_setting_and_from_callers_that_have_none(self) -> None:
        with override_settings(RATELIMITER={}):
            found = request("ann")
            assert (found.value("customer"), found.customer, found.has_failed) == (None, None, False)
            assert customers.customer_model() is None
        with customer("user.account"):
            assert value(HTTP_X_API_KEY="key") is None

    def test_is_found_once_in_tier_cache_seconds(
        self, now: list[float], django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        with customer("customer_of"):
            found = request("ann")
            assert found.value("customer") is not None
            again = request("ann")
            with django_assert_num_queries(0):
                assert again.value("customer") == again.customer.value  # type: ignore[union-attr]
            assert len(called) == 1
            now[0] += 5
            request("ann").value("customer")
        assert len(called) == 2

    def test_is_not_kept_as_a_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows: list[Any] = []
        monkeypatch.setattr(
            Group, "__init__", lambda self, *given: rows.append(weakref.ref(self)) or init(self, *given)
        )
        init = Group.__mro__[1].__init__
        with customer("customer_of"):
            assert value("ann") is not None
            gc.collect()
            assert rows
            assert [row() for row in rows] == [None] * len(rows)

    @pytest.mark.parametrize("path", ["user.account", "customer_of", "customer_awaited"])
    def test_never_blocks_an_event_loop(self, acme: Group, path: str) -> None:
        found = [request("ann") for _ in range(6)]

        async def ask() -> list[str | None]:
            with pytest.raises(SynchronousOnlyOperation):
                found[0].value("customer")
            return [*await asyncio.gather(*(sync_to_async(each.value)("customer") for each in found[1:]))]

        with customer(path):
            assert async_to_sync(ask)() == [str(acme.pk)] * 5
        assert len(called) <= 1


class TestFailures:
    def test_are_logged_and_no_answer(
        self, acme: Group, now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(f"{__name__}.answer", ConnectionError("s3cret"))
        with customer("told"):
            for _ in range(2):
                failed = request("ann")
                assert (failed.value("customer"), failed.has_failed) == (None, True)
            assert caplog.text.count(f"RATELIMITER['CUSTOMER'] failed: ConnectionError at {__file__}:") == 1
            assert "s3cret" not in caplog.text
            monkeypatch.setattr(f"{__name__}.answer", acme)
            now[0] += ttl_cache.RETRY_SECONDS
            assert value("ann") == str(acme.pk)
            monkeypatch.setattr(f"{__name__}.answer", ConnectionError())
            now[0] += 5
            known = request("ann")
            assert (known.value("customer"), known.has_failed) == (str(acme.pk), False)  # the last one known

    def test_of_the_plan_name_the_setting_that_failed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(Group, "plan", property(lambda _group: 7))
        with customer("user.account", TIER_RESOLVER="customer.plan"):
            assert str(request("ann").entitlement(RULES).tier) == "free"
        assert "RATELIMITER['TIER_RESOLVER'] must return" in caplog.text
        assert "CUSTOMER" not in caplog.text

    @pytest.mark.parametrize("returned", ["acme", Tier(pk=1), Group(name="new")])
    def test_another_object_is_an_error_and_missing(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, returned: Any
    ) -> None:
        monkeypatch.setattr(f"{__name__}.answer", returned)
        with customer("user.account", "told"):
            for _ in range(2):
                found = request("carol")
                assert (found.value("customer"), found.has_failed) == (None, False)
        assert called == [str(User.objects.get(username="carol").pk)]
        assert f"CUSTOMER led to a {type(returned).__name__}, not to a stored row of auth.Group" in caplog.text


class TestPlans:
    @pytest.mark.parametrize("path", ["customer_of", "customer_awaited"])
    def test_are_read_from_the_customer_in_the_same_call(self, path: str) -> None:
        with customer(path, TIER_RESOLVER="customer.plan"):
            for name in ("ann", "bob"):
                found = request(name)
                assert found.value("customer") is not None
                granted = found.entitlement(RULES)
                assert (str(granted.tier), granted.anchor) == ("pro", Anchor(15))
            assert len(called) == 2
            assert str(request("carol").entitlement(RULES).tier) == "free"
            assert str(request().entitlement(RULES).tier) == "guest"

    def test_of_a_function_may_depend_on_the_customer(self) -> None:
        with customer("customer_awaited", TIER_RESOLVER=f"{__name__}.plan_by_customer"):
            assert [str(request(name).entitlement(RULES).tier) for name in ("ann", "carol")] == ["pro", "free"]

    def test_of_a_customer_whose_callers_are_not_known(self, acme: Group) -> None:
        Group.objects.create(name="gone").delete()
        with customer("user.account", TIER_RESOLVER="customer.plan"):
            assert str(request().entitlement(RULES).tier) == "guest"  # and remembered
            for pk, tier in ((acme.pk, "pro"), (acme.pk + 1, "free"), ("no-number", "free")):
                assert str(known_entitlement(RULES, {"customer": str(pk)}, None).tier) == tier
            explained = request()
            explained.assume("customer", str(acme.pk))
            assert str(explained.entitlement(RULES).tier) == "pro"


class TestRows:
    @pytest.mark.parametrize(
        ("paths", "model"),
        [
            (("user.account", "api_key.account"), Group),
            (("customer_of",), Group),
            (("customer_awaited",), Group),
            (("told",), None),
            (("told", "user.account"), Group),
            (("user.account", "key_of"), None),  # of two models
            (("user.username",), None),
            (("no_such_function",), None),
        ],
    )
    def test_are_of_one_model_that_is_known_without_a_caller(self, paths: tuple[str, ...], model: Any) -> None:
        with customer(*paths):
            assert customers.customer_model() is model

    def test_are_found_over_relations(self) -> None:
        with override_settings(AUTH_USER_MODEL="django_ratelimiter.RuleLimit"), customer("user.tier"):
            assert customers.customer_model() is Tier

    def test_have_labels_while_they_exist(self, acme: Group, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        long = Group.objects.create(name="x" * 149 + "\n")
        pks = [str(pk) for pk in (acme.pk, long.pk, long.pk + 1)]
        names = {pk: Name("customer", pk) for pk in [*pks, "no-number", "9" * 30]}
        own = {pks[0]: f"customer: pro (id {pks[0]})", pks[1]: f"customer: {'x' * 149}\\n (id {pks[1]})"}
        unnamed = {key: f"customer: {key}" for key in names}
        with customer("user.account"):
            with django_assert_num_queries(1):
                assert in_words(None, names) == unnamed | own
            with django_assert_num_queries(0):
                assert in_words(None, {"x": names["no-number"]}) == {"x": "customer: no-number"}
            assert [customers.row_of(pk) for pk in pks] == [acme, long, None]
            ann = CallerIdentity(str(User.objects.get(username="ann").pk), None, lambda _name: None)
            assert customers.of_row(ann.customer) == Customer(pks[0], "pro", "auth.Group")
        with customer("told"):
            assert (in_words(None, names), customers.row_of(pks[0])) == (unnamed, None)


def ask(client: Any, name: str | None = None, key: str = "") -> Any:
    client.logout()
    if name is not None:
        client.force_login(User.objects.get(username=name))
    return client.get("/plain/", headers={"X-API-Key": key} if key else {})


@pytest.mark.parametrize("path", [SETTINGS["CUSTOMER"], f"{__name__}.customer_awaited"])
def test_a_customer_has_one_quota_whoever_comes_for_it(either_client: Any, make_rule: MakeRule, path: Any) -> None:
    make_rule("orders", quota=3, partition_by=["customer"])
    callers = (("ann", ""), ("bob", ""), (None, "key"), ("ann", ""), (None, "key"), ("carol", ""), (None, ""))
    with override_settings(RATELIMITER=SETTINGS | {"CUSTOMER": path}):
        assert [ask(either_client, *each).status_code for each in callers] == [200, 200, 200, 429, 429, 200, 200]


@pytest.mark.parametrize(("missing", "statuses"), [("skip", [200, 200]), ("ip", [200, 429]), ("deny", [429, 429])])
def test_a_caller_without_a_customer_lacks_the_value(
    client: Client, make_rule: MakeRule, missing: str, statuses: list[int]
) -> None:
    make_rule("orders", quota=1, partition_by=["customer"], missing_partition=missing)
    assert [ask(client, "carol").status_code for _ in range(2)] == statuses
    assert ask(client, "ann").status_code == 200


def test_a_failure_marks_the_decision(client: Client, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule("orders", quota=1, partition_by=["customer"])
    assert ask(client, "carol").wsgi_request.ratelimit.degraded is False
    monkeypatch.setattr(User, "account", property(lambda _user: 1 / 0))
    found = ask(client, "ann")
    assert (found.status_code, found.wsgi_request.ratelimit.degraded) == (200, True)


def test_a_view_that_authenticates_itself_counts_the_customer_afterwards(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", partition_by=["ip"], quota=5)
    make_rule("orders", partition_by=["customer"], quota=2, missing_partition="deny")
    found = [client.get("/throttled/", headers={"X-Name": name}) for name in ("ann", "bob", "ann", "carol")]
    assert [each.status_code for each in found] == [200, 200, 429, 429]
    assert [str(result.rule) for result in found[0].wsgi_request.ratelimit.results] == ["all", "orders"]


def test_entries_for_customers_are_weaker_than_users_and_stronger_than_addresses(client: Client, acme: Group) -> None:
    AccessEntry.objects.create(kind="ip", value="127.0.0.1", action="deny")
    entry = AccessEntry(kind="customer", value=f"0{acme.pk}", action="allow")
    entry.full_clean()
    entry.save()
    assert (entry.value, str(entry)) == (str(acme.pk), f"allow customer {acme.pk}")
    callers = (("ann", ""), (None, "key"), ("carol", ""))
    assert [ask(client, *each).status_code for each in callers] == [200, 200, 403]
    AccessEntry.objects.create(kind="user", value=str(User.objects.get(username="ann").pk), action="deny")
    assert [ask(client, *each).status_code for each in callers] == [403, 200, 403]
    digests = f"customer:{digest(f'customer:{acme.pk}')}"
    AccessEntry.objects.create(kind="digest", value=digests, action="deny")
    assert [ask(client, name).status_code for name in ("bob", "carol")] == [200, 403]
    entry.delete()
    assert ask(client, "bob").status_code == 403


def test_assignments_multiply_the_one_quota(client: Client, make_rule: MakeRule, acme: Group) -> None:
    tier = Tier.objects.create(slug="pro", name="Pro")
    make_rule("orders", quota=1, tier=tier, partition_by=["customer"])
    given = TierAssignment(partition=f"customer:{acme.pk}", multiplier=2)
    given.full_clean()
    given.save()
    assert [ask(client, *each).status_code for each in (("ann", ""), (None, "key"), ("bob", ""))] == [200, 200, 429]
    [found] = grounds_of([caller_of("customer", str(acme.pk))], cache.current_rules())
    assert (found.tier.slug, found.tier.kind, found.tier.anchor_day) == ("pro", "resolver", 15)
    assert [each.pk for each in found.assignments] == [given.pk]


def test_what_names_a_deleted_customer_goes_with_it(
    client: Client, make_rule: MakeRule, acme: Group, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("orders", quota=1, partition_by=["customer"])
    for kind, value in (("customer", str(acme.pk)), ("digest", f"customer:{digest(f'customer:{acme.pk}')}")):
        AccessEntry.objects.create(kind=kind, value=value, action="deny")
    kept = AccessEntry.objects.create(kind="user", value=str(acme.pk), action="allow")
    TierAssignment.objects.create(partition=f"customer:{acme.pk}", multiplier=2)
    assert ask(client, "ann").status_code == 403
    assert [each.customer for each in caplog.records if hasattr(each, "entry")] == ["pro"]
    acme.delete()
    assert [*AccessEntry.objects.all()] == [kept]
    assert not TierAssignment.objects.exists()
    assert [ask(client, "bob").status_code for _ in range(2)] == [200, 200]


@override_settings(RATELIMITER=SETTINGS | {"TIER_RESOLVER": None})
def test_records_of_rejections_name_the_customer_where_it_is_known(
    client: Client, make_rule: MakeRule, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = make_rule("orders", quota=1, partition_by=["customer"], missing_partition="ip")
    for name in ("ann", "bob", "carol", "carol"):
        ask(client, name)
    save(rule, partition_by=["ip"])
    monkeypatch.setattr(User, "account", property(lambda _user: 1 / 0))
    assert not ask(client, "ann").wsgi_request.ratelimit.degraded  # so nobody was asked
    assert [each.customer for each in caplog.records if hasattr(each, "reference")] == ["pro", None, None]


def test_callers_read_the_name_of_the_customer() -> None:
    found = request_of(User.objects.get(username="ann"))
    assert own_report(found)["customer"] == "pro"
    assert "<p>pro</p>" in me.page(found).content.decode()
    found.user = User.objects.get(username="carol")
    assert "customer" not in own_report(found)


def test_operators_find_reset_and_forget_a_customer(client: Client, make_rule: MakeRule, acme: Group) -> None:
    make_rule("orders", quota=1, partition_by=["customer"])
    assert ask(client, "ann").status_code == 200
    found = named(caller_of("digest", whole(digest(f"customer:{acme.pk}"))))
    assert (found.kind, found.value, str(found)) == ("customer", str(acme.pk), f"customer {acme.pk}")
    assert explain(Question(user="ann", path="/plain/")).matched[0].counters[0].used == 1
    for who in (acme, acme.pk):
        assert limiter.reset(rule="orders", customer=who) == ["orders"]
    assert [ask(client, "bob").status_code for _ in range(2)] == [200, 429]
    NewAccessEntryForm({"action": "allow", "customer": acme.pk}).save()
    assert "access entries: 1" in manage("forget", f"customer:{acme.pk}")
    assert ask(client, "bob").status_code == 200


def test_lines_of_a_log_are_counted_for_the_customer(make_rule: MakeRule, acme: Group) -> None:
    make_rule("orders", partition_by=["customer"])
    rules = [cache.current_rules()]
    callers, given = LoggedCallers([], rules), LoggedCallers(["customer"], rules)
    ann = AccessLogLine(0, "GET", "/", "192.0.2.7", "ann", 200)
    callers.read_users([ann])
    assert callers.find(ann).value("customer") == str(acme.pk)
    assert given.find(ann._replace(more=("7",))).value("customer") == "7"
