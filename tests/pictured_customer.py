"""The customer in the pictures of the admin's pages: an account of the example project, with keys besides its users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser, User
from django.utils import timezone

from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.plans import CallerIdentity
from django_ratelimiter.rules import cache
from example_project import models
from example_project.models import Account

#: The API keys, and their names.
KEYS: Final = {"secret-7": "shop-7", "secret-8": "shop-8"}


def find_key(raw: str) -> str | None:
    """The name of a key, in the pictures."""
    return KEYS.get(raw)


def customer_of(identity: CallerIdentity) -> Account | None:
    """The account of the user, or of a key."""
    return Account.objects.first() if identity.api_key else models.customer_of(identity)


def callers_of(account: Account) -> Iterator[tuple[str, Any]]:
    """Its users and keys."""
    yield from models.callers_of(account)
    yield from (("api_key", name) for name in KEYS.values())


def fill(author: User, user: User, ask: Callable[..., None]) -> None:
    """A customer with two users and two keys, one of which has used up its quota."""
    account = Account.objects.create(name="Acme Ltd", plan="pro")
    account.users.set([user, User.objects.create_user("rosa")])
    month = {"algorithm": "fixed_window", "calendar": "month", "timezone": timezone.get_current_timezone_name()}
    with cache.editing(author, "Rules for customers"):
        for slug, name, by, quota in (
            ("orders", "Orders per month", "customer", 500),
            ("uploads-monthly", "Uploads per month", "customer", 200),
            ("imports", "Imports per month", "api_key", 30),
        ):
            named = {"path": f"/api/{slug}/", "path_kind": "prefix", "partition_by": [by]}
            rule = Rule.objects.create(slug=slug, name=name, mode="enforce", **named)
            RuleLimit.objects.create(rule=rule, quota=quota, **month)
    for path, who, times in (("orders", user, 412), ("uploads-monthly", user, 36), ("search", user, 140)):
        ask(f"/api/{path}/", who, "192.0.2.7", times)
    for key, times in zip(KEYS, (32, 8), strict=True):
        ask("/api/imports/", AnonymousUser(), "192.0.2.7", times, HTTP_X_API_KEY=key)
