"""Inspections know EXEMPT: the command, the caller's page, the customer's page and an explanation say the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from django_ratelimiter.explain import Question, explain
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.inspection.explanation import notes_of
from django_ratelimiter.models import AccessEntry, Rule

from ..admin.callers.page import CALLER
from ..admin.pages import text_of
from ..making import manage, save
from .test_counters import ask

pytestmark = pytest.mark.django_db

EXEMPT = "RATELIMITER['EXEMPT'] lets this caller pass all rules."
UNKNOWN = "Whether this caller is exempt is not known: RATELIMITER['EXEMPT'] has failed (see the log)."


def fails(caller: Any) -> bool:
    raise LookupError("secret")


async def is_staff(caller: Any) -> bool:
    return caller.user is not None and caller.user.is_staff


def callers_of(customer: Group) -> Iterable[tuple[str, Any]]:
    return [("user", each.pk) for each in customer.user_set.all()]


def customer_of(caller: Any) -> Group | None:
    return caller.user.groups.first() if caller.user else None


@pytest.fixture
def exempt(settings: Any) -> Callable[[str], None]:
    def exempt(path: str) -> None:
        names = {"CUSTOMER": f"{__name__}.customer_of", "CUSTOMER_CALLERS": f"{__name__}.callers_of"}
        settings.RATELIMITER = {**settings.RATELIMITER, **names, "EXEMPT": path}

    return exempt


@pytest.fixture
def blocked(add_rule: Callable[..., Rule], user: User) -> User:
    """A member of the staff who has used up a quota, and of a customer."""
    add_rule("export", ["user"], quota=1, algorithm="fixed_window")
    user.groups.add(Group.objects.create(name="Acme"))
    ask(user, 3)
    save(user, is_staff=True)
    return user


def run(*caller: str) -> list[str]:
    return manage("caller", *caller).splitlines()


@pytest.mark.parametrize("path", ["user.is_staff", f"{__name__}.is_staff"])
def test_all_of_them_say_that_a_caller_is_exempt(
    admin_client: Client, exempt: Callable[[str], None], blocked: User, path: str
) -> None:
    assert run("--user", "ann")[0].endswith(": blocked")
    exempt(path)
    first, second, *others = run("--user", "ann")
    assert (first.rpartition(": ")[2], second) == ("exempt", EXEMPT)
    assert any(line.startswith("export: 1 per hour, fixed window: 1 of 1 used") for line in others)
    assert any(line.startswith("Rejected by Export") and "now: exempt (" in line for line in others)
    found = json.loads("".join(run("--user", "ann", "--json")))
    assert (found["exempt"], found["blocked"], found["blocked_shared"]) == (True, False, [])
    page = text_of(admin_client.get(f"{CALLER}?kind=user&value=id:{blocked.pk}"))
    assert f"exempt {EXEMPT}" in page
    assert "1 of 1 used" in page
    assert "reject requests of this caller" not in page
    assert notes_of(explain(Question(path="/", user="ann")))[0] == EXEMPT


def test_others_are_not_asked_about_or_not_exempt(exempt: Callable[[str], None], blocked: User, caplog: Any) -> None:
    exempt("user.is_staff")
    bob = User.objects.create_user("bob")
    ask(bob, 2)
    assert run("--user", "bob")[0].endswith(": blocked")
    AccessEntry.objects.create(kind="user", value=str(blocked.pk), action="deny")
    assert run("--user", "ann")[0].endswith(": blocked"), "entries go first"
    exempt(f"{__name__}.fails")
    for who in (["--ip", "192.0.2.7"], ["--digest", "kBL0f3VtJmHkYz8aX2cQ1w"]):
        assert json.loads("".join(run(*who, "--json")))["exempt"] is False
    assert "EXEMPT" not in caplog.text


def test_nobody_is_called_blocked_or_free_while_the_setting_fails(
    admin_client: Client, exempt: Callable[[str], None], blocked: User, caplog: Any
) -> None:
    exempt(f"{__name__}.fails")
    first, second, *others = run("--user", "ann")
    assert (first.rpartition(": ")[2], second) == ("whether it is blocked is not known", UNKNOWN)
    assert any(line.startswith("Rejected by Export") and "now: not known (" in line for line in others)
    found = json.loads("".join(run("--user", "ann", "--json")))
    assert (found["exempt"], found["blocked"]) == (None, None)
    page = text_of(admin_client.get(f"{CALLER}?kind=user&value=id:{blocked.pk}"))
    assert UNKNOWN in page
    assert "it depends If not, one rule rejects requests of this caller now: Export" in page
    assert ("LookupError" in caplog.text, "secret" in caplog.text) == (True, False)
    explained = explain(Question(path="/", user="ann"))
    assert (explained.response.allowed, notes_of(explained)[0]) == (False, UNKNOWN)


def test_the_page_of_a_customer_knows_which_of_its_users_are_exempt(
    admin_client: Client, exempt: Callable[[str], None], blocked: User
) -> None:
    exempt("customer.missing")
    customer = caller_of("customer", str(blocked.groups.get().pk))
    url = f"{CALLER}?kind=customer&value={customer.value}"
    page = text_of(admin_client.get(url))
    assert "Whether its users and keys are rejected is not known: RATELIMITER['EXEMPT'] has failed" in page
    assert (report_of(customer).exempt, report_of(customer).blocked) == (None, None)
    exempt("user.is_staff")
    assert report_of(customer).blocked is False
    page = text_of(admin_client.get(url))
    assert ("not blocked No rule rejects" in page, f"user {blocked} (id {blocked.pk}) exempt" in page) == (True, True)
    User.objects.update(is_staff=False)
    assert report_of(customer).blocked
