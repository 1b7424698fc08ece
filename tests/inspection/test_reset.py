"""A reset of a caller's counters: what it takes, what it does, that it is checked and logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.exceptions import PermissionDenied, ValidationError

from django_ratelimiter.backend import get_engine
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.inspection.caller import Caller, caller_of
from django_ratelimiter.inspection.reset import log_of, reset
from django_ratelimiter.models import Rule

from ..limiter.test_limiter import Broken
from .test_counters import ask, counter

pytestmark = pytest.mark.django_db

AddRule = Callable[..., Rule]
Do = Callable[..., tuple[str, bool]]


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser("operator")


@pytest.fixture
def caller(user: User) -> Caller:
    return caller_of("user", str(user.pk))


@pytest.fixture
def then(add_rule: AddRule, user: User, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have a caller blocked by "export", and let something happen at once after each reset."""
    add_rule("export", ["user"], quota=2)
    ask(user, 2)
    reset_now = get_engine().reset

    def happens(act: Callable[[], object]) -> None:
        monkeypatch.setattr(get_engine(), "reset", lambda charges: (reset_now(charges), act()))

    return happens


@pytest.fixture
def do(operator: User, caller: Caller) -> Do:
    """Reset counters of the caller: `do("export:c60")`; without names, all."""

    def reset_them(*names: str, reason: str = "he called") -> tuple[str, bool]:
        return reset(operator, caller, names, reason)

    return reset_them


def test_resets_all_counters_and_says_that_it_took(
    add_rule: AddRule, caller: Caller, user: User, operator: User, do: Do
) -> None:
    for slug in ("export", "search"):
        add_rule(slug, ["user"], quota=2)
    add_rule("all", [])
    ask(user, 2)
    text, took = do()
    assert text == "Reset 2 counters: export, search. Checked: none of them blocks the caller now."
    assert took
    assert ask(user).allowed
    assert counter(caller, "all").used == 3  # all callers' counter is left alone
    [entry] = LogEntry.objects.all()
    assert entry.change_message == "Reset 2 counters: export, search. Reason: he called"
    assert (entry.user, entry.object_repr, entry.object_id) == (operator, f"user {user.pk}", caller.digest)
    assert log_of(caller) == [(entry.action_time, str(operator), entry.change_message)]


def test_resets_one_counter(add_rule: AddRule, caller: Caller, user: User, do: Do) -> None:
    add_rule("export", ["user"])
    add_rule("search", ["user"])
    ask(user)
    do(counter(caller, "export").name)
    assert (counter(caller, "export").used, counter(caller, "search").used) == (0, 1)
    with pytest.raises(ValidationError, match=r"There is no such counter .* The caller's counters: \S+, \S+\."):
        do(counter(caller, "export").name, "nothing:c60")
    Rule.objects.all().delete()
    with pytest.raises(ValidationError, match="No rule in force counts this caller"):
        do()


def test_a_lease_that_hangs_is_freed_by_a_reset_of_its_counter(
    add_rule: AddRule, caller: Caller, user: User, do: Do
) -> None:
    add_rule("jobs", ["user"], algorithm="concurrency", quota=2)
    ask(user, 2)
    jobs = counter(caller, "jobs")
    assert (jobs.blocked, jobs.charge.limit.holds_leases) == (True, True)
    assert do(jobs.name)[0] == "Reset 1 counter: jobs. Checked: none of them blocks the caller now."
    assert counter(caller, "jobs").used == 0


def test_needs_its_own_permission(caller: Caller) -> None:
    others = Permission.objects.filter(content_type__app_label="django_ratelimiter").exclude(codename="unblock_caller")
    staff = User.objects.create_user("staff", is_staff=True)
    staff.user_permissions.set(others)
    with pytest.raises(PermissionDenied):
        reset(staff, caller, [], "why not")
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("reason", ["", "  ", "x" * 201, "a\0"])
def test_a_reason_is_required(reason: str, add_rule: AddRule, user: User, caller: Caller, do: Do) -> None:
    add_rule("export", ["user"])
    ask(user)
    with pytest.raises(ValidationError):
        do(reason=reason)
    assert (LogEntry.objects.exists(), counter(caller, "export").used) == (False, 1)


def test_what_redis_may_have_done_is_logged(add_rule: AddRule, monkeypatch: pytest.MonkeyPatch, do: Do) -> None:
    add_rule("export", ["user"])

    monkeypatch.setattr(get_engine(), "reset", Broken().check)
    with pytest.raises(EngineUnavailable):
        do()
    [entry] = LogEntry.objects.all()
    assert entry.change_message == "Tried, without an answer from Redis. Reason: he called"


def test_what_could_not_be_looked_up_afterwards_is_not_said_to_have_taken(
    then: Any, user: User, monkeypatch: pytest.MonkeyPatch, do: Do
) -> None:
    then(lambda: monkeypatch.setattr(get_engine(), "peek", Broken().peek))
    text, took = do()
    assert not took
    assert text.endswith("It could not be checked, because Redis does not answer now.")
    assert ask(user).allowed  # it was done


def test_who_is_blocked_again_at_once_is_said_to_be(then: Any, user: User, do: Do) -> None:
    then(lambda: ask(user, 2))
    text, took = do()
    assert text == "Reset 1 counter: export. Still blocked by: export."
    assert not took
