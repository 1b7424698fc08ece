"""The settings: what is read, what is rejected, and that tests may override them."""

from __future__ import annotations

import logging
from ipaddress import ip_network
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.test.utils import override_script_prefix

from django_ratelimiter.backend import get_engine
from django_ratelimiter.conf import asset_paths, problems, settings
from django_ratelimiter.engine.memory import MemoryEngine
from django_ratelimiter.engine.redis import RedisEngine


def ratelimiter(**entries: Any) -> Any:
    return override_settings(RATELIMITER=entries)


@ratelimiter()
def test_defaults_need_no_entry() -> None:
    assert settings.ENABLED is True
    assert settings.CACHE_ALIAS is None
    assert (settings.NAMESPACE, settings.SHARDS) == ("rl", 64)
    assert (settings.VERSION_CHECK_INTERVAL, settings.RULES_MAX_AGE, settings.TIER_CACHE_SECONDS) == (1.0, 10.0, 5.0)
    assert (settings.IPV4_PREFIX, settings.IPV6_PREFIX, settings.LOCAL_SHARE) == (32, 64, 0.5)
    assert (settings.EXEMPT_PATHS, settings.WITHOUT_RULES) == (None, "open")
    assert settings.HEADERS == ("ratelimit", "x-ratelimit")
    assert not settings.TRUSTED_PROXIES.networks
    assert problems() == []


def test_no_ratelimiter_at_all_is_right() -> None:
    with override_settings():
        del django_settings.RATELIMITER
        settings.forget()
        assert settings.NAMESPACE == "rl"
        assert problems() == []
    settings.forget()


def test_a_second_access_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with ratelimiter(NAMESPACE="once"):
        assert settings.NAMESPACE == "once"
        monkeypatch.setattr("django_ratelimiter.conf._written", None)
        assert settings.NAMESPACE == "once"


RIGHT = [
    ("API_KEY_RESOLVER", "shop.keys.account_of", "shop.keys.account_of"),
    ("TIER_RESOLVER", "shop.limits.tier_of", "shop.limits.tier_of"),
    ("API_KEY_FORM", "shop.keys.has_form", "shop.keys.has_form"),
    ("TIER_RESOLVER", None, None),
    *(("CUSTOMER", path, ("user.account",)) for path in ("user.account", ["user.account"])),
    ("CUSTOMER", ["api_key"], ("api_key",)),
    ("IDENTITIES", {"tenant": "shop.limits.tenant_of"}, {"tenant": "shop.limits.tenant_of"}),
    ("TRUSTED_IDENTITIES", ["header:X-Tenant", "tenant"], ("header:X-Tenant", "tenant")),
    ("EXACT_FIELDS", ["field:code"], ("field:code",)),
    ("REVEAL", ["header:X-Org", "ip/64", "tenant"], ("header:X-Org", "ip/64", "tenant")),
    ("ENABLED", False, False),
    ("VERSION_CHECK_INTERVAL", 0, 0.0),
    ("SHARDS", 1024, 1024),
    ("CLOCK", "client", "client"),
    ("DEADLINE_MS", 250, 250.0),
    ("RULES_MAX_AGE", 60, 60.0),
    ("LOCAL_SHARE", 1, 1.0),
    ("WITHOUT_RULES", "closed", "closed"),
    ("IPV6_PREFIX", 128, 128),
    ("EXEMPT_PATHS", ["/health/"], ("/health/",)),
    ("EXEMPT_PATHS", (), ()),
    ("HEADERS", ["ratelimit", "expose"], ("ratelimit", "expose")),
    ("RESPONSE", "mysite.rejections.reject", "mysite.rejections.reject"),
    ("RESPONSE", "mysite/slow-down.html", "mysite/slow-down.html"),
    ("HEADERS", (), ()),
    ("API_KEY_HEADER", "X-Client-Key", "X-Client-Key"),
]


@pytest.mark.parametrize(("name", "written", "value"), RIGHT)
def test_a_right_value_is_read(name: str, written: object, value: object) -> None:
    with ratelimiter(**{name: written}):
        assert getattr(settings, name) == value
        assert problems() == []


LOGGED: dict[str, list[Any]] = {
    "API_KEY_RESOLVER": ["account_of", len],
    "TIER_RESOLVER": ["shop.limits:tier_of"],
    "CUSTOMER": ["account", "user.", ["user.account", 1], 1],
    "EXEMPT": ["is_staff"],
    "IDENTITIES": [
        ["tenant"],
        {"customer": "shop.limits.customer_of"},
        {"header": "shop.limits.header"},
        {"header:X-A": "shop.limits.header"},
        {"shoe size": "shop.limits.size"},
        {"tenant": "tenant_of"},
        {"tenant": len},
    ],
    "TRUSTED_IDENTITIES": ["header:X-Tenant", ["field:email"]],
    "EXACT_FIELDS": [["code"]],
    "REVEAL": ["user", [1], ["no identity"], ["session"], ["cookie:cart"], ["header:Cookie"], ["header:X-Api_Key"]],
    "ENABLED": ["false", 1],
    "DEADLINE_MS": [0, None],
    "VERSION_CHECK_INTERVAL": [-1, "1", True, float("nan")],
    "RULES_MAX_AGE": [0, float("inf")],
    "TIER_CACHE_SECONDS": [None],
    "API_KEY_HEADER": ["X-Ключ", "X Key"],
    "IPV4_PREFIX": [0, 33],
    "IPV6_PREFIX": [64.0],
    "LOCAL_SHARE": [0, 1.1],
    "WITHOUT_RULES": ["local", None],
    "EXEMPT_PATHS": ["/health/", ["health/"]],
    "HEADERS": ["ratelimit", ["x-rate-limit"]],
    "RESPONSE": ["reject", "slow down.txt", print],
}


@pytest.mark.parametrize("name", LOGGED)
def test_a_wrong_value_is_logged_and_its_default_used(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with ratelimiter():
        default = getattr(settings, name)
    for written in LOGGED[name]:
        with ratelimiter(**{name: written}), caplog.at_level(logging.ERROR):
            assert getattr(settings, name) == default
            [problem] = problems()
        assert problem.entry == name
        assert ("user." in problem.right) is (name in ("CUSTOMER", "EXEMPT", "TIER_RESOLVER"))
        assert f"RATELIMITER[{name!r}] is {written!r}; it must be {problem.right}." in caplog.text


RAISED: dict[str, list[Any]] = {
    "ENGINE": ["engine", object],
    "CACHE_ALIAS": ["", 1],
    "NAMESPACE": ["{rl}", ""],
    "HASH_KEY": ["", 5],
    "TRUSTED_PROXIES": [
        "10.0.0.0/8",
        ["10.0.0.1/8"],
        ["proxy.example.com"],
        ["0.0.0.0/0"],
        ["::ffff:0:0/96"],
        ["fe80::1%eth0"],
        [None],
        [["10.0.0.0/8"]],
        -1,
        21,
        [0],
        [1, 2],
        [1, "10.0.0.0/8"],
        ["10.0.0.0/8", "forwarded", "x-forwarded-for"],
        ["10.0.0.0/8", "forwarded", "cf-connecting-ip"],
        ["10.0.0.0/8", "nginx-proxy"],
        ["cf-connecting-ip"],
        True,
    ],
    "SHARDS": [0, 1025, "64"],
}


@pytest.mark.parametrize("name", RAISED)
def test_what_no_default_can_stand_in_for_is_raised(name: str) -> None:
    for written in RAISED[name]:
        with ratelimiter(**{name: written}):
            with pytest.raises(ImproperlyConfigured, match=rf"RATELIMITER\['{name}'\] is .*; it must be "):
                getattr(settings, name)
            assert [problem.entry for problem in problems()] == [name]


def test_what_is_no_dict_is_a_problem_and_raised() -> None:
    with override_settings(RATELIMITER=["rl"]):
        assert [tuple(problem) for problem in problems()] == [("RATELIMITER", "is a list", "a dict of entries")]
        with pytest.raises(ImproperlyConfigured, match="must be a dict, not a list"):
            _ = settings.ENABLED


def test_a_wrong_hash_key_is_not_shown() -> None:
    with ratelimiter(HASH_KEY=["top secret"]), pytest.raises(ImproperlyConfigured) as raised:
        _ = settings.HASH_KEY
    assert "top secret" not in str(raised.value)


def test_the_hash_key_follows_the_secret_key_unless_given() -> None:
    with override_settings(SECRET_KEY="one", RATELIMITER={}):
        one = settings.HASH_KEY
    with override_settings(SECRET_KEY="two", RATELIMITER={}):
        two = settings.HASH_KEY
    with override_settings(SECRET_KEY="two", RATELIMITER={"HASH_KEY": "long " * 50}):
        given = settings.HASH_KEY
    with override_settings(SECRET_KEY="three", RATELIMITER={"HASH_KEY": b"long " * 50}):
        assert given == settings.HASH_KEY
    assert len({one, two, given}) == 3
    assert {len(one), len(two), len(given)} == {64}


def test_trusted_proxies_are_networks_or_a_number() -> None:
    with ratelimiter(TRUSTED_PROXIES=["10.0.0.0/8", "unix", "::1", "::ffff:192.0.2.0/120"]):
        trusted = settings.TRUSTED_PROXIES
    assert trusted.networks == (ip_network("10.0.0.0/8"), ip_network("::1/128"), ip_network("192.0.2.0/24"))
    assert trusted.unix is True
    assert trusted.hops == 0
    with ratelimiter(TRUSTED_PROXIES=2):
        assert settings.TRUSTED_PROXIES.hops == 2
        assert settings.TRUSTED_PROXIES.field is None
    with ratelimiter(TRUSTED_PROXIES=["10.0.0.0/8", "forwarded"]):
        assert settings.TRUSTED_PROXIES.field == "forwarded"
        assert len(settings.TRUSTED_PROXIES.networks) == 1
    with ratelimiter(TRUSTED_PROXIES=[2, "unix", "x-forwarded-for"]):
        trusted = settings.TRUSTED_PROXIES
    assert (trusted.hops, trusted.networks, trusted.unix, trusted.field) == (2, (), True, "x-forwarded-for")


@pytest.mark.parametrize(
    ("prefix", "static", "media", "paths"),
    [
        (None, "/static/", "/media/", ("/static/", "/media/")),
        (None, "static/", "/media/", ("/static/", "/media/")),
        (None, "static/", "", ("/static/",)),  # Django makes the site's own beginning of an unset MEDIA_URL
        (None, "https://cdn.example.com/", "//cdn.example.com/media/", ()),
        (None, None, "", ()),
        (None, "/", "/", ()),
        ("/shop", "/shop/static/", "/shop/media/", ("/static/", "/media/")),
        ("/shop/", "static/", "media/", ("/static/", "/media/")),
        ("/shop", "/static/", "https://cdn.example/", ()),  # these are another site's
        ("/shop", "/shop/", "", ()),
        ("/shop", "/shopping/", None, ()),
    ],
)
def test_asset_paths_are_paths_of_this_site(
    prefix: str | None, static: Any, media: Any, paths: tuple[str, ...]
) -> None:
    with override_settings(FORCE_SCRIPT_NAME=prefix, STATIC_URL=static, MEDIA_URL=media):
        assert asset_paths() == paths
        with override_script_prefix("/shop/"):
            assert asset_paths() == paths


def test_no_prefix_that_a_client_names_stays_in_the_settings() -> None:
    """Django keeps STATIC_URL with the prefix of whoever asks first, so the limiter does not ask."""
    with override_settings(STATIC_URL="static/", MEDIA_URL="media/"):
        with override_script_prefix("/evil/"):
            assert asset_paths() == ("/static/", "/media/")
        assert (django_settings.STATIC_URL, django_settings.MEDIA_URL) == ("/static/", "/media/")
    with override_settings(STATIC_URL="static/"):
        with override_script_prefix("/evil/"):
            assert django_settings.STATIC_URL == "/evil/static/"
        assert asset_paths()[0] == "/static/"


OWN = MemoryEngine()


def own_engine() -> MemoryEngine:
    return OWN


def test_the_engine_is_that_of_the_settings_and_is_forgotten_when_they_change() -> None:
    with ratelimiter():
        first = get_engine()
        assert isinstance(first, MemoryEngine)
        with override_settings(DEBUG=True):
            assert get_engine() is first
        with ratelimiter(NAMESPACE="other"):
            assert get_engine() is not first
    with ratelimiter(CACHE_ALIAS="ratelimit"):
        assert isinstance(get_engine().engine, RedisEngine)  # type: ignore[attr-defined]
        assert get_engine() is get_engine()
    with ratelimiter(ENGINE="tests.test_conf.own_engine", CACHE_ALIAS="ratelimit"):
        assert get_engine() is OWN
