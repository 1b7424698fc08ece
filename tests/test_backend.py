"""The engine of a process: on which caches it can be, and that it is replaced when its settings change."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from typing import Any
from weakref import WeakValueDictionary

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from django_ratelimiter import backend
from django_ratelimiter.backend import get_async_engine, get_engine, server_in_words, wrong_location
from django_ratelimiter.checks.project import check_engine
from django_ratelimiter.conf import without_secrets
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES, open_breakers
from django_ratelimiter.engine.fallback import FallbackEngine
from django_ratelimiter.exceptions import EngineUnavailable

from .admin.overview.test_overview import nowhere

#: Counts a request, and ends without having called Redis. At its end no thread can be started, as in Python 3.12.
ENDING = """
import atexit, threading, django
django.setup()
from django_ratelimiter.backend import get_engine
get_engine().count_exempt(["ends|"], [])
atexit.register(setattr, threading.Thread, "start", None)
"""


def test_what_waits_is_sent_when_the_process_ends(redis_client: Any) -> None:
    subprocess.run([sys.executable, "-c", ENDING], check=True)
    [usage] = [redis_client.hgetall(key) for key in redis_client.scan_iter("{rl:0}:*usage:*")]
    assert usage[b"ends|\nx"] == b"1"


def test_the_breakers_of_a_former_engine_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.engine.breaker._breakers", WeakValueDictionary())
    with override_settings(CACHES=nowhere()):
        engine, twin = get_engine(), get_async_engine()

        async def fail() -> None:
            for _ in range(MAX_FAILURES):
                with suppress(EngineUnavailable):
                    engine.check(())
                with suppress(EngineUnavailable):
                    await twin.check(())

        asyncio.run(fail())
        assert open_breakers() == 1, "threads and event loops share it"
    assert get_engine() is not engine
    assert open_breakers() == 0  # although somebody still has them


@pytest.mark.parametrize(
    ("argv", "in_tests", "told"),
    [(["gunicorn", "mysite.wsgi"], False, 1), (["manage.py", "runserver"], False, 0), (["manage.py", "test"], True, 0)],
)
@override_settings(RATELIMITER={})
def test_process_that_counts_alone_logs_it_once(
    argv: list[str], in_tests: bool, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setattr(backend, "are_tests_running", lambda: in_tests)
    for _ in range(3):
        get_engine()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * told
    assert all("RATELIMITER['CACHE_ALIAS']" in record.getMessage() for record in caplog.records)


def djangos(location: Any, **options: Any) -> Any:
    """Name Django's own cache on Redis."""
    backend = "django.core.cache.backends.redis.RedisCache"
    entry = {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}
    return override_settings(
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "own": entry},
        RATELIMITER={"CACHE_ALIAS": "own", "NAMESPACE": "djangos"},
    )


@pytest.mark.parametrize("others", [[], ["redis://127.0.0.1:1/0"]])
def test_djangos_own_redis_cache_will_do(redis_url: str, others: list[str]) -> None:
    """Of several addresses, the first is written to."""
    charge = Charge("key", Limit(3, 60))

    async def check() -> bool:
        [verdict] = await get_async_engine().check([charge])
        await get_async_engine().aclose()
        return bool(verdict.allowed)

    with djangos([redis_url, *others] if others else redis_url, socket_timeout=0.5, socket_connect_timeout=0.5):
        allowed = [get_engine().check([charge])[0].allowed for _ in range(2)]
        allowed += [asyncio.run(check()), asyncio.run(check())]
        assert allowed == [True, True, True, False]
        get_engine().reset([charge])
        assert get_engine().check([charge])[0].remaining == 2


def test_an_option_that_redis_py_does_not_know_is_an_outage(redis_url: str) -> None:
    """As one is taken over from django-redis, whose options have other names."""
    with djangos(redis_url, SOCKET_TIMEOUT=0.5), pytest.raises(EngineUnavailable, match="SOCKET_TIMEOUT"):
        get_engine().check([Charge("key", Limit(3, 60))])


SECRET = "LEAK0123456789"
#: Addresses whose password is not encoded, or that lack a scheme.
WRONG = (
    f"redis://svc:{SECRET}/xyz@127.0.0.1:1/1",
    f"redis://:{SECRET}?cd@127.0.0.1:1/1",
    f"redis://:{SECRET}#cd@127.0.0.1:1/1",
    f"redis://:12,{SECRET}@127.0.0.1:1/1",
    f"redis://:12/{SECRET}@127.0.0.1:1/1",
    f"redis://svc:12?{SECRET}@127.0.0.1:1/1",
    f"redis://:{SECRET}[@127.0.0.1:1/1",
    f"redis://:{SECRET}",
    f"unix://:12/{SECRET}@/run/redis.sock",
    f":{SECRET}@127.0.0.1:1/1",
    f"{SECRET}@127.0.0.1:1",
)


def texts_of(error: BaseException | None) -> str:
    """Return the texts of an exception and of all that are chained to it, shown or not."""
    return "" if error is None else f"{error!r} {texts_of(error.__cause__)} {texts_of(error.__context__)}"


@pytest.mark.parametrize("backend", ["django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"])
@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_cannot_be_read_is_told_without_its_password(backend: str, address: str) -> None:
    entry = {"BACKEND": backend, "LOCATION": address}
    with override_settings(CACHES={"own": entry}, RATELIMITER={"CACHE_ALIAS": "own"}):
        with pytest.raises(EngineUnavailable, match=r"CACHES\['own'\]\['LOCATION'\] .* as %2F") as raised:
            get_engine()
        assert isinstance(raised.value, ImproperlyConfigured)
        [error] = check_engine()
        assert (error.id, "%2F" in error.msg) == ("django_ratelimiter.E002", True)
        assert SECRET not in f"{error} {server_in_words()} {without_secrets(entry)} {texts_of(raised.value)}"


@pytest.mark.parametrize(
    "address",
    [
        "redis://svc:a%2Fb%40@127.0.0.1:1/1",
        "rediss://h/0?password=a@b",
        "unix:///run/@x",
        "unix://:p@/run/@x?db=1",
        "redis://[::1]:1/0",
        "redis://a,redis://b/0",
    ],
)
def test_an_address_that_redis_py_reads_is_not_wrong(address: str) -> None:
    assert wrong_location({"LOCATION": address}) == ""


def test_a_factory_of_the_project_may_read_other_addresses() -> None:
    entry = {"LOCATION": "localhost:6379", "OPTIONS": {"CONNECTION_FACTORY": "shop.redis.Factory"}}
    assert wrong_location(entry) == ""
    assert wrong_location({**entry, "OPTIONS": {}}).startswith("does not begin with redis://")


@pytest.mark.parametrize("backend", ["django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"])
def test_a_message_of_the_parser_itself_is_not_repeated(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it may be one for a form of address that we take to be right."""
    monkeypatch.setattr("django_ratelimiter.backend.wrong_location", lambda _entry: "")
    entry = {"BACKEND": backend, "LOCATION": WRONG[0]}
    with (
        override_settings(CACHES={"own": entry}, RATELIMITER={"CACHE_ALIAS": "own"}),
        pytest.raises(EngineUnavailable, match=r"ValueError at .*is not shown") as raised,
    ):
        get_engine()
    assert SECRET not in texts_of(raised.value)


def test_an_address_in_place_of_an_alias_is_not_shown() -> None:
    with override_settings(RATELIMITER={"CACHE_ALIAS": f"redis://:{SECRET}@h/0"}):
        with pytest.raises(ImproperlyConfigured, match=r"CACHES has no 'redis://\(hidden\)@h/0'") as raised:
            get_engine()
        [error] = check_engine()
        assert SECRET not in f"{error} {server_in_words()} {texts_of(raised.value)}"


@pytest.mark.django_db
@pytest.mark.parametrize("subcommand", ["about", "collect", "watch", "caller", "explain", "forget"])
def test_each_subcommand_says_what_is_wrong_with_an_address(subcommand: str, caplog: pytest.LogCaptureFixture) -> None:
    arguments = {"caller": ["--ip=192.0.2.1"], "explain": ["GET", "/"], "forget": ["ip:192.0.2.1"]}
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": WRONG[0]}
    caches = {**settings.CACHES, "ratelimit": entry}
    out, said = StringIO(), ""
    with override_settings(CACHES=caches):
        try:
            call_command("ratelimit", subcommand, *arguments.get(subcommand, ()), "--json", stdout=out, stderr=out)
        except CommandError as error:
            said = texts_of(error)
    assert subcommand == "about" or "['LOCATION'] cannot be read" in said
    document, _end = json.JSONDecoder().raw_decode(out.getvalue()[out.getvalue().index("{") :])
    assert "cannot be read" in json.dumps(document)
    assert SECRET not in out.getvalue() + said + caplog.text


@pytest.mark.django_db
def test_requests_are_decided_by_failure_policies_while_the_address_is_wrong(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_ratelimiter.limiter.fallback.local", FallbackEngine())  # which has logged nothing yet
    view = ratelimit(key="ip", rate="1/minute")(lambda _request: HttpResponse())
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": WRONG[0]}
    with override_settings(CACHES={**settings.CACHES, "ratelimit": entry}):
        assert view(RequestFactory().get("/")).status_code == 200
    assert "cannot be read" in caplog.text
    assert SECRET not in caplog.text
