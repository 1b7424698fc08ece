"""Resetting a caller's counters from code, such as after a password reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.http import HttpRequest

from ..conf import has_identity, settings
from ..customers import value_of
from ..engine.base import Charge
from ..exceptions import RulesUnavailable, StaleRules
from ..identity import Identity, digest, meta_name, session_value
from ..identity.users import UserByKey
from ..rules import cache, inline
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, known_entitlement
from ..tenants import row_key
from ..values.partitions import encode_partition
from .io import IO
from .path import ATTEMPTS
from .templates import NO_RULES, RuleTemplate


async def reset_counters(io: IO, slug: str | None, given: Mapping[str, Any]) -> list[str]:
    """Reset the counters of a caller, and return the slugs of their rules. slug: of one rule; `None` = all rules.

    given: the caller's values, by the names that rules are split by.
    """
    values, api_key = await io.look_up(_values_of, {name: value for name, value in given.items() if value is not None})
    rules = await _rules_in_force(io)
    granted = await io.look_up(known_entitlement, rules, values, api_key)
    charges = {
        rule.slug: _charges(rules, rule, digest(value), granted)
        for rule in _rules_named(rules, slug)
        for value in [_partition(rule, values)]
        if value is not None
    }
    if slug is not None and slug not in charges:
        raise ValueError(_why_not(rules, slug))
    engine = await io.engine()
    await engine.reset([charge for found in charges.values() for charge in found])
    return [*charges]


async def _rules_in_force(io: IO) -> RuleSet:
    """Return the rules that the engine decides by now: their names of counters may differ from those of older rules."""
    for _ in range(ATTEMPTS):
        rules = await io.look_up(cache.current_rules, together=True)
        try:
            await io.check(NO_RULES, rules.compared_as)
        except StaleRules as stale:
            await io.look_up(cache.reload, stale, rules, together=True)
        else:
            return rules
    raise RulesUnavailable(f"The rules were replaced {ATTEMPTS} times during one reset.")


def _values_of(given: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Return the caller's values as a request of this caller has them, and the hash of the key. Raises ValueError."""
    if not given:
        raise ValueError("reset: name the caller, as in reset(user=user) or reset(ip=address).")
    request = HttpRequest()
    identity = Identity(request)
    for name, value in given.items():
        if not has_identity(name):
            raise ValueError(f"reset: rules are not split by {name!r}.")
        if name == "user":
            request.user = value if hasattr(value, "pk") else UserByKey(str(value))  # type: ignore[assignment]
        elif name == "ip":
            request.META["REMOTE_ADDR"] = str(value).partition("/")[0]
        elif name == "api_key":
            value = row_key(value) if hasattr(value, "pk") else value
            request.META[meta_name(settings.API_KEY_HEADER)] = value
            identity.assume(name, identity.value(name) or value)
        else:
            own = session_value(value) or "" if hasattr(value, "session_key") else str(value)
            identity.assume(name, value_of(value) if name == "customer" and hasattr(value, "pk") else own)
    values = {name: identity.value(name) for name in given}
    if missing := [name for name, value in values.items() if value is None]:
        raise ValueError(f"reset: {', '.join(missing)} must be the value of a caller, not {given[missing[0]]!r}.")
    return {name: value for name, value in values.items() if value is not None}, identity.api_key


def _rules_named(rules: RuleSet, slug: str | None) -> Iterable[RuleRecord]:
    return [rule for rule in (*rules.rules, *inline.registered()) if slug is None or rule.slug == slug]


def _partition(rule: RuleRecord, values: Mapping[str, str]) -> str | None:
    """Return the value that splits the rule's counters for this caller; `None` = not known, or all callers share one.

    A rule that counts requests without a value by address has a counter of the address, too. A rate in code by
    `user_or_ip` counts by user.
    """
    by_user = ("user",) if rule.partition_by == ("user_or_ip",) else ()
    for names in (rule.partition_by, by_user, ("ip",) if rule.missing_partition == "ip" else ()):
        if names and values.keys() >= {*names}:
            return encode_partition([(name, values[name]) for name in names])
    return None


def _charges(rules: RuleSet, rule: RuleRecord, partition: str, granted: Entitlement) -> list[Charge]:
    """Return a charge for each of the rule's counters of this partition, whatever tier the caller has or had."""
    tiers = [rules.tiers.get(tier) if tier else None for tier in rule.limits]
    templates = [RuleTemplate(rule, Entitlement(tier, anchor=own)) for tier in tiers for own in {None, granted.anchor}]
    charges = [each.fill(partition) for template in templates for each in template.charges(None, None)]
    return [*{(charge.key, charge.limit.tag): charge for charge in charges}.values()]


def _why_not(rules: RuleSet, slug: str) -> str:
    """Return why no counter of this rule can be reset for a caller."""
    rule = next(iter(_rules_named(rules, slug)), None)
    if rule is None:
        return f"reset: there is no rule {slug!r}."
    if not rule.partition_by:
        return f"reset: all callers share the counters of {slug!r}; reset them in the admin."
    return f"reset: {slug!r} is split by {' and '.join(rule.partition_by)}; give these values of the caller."
