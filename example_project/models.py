"""The customers of the example: accounts, each with a plan, a billing day and users."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.db import models

from django_ratelimiter.plans import CallerIdentity, Plan


class Account(models.Model):
    """A customer. plan: the slug of a tier."""

    name = models.CharField(max_length=100)
    plan = models.CharField(max_length=50)
    billing_day = models.PositiveSmallIntegerField(default=1)
    users = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="accounts", blank=True)

    def __str__(self) -> str:
        return self.name


def customer_of(identity: CallerIdentity) -> Account | None:
    """Return the account of a caller's user."""
    return identity.user.accounts.first() if identity.user else None


def callers_of(account: Account) -> Iterator[tuple[str, int]]:
    """Yield as whom an account's requests come."""
    for pk in account.users.values_list("pk", flat=True):
        yield "user", pk


def plan_of(identity: CallerIdentity) -> Plan | None:
    """Return what a caller's account has bought."""
    return Plan(identity.customer.plan, identity.customer.billing_day) if identity.customer else None
