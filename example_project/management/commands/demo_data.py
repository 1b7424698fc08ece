"""`manage.py demo_data`: fills the database with the tiers, users, API keys and rules of `catalogue.py`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group, User
from django.core.management.base import BaseCommand
from rest_framework.authtoken.models import Token

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules.cache import editing

from ... import catalogue


class Command(BaseCommand):
    """Can be repeated: it restores the demo's own rows and does not change others."""

    help = "Loads the example's tiers, users, API keys and rules, and an administrator."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--password", default=catalogue.PASSWORD, help="of the user admin")

    def handle(self, *args: Any, password: str, **options: Any) -> None:
        rules = (*catalogue.RULES, catalogue.CUSTOMER_RULE)
        with editing(summary="Demo data"):
            tiers = {tier.slug: _tier(tier) for tier in catalogue.TIERS}
            for rule in rules:
                _rule(rule, tiers)
        _people(tiers)
        _accounts()
        for key in catalogue.API_KEYS:
            _assign(tiers[key.tier], f"the demo's {key.key}", api_key_hash=hash_api_key(key.key))
        _administrator(password)
        self.stdout.write(
            f"Loaded {len(catalogue.TIERS)} tiers, {len(catalogue.PEOPLE)} users, {len(catalogue.ACCOUNTS)} accounts, "
            f"{len(catalogue.API_KEYS)} API keys and {len(rules)} rules. "
            f"Log in at /admin/ as {catalogue.ADMIN}, password {password}."
        )


def _tier(data: catalogue.Tier) -> Tier:
    values = {"name": data.name, "rank": data.rank, "default_for": data.default_for}
    tier, _ = Tier.objects.update_or_create(slug=data.slug, defaults=values)
    return tier


def _rule(data: catalogue.Rule, tiers: dict[str, Tier]) -> None:
    values = {
        "name": data.name,
        "mode": data.mode,
        "methods": list(data.methods),
        "path": data.path,
        "path_kind": Rule.PathKind.EXACT,
        "partition_by": list(data.partition_by),
        "missing_partition": data.missing,
        "failure_policy": data.failure_policy,
        "cost": data.cost,
        "message": data.message,
    }
    rule, _ = Rule.objects.update_or_create(slug=data.slug, defaults=values)
    rule.full_clean()
    rule.limits.all().delete()
    for tier, limits in data.limits.items():
        for limit in limits:
            row = RuleLimit(rule=rule, tier=tiers[tier] if tier else None, **_columns(limit))
            row.full_clean()
            row.save()


def _columns(limit: catalogue.Limit) -> dict[str, Any]:
    if not limit.quota:
        return {"unlimited": True}
    return {
        "algorithm": limit.algorithm,
        "quota": limit.quota,
        "window_seconds": limit.window,
        "burst": limit.burst,
    }


def _people(tiers: dict[str, Tier]) -> None:
    for person in catalogue.PEOPLE:
        user, created = User.objects.get_or_create(username=person.name)
        if created:
            user.set_unusable_password()
            user.save()
        Token.objects.update_or_create(user=user, defaults={"key": person.token})
        if person.tier:
            _assign(tiers[person.tier], f"the demo's {person.name}", user=user)
        if person.group:
            group, _ = Group.objects.get_or_create(name=person.group)
            user.groups.add(group)
            _assign(tiers[catalogue.GROUPS[person.group]], "the whole group", group=group)


def _accounts() -> None:
    accounts = apps.get_model("example_project", "Account")._default_manager
    for data in catalogue.ACCOUNTS:
        values = {"plan": data.plan, "billing_day": data.billing_day}
        account, _ = accounts.update_or_create(name=data.name, defaults=values)
        account.users.set(User.objects.filter(username__in=data.people))


def _assign(tier: Tier, reason: str, **subject: Any) -> None:
    TierAssignment.objects.get_or_create(tier=tier, **subject, defaults={"reason": reason})


def _administrator(password: str) -> None:
    user, _ = User.objects.get_or_create(username=catalogue.ADMIN, defaults={"is_staff": True, "is_superuser": True})
    user.set_password(password)
    user.save()
