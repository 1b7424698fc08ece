"""The rates of `@ratelimit`: what splits their counts, what users of django-ratelimit write, and outages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import ResolverMatch, path
from django.utils import translation

import django_ratelimiter
from django_ratelimiter import core, exceptions
from django_ratelimiter.decorators import ALL, UNSAFE, Ratelimited, get_usage, is_ratelimited, ratelimit
from django_ratelimiter.models import AccessEntry, Tier
from django_ratelimiter.rules import inline

from ..limiter.test_limiter import Broken
from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock")]

factory = RequestFactory()


@pytest.mark.parametrize("stand_in", [SimpleNamespace(), ResolverMatch, SimpleNamespace(kwargs={"pk": 5}, route="x/")])
def test_request_with_a_stand_in_for_its_match_is_decided(stand_in: object, make_rule: MakeRule) -> None:
    """Allowed, rejected, and denied by an access entry."""
    make_rule("part", 9, partition_by=["path:pk"])

    @ratelimit(key="ip", rate="1/h")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def ask(address: str) -> HttpResponse:
        request = factory.get("/", REMOTE_ADDR=address)
        request.resolver_match = stand_in  # type: ignore[assignment]
        return view(request)

    AccessEntry.objects.create(action="deny", kind="ip", value="192.0.2.7")
    assert ask("192.0.2.8").status_code == 200
    for address in ("192.0.2.8", "192.0.2.7"):
        with pytest.raises(Ratelimited) as rejected:
            ask(address)
    assert rejected.value.decision.access is not None


def limited(view: Callable[[HttpRequest], Any], *requests: HttpRequest) -> list[bool]:
    """Whether each request is limited."""
    for request in requests:
        view(request)
    return [request.limited for request in requests]  # type: ignore[attr-defined]


def noting(**arguments: Any) -> Callable[[HttpRequest], None]:
    """A view that only notes whether a request is limited."""

    @ratelimit(**({"key": "ip", "rate": "1/d", "block": False, "group": "noting"} | arguments))
    def view(request: HttpRequest) -> None:
        pass

    return view


def asked(number: int, **options: Any) -> list[HttpRequest]:
    return [factory.get("/", **options) for _ in range(number)]


def test_blocking_raises_what_is_a_permission_denied() -> None:
    view = noting(block=True)
    view(*asked(1))
    with pytest.raises(PermissionDenied, match="Zu viele Anfragen") as raised, translation.override("de"):
        view(*asked(1))
    assert isinstance(raised.value, Ratelimited)
    assert raised.value.decision.retry_after == 86_400


class Own(Exception):
    pass


@pytest.mark.parametrize("exception", [Own, f"{__name__}.Own"])
def test_an_exception_of_ones_own(exception: Any) -> None:
    view = noting(block=True)
    with override_settings(RATELIMIT_EXCEPTION_CLASS=exception):
        view(*asked(1))
        with pytest.raises(Own):
            view(*asked(1))


@pytest.mark.parametrize("settings", [{"RATELIMIT_ENABLE": False}, {"RATELIMITER": {"ENABLED": False}}])
def test_all_rates_and_the_limiter_can_be_switched_off(settings: dict[str, Any]) -> None:
    with override_settings(**settings):
        assert limited(noting(), *asked(3)) == [False] * 3
        assert get_usage(*asked(1), group="noting", key="ip", rate="1/d") is None


def own_rate(group: str, request: HttpRequest) -> Any:
    return {"/none": None, "/zero": "0/s", "/pair": (1, 60)}.get(request.path, "2/m")


@pytest.mark.parametrize("rate", [own_rate, f"{__name__}.own_rate"])
def test_rates_by_request(rate: Any) -> None:
    view = noting(rate=rate)
    for url, expected in (("/none", [0, 0, 0]), ("/zero", [1, 1, 1]), ("/pair", [0, 1, 1]), ("/", [0, 0, 1])):
        assert limited(view, *(factory.get(url) for _ in range(3))) == expected, url


@pytest.mark.parametrize(
    ("key", "requests", "expected"),
    [
        ("get:q", [factory.get("/", {"q": q}) for q in "aba"], [0, 0, 1]),
        ("post:q", [factory.post("/", {"q": q}) for q in "aba"], [0, 0, 1]),
        ("post:name", [factory.post("/", {"name": name}) for name in ("ann", "ANN ", "Bob")], [0, 1, 0]),
        ("header:x-real-ip", [factory.get("/", headers={"X-Real-IP": ip}) for ip in "aba"], [0, 0, 1]),
        ("header:x-missing", [factory.get("/", REMOTE_ADDR=f"203.0.113.{n}") for n in (1, 2, 1)], [0, 0, 1]),
        ("ip", [factory.get("/", REMOTE_ADDR=f"203.0.113.{n}") for n in (1, 2, 1)], [0, 0, 1]),
        ("query:q", [factory.get("/", {"q": q}) for q in "aba"], [0, 0, 1]),
        ("cookie:q", [factory.get("/", HTTP_COOKIE=f"q={q}") for q in "aba"], [0, 0, 1]),
        ("host", [factory.get("/", HTTP_HOST=host) for host in ("a.test", "b.test", "A.test:80")], [0, 0, 1]),
        ("host", [factory.get("/", HTTP_HOST="x", REMOTE_ADDR=f"203.0.113.{n}") for n in (1, 2, 1)], [0, 0, 1]),
    ],
)
def test_keys(key: str, requests: list[HttpRequest], expected: list[int], settings: Any) -> None:
    settings.ALLOWED_HOSTS = [".test", "testserver"]
    assert limited(noting(key=key), *requests) == expected


def test_users_have_counts_of_their_own_and_others_count_by_address() -> None:
    users = [User.objects.create(username=name) for name in ("ann", "bob")]
    for key in ("user", "user_or_ip"):
        requests = []
        for user in (*users, AnonymousUser(), *users, AnonymousUser()):
            [request] = asked(1)
            request.user = user
            requests.append(request)
        assert limited(noting(key=key), *requests) == [False] * 3 + [True] * 3


@pytest.mark.parametrize("key", ["nothing", "header", "cookie", "cookies:x", "path:1", "", ("ip",)])
def test_what_is_no_key_is_an_error_at_once(key: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"is not a valid key\. Write"):
        ratelimit(key=key, rate="1/m")


RATES = {
    "100/s": (100, 1),
    "100/10s": (100, 10),
    "100/10": (100, 10),
    "5/10m": (5, 600),
    "100/h": (100, 3_600),
    "1/d": (1, 86_400),
    "0/s": (0, 1),
    "0/minute": (0, 60),
    "5/week": (5, 604_800),
    "10/minute": (10, 60),
    "10 per 30 seconds": (10, 30),
}


def test_rates() -> None:
    assert {rate: inline.parse_rate(rate) for rate in RATES} == RATES


@pytest.mark.parametrize(
    "rate",
    ["5/hour garbage", "5/month", "5", "/m", "5/", "5/0s", "", "five/m", "-1/m", "0/x", 5, b"5/m", (5,), (-1, 60)],
)
def test_what_is_no_rate_is_rejected_at_once(rate: Any) -> None:
    with pytest.raises(ImproperlyConfigured):
        ratelimit(key="ip", rate=rate)


@pytest.mark.parametrize(
    ("usage_of", "is_over"),
    [(get_usage, is_ratelimited), (async_to_sync(core.aget_usage), async_to_sync(core.ais_ratelimited))],
    ids=["sync", "async"],
)
def test_usage_can_be_looked_at_and_spent(usage_of: Any, is_over: Any) -> None:
    look = partial(usage_of, group="a", key="ip", rate="1/m")
    free = {"count": 0, "limit": 1, "should_limit": False, "time_left": 0}
    assert look(*asked(1)) == look(*asked(1)) == free
    assert look(*asked(1), increment=True) == {"count": 1, "limit": 1, "should_limit": False, "time_left": 60}
    for increment in (True, False):
        usage = look(*asked(1), increment=increment)
        assert usage == {"count": 2, "limit": 1, "should_limit": True, "time_left": 60}
        assert {type(value) for value in usage.values()} == {int, bool}
    assert is_over(*asked(1), group="a", key="ip", rate="1/m")
    assert not is_over(*asked(1), group="b", key="ip", rate="1/m", increment=True)
    assert look(*asked(1), rate="0/m") == {"count": 1, "limit": 0, "should_limit": True, "time_left": 60}
    assert look(*asked(1), rate=None) is None
    with pytest.raises(ImproperlyConfigured):
        usage_of(*asked(1), key="ip", rate="1/m")


def test_what_has_to_wait_does_so_in_a_thread() -> None:
    def user_of(_group: str, request: HttpRequest) -> str:
        return str(User.objects.count())

    usage = async_to_sync(core.aget_usage)(*asked(1), group="a", key=user_of, rate="1/m", increment=True)
    assert usage is not None
    assert usage["count"] == 1


def test_another_name_of_the_package_is_enough() -> None:
    assert (core.get_usage, core.is_ratelimited) == (get_usage, is_ratelimited)
    assert exceptions.Ratelimited is Ratelimited
    assert (django_ratelimiter.ALL, django_ratelimiter.UNSAFE) == (ALL, UNSAFE)
    assert ratelimit.ALL is get_usage.ALL is is_ratelimited.ALL is ALL  # type: ignore[attr-defined]
    assert ratelimit.UNSAFE == ["DELETE", "PATCH", "POST", "PUT"]  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from django_ratelimiter.exceptions import NoSuchError  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("name", ["key", "rate", "cost", "cost_after"])
def test_coroutine_function_is_an_error_where_it_is_written(name: str) -> None:
    async def given(*_arguments: Any) -> Any: ...

    with pytest.raises(ImproperlyConfigured, match=rf"{name} must be a function without async"):
        ratelimit(**({"key": "ip", "rate": "1/m"} | {name: given}))


async def native_key(group: str, request: HttpRequest) -> str:
    raise AssertionError


def test_dotted_path_of_a_coroutine_function_is_an_error_and_no_new_counter_for_each_request() -> None:
    with pytest.raises(ImproperlyConfigured, match="native_key must be a function without async"):
        noting(key=f"{__name__}.native_key")(*asked(1))


def test_method_that_does_not_exist_is_an_error_of_usage_as_well() -> None:
    with pytest.raises(ImproperlyConfigured, match="'GETT' is no method"):
        is_ratelimited(*asked(1), group="a", key="ip", rate="1/m", method="GETT")


@pytest.mark.parametrize("written", [{"group": "rows"}, {"key": "ip", "rate": "10/d", "group": None}])
def test_cost_by_request_is_charged(make_rule: MakeRule, either_way: Any, written: dict[str, Any]) -> None:
    make_rule("rows", quota=10, scope="rows")

    def rows(request: HttpRequest) -> int | None:
        if "blocking" in request.GET:
            User.objects.count()  # on an event loop this needs a thread
        return int(request.GET["n"]) if "n" in request.GET else None

    limited = either_way(ratelimit(**written, cost=rows), lambda request: True)
    assert all(limited(factory.get("/", query)) for query in ({"n": 4}, {"n": 0}, {"n": 5, "blocking": 1}, {}))
    with pytest.raises(Ratelimited):
        limited(factory.get("/"))


def test_wrong_value_of_a_cost_function_is_named_and_nothing_is_charged() -> None:
    def wrong(request: HttpRequest) -> Any:
        return {"/text": "3", "/negative": -1}.get(request.path, 1.5)

    view = noting(rate="1/d", cost=wrong)
    for url, value in (("/text", "'3'"), ("/negative", "-1"), ("/", "1.5")):
        with pytest.raises(
            ImproperlyConfigured, match=rf"<locals>\.wrong returned {value}\. cost: must be .*, not {value}"
        ):
            view(factory.get(url))
    assert limited(noting(rate="1/d"), *asked(2)) == [False, True]


def test_a_cost_is_spent_but_for_a_rate_that_lets_none_pass() -> None:
    assert limited(noting(rate="5/d", cost=2), *asked(3)) == [False, False, True]
    assert limited(noting(rate="0/d", cost=2), *asked(1)) == [True]


@pytest.mark.parametrize(("key", "vary"), [("ip", None), ("header:x-key", None), ("user_or_ip", "Cookie")])
def test_a_rate_in_code_reads_the_session_if_it_counts_by_user_or_if_there_are_tiers(
    make_rule: MakeRule, key: str, vary: str | None
) -> None:
    view = ratelimit(key=key, rate="9/d")(lambda request: HttpResponse())
    response = ask_with_session(view)
    assert response.get("Vary") == vary
    make_rule("all", quota=9, tier=Tier.objects.create(slug="pro", name="Pro"), path="/elsewhere/", path_kind="exact")
    assert ask_with_session(view).get("Vary") == "Cookie"


def ask_with_session(view: Any) -> Any:
    """Ask a view below the middleware for sessions and users."""
    return SessionMiddleware(AuthenticationMiddleware(view))(factory.get("/"))  # type: ignore[arg-type]


# While Redis is out of reach


@pytest.fixture
def outage(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())


def allowed(either_way: Any, times: int, **arguments: Any) -> list[bool]:
    """Whether a view with a rate of 4 a day answers each of so many requests."""
    given: dict[str, Any] = {"key": "ip", "rate": "4/d", "group": "outage", **arguments}
    limited = either_way(ratelimit(**given), lambda request: True)
    answers = []
    for request in asked(times):
        try:
            answers.append(limited(request))
        except Ratelimited:
            answers.append(False)
    return answers


@pytest.mark.parametrize(
    ("policy", "fail_open", "expected"),
    [
        (None, None, [True, True, False]),  # half of the rate in each process
        ("local", None, [True, True, False]),
        ("open", None, [True, True, True]),
        ("closed", None, [False, False, False]),
        (None, True, [True, True, True]),  # RATELIMIT_FAIL_OPEN means what it means in django-ratelimit
        (None, False, [False, False, False]),
        ("local", True, [True, True, False]),
    ],
)
@pytest.mark.usefixtures("outage")
def test_a_rate_has_the_failure_policy_that_it_names_or_that_of_the_settings(
    either_way: Any, policy: str | None, fail_open: bool | None, expected: list[bool]
) -> None:
    with override_settings(**({} if fail_open is None else {"RATELIMIT_FAIL_OPEN": fail_open})):
        assert allowed(either_way, 3, failure_policy=policy) == expected


@pytest.mark.parametrize(("fail_open", "limited"), [(True, False), (False, True)])
@pytest.mark.usefixtures("outage")
def test_without_blocking_the_request_tells(fail_open: bool, limited: bool) -> None:
    [request] = asked(1)
    with override_settings(RATELIMIT_FAIL_OPEN=fail_open):
        ratelimit(key="ip", rate="4/d", block=False)(lambda request: None)(request)
        assert is_ratelimited(request, group="a", key="ip", rate="4/d", increment=True) is limited
        usage = get_usage(request, group="a", key="ip", rate="4/d")
    assert request.limited is limited  # type: ignore[attr-defined]
    assert usage == ({"count": 0, "limit": 0, "should_limit": True, "time_left": -1} if limited else None)


@ratelimit(key="ip", rate="4/d", failure_policy="closed")
def closed(request: HttpRequest) -> HttpResponse:
    return HttpResponse("never")


urlpatterns = [path("closed/", closed)]


@override_settings(ROOT_URLCONF=__name__)
@pytest.mark.usefixtures("outage")
def test_closed_is_an_outage_and_not_the_clients_doing(client: Client) -> None:
    answer = client.get("/closed/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"key": "ip", "rate": "4/d", "failure_policy": "opened"}, "'local', 'open', 'closed', not 'opened'"),
        ({"group": "mail", "failure_policy": "open"}, "needs a rate"),
        ({"rate": "4/d"}, "a rate needs a key"),
        ({"key": "ip", "rate": "4/d", "method": "GETT"}, "'GETT' is no method"),
        ({"key": "ip", "rate": "4/d", "method": ["POST", 5]}, "5 is no method"),
        ({"key": "ip", "rate": "4/d", "method": []}, "'' is no method"),
        ({"group": "mail", "cost": "3"}, "cost: must be a whole number, not '3'"),
        ({"group": "mail", "cost_after": 5}, "cost_after must be a function of the response, not 5"),
        ({"key": "ip", "rate": own_rate, "algorithm": "buckets"}, "'buckets' is unknown"),
        ({}, "group must be the name of a scope or of a counter, not None"),
        ({"group": own_rate}, "group must be the name of a scope or of a counter, not <function"),
        ({"group": "5/m", "key": "ip"}, "Write rate='5/m'"),
    ],
)
def test_wrong_argument_is_an_error_where_it_is_written(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says):
        ratelimit(**arguments)
