"""Tiers that a project's own code knows: what TIER_RESOLVER is called with, how often, and what goes on top."""

from __future__ import annotations

import asyncio
from datetime import time
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import SynchronousOnlyOperation
from django.test.utils import override_settings

from django_ratelimiter.identity import Identity, hash_api_key, identify
from django_ratelimiter.identity.users import UserByKey
from django_ratelimiter.models import Tier
from django_ratelimiter.plans import Anchor, CallerIdentity, Plan
from django_ratelimiter.rules import tiers, ttl_cache
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.tiers import Entitlement

from .build import snapshot

pytestmark = pytest.mark.django_db

RULES = RuleSet.from_snapshot(
    snapshot(
        tiers=tuple(
            {"slug": slug, "name": slug, "rank": rank, "default_for": default}
            for rank, (slug, default) in enumerate(
                (("guest", "anonymous"), ("free", "authenticated"), ("pro", "none"), ("partner", "none"))
            )
        )
    )
)


class Pair(NamedTuple):
    tier: str
    anchor_day: int


#: What the resolvers return, and the callers that they were called with.
answer: Any = None
called: list[Any] = []


def plan_of(identity: CallerIdentity) -> Any:
    called.append(identity.user_id)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def plan_awaited(identity: CallerIdentity) -> Any:
    await asyncio.sleep(0)
    called.append(identity.user and identity.user.username)
    return identity.user and identity.user.first_name


def plan_by_tenant(identity: CallerIdentity) -> Any:
    called.append(identity.user_id)
    return identity.value("header:X-Tenant") if identity.user is None else "pro"


def key_of(raw: str) -> Any:
    return User.objects.filter(username=raw).first() if raw != "text" else "acme"


def plan_of_text(identity: CallerIdentity) -> Any:
    return "partner" if (identity.api_key, identity.api_key_hash) == ("acme", hash_api_key("text")) else None


@pytest.fixture(autouse=True)
def _nobody_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called.clear()
    monkeypatch.setattr(f"{__name__}.answer", "pro")


def resolver(path: str, **others: Any) -> Any:
    own = path if path.startswith(("user.", "api_key.")) else f"{__name__}.{path}"
    return override_settings(RATELIMITER={"TIER_RESOLVER": own, **others})


def request(user: Any = None, address: str = "192.0.2.7", **fields: str) -> Identity:
    return identify(SimpleNamespace(META={"REMOTE_ADDR": address, **fields}, user=user))  # type: ignore[arg-type]


def entitlement(user: Any = None, **fields: str) -> Entitlement:
    return request(user, **fields).entitlement(RULES)


def tier(user: Any = None, **fields: str) -> str:
    return str(entitlement(user, **fields).tier)


@pytest.fixture
def ann() -> User:
    return User.objects.create(username="ann", first_name="pro")


def test_a_row_that_is_gone_is_no_key() -> None:
    for value, expected in (("auth.User:999999", None), ("acme:7", "acme:7"), ("auth.user:7", "auth.user:7")):
        assert CallerIdentity(None, "hash", {"api_key": value}.get).api_key == expected


class TestAnswers:
    @pytest.mark.parametrize(
        ("returned", "expected", "anchor"),
        [
            ("pro", "pro", None),
            (Tier(slug="pro"), "pro", None),
            (SimpleNamespace(slug="partner"), "partner", None),
            (None, "free", None),
            ("", "free", None),
            ("gold", "free", None),
            (("pro", 31), "pro", Anchor(31)),
            (Pair("pro", 15), "pro", Anchor(15)),
            (
                Plan("pro", timezone=ZoneInfo("Asia/Tokyo"), starts_at=time(6)),
                "pro",
                Anchor(None, "Asia/Tokyo", time(6)),
            ),
            (Plan(anchor_day=1), "free", Anchor(1)),
        ],
    )
    def test_are_a_slug_or_a_plan(
        self, ann: User, monkeypatch: pytest.MonkeyPatch, returned: Any, expected: str, anchor: Anchor | None
    ) -> None:
        monkeypatch.setattr(f"{__name__}.answer", returned)
        with resolver("plan_of"):
            assert entitlement(ann) == Entitlement(RULES.tiers[expected], anchor=anchor)
            assert tiers.entitlement_for(RULES, str(ann.pk), None).tier is RULES.tiers[expected]

    @pytest.mark.parametrize(
        "returned",
        [7, ("pro", 0), ("pro", True), ("pro", 1, "Mars/Base"), ("pro", 1, "UTC", "06:00"), ("a", 1, "UTC", None, 5)],
    )
    def test_of_other_kinds_are_errors_that_say_what_would_be_right(
        self, ann: User, monkeypatch: pytest.MonkeyPatch, returned: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(f"{__name__}.answer", returned)
        with resolver("plan_of"):
            assert tier(ann) == "free"
        assert "RATELIMITER['TIER_RESOLVER'] must return" in caplog.text

    def test_an_error_is_logged_and_is_no_answer(
        self, ann: User, now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(f"{__name__}.answer", ConnectionError("s3cret"))
        with resolver("plan_of"):
            assert tier(ann) == tier(ann) == "free"
            assert caplog.text.count(f"RATELIMITER['TIER_RESOLVER'] failed: ConnectionError at {__file__}:") == 1
            assert "s3cret" not in caplog.text
            monkeypatch.setattr(f"{__name__}.answer", "pro")
            now[0] += ttl_cache.RETRY_SECONDS
            assert tier(ann) == "pro"
            monkeypatch.setattr(f"{__name__}.answer", ConnectionError())
            now[0] += 5
            assert tier(ann) == "pro"  # the last one known

    def test_an_error_about_one_caller_costs_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with resolver("plan_by_tenant"):
            monkeypatch.setattr(
                CallerIdentity, "user", property(lambda self: self.value("ip") == "192.0.2.1" and 1 / 0)
            )
            assert tier(address="192.0.2.1") == "guest"
            monkeypatch.undo()
            assert tier(address="192.0.2.2", HTTP_X_TENANT="pro") == "pro"


class TestPaths:
    def test_read_the_user(self, ann: User) -> None:
        with resolver("user.first_name"):
            assert (tier(ann), tier()) == ("pro", "guest")
            assert tiers.entitlement_for(RULES, str(ann.pk), None).tier is RULES.tiers["pro"]  # from the database

    def test_read_the_user_that_a_framework_has_returned(self, ann: User) -> None:
        made = SimpleNamespace(META={}, user=AnonymousUser(), auth=ann)
        with resolver("user.first_name"):
            assert str(identify(made).entitlement(RULES).tier) == "pro"  # type: ignore[arg-type]

    def test_a_row_that_does_not_exist_is_the_default(
        self, ann: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def profile(user: User) -> Any:
            raise Tier.DoesNotExist

        monkeypatch.setattr(User, "profile", property(profile), raising=False)
        with resolver("user.profile.plan"):
            assert tier(ann) == "free"
        assert caplog.text == ""

    def test_an_attribute_that_does_not_exist_is_an_error_for_users_only(
        self, ann: User, caplog: pytest.LogCaptureFixture
    ) -> None:
        device = SimpleNamespace(is_authenticated=True, pk=7)
        with resolver("user.nothing"):
            assert tier(device) == "free"
            assert caplog.text == ""
            assert tier(ann) == "free"
        assert "AttributeError" in caplog.text

    def test_read_the_row_that_the_resolver_of_keys_has_found(self, ann: User) -> None:
        with resolver("api_key.first_name", API_KEY_RESOLVER=f"{__name__}.key_of"):
            found = request(HTTP_X_API_KEY="ann")
            assert found.value("api_key") == f"auth.User:{ann.pk}"
            assert str(found.entitlement(RULES).tier) == "pro"
            assert (tier(HTTP_X_API_KEY="bob"), tier()) == ("guest", "guest")

    def test_a_function_gets_the_text_that_it_has_returned(self) -> None:
        with resolver("plan_of_text", API_KEY_RESOLVER=f"{__name__}.key_of"):
            assert tier(HTTP_X_API_KEY="text") == "partner"

    def test_a_stand_in_for_a_user_has_the_users_plan(self, ann: User) -> None:
        with resolver("user.first_name"):
            assert tier(UserByKey(str(ann.pk))) == "pro"


class TestCalls:
    def test_are_made_once_for_a_caller_in_tier_cache_seconds(self, ann: User, now: list[float]) -> None:
        with resolver("plan_of"):
            for address in ("192.0.2.1", "192.0.2.2"):
                assert tier(ann, address=address) == "pro"
            assert len(called) == 1
            now[0] += 5
            assert tier(ann) == "pro"
            assert len(called) == 2
            assert tier(User.objects.create(username="bob")) == "pro"
            assert len(called) == 3

    def test_are_told_apart_by_what_they_read(self, ann: User) -> None:
        with resolver("plan_by_tenant"):
            for tenant in ("partner", "pro", "partner"):
                assert tier(HTTP_X_TENANT=tenant) == tenant
                assert tier(ann, HTTP_X_TENANT=tenant) == "pro"
        assert called == [None, str(ann.pk), None]

    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ttl_cache, "CACHE_SIZE", 10)
        with resolver("plan_by_tenant"):
            for number in (*range(10), 0, 9, 10, 0):
                tier(HTTP_X_TENANT=str(number))
        assert len(called) == 12  # the eleventh emptied it

    @pytest.mark.parametrize("path", ["plan_of", "plan_awaited", "user.first_name"])
    def test_never_block_an_event_loop(self, ann: User, path: str) -> None:
        async def ask() -> list[str]:
            with pytest.raises(SynchronousOnlyOperation):
                tier(ann)
            found = await asyncio.gather(*(sync_to_async(tier)(ann) for _ in range(5)))
            return [*found, tier(ann)]  # cached

        with resolver(path):
            assert asyncio.run(ask()) == ["pro"] * 6
        assert len(called) <= 1

    def test_of_a_coroutine_are_made_in_a_thread_too(self, ann: User) -> None:
        with resolver("plan_awaited"):
            assert (tier(ann), tier()) == ("pro", "guest")
        assert called == ["ann", None]
