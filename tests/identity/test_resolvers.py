"""API keys that the project's own code tells, and what unknown ones cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings

from django_ratelimiter.identity import hash_api_key, identify, partition
from django_ratelimiter.models import Tier, TierAssignment
from django_ratelimiter.rules import tiers, ttl_cache

ACCOUNTS = {"k1": "acme", "k2": "acme", "k3": "7", "k4": ""}
asked: list[str] = []


def account_of(raw: str) -> str | None:
    asked.append(raw)
    return ACCOUNTS.get(raw)


def fail(_: object) -> str:
    raise ConnectionError("no answer")


def seven(_: object) -> Any:
    return 7


def with_key(key: str, address: str = "192.0.2.7") -> Any:
    return identify(SimpleNamespace(META={"HTTP_X_API_KEY": key, "REMOTE_ADDR": address}))  # type: ignore[arg-type]


def has_form(raw: str) -> bool:
    return {"k": True, "i": False}[raw[0]]


def looked_up(raw: str) -> str:
    return {"known": "account"}[raw]


def resolver(name: str) -> Any:
    return override_settings(RATELIMITER={"API_KEY_RESOLVER": f"tests.identity.test_resolvers.{name}"})


@pytest.fixture(autouse=True)
def _nobody_asked() -> None:
    asked.clear()


class TestApiKeys:
    def test_count_as_what_the_resolver_says_and_have_tiers_by_themselves(self) -> None:
        with resolver("account_of"):
            assert partition(with_key("k1"), ["api_key"]) == partition(with_key("k2"), ["api_key"]) == "api_key:acme"
            assert with_key("k1").api_key == hash_api_key("k1")
            assert partition(with_key("k3"), ["api_key"]) == "api_key:7"

    @pytest.mark.parametrize("key", ["k4", "k5", "", " ", "k\xe91", "k" * 300])
    def test_that_it_does_not_know_are_none(self, key: str) -> None:
        with resolver("account_of"):
            assert partition(with_key(key), ["api_key"]) is None
            assert with_key(key).api_key is None

    def test_are_remembered_known_or_not(self) -> None:
        with resolver("account_of"):
            for _ in range(3):
                assert with_key("k1").api_key
                assert with_key("k5").api_key is None
        assert asked == ["k1", "k5"]

    @pytest.mark.parametrize("name", ["fail", "seven", "no_such_function"])
    def test_are_unknown_to_a_resolver_that_fails(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        with resolver(name):
            assert with_key("k1").api_key is None
        assert "API_KEY_RESOLVER" in caplog.text

    def test_stay_known_while_it_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with override_settings(
            RATELIMITER={"API_KEY_RESOLVER": "tests.identity.test_resolvers.account_of", "TIER_CACHE_SECONDS": 0}
        ):
            assert with_key("k1").api_key
            monkeypatch.setattr("tests.identity.test_resolvers.account_of", fail)
            assert with_key("k1").api_key
            assert with_key("k2").api_key is None

    def test_are_not_logged_when_the_resolver_fails(self, caplog: pytest.LogCaptureFixture) -> None:
        with resolver("looked_up"):
            assert with_key("s3cret-key").api_key is None
        [record] = caplog.records
        assert f"KeyError at {__file__}:" in record.getMessage()
        assert record.exc_info in (None, False)
        assert "s3cret-key" not in caplog.text

    def test_that_are_invented_ask_the_resolver_only_so_often(self, now: list[float]) -> None:
        with resolver("account_of"):
            for number in range(5000):
                assert with_key(f"invented-{number}", f"192.0.{number % 200}.7").api_key is None
                assert with_key(f"invented-{number}", f"192.0.{number % 200}.7").api_key is None
        assert len(asked) == ttl_cache.MISSES_PER_SECOND

    @pytest.mark.parametrize("addresses", [1, 9, 2000])
    def test_that_are_new_are_recognised_during_a_flood(self, addresses: int, now: list[float]) -> None:
        """With the first request, or the second: if very many addresses flood, or the key's own."""
        with resolver("account_of"):
            for number in range(2000):
                assert with_key(f"invented-{number}", f"2001:db8:0:{number % addresses:x}::1").api_key is None
            assert [with_key("k1").api_key is not None for _ in range(2)] == [addresses < 2000, True]
            assert [with_key("k3", "2001:db8::1").api_key is not None for _ in range(2)] == [False, True]

    def test_that_come_again_and_again_leave_a_share_to_other_addresses(self, now: list[float]) -> None:
        with resolver("account_of"):
            for _ in range(3):
                now[0] += 1
                for number in range(1000):
                    assert with_key(f"invented-{number % 500}", "192.0.2.66").api_key is None
            assert with_key("k1").api_key

    def test_of_another_form_are_not_looked_up(self, now: list[float]) -> None:
        own = {name: f"{__name__}.{entry}" for name, entry in (("RESOLVER", "account_of"), ("FORM", "has_form"))}
        with override_settings(RATELIMITER={f"API_KEY_{name}": path for name, path in own.items()}):
            for number in range(1000):
                assert with_key(f"invented-{number}").api_key is None
            assert with_key("k1").api_key
        assert asked == ["k1"]

    def test_are_looked_up_if_their_form_cannot_be_tested(self, caplog: pytest.LogCaptureFixture) -> None:
        own = {"API_KEY_RESOLVER": f"{__name__}.account_of", "API_KEY_FORM": f"{__name__}.has_form"}
        with override_settings(RATELIMITER=own):
            assert with_key("s3cret-key").api_key is None
        assert asked == ["s3cret-key"]
        assert "API_KEY_FORM'] failed: KeyError at" in caplog.text
        assert "s3cret-key" not in caplog.text


@pytest.mark.django_db
class TestAssignedKeys:
    def test_invented_keys_cost_few_queries_and_hide_no_key_that_is_known(self, now: list[float]) -> None:
        tier = Tier.objects.create(slug="pro", name="Pro")
        TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key("late"))
        with CaptureQueriesContext(
            connection,
        ) as queries:
            for number in range(1000):
                assert with_key(f"invented-{number}").api_key is None
            assert with_key("late").api_key == hash_api_key("late")
        assert (
            len(queries) <= 2 * ttl_cache.MISSES_PER_SECOND + 4
        )  # assignments and access entries; first of all, once, the tables

    def test_with_too_many_to_hold_an_unseen_one_is_known_the_second_time(
        self, now: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tiers, "MAX_KEYS", 0)
        tier = Tier.objects.create(slug="pro", name="Pro")
        TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key("late"))
        for number in range(200):
            assert with_key(f"invented-{number}").api_key is None
        assert with_key("late").api_key is None
        assert with_key("late").api_key

    def test_unknown_keys_do_not_fill_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ttl_cache, "CACHE_SIZE", 50)
        for number in range(200):
            assert with_key(f"invented-{number}").api_key is None
        assert len(tiers._keys._unknown) <= 50
        assert not tiers._keys._cached
